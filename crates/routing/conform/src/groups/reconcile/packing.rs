//! `reconciler_packing`: generated Pods and slices, step by step.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

use nearhop_core::hint::capacity::measure_capacity;
use nearhop_core::model::{
    AddressType, Addresses, ContainerPort, Node, Pod, Service, Slice, SlicePort,
};
use nearhop_core::slice::{PodOnNode, endpoint_ports, new_slice, pod_to_endpoint};
use nearhop_core::{Family, Labels, Name, PodKey, Protocol};
use serde_json::Value;

use super::super::Case;
use super::bench::Bench;
use crate::check::Check;
use crate::objects;
use crate::read::{CaseError, Field};
use crate::text::{evaluate, positions};

/// Maximum number of Pods of one step, and of one slice.
const MOST_PODS: usize = 100_000;
/// The highest Pod number with a distinct address in 10.0.0.0/8.
const HIGHEST_POD: usize = (1 << 24) - 1;

/// Runs the steps of a row on one bench.
pub(in super::super) fn packing(case: &Case<'_>, check: &mut Check<'_>) -> Result<(), CaseError> {
    let mut bench = Bench::new(case)?;
    let nodes = objects::nodes(&case.row.get("nodes")?)?;
    if case.row.get("topology_cache")?.flag()? {
        bench.capacity = Some(measure_capacity(&nodes));
    }
    let by_name: BTreeMap<&Name, &Node> = nodes.iter().map(|node| (&node.name, node)).collect();
    let mut written = case.row.get("service")?.required()?.value().clone();
    let mut first: Vec<Slice> = Vec::new();
    for (at, step) in case.row.get("steps")?.required()?.list()?.iter().enumerate() {
        if let Some(patch) = step.get("service_patch")?.optional() {
            json_patch::merge(&mut written, patch.value());
        }
        let service = objects::service(&case.row.get("service")?.with(&written))?;
        let factory = PodFactory { service: &service, ports: case.row.get("pod_named_ports")? };
        let mut pods = factory.pods(&step.get("pods")?)?;
        let existing = step.get("existing")?;
        match existing.value() {
            Value::String(text) if text == "previous" => {}
            Value::String(text) if text == "same-as-step-0" => bench.put(first.iter().cloned()),
            _ => bench.put(factory.slices(&existing, &pods)?),
        }
        if at == 0 {
            first = bench.stored();
        }
        make_unready(&step.get("then_unready")?, &mut pods)?;
        let node_of = |pod: &Pod| pod.node.as_ref().and_then(|node| by_name.get(node)).copied();
        let pods: Vec<PodOnNode<'_>> = pods.iter().map(|(_, pod)| (pod, node_of(pod))).collect();
        bench.reconcile(&service, &pods);
        if step.has("expect") {
            check.fields(step, |key| bench.value(key))?;
        }
    }
    Ok(())
}

/// Pods by number, in list order.
type Pods = Vec<(usize, Pod)>;

fn make_unready(text: &Field<'_>, pods: &mut Pods) -> Result<(), CaseError> {
    if text.is_null() {
        return Ok(());
    }
    let most = pods.len();
    let list = match text.value() {
        Value::Array(_) => {
            text.list()?.iter().map(|item| item.count(most)).collect::<Result<Vec<_>, _>>()?
        }
        _ => positions(text.text()?, most).unwrap_or_default(),
    };
    if list.is_empty() {
        return Err(text.error("does not name list positions of the step's pods, such as 0,5,7"));
    }
    for at in list {
        let (_, pod) = pods.get_mut(at).ok_or_else(|| text.error("is beyond the list of pods"))?;
        pod.ready = false;
    }
    Ok(())
}

/// Generates Pods and the slices that hold them.
struct PodFactory<'a> {
    service: &'a Service,
    /// Name of a container port to an expression of the Pod's number.
    ports: Field<'a>,
}

impl PodFactory<'_> {
    fn pods(&self, ranges: &Field<'_>) -> Result<Pods, CaseError> {
        let (mut given, mut list) = (BTreeSet::new(), Pods::new());
        for range in ranges.list()? {
            let every = range.get("unready_mod")?.count_or(0, HIGHEST_POD)?;
            for number in numbers(&range, MOST_PODS - list.len())? {
                if !given.insert(number) {
                    return Err(range.error(format!("gives pod{number} twice")));
                }
                let ready = every == 0 || !number.is_multiple_of(every);
                list.push((number, Pod { ready, ..self.pod(number)? }));
            }
        }
        Ok(list)
    }

    fn pod(&self, number: usize) -> Result<Pod, CaseError> {
        const NET: u32 = 10 << 24;
        let mut ports = Vec::new();
        for (name, expression) in self.ports.entries()? {
            let text = match expression.value() {
                Value::Number(number) => number.to_string(),
                _ => expression.text()?.to_owned(),
            };
            let port = evaluate(&text, number as i64).and_then(|port| u16::try_from(port).ok());
            let port = port.ok_or_else(|| {
                expression.error(format!("{text:?} gives no port number for i = {number}"))
            })?;
            let name = Name::from(name);
            ports.push(ContainerPort { name, port, protocol: Protocol::Tcp });
        }
        let namespace = self.service.key.namespace.clone();
        Ok(Pod {
            ips: Addresses::One(Ipv4Addr::from(NET + number as u32).into()),
            node: Some(Name::from("node-1")),
            ports: ports.into(),
            ..Pod::new(PodKey::new(namespace, format!("pod{number}")))
        })
    }

    fn slices(&self, list: &Field<'_>, pods: &Pods) -> Result<Vec<Slice>, CaseError> {
        let known: BTreeMap<usize, &Pod> =
            pods.iter().map(|(number, pod)| (*number, pod)).collect();
        let mut slices: Vec<Slice> = Vec::new();
        let (mut names, mut held) = (BTreeSet::new(), 0);
        for row in list.list()? {
            let name = row.get("name")?;
            if name.text()?.is_empty() || !names.insert(name.text()?) {
                return Err(name.error("must be there, and of one slice only"));
            }
            let members = row.get("members")?.optional();
            let members =
                members.map_or(Ok(Vec::new()), |range| numbers(&range, MOST_PODS - held))?;
            held += members.len();
            slices.push(self.slice(&row, &members, &known)?);
        }
        Ok(slices)
    }

    /// A slice as in the note of the file: no labels, the ports of the Service, endpoints without a zone.
    fn slice(
        &self,
        row: &Field<'_>,
        members: &[usize],
        known: &BTreeMap<usize, &Pod>,
    ) -> Result<Slice, CaseError> {
        let address_type = row.get("address_type")?.text_or(Family::Ipv4.as_str())?;
        let mut endpoints = Vec::new();
        let mut ports: Option<Vec<SlicePort>> = None;
        for number in members {
            // A slice may contain deleted Pods.
            let gone = self.pod(*number)?;
            let pod = known.get(number).copied().unwrap_or(&gone);
            ports.get_or_insert_with(|| endpoint_ports(self.service, pod));
            endpoints.extend(pod_to_endpoint(self.service, pod, None, Family::Ipv4));
        }
        let ports = ports.unwrap_or_else(|| {
            endpoint_ports(self.service, &Pod::new(PodKey::new("test", "none")))
        });
        let given = row.get("ports")?;
        let owner = row.get("owner_uid")?.set_name()?;
        let empty = new_slice(self.service, &Labels::default(), AddressType::parse(address_type));
        Ok(Slice {
            name: Name::from(row.get("name")?.text()?),
            labels: row.get("labels")?.labels()?,
            owners: vec![owner.unwrap_or_else(|| self.service.uid.clone())],
            ports: if given.is_null() { Arc::from(ports) } else { objects::slice_ports(&given)? },
            endpoints,
            ..empty
        })
    }
}

/// The numbers of a generator `{from, to, step}`, without `to`.
fn numbers(range: &Field<'_>, most: usize) -> Result<Vec<usize>, CaseError> {
    let from = range.get("from")?.count_or(0, HIGHEST_POD)?;
    let to = range.get("to")?.count(HIGHEST_POD)?;
    let step = range.get("step")?.count_or(1, HIGHEST_POD)?;
    if step == 0 {
        return Err(range.get("step")?.error("must be at least 1"));
    }
    if to.saturating_sub(from).div_ceil(step) > most {
        return Err(range.error(format!("gives more than {MOST_PODS} pods")));
    }
    Ok((from..to).step_by(step).collect())
}
