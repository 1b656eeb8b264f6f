//! Plans of Services that request topology-aware routing, with the fixtures of their files.

use std::collections::BTreeMap;

use nearhop_core::hint::capacity::measure_capacity;
use nearhop_core::labels::well_known;
use nearhop_core::model::{Endpoint, Node, Pod, Service};
use nearhop_core::slice::PodOnNode;
use nearhop_core::{Gate, Name, ServiceKey};
use serde_json::{Map, Value, json};

use super::super::Case;
use super::bench::Bench;
use super::rows::{kept_slice, numbered_pod};
use crate::check::Check;
use crate::diff::Rule;
use crate::objects::{self, usual_service};
use crate::read::{CaseError, Field};

/// Allocatable CPU of the nodes in both fixtures.
const CPU_MILLI: u64 = 100;

/// The Service of a row, in the fixture's namespace and with the row's annotation and field.
fn service(case: &Case<'_>, fixture: &Field<'_>) -> Result<Service, CaseError> {
    let mut service = usual_service();
    let namespace = fixture.get("namespace")?.text_or("test")?;
    service.key = ServiceKey::new(namespace, service.key.name.clone());
    let field = fixture.get("annotation_key")?;
    let key = field.text_or("service.kubernetes.io/topology-aware-hints")?;
    let value = case.row.get("annotation")?;
    if !value.is_null() {
        let annotations = json!({ key: value.text()? });
        service.topology = objects::topology_spec(&field.with(&annotations))?;
    }
    service.topology.traffic_distribution = case.row.get("traffic_distribution")?.set_name()?;
    Ok(service)
}

/// `reconciler_topology_hints`: thirty nodes in three zones, a Pod on each, some of them in
/// existing slices.
pub(in super::super) fn topology_hints(
    case: &Case<'_>,
    check: &mut Check<'_>,
) -> Result<(), CaseError> {
    const PER_ZONE: usize = 10;
    let fixture = case.file.get("fixture")?.required()?;
    let service = service(case, &fixture)?;
    let mut bench = Bench::new(case)?;
    let mut nodes: Vec<Node> = Vec::new();
    for zone in ["zone-a", "zone-b", "zone-c"] {
        let node = |at| zoned_node(format!("node-{zone}-{at}"), zone);
        nodes.extend((0..PER_ZONE).map(node));
    }
    if case.row.get("topology_cache")?.flag()? {
        bench.capacity = Some(measure_capacity(&nodes));
    }
    let pods: Vec<Pod> = (nodes.iter().enumerate())
        .map(|(number, node)| numbered_pod(&service, number, &node.name))
        .collect();
    let (mut wanted, mut slices) = (BTreeMap::new(), Vec::new());
    for name in case.row.get("existing")?.list()? {
        let numbers = fixture.get("slices")?.get(name.text()?)?;
        let numbers = numbers.required().map_err(|_| name.error("is no slice of the fixture"))?;
        let member = |number: &Field<'_>| number.count(pods.len() - 1);
        let members = numbers.list()?.iter().map(member).collect::<Result<Vec<_>, _>>()?;
        let on_nodes = || members.iter().map(|number| (&pods[*number], Some(&nodes[*number])));
        slices.push(kept_slice(&service, &bench.controller().clone(), name.text()?, on_nodes()));
        wanted.extend(members.iter().copied().zip(on_nodes()));
    }
    bench.put(slices);
    let wanted: Vec<PodOnNode<'_>> = wanted.into_values().collect();
    bench.reconcile(&service, &wanted);
    check.fields(&case.row, |key| match key {
        "hints_by_zone" => {
            Some((Rule::Exact, counts_or_null(hint_counts(&bench, Endpoint::hint_zones))))
        }
        "cross_zone_hints" => Some((Rule::Exact, json!(cross_zone(&bench)))),
        _ => bench.value(key),
    })
}

/// `reconciler_traffic_distribution`: Pods on nodes in zones, no slices before.
pub(in super::super) fn traffic_distribution(
    case: &Case<'_>,
    check: &mut Check<'_>,
) -> Result<(), CaseError> {
    let fixture = case.file.get("fixture")?.required()?;
    let service = service(case, &fixture)?;
    let mut bench = Bench::new(case)?;
    if !case.row.get("prefer_same_gate")?.flag()? {
        bench.gates = bench.gates.without(Gate::PreferSameTrafficDistribution);
    }
    let mut nodes: BTreeMap<Name, Node> = BTreeMap::new();
    for (at, row) in fixture.get("nodes")?.list()?.iter().enumerate() {
        // `node_status` is a text: all nodes are ready and have the same CPU.
        let node = Node { ready: true, cpu_milli: Some(CPU_MILLI), ..objects::node(row, at)? };
        nodes.insert(node.name.clone(), node);
    }
    let cache = case.row.get("topology_cache")?.condition()?;
    bench.capacity = cache.unwrap_or(true).then(|| measure_capacity(nodes.values()));
    let mut pods: BTreeMap<usize, Pod> = BTreeMap::new();
    for (node, numbers) in fixture.get("pods_by_node")?.entries()? {
        for number in numbers.list()? {
            let number = number.count(100_000)?;
            pods.insert(number, numbered_pod(&service, number, node));
        }
    }
    let node_of = |pod: &Pod| pod.node.as_ref().and_then(|node| nodes.get(node));
    let pods: Vec<PodOnNode<'_>> = pods.values().map(|pod| (pod, node_of(pod))).collect();
    bench.reconcile(&service, &pods);
    check.fields(&case.row, |key| match key {
        "zone_hint_counts" => Some((Rule::Exact, json!(hint_counts(&bench, Endpoint::hint_zones)))),
        "node_hint_counts" => {
            Some((Rule::Exact, counts_or_null(hint_counts(&bench, Endpoint::hint_nodes))))
        }
        "cross_zone" => Some((Rule::Exact, json!(cross_zone(&bench)))),
        _ => bench.value(key),
    })
}

fn zoned_node(name: String, zone: &str) -> Node {
    Node {
        labels: [(well_known::ZONE, zone)].into_iter().collect(),
        cpu_milli: Some(CPU_MILLI),
        ..Node::new(name)
    }
}

/// Endpoints by their only hint; endpoints with no hint or several hints have an empty name.
fn hint_counts(bench: &Bench, hints: impl Fn(&Endpoint) -> &[Name]) -> Map<String, Value> {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for endpoint in bench.endpoints() {
        let name = match hints(endpoint) {
            [only] => only.to_string(),
            _ => String::new(),
        };
        *counts.entry(name).or_default() += 1;
    }
    counts.into_iter().map(|(name, count)| (name, json!(count))).collect()
}

/// Null if no endpoint has a hint.
fn counts_or_null(counts: Map<String, Value>) -> Value {
    if counts.keys().all(String::is_empty) { Value::Null } else { Value::Object(counts) }
}

/// Endpoints with a hint for another zone.
fn cross_zone(bench: &Bench) -> usize {
    let elsewhere = |endpoint: &&Endpoint| {
        endpoint.hint_zones().iter().any(|z| Some(z) != endpoint.zone.as_ref())
    };
    bench.endpoints().filter(elsewhere).count()
}
