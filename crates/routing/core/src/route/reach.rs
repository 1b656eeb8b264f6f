//! Which nodes hard topology keys cut off: the choice of [`choose`](super::choose), made for all
//! nodes at once.
//!
//! Only the keys can cut a node off while other nodes have endpoints, so only they are judged.
//! `internalTrafficPolicy: Local` and `externalTrafficPolicy: Local` do not belong here, although
//! they drop connections as well: they are not requests for topology but Kubernetes' own fields,
//! whose users expect nodes without endpoints (load balancers skip them by their health check,
//! node agents talk to their own node). A condition that is False in normal operation would hide
//! the ones that matter. Where such a policy leaves the keys without effect on a port, the port is
//! not judged.

use std::collections::BTreeSet;

use super::choose::{PortPolicy, candidates, first_match};
use super::collect::{Agreed, RouteEndpoint, agreed_routing, place_in, port_endpoints};
use super::reason::Candidates;
use crate::key::{EndpointKey, Family, Name};
use crate::model::{AddressType, Service, ServicePort, Slice};
use crate::routing::KeyRouting;
use crate::world::Groups;

/// The label of nodes that have no endpoint: a key and its value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CutOffLabel {
    /// Position of the key in the topology keys.
    pub key: usize,
    /// The value of the nodes.
    pub value: Name,
}

/// Whether the nodes follow the requested keys. A later value is worse: ports and families of a
/// Service may differ, and the worst one counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// They follow them.
    #[default]
    Keys,
    /// The slices carry no routing that nodes can use, so nodes use the standard hints, and no node
    /// is cut off.
    None,
    /// The slices still carry other keys.
    OtherKeys,
}

/// What the hard topology keys of a Service mean for the nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// The keys, in their order.
    pub keys: Vec<Name>,
    /// Whether nodes follow them.
    pub effect: Effect,
    /// The endpoints that the choice starts from, none if no endpoint is usable.
    pub candidates: Option<Candidates>,
    /// The number of nodes.
    pub nodes: usize,
    /// The number of nodes whose clients reach no endpoint.
    pub cut_off: usize,
    /// The labels of these nodes: of each node the last key that it has.
    pub labels: BTreeSet<CutOffLabel>,
    /// Those of them that have none of the keys.
    pub unlabelled: BTreeSet<Name>,
    /// Nodes with endpoints that have none of the keys: no client reaches these endpoints.
    pub stray_nodes: BTreeSet<Name>,
    /// The number of these endpoints.
    pub stray_endpoints: usize,
    /// The ports that the nodes do not reach, if they reach others.
    pub ports: BTreeSet<Name>,
}

/// One port in one family: whether each group of nodes is cut off from it.
struct PortReach {
    label: Name,
    cut_off: Vec<bool>,
}

/// Judges the hard keys of a Service by its slices. `groups` are the nodes grouped by `keys`.
/// `None` if no port follows the keys.
pub(crate) fn judge_reach(
    service: &Service,
    slices: &[&Slice],
    keys: &[Name],
    groups: &Groups,
) -> Option<Reach> {
    if !service.is_headless() && !service.ports.iter().any(|port| follows_keys(service, port)) {
        return None;
    }
    let mut reach = Reach { keys: keys.to_vec(), ..Reach::default() };
    reach.nodes = groups.iter().map(|(_, nodes)| nodes.len()).sum();
    let mut ports = Vec::new();
    for family in service.families() {
        let routing = agreed_routing(slices.iter().copied(), family);
        for (label, endpoints) in endpoints_of_ports(service, slices, family) {
            let (chosen, kind) = candidates(&endpoints, |_| true);
            // A name has no port, and DNS publishes only ready endpoints.
            let usable = kind == Candidates::Ready || !service.is_headless();
            if kind == Candidates::None || !usable {
                continue;
            }
            if reach.candidates.is_none() {
                note_strays(&mut reach, &chosen);
            }
            reach.candidates = Some(kind);
            let cut_off = match routing {
                Agreed::Keys(routing) if !routing.soft && routing.keys == keys => {
                    find_cut_off(routing, &chosen, groups)
                }
                Agreed::Keys(_) | Agreed::Weights(_) => {
                    reach.effect = reach.effect.max(Effect::OtherKeys);
                    continue;
                }
                Agreed::Absent | Agreed::Disagrees(_) | Agreed::Broken(_) => {
                    reach.effect = reach.effect.max(Effect::None);
                    continue;
                }
            };
            ports.push(PortReach { label, cut_off });
        }
    }
    name_cut_off(&mut reach, &ports, groups);
    Some(reach)
}

/// Whether connections to a port of a Service with a cluster IP may follow the keys.
fn follows_keys(service: &Service, port: &ServicePort) -> bool {
    port.port != 0 && PortPolicy::of(service, port).uses_cluster()
}

/// The endpoints of each port that follows the keys. A headless Service has no ports for a proxy:
/// the DNS server chooses among all its addresses.
fn endpoints_of_ports<'a>(
    service: &Service,
    slices: &[&'a Slice],
    family: Family,
) -> Vec<(Name, Vec<RouteEndpoint<'a>>)> {
    if service.is_headless() {
        return vec![(Name::from(""), endpoints_of_name(slices, family))];
    }
    let ports = service.ports.iter().filter(|port| follows_keys(service, port)).map(|port| {
        let label = if port.name.is_empty() {
            Name::from(port.port.to_string())
        } else {
            port.name.clone()
        };
        let slices = slices.iter().copied();
        (label, port_endpoints(slices, family, (&port.name, port.protocol), None))
    });
    ports.collect()
}

fn endpoints_of_name<'a>(slices: &[&'a Slice], family: Family) -> Vec<RouteEndpoint<'a>> {
    let of_family = slices.iter().filter(|slice| slice.address_type == AddressType::Ip(family));
    let endpoints = of_family.flat_map(|slice| slice.endpoints.iter().map(move |e| (slice, e)));
    let read = endpoints.filter_map(|(slice, endpoint)| {
        let key = EndpointKey { ip: endpoint.addresses.first()?, port: 0 };
        let read = RouteEndpoint::read(key, endpoint, None);
        Some(RouteEndpoint { place: place_in(slice, endpoint), ..read })
    });
    read.collect()
}

/// For each group, whether no key leads its nodes to an endpoint.
fn find_cut_off(
    routing: &KeyRouting,
    endpoints: &[&RouteEndpoint<'_>],
    groups: &Groups,
) -> Vec<bool> {
    let values_at = |at: usize| -> BTreeSet<&Name> {
        endpoints.iter().filter_map(|e| e.place.get(at).and_then(Option::as_ref)).collect()
    };
    let served: Vec<BTreeSet<&Name>> = (0..routing.keys.len()).map(values_at).collect();
    let is_cut_off = |values: &[Option<Name>]| {
        let value_of = |at: usize| values.get(at).and_then(Option::as_ref);
        let find = |at: usize, value: &Name| served[at].contains(value).then_some(());
        first_match(&routing.keys, value_of, find, |_| {}).is_none()
    };
    groups.iter().map(|(values, _)| is_cut_off(values)).collect()
}

fn note_strays(reach: &mut Reach, endpoints: &[&RouteEndpoint<'_>]) {
    for endpoint in endpoints.iter().filter(|e| e.place.iter().all(Option::is_none)) {
        if let Some(node) = &endpoint.endpoint.node {
            reach.stray_endpoints += 1;
            reach.stray_nodes.insert(node.clone());
        }
    }
}

/// Counts and names the nodes that are cut off from at least one port.
fn name_cut_off(reach: &mut Reach, ports: &[PortReach], groups: &Groups) {
    for (i, (values, nodes)) in groups.iter().enumerate() {
        if !ports.iter().any(|port| port.cut_off[i]) {
            continue;
        }
        reach.cut_off += nodes.len();
        let last =
            values.iter().enumerate().rev().find_map(|(at, value)| Some((at, value.as_ref()?)));
        match last {
            Some((key, value)) => {
                reach.labels.insert(CutOffLabel { key, value: value.clone() });
            }
            None => reach.unlabelled.extend(nodes.iter().cloned()),
        }
    }
    if ports.iter().any(|port| port.cut_off != ports[0].cut_off) {
        let cut_off = ports.iter().filter(|port| port.cut_off.contains(&true));
        reach.ports = cut_off.map(|port| port.label.clone()).collect();
    }
}
