//! From a Service's slices to the endpoints of one port, and to the routing annotation.

use std::net::IpAddr;
use std::sync::Arc;

use crate::key::{EndpointKey, Family, Name, Protocol};
use crate::model::{AddressType, Conditions, Endpoint, Slice};
use crate::routing::{KeyRouting, Routing, SliceRouting, WeightTable};

/// An endpoint of one port, as a proxy reads it. Unset conditions count as ready and serving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteEndpoint<'a> {
    /// Address and port.
    pub key: EndpointKey,
    /// Whether it is ready.
    pub ready: bool,
    /// Whether it serves, even if it terminates.
    pub serving: bool,
    /// Whether it terminates.
    pub terminating: bool,
    /// Whether it is on the node that decides.
    pub local: bool,
    /// The endpoint in its slice.
    pub endpoint: &'a Endpoint,
    /// The values of the topology keys for its node, if the slice has them.
    pub place: &'a [Option<Name>],
    /// The position at which [`port_endpoints`] found it.
    pub position: Position,
}

/// The position of an endpoint in the slices of its Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Index of the slice in the input.
    pub slice: u32,
    /// Index of the endpoint in the slice.
    pub endpoint: u32,
}

impl<'a> RouteEndpoint<'a> {
    /// Whether a node may send connections to it: it is ready, or it terminates and still serves,
    /// which counts if no endpoint is ready.
    pub fn is_usable(&self) -> bool {
        self.ready || (self.serving && self.terminating)
    }

    /// Reads an endpoint of a slice.
    pub fn read(key: EndpointKey, endpoint: &'a Endpoint, node: Option<&Name>) -> Self {
        Self {
            key,
            ready: is_ready(endpoint.conditions),
            serving: endpoint.conditions.serving.unwrap_or(true),
            terminating: endpoint.conditions.terminating.unwrap_or(false),
            local: node.is_some() && endpoint.node.as_ref() == node,
            endpoint,
            place: &[],
            position: Position::default(),
        }
    }

    /// The priority among endpoints with the same key: the highest rank wins. As in upstream, an
    /// endpoint that does not terminate wins over one that does. In addition a ready endpoint
    /// always wins, so that an additional endpoint that is not ready has no effect.
    fn rank(&self) -> (bool, bool, bool) {
        (self.ready, !self.terminating, self.serving)
    }
}

fn is_ready(conditions: Conditions) -> bool {
    conditions.ready.unwrap_or(true)
}

/// The endpoints of one port in one family, sorted, without duplicate keys. `slices` are all slices
/// of the Service. Slices of other families, ports and address types are skipped, and so are
/// endpoints with an address of the wrong family.
pub fn port_endpoints<'a>(
    slices: impl IntoIterator<Item = &'a Slice>,
    family: Family,
    port: (&Name, Protocol),
    node: Option<&Name>,
) -> Vec<RouteEndpoint<'a>> {
    let mut endpoints = Vec::new();
    let of_family = |(_, s): &(usize, &Slice)| s.address_type == AddressType::Ip(family);
    for (slice_index, slice) in slices.into_iter().enumerate().filter(of_family) {
        let number = slice
            .ports
            .iter()
            .find(|p| p.name == *port.0 && p.protocol == port.1)
            .and_then(|p| p.port)
            .filter(|number| *number != 0);
        let Some(number) = number else { continue };
        endpoints.reserve(slice.endpoints.len());
        for (index, endpoint) in slice.endpoints.iter().enumerate() {
            let address = endpoint.addresses.first().filter(|ip| Family::of(*ip) == family);
            let Some(ip) = address else { continue };
            let position = Position { slice: slice_index as u32, endpoint: index as u32 };
            let read = RouteEndpoint::read(EndpointKey { ip, port: number }, endpoint, node);
            endpoints.push(RouteEndpoint { place: place_in(slice, endpoint), position, ..read });
        }
    }
    endpoints.sort_unstable_by(|a, b| {
        order(a.key).cmp(&order(b.key)).then_with(|| b.rank().cmp(&a.rank()))
    });
    endpoints.dedup_by_key(|e| e.key);
    endpoints
}

/// The endpoints of a Service port that a decision is based on, for later stages. Only their
/// positions in the slices are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortEndpoints {
    /// The slices of the Service, shared by its ports and families.
    slices: Arc<[Arc<Slice>]>,
    found: Box<[Found]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Found {
    position: Position,
    port: u16,
    local: bool,
}

impl PortEndpoints {
    /// Stores endpoints that [`port_endpoints`] found in `slices`.
    pub(crate) fn new(slices: &Arc<[Arc<Slice>]>, endpoints: &[RouteEndpoint<'_>]) -> Self {
        let found = endpoints.iter().map(|endpoint| Found {
            position: endpoint.position,
            port: endpoint.key.port,
            local: endpoint.local,
        });
        Self { slices: slices.clone(), found: found.collect() }
    }

    /// The endpoints, usable or not, sorted by key, without duplicate keys.
    pub fn iter(&self) -> impl Iterator<Item = RouteEndpoint<'_>> {
        self.found.iter().filter_map(|Found { position, port, local }| {
            let slice = self.slices.get(position.slice as usize)?;
            let endpoint = slice.endpoints.get(position.endpoint as usize)?;
            let key = EndpointKey { ip: endpoint.addresses.first()?, port: *port };
            let read = RouteEndpoint::read(key, endpoint, None);
            let place = place_in(slice, endpoint);
            Some(RouteEndpoint { place, position: *position, local: *local, ..read })
        })
    }
}

/// The key of one family as a number in the same order. Numbers compare faster than addresses.
fn order(key: EndpointKey) -> (u128, u16) {
    let ip = match key.ip {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits(),
    };
    (ip, key.port)
}

pub(crate) fn place_in<'a>(slice: &'a Slice, endpoint: &Endpoint) -> &'a [Option<Name>] {
    let SliceRouting::Valid(routing) = &slice.routing else { return &[] };
    let Routing::Keys(keys) = routing.as_ref() else { return &[] };
    let node = endpoint.node.as_ref();
    node.and_then(|node| keys.nodes.get(node)).map_or(&[], Vec::as_slice)
}

/// The routing annotation, if all slices of a Service have the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreed<'a> {
    /// No slice has one.
    Absent,
    /// Ordered keys.
    Keys(&'a KeyRouting),
    /// Zone weights.
    Weights(&'a WeightTable),
    /// This slice has another revision than the others, or none: a transition.
    Disagrees(&'a Name),
    /// This slice has an invalid annotation.
    Broken(&'a Name),
}

/// Reads the routing of a Service in one family. Only slices with ready endpoints count, or, if no
/// endpoint is ready, slices with endpoints that terminate and still serve.
pub fn agreed_routing<'a>(
    slices: impl IntoIterator<Item = &'a Slice> + Clone,
    family: Family,
) -> Agreed<'a> {
    let ready = |e: &Endpoint| is_ready(e.conditions);
    let leaving = |e: &Endpoint| {
        e.conditions.serving.unwrap_or(true) && e.conditions.terminating.unwrap_or(false)
    };
    match agreed_among(slices.clone(), family, &ready) {
        Some(agreed) => agreed,
        None => agreed_among(slices, family, &leaving).unwrap_or(Agreed::Absent),
    }
}

fn agreed_among<'a>(
    slices: impl IntoIterator<Item = &'a Slice>,
    family: Family,
    counts: &dyn Fn(&Endpoint) -> bool,
) -> Option<Agreed<'a>> {
    let mut first: Option<&Slice> = None;
    for slice in slices {
        let relevant =
            slice.address_type == AddressType::Ip(family) && slice.endpoints.iter().any(counts);
        if !relevant {
            continue;
        }
        if let SliceRouting::Broken(_) = slice.routing {
            return Some(Agreed::Broken(&slice.name));
        }
        match first {
            None => first = Some(slice),
            Some(first) if same_revision(&first.routing, &slice.routing) => {}
            Some(_) => return Some(Agreed::Disagrees(&slice.name)),
        }
    }
    Some(match &first?.routing {
        SliceRouting::Valid(routing) => match routing.as_ref() {
            Routing::Keys(keys) => Agreed::Keys(keys),
            Routing::Weights(table) => Agreed::Weights(table),
        },
        _ => Agreed::Absent,
    })
}

fn same_revision(a: &SliceRouting, b: &SliceRouting) -> bool {
    match (a, b) {
        (SliceRouting::Valid(a), SliceRouting::Valid(b)) => a.same_revision(b),
        (SliceRouting::Absent, SliceRouting::Absent) => true,
        _ => false,
    }
}
