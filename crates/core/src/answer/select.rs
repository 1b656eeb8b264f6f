//! Which endpoints a headless name is answered with: the asker's place, by the same
//! [`choose_route`] as the proxy's.
//!
//! Only published endpoints are candidates: those that are ready, which the controller says of all
//! where `publishNotReadyAddresses` is set. A proxy falls back to terminating ones; a name does
//! not, because an answer outlives the moment.

use std::net::IpAddr;
use std::sync::Arc;

use super::Asking;
use super::question::RecordType;
use super::record::Choice;
use crate::key::{EndpointKey, Family, Name, Protocol, ServiceKey};
use crate::model::{AddressType, Endpoint, Service, Slice, TrafficPolicy};
use crate::route::collect::place_in;
use crate::route::{
    Exclusion, HintGates, Place, PortPolicy, RouteEndpoint, RouteInput, RouteSet, Tier,
    agreed_routing, choose_route, explain_excluded,
};
use crate::world::World;

/// An address of a published endpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<'a> {
    pub(super) slice: &'a Slice,
    pub(super) endpoint: &'a Endpoint,
    pub(super) address: IpAddr,
    /// Its weight among those that were picked.
    pub(super) weight: u32,
}

/// Which families an answer can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    Ipv4,
    Ipv6,
    Both,
}

impl Scope {
    fn families(self) -> &'static [Family] {
        match self {
            Self::Ipv4 => &[Family::Ipv4],
            Self::Ipv6 => &[Family::Ipv6],
            Self::Both => &[Family::Ipv4, Family::Ipv6],
        }
    }
}

/// The endpoints for an answer.
pub(super) struct Picked<'a> {
    pub(super) entries: Vec<Entry<'a>>,
    pub(super) choice: Choice,
    /// Whether there were others.
    pub(super) left_out: bool,
}

/// Whether an endpoint has a name: unset counts as ready.
pub(super) fn is_published(endpoint: &Endpoint) -> bool {
    endpoint.conditions.ready.unwrap_or(true)
}

/// Whether a Service has any.
pub(super) fn has_published(world: &World, service: &Service) -> bool {
    published(world, service, None).next().is_some()
}

/// All addresses of published endpoints of a Service, of both families; those with a port, where
/// one is asked for.
pub(super) fn published<'a, 'q>(
    world: &'a World,
    service: &Service,
    port: Option<(&'q str, Protocol)>,
) -> impl Iterator<Item = Entry<'a>> + use<'a, 'q> {
    let has_port = move |slice: &&Slice| {
        port.is_none_or(|(name, protocol)| {
            slice.ports.iter().any(|p| p.name == *name && p.protocol == protocol)
        })
    };
    world.routed_slices(&service.key).filter(has_port).flat_map(|slice| {
        let endpoints = slice.endpoints.iter().filter(|endpoint| is_published(endpoint));
        endpoints.flat_map(move |endpoint| {
            let addresses = endpoint.addresses.as_slice().iter();
            let fitting = addresses.filter(|address| fits(slice, **address));
            fitting.map(move |address| Entry { slice, endpoint, address: *address, weight: 1 })
        })
    })
}

fn fits(slice: &Slice, address: IpAddr) -> bool {
    slice.address_type == AddressType::Ip(Family::of(address))
}

/// Picks the endpoints for the asker's place, and puts them in an order for this answer.
pub(super) fn pick<'a>(
    asking: &Asking<'a>,
    service: &Service,
    port: Option<(&str, Protocol)>,
    scope: Scope,
    record_type: RecordType,
) -> Picked<'a> {
    let mut entries = Vec::new();
    let mut left_out = false;
    let mut reasons = Vec::new();
    let mut dice = asking.seed.map(Dice);
    for family in scope.families() {
        let candidates = candidates(asking.world, service, port, *family);
        if candidates.is_empty() {
            continue;
        }
        let Some(place) = &asking.asker.place else {
            entries.extend(candidates);
            continue;
        };
        let set = choose(asking.world, &service.key, *family, &candidates, place);
        let mut chosen = chosen_of(candidates, &set);
        left_out |= chosen.is_empty();
        // SRV records carry weights themselves.
        if set.reason.tier == Tier::Weights && record_type != RecordType::Srv {
            dice.iter_mut().for_each(|dice| draw_zone(&mut chosen, dice));
        }
        entries.extend(chosen);
        reasons.push(set.reason);
    }
    dice.iter_mut().for_each(|dice| shuffle(&mut entries, dice));
    Picked { entries, choice: Choice { how: asking.asker.how.clone(), reasons }, left_out }
}

/// The candidates of a family, sorted, each address once.
fn candidates<'a>(
    world: &'a World,
    service: &Service,
    port: Option<(&str, Protocol)>,
    family: Family,
) -> Vec<Entry<'a>> {
    let all = published(world, service, port);
    let mut entries: Vec<Entry<'a>> =
        all.filter(|entry| Family::of(entry.address) == family).collect();
    entries.sort_unstable_by_key(|entry| entry.address);
    entries.dedup_by_key(|entry| entry.address);
    entries
}

fn choose(
    world: &World,
    service: &ServiceKey,
    family: Family,
    candidates: &[Entry<'_>],
    place: &Place,
) -> RouteSet {
    let endpoints: Vec<RouteEndpoint<'_>> =
        candidates.iter().map(|entry| as_route(entry, place.node.as_ref())).collect();
    let slices: Vec<&Slice> = world.routed_slices(service).collect();
    // Traffic policies are about packets to a cluster address, and this Service has none.
    let policy = PortPolicy {
        internal: TrafficPolicy::Cluster,
        external: TrafficPolicy::Cluster,
        exposed: false,
    };
    let decision = choose_route(RouteInput {
        policy,
        endpoints: &endpoints,
        routing: agreed_routing(slices.iter().copied(), family),
        place,
        gates: HintGates::from(&world.settings().gates),
    });
    decision.cluster.expect("a policy of Cluster uses the set over the whole cluster")
}

/// An address as a route's endpoint. A name has no port, so all have the same.
fn as_route<'a>(entry: &Entry<'a>, node: Option<&Name>) -> RouteEndpoint<'a> {
    let key = EndpointKey { ip: entry.address, port: 0 };
    let place = place_in(entry.slice, entry.endpoint);
    RouteEndpoint { place, ..RouteEndpoint::read(key, entry.endpoint, node) }
}

/// The candidates that were chosen. Both lists are sorted by address.
fn chosen_of<'a>(candidates: Vec<Entry<'a>>, set: &RouteSet) -> Vec<Entry<'a>> {
    let mut backends = set.backends.iter().peekable();
    let chosen = candidates.into_iter().filter_map(|entry| {
        let backend = backends.next_if(|backend| backend.key.ip == entry.address)?;
        Some(Entry { weight: backend.weight, ..entry })
    });
    chosen.collect()
}

/// Draws one zone by its share and keeps only its endpoints. Whatever a client does with the
/// records of one answer, over many answers each zone gets its share.
fn draw_zone(entries: &mut Vec<Entry<'_>>, dice: &mut Dice) {
    let total: u64 = entries.iter().map(|entry| u64::from(entry.weight)).sum();
    let mut at = dice.below(total);
    let drawn = entries.iter().find(|entry| {
        let weight = u64::from(entry.weight);
        let here = at < weight;
        at = at.saturating_sub(weight);
        here
    });
    let Some(zone) = drawn.map(|entry| entry.endpoint.zone.clone()) else { return };
    entries.retain(|entry| entry.endpoint.zone == zone);
}

fn shuffle(entries: &mut [Entry<'_>], dice: &mut Dice) {
    for last in (1..entries.len()).rev() {
        entries.swap(last, dice.below(last as u64 + 1) as usize);
    }
}

/// Chance from a seed (splitmix64).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below a bound, as good as evenly.
    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

/// An endpoint of a headless Service, and why it is not in an answer; nothing where it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Its address.
    pub address: IpAddr,
    /// Its node.
    pub node: Option<Name>,
    /// Its zone.
    pub zone: Option<Name>,
    /// Its share of the answers, where shares differ.
    pub weight: u32,
    /// Why it is left out.
    pub excluded: Option<Exclusion>,
}

/// Says of every endpoint of a headless Service in a family whether a place is answered with it,
/// and if not, why: with the reason of the choice. Without a place everybody is.
pub fn explain_headless(
    world: &World,
    service: &ServiceKey,
    family: Family,
    place: Option<&Arc<Place>>,
) -> (Vec<Candidate>, Option<RouteSet>) {
    let Some(service) = world.service(service) else { return (Vec::new(), None) };
    let candidates = candidates(world, service, None, family);
    let set = place.map(|place| choose(world, &service.key, family, &candidates, place));
    let node = place.and_then(|place| place.node.as_ref());
    let all = world.routed_slices(&service.key).flat_map(|slice| {
        let endpoints = slice.endpoints.iter();
        endpoints.flat_map(move |endpoint| {
            let addresses = endpoint.addresses.as_slice().iter();
            addresses.map(move |address| Entry { slice, endpoint, address: *address, weight: 0 })
        })
    });
    let mut told: Vec<Candidate> = all
        .filter(|entry| Family::of(entry.address) == family && fits(entry.slice, entry.address))
        .map(|entry| tell(&entry, set.as_ref(), node))
        .collect();
    told.sort_by_key(|candidate| candidate.address);
    (told, set)
}

fn tell(entry: &Entry<'_>, set: Option<&RouteSet>, node: Option<&Name>) -> Candidate {
    let route = as_route(entry, node);
    let excluded = match set {
        _ if !route.ready => Some(Exclusion::NotReady),
        Some(set) => explain_excluded(&route, set),
        None => None,
    };
    let backend = set.and_then(|set| set.backends.iter().find(|b| b.key == route.key));
    Candidate {
        address: entry.address,
        node: entry.endpoint.node.clone(),
        zone: entry.endpoint.zone.clone(),
        weight: backend.map_or(1, |backend| backend.weight),
        excluded,
    }
}
