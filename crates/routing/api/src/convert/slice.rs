//! EndpointSlices.

use std::fmt::Arguments;
use std::sync::Arc;

use nearhop_core::model::{
    AddressType, Addresses, Conditions, Endpoint, Hints, PodRef, Slice, SlicePort,
};
use nearhop_core::routing::SliceRouting;
use nearhop_core::{Kind, Name};

use super::Converted;
use super::reader::{Identity, Reader, read_object};
use super::value::{ADDRESS, parse_address};
use crate::field::{Field, List};
use crate::wire;

/// Converts an EndpointSlice.
///
/// An endpoint without a readable address keeps its position, but has no address and is neither
/// ready nor serving. Nodes do not choose or count it, problems of later endpoints have the right
/// positions, and the controller detects that the slice differs from the plan.
pub(crate) fn convert_slice(slice: wire::EndpointSlice) -> Converted<Slice> {
    read_object(Kind::Slice, slice.metadata, |reader, identity| {
        let Identity { namespace, name, metadata } = identity;
        let at = format_args!("metadata.annotations");
        let annotations = reader.take(metadata.annotations, at).unwrap_or_default();
        let address_type = reader.take(slice.address_type, format_args!("addressType"));
        let address_type = AddressType::parse(address_type.as_deref().unwrap_or(""));
        let at = format_args!("metadata.deletionTimestamp");
        let deleting = reader.take(metadata.deletion_timestamp, at).is_some();
        let key = "endpoints.kubernetes.io/last-change-trigger-time";
        let trigger_time =
            reader.take(annotations.trigger_time, format_args!("metadata.annotations[{key}]"));
        let at = format_args!("metadata.annotations[{}]", nearhop_core::routing::ANNOTATION);
        let routing = reader.take(annotations.routing, at);
        Slice {
            labels: reader.labels(metadata.labels, format_args!("metadata.labels")),
            owners: reader.owners(metadata.owner_references, "Service"),
            deleting,
            ports: read_ports(reader, slice.ports).into(),
            endpoints: read_endpoints(reader, slice.endpoints, &address_type),
            trigger_time,
            routing: SliceRouting::read(routing.as_deref()),
            namespace,
            name,
            address_type,
        }
    })
}

fn read_ports(reader: &mut Reader, field: Field<List<wire::EndpointPort>>) -> Vec<SlicePort> {
    let mut ports = Vec::new();
    for (i, port) in reader.list(field, format_args!("ports")) {
        let Some(port) = read_port(reader, port, i) else { continue };
        if port.port == Some(0) && ports.len() != i {
            reader.zero_port(format_args!("ports[{i}].port"));
        } else {
            ports.push(port);
        }
    }
    ports
}

fn read_port(reader: &mut Reader, wire: wire::EndpointPort, i: usize) -> Option<SlicePort> {
    let name = match wire.name {
        Field::Absent => Name::from(""),
        name => reader.take(name, format_args!("ports[{i}].name"))?,
    };
    let protocol = reader.protocol(wire.protocol, format_args!("ports[{i}].protocol"))?;
    let at = format_args!("ports[{i}].port");
    let port = match wire.port {
        Field::Absent => None,
        number => {
            let number = reader.take(number, at)?;
            Some(reader.port(number, at)?)
        }
    };
    let app_protocol = reader.take(wire.app_protocol, format_args!("ports[{i}].appProtocol"));
    Some(SlicePort { name, protocol, port, app_protocol })
}

/// Reads the endpoints. Endpoints of an address type that is not routed are skipped.
fn read_endpoints(
    reader: &mut Reader,
    field: Field<List<wire::Endpoint>>,
    address_type: &AddressType,
) -> Vec<Endpoint> {
    if address_type.family().is_none() {
        return Vec::new();
    }
    let all = reader.take(field, format_args!("endpoints")).unwrap_or_default();
    let mut endpoints = Vec::with_capacity(all.len());
    for (i, endpoint) in all.into_iter().enumerate() {
        let at = format_args!("endpoints[{i}]");
        let endpoint = reader.element(endpoint, at).unwrap_or_default();
        endpoints.push(read_endpoint(reader, endpoint, at));
    }
    endpoints
}

fn read_endpoint(reader: &mut Reader, wire: wire::Endpoint, at: Arguments<'_>) -> Endpoint {
    let addresses = read_addresses(reader, wire.addresses, at);
    let conditions = if addresses.as_slice().is_empty() {
        let no = Some(false);
        Conditions { ready: no, serving: no, terminating: no }
    } else {
        read_conditions(reader, wire.conditions, at)
    };
    Endpoint {
        addresses,
        conditions,
        hostname: reader.take(wire.hostname, format_args!("{at}.hostname")),
        node: reader.take(wire.node_name, format_args!("{at}.nodeName")),
        zone: reader.take(wire.zone, format_args!("{at}.zone")),
        target: read_target(reader, wire.target_ref, at),
        hints: read_hints(reader, wire.hints, at),
    }
}

fn read_addresses(reader: &mut Reader, field: Field<List<Name>>, at: Arguments<'_>) -> Addresses {
    let texts = reader.list(field, format_args!("{at}.addresses"));
    let addresses = texts.into_iter().filter_map(|(j, text)| {
        let address = parse_address(&text);
        if address.is_none() {
            let cause = format!("{} is not {ADDRESS}", nearhop_core::problem::quote(&text));
            let cure = "give an IP address; it is never chosen until then";
            reader.problem(format_args!("{at}.addresses[{j}]"), cause, cure);
        }
        address
    });
    addresses.collect()
}

fn read_conditions(
    reader: &mut Reader,
    field: Field<wire::EndpointConditions>,
    at: Arguments<'_>,
) -> Conditions {
    let wire = reader.take(field, format_args!("{at}.conditions")).unwrap_or_default();
    Conditions {
        ready: reader.take(wire.ready, format_args!("{at}.conditions.ready")),
        serving: reader.take(wire.serving, format_args!("{at}.conditions.serving")),
        terminating: reader.take(wire.terminating, format_args!("{at}.conditions.terminating")),
    }
}

fn read_target(
    reader: &mut Reader,
    field: Field<wire::ObjectReference>,
    at: Arguments<'_>,
) -> Option<PodRef> {
    let wire = reader.take(field, format_args!("{at}.targetRef"))?;
    let mut text = |field: Field<Name>, name: &str| {
        let text = reader.take(field, format_args!("{at}.targetRef.{name}"));
        text.unwrap_or_else(|| Name::from(""))
    };
    let kind = text(wire.kind, "kind");
    let pod = PodRef {
        namespace: text(wire.namespace, "namespace"),
        name: text(wire.name, "name"),
        uid: text(wire.uid, "uid"),
    };
    (kind == "Pod").then_some(pod)
}

fn read_hints(
    reader: &mut Reader,
    field: Field<wire::EndpointHints>,
    at: Arguments<'_>,
) -> Option<Arc<Hints>> {
    let wire = reader.take(field, format_args!("{at}.hints"))?;
    let zones = read_names(reader, wire.for_zones, format_args!("{at}.hints.forZones"));
    let nodes = read_names(reader, wire.for_nodes, format_args!("{at}.hints.forNodes"));
    Some(Arc::new(Hints { zones, nodes }))
}

/// The names in a list of hints. An unreadable name becomes an empty name, which no zone or node
/// has: the endpoint still counts as hinted, but matches no place.
fn read_names(reader: &mut Reader, field: Field<List<wire::Hint>>, at: Arguments<'_>) -> Vec<Name> {
    let hints = reader.take(field, at).unwrap_or_default();
    let mut names = Vec::with_capacity(hints.len());
    for (j, hint) in hints.into_iter().enumerate() {
        let name = match reader.element(hint, format_args!("{at}[{j}]")) {
            Some(hint) => reader.element(hint.name, format_args!("{at}[{j}].name")),
            None => None,
        };
        names.push(name.unwrap_or_else(|| Name::from("")));
    }
    names
}
