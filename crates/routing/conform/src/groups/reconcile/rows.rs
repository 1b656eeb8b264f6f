//! Small reconcile groups: one Pod, unknown Nodes, and the number of writes.

use std::net::Ipv4Addr;

use nearhop_core::model::{AddressType, Addresses, Endpoint, Node, Pod, Service, Slice};
use nearhop_core::slice::{PodOnNode, endpoint_ports, new_slice, pod_to_endpoint, slice_labels};
use nearhop_core::{Family, Name, PodKey};
use serde_json::json;

use super::super::Case;
use super::bench::Bench;
use crate::check::Check;
use crate::diff::Rule;
use crate::objects::{self, usual_service};
use crate::read::CaseError;

/// A ready Pod of the usual Service, by number.
pub(super) fn numbered_pod(service: &Service, number: usize, node: &str) -> Pod {
    let namespace = service.key.namespace.clone();
    Pod {
        ips: Addresses::One(Ipv4Addr::from((10 << 24) + number as u32).into()),
        node: Some(Name::from(node)),
        ..Pod::new(PodKey::new(namespace, format!("pod{number}")))
    }
}

/// A slice of the Service as the controller would have written it.
pub(super) fn kept_slice<'a>(
    service: &Service,
    controller: &Name,
    name: impl Into<Name>,
    pods: impl IntoIterator<Item = PodOnNode<'a>>,
) -> Slice {
    let pods: Vec<PodOnNode<'_>> = pods.into_iter().collect();
    let ports = pods.first().map(|(pod, _)| endpoint_ports(service, pod)).unwrap_or_default();
    let endpoint = |(pod, node): PodOnNode<'_>| pod_to_endpoint(service, pod, node, Family::Ipv4);
    let endpoints: Vec<Endpoint> = pods.into_iter().filter_map(endpoint).collect();
    let labels = slice_labels(service, controller);
    let empty = new_slice(service, &labels, AddressType::Ip(Family::Ipv4));
    Slice { name: name.into(), ports: ports.into(), endpoints, ..empty }
}

/// `reconciler_single_pod`: one Pod on one Node, no slices before.
pub(in super::super) fn single_pod(
    case: &Case<'_>,
    check: &mut Check<'_>,
) -> Result<(), CaseError> {
    let mut bench = Bench::new(case)?;
    let service = objects::service(&case.row.get("service")?.required()?)?;
    let pod = objects::pod(&case.row.get("pod")?.required()?, &service.key.namespace)?;
    let node = case.row.get("node")?.optional();
    let node = node.map(|node| objects::node(&node, 0)).transpose()?;
    let known = node.as_ref().filter(|node| pod.node.as_ref() == Some(&node.name));
    bench.reconcile(&service, &[(&pod, known)]);
    check.fields(&case.row, |key| bench.value(key))
}

/// `reconciler_missing_node`: pod0 on node-0 and pod1 on node-1; some of these nodes are known.
pub(in super::super) fn missing_node(
    case: &Case<'_>,
    check: &mut Check<'_>,
) -> Result<(), CaseError> {
    let mut bench = Bench::new(case)?;
    let publish_not_ready_addresses = case.row.get("publish_not_ready")?.flag()?;
    let service = Service { publish_not_ready_addresses, ..usual_service() };
    let known = case.row.get("known_nodes")?.names()?;
    let nodes: Vec<Node> = known.into_iter().map(Node::new).collect();
    let pods = [0, 1].map(|number| numbered_pod(&service, number, &format!("node-{number}")));
    let node_of = |pod: &Pod| nodes.iter().find(|node| pod.node.as_ref() == Some(&node.name));
    if case.row.get("existing_slice")?.flag()? {
        let all = pods.iter().map(|pod| (pod, None));
        bench.put([kept_slice(&service, &bench.controller().clone(), "existing", all)]);
    }
    let pods: Vec<PodOnNode<'_>> = pods.iter().map(|pod| (pod, node_of(pod))).collect();
    bench.reconcile(&service, &pods);
    check.fields(&case.row, |key| bench.value(key))
}

/// `reconciler_finalize`: the number of slices to create, update and delete.
///
/// The lists come from a real plan with one endpoint per slice: a Pod without a slice causes a
/// create, an unready Pod an update, and a deleted Pod a delete. The slices to-update and
/// to-delete exist in every row.
pub(in super::super) fn finalize(case: &Case<'_>, check: &mut Check<'_>) -> Result<(), CaseError> {
    let mut bench = Bench::one_per_slice(case)?;
    let service =
        Service { deleting: case.row.get("service_deleting")?.flag()?, ..usual_service() };
    let lists = case.row.get("lists")?.required()?;
    let count = |list: &str| lists.get(list)?.count_or(0, 1000);
    let (create, update, delete) = (count("create")?, count("update")?, count("delete")?);
    let node = Node::new("node-1");
    let mut pods: Vec<Pod> = Vec::new();
    let mut slices: Vec<Slice> = Vec::new();
    for (name, changing) in [("to-update", update), ("to-delete", delete)] {
        for at in 0..changing.max(1) {
            let pod = numbered_pod(&service, slices.len(), &node.name);
            let name = if at == 0 { name.to_owned() } else { format!("{name}-{at}") };
            let holds = [(&pod, Some(&node))];
            slices.push(kept_slice(&service, &bench.controller().clone(), name.as_str(), holds));
            let changes = at < changing;
            if name.starts_with("to-update") || !changes {
                pods.push(Pod { ready: !changes, ..pod });
            }
        }
    }
    let first_new = slices.len();
    pods.extend((0..create).map(|at| numbered_pod(&service, first_new + at, &node.name)));
    bench.put(slices);
    let pods: Vec<PodOnNode<'_>> = pods.iter().map(|pod| (pod, Some(&node))).collect();
    bench.reconcile(&service, &pods);
    check.fields(&case.row, |key| match key {
        "to_create_exists" => Some((Rule::Exact, json!(bench.created() > 0))),
        "to_update_exists" => Some((Rule::Exact, json!(bench.has("to-update")))),
        "to_delete_exists" => Some((Rule::Exact, json!(bench.has("to-delete")))),
        _ => bench.value(key),
    })
}
