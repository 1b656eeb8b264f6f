//! Nodes and Namespaces.

use std::net::IpAddr;

use nearhop_core::labels::well_known;
use nearhop_core::model::{Namespace, Node};
use nearhop_core::quantity::parse_cpu;
use nearhop_core::{Cidr, Kind, Name};

use super::Converted;
use super::reader::{Reader, read_object};
use super::value::{ADDRESS, CIDR, CPU, parse_address};
use crate::field::{Field, List, Quantity};
use crate::wire;

/// Converts a Node. A Node without a Ready condition is not ready.
pub(crate) fn convert_node(node: wire::Node) -> Converted<Node> {
    read_object(Kind::Node, node.metadata, |reader, identity| {
        let spec = reader.take(node.spec, format_args!("spec")).unwrap_or_default();
        let status = reader.take(node.status, format_args!("status")).unwrap_or_default();
        let allocatable = reader.take(status.allocatable, format_args!("status.allocatable"));
        let (ready, _) = read_ready(reader, status.conditions);
        let at = format_args!("metadata.deletionTimestamp");
        Node {
            name: identity.name,
            labels: reader.labels(identity.metadata.labels, format_args!("metadata.labels")),
            ready,
            cpu_milli: allocatable.and_then(|allocatable| read_cpu(reader, allocatable.cpu)),
            addresses: read_addresses(reader, status.addresses),
            pod_cidrs: read_pod_cidrs(reader, spec.pod_cidrs, spec.pod_cidr),
            deleting: reader.take(identity.metadata.deletion_timestamp, at).is_some(),
            tainted_for_deletion: read_taints(reader, spec.taints),
        }
    })
}

fn read_cpu(reader: &mut Reader, field: Field<Quantity>) -> Option<u64> {
    let Quantity(text) = reader.take(field, format_args!("status.allocatable.cpu"))?;
    let at = format_args!("status.allocatable.cpu");
    reader.text(Field::Read(text), at, parse_cpu, CPU)
}

/// The internal addresses, then the external ones, each in their order. Host names are skipped.
fn read_addresses(reader: &mut Reader, field: Field<List<wire::NodeAddress>>) -> Vec<IpAddr> {
    let (mut internal, mut external) = (Vec::new(), Vec::new());
    for (i, entry) in reader.list(field, format_args!("status.addresses")) {
        let at = format_args!("status.addresses[{i}].type");
        let Some(kind) = reader.take(entry.r#type, at) else { continue };
        let addresses = match kind.as_str() {
            "InternalIP" => &mut internal,
            "ExternalIP" => &mut external,
            _ => continue,
        };
        let at = format_args!("status.addresses[{i}].address");
        addresses.extend(reader.text(entry.address, at, parse_address, ADDRESS));
    }
    internal.append(&mut external);
    internal
}

/// `podCIDRs`, or the older `podCIDR` if it is empty.
fn read_pod_cidrs(
    reader: &mut Reader,
    several: Field<List<Name>>,
    single: Field<Name>,
) -> Vec<Cidr> {
    let several = reader.list(several, format_args!("spec.podCIDRs"));
    if several.is_empty() {
        let at = format_args!("spec.podCIDR");
        return reader.text(single, at, Cidr::parse_sloppy, CIDR).into_iter().collect();
    }
    let ranges = several.into_iter().filter_map(|(i, text)| {
        reader.text(Field::Read(text), format_args!("spec.podCIDRs[{i}]"), Cidr::parse_sloppy, CIDR)
    });
    ranges.collect()
}

/// Whether the node has the deletion taint of the cluster autoscaler, with any effect.
fn read_taints(reader: &mut Reader, field: Field<List<wire::Taint>>) -> bool {
    let mut marked = false;
    for (i, taint) in reader.list(field, format_args!("spec.taints")) {
        let key = reader.take(taint.key, format_args!("spec.taints[{i}].key"));
        marked |= key.is_some_and(|key| key == well_known::TO_BE_DELETED);
    }
    marked
}

/// Whether the Ready condition is True, and its position and lastTransitionTime if it is present.
pub(super) fn read_ready(
    reader: &mut Reader,
    conditions: Field<List<wire::Condition>>,
) -> (bool, Option<(usize, Field<Name>)>) {
    let conditions = reader.list(conditions, format_args!("status.conditions"));
    let is_ready = |condition: &wire::Condition| match &condition.r#type {
        Field::Read(text) => *text == "Ready",
        _ => false,
    };
    let Some((i, ready)) = conditions.into_iter().find(|(_, condition)| is_ready(condition)) else {
        return (false, None);
    };
    let status = reader.take(ready.status, format_args!("status.conditions[{i}].status"));
    (status.is_some_and(|status| status == "True"), Some((i, ready.last_transition_time)))
}

pub(crate) fn convert_namespace(namespace: wire::Namespace) -> Converted<Namespace> {
    read_object(Kind::Namespace, namespace.metadata, |reader, identity| {
        let at = format_args!("metadata.annotations");
        let annotations = reader.take(identity.metadata.annotations, at).unwrap_or_default();
        let at = format_args!("metadata.annotations[nearhop.dev/traffic-distribution]");
        let traffic_distribution = reader.take(annotations.traffic_distribution, at);
        Namespace { name: identity.name, traffic_distribution }
    })
}
