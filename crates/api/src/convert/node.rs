//! Nodes and Namespaces.

use nearhop_core::Name;
use nearhop_core::model::{Namespace, Node};
use nearhop_core::quantity::parse_cpu;

use super::Converted;
use super::reader::{Kind, Reader, read_object};
use super::value::CPU;
use crate::field::{Field, List, Quantity};
use crate::wire;

/// Converts a Node. One without a Ready condition is not ready.
pub fn convert_node(node: wire::Node) -> Converted<Node> {
    read_object(Kind::Node, node.metadata, |reader, identity| {
        let status = reader.take(node.status, format_args!("status")).unwrap_or_default();
        let allocatable = reader.take(status.allocatable, format_args!("status.allocatable"));
        let (ready, _) = read_ready(reader, status.conditions);
        Node {
            name: identity.name,
            labels: reader.labels(identity.metadata.labels, format_args!("metadata.labels")),
            ready,
            cpu_milli: allocatable.and_then(|allocatable| read_cpu(reader, allocatable.cpu)),
        }
    })
}

fn read_cpu(reader: &mut Reader, field: Field<Quantity>) -> Option<u64> {
    let Quantity(text) = reader.take(field, format_args!("status.allocatable.cpu"))?;
    let at = format_args!("status.allocatable.cpu");
    reader.text(Field::Read(text), at, parse_cpu, CPU)
}

/// Whether the Ready condition is True; and its position and lastTransitionTime, if it is there.
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

/// Converts a Namespace.
pub fn convert_namespace(namespace: wire::Namespace) -> Converted<Namespace> {
    read_object(Kind::Namespace, namespace.metadata, |reader, identity| {
        let at = format_args!("metadata.annotations");
        let annotations = reader.take(identity.metadata.annotations, at).unwrap_or_default();
        let at = format_args!("metadata.annotations[nearhop.dev/traffic-distribution]");
        let traffic_distribution = reader.take(annotations.traffic_distribution, at);
        Namespace { name: identity.name, traffic_distribution }
    })
}
