//! The endpoints in the answer for a headless Service. The choice uses the client's place and the
//! same [`choose_route`] as the proxy.
//!
//! Only published endpoints are candidates, which means ready endpoints; with
//! `publishNotReadyAddresses` the controller marks all endpoints as ready. A proxy falls back to
//! terminating endpoints. DNS does not, because clients cache an answer.

use std::net::IpAddr;

use super::Asking;
use super::index::{Entry, Filed, Index, fits};
use super::question::RecordType;
use super::record::Choice;
use crate::gate::Gates;
use crate::key::{EndpointKey, Family, Name, Protocol, ServiceKey};
use crate::model::TrafficPolicy;
use crate::route::collect::place_in;
use crate::route::{
    Candidates, Exclusion, HintGates, Place, PortPolicy, Reason, RouteEndpoint, RouteInput,
    RouteSet, Tier, agreed_routing, choose_route, explain_excluded,
};

/// The IP families that an answer of this type contains; none if it contains no addresses.
fn families_of(record_type: RecordType) -> &'static [Family] {
    match record_type {
        RecordType::A => &[Family::Ipv4],
        RecordType::Aaaa => &[Family::Ipv6],
        RecordType::Srv => &[Family::Ipv4, Family::Ipv6],
        _ => &[],
    }
}

/// The endpoints for an answer.
pub(super) struct Picked<'a> {
    pub(super) entries: Vec<Entry<'a>>,
    pub(super) choice: Choice,
    /// Whether there are endpoints that were not picked.
    pub(super) left_out: bool,
}

/// Picks the endpoints for the client's place, and orders them for this answer.
pub(super) fn pick<'a>(
    asking: &Asking<'a>,
    filed: &'a Filed,
    port: Option<(&str, Protocol)>,
    record_type: RecordType,
) -> Picked<'a> {
    let mut entries = Vec::new();
    let mut left_out = false;
    let mut reasons = Vec::new();
    let mut dice = asking.seed.map(Dice);
    for family in families_of(record_type) {
        let mut candidates: Vec<Entry<'a>> = filed.published_in(*family, port).collect();
        if candidates.is_empty() {
            continue;
        }
        let Some(place) = &asking.asker.place else {
            entries.extend(candidates);
            continue;
        };
        if filed.unrouted {
            reasons.push(all_endpoints());
            entries.extend(candidates);
            continue;
        }
        let set = choose(&asking.world.settings().gates, filed, *family, &candidates, place);
        keep_chosen(&mut candidates, &set);
        left_out |= candidates.is_empty();
        // SRV records contain the weights.
        if set.reason.tier == Tier::Weights && record_type != RecordType::Srv {
            dice.iter_mut().for_each(|dice| draw_zone(&mut candidates, dice));
        }
        entries.extend(candidates);
        reasons.push(set.reason);
    }
    if record_type != RecordType::Srv {
        entries.dedup_by_key(|entry| entry.address);
    }
    dice.iter_mut().for_each(|dice| shuffle(&mut entries, asking.most, dice));
    entries.truncate(asking.most);
    Picked { entries, choice: Choice { how: asking.asker.how.clone(), reasons }, left_out }
}

/// The reason if the Service requests no choice, so that all endpoints are used.
fn all_endpoints() -> Reason {
    Reason { tier: Tier::All, candidates: Candidates::Ready, tried: Vec::new() }
}

/// Chooses among candidates that are sorted by address.
fn choose(
    gates: &Gates,
    filed: &Filed,
    family: Family,
    candidates: &[Entry<'_>],
    place: &Place,
) -> RouteSet {
    let mut endpoints: Vec<RouteEndpoint<'_>> =
        candidates.iter().map(|entry| as_route(entry, place.node.as_ref())).collect();
    endpoints.dedup_by_key(|endpoint| endpoint.key);
    // Traffic policies apply to packets to a cluster IP, and this Service has none.
    let policy = PortPolicy {
        internal: TrafficPolicy::Cluster,
        external: TrafficPolicy::Cluster,
        exposed: false,
    };
    let decision = choose_route(RouteInput {
        policy,
        endpoints: &endpoints,
        routing: agreed_routing(filed.slices(), family),
        place,
        gates: HintGates::from(gates),
    });
    decision.cluster.expect("a policy of Cluster uses the set over the whole cluster")
}

/// An address as an endpoint of a route. A DNS name has no port, so all endpoints have the same
/// one.
fn as_route<'a>(entry: &Entry<'a>, node: Option<&Name>) -> RouteEndpoint<'a> {
    let key = EndpointKey { ip: entry.address, port: 0 };
    let place = place_in(entry.slice, entry.endpoint);
    RouteEndpoint { place, ..RouteEndpoint::read(key, entry.endpoint, node) }
}

/// Keeps the candidates whose address was chosen. Both lists are sorted by address, and an address
/// may be in several slices.
fn keep_chosen(candidates: &mut Vec<Entry<'_>>, set: &RouteSet) {
    let mut backends = set.backends.iter().peekable();
    candidates.retain_mut(|entry| {
        while backends.next_if(|backend| backend.key.ip < entry.address).is_some() {}
        let chosen = backends.peek().filter(|backend| backend.key.ip == entry.address);
        if let Some(backend) = chosen {
            entry.weight = backend.weight;
        }
        chosen.is_some()
    });
}

/// Draws one zone by its share and keeps only its endpoints. Over many answers each zone gets its
/// share, whichever record a client uses.
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

/// Moves `wanted` random entries to the front, in random order.
fn shuffle(entries: &mut [Entry<'_>], wanted: usize, dice: &mut Dice) {
    for at in 0..entries.len().saturating_sub(1).min(wanted) {
        let left = (entries.len() - at) as u64;
        entries.swap(at, at + dice.below(left) as usize);
    }
}

/// Pseudo-random numbers from a seed (splitmix64).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below a bound, almost uniformly distributed.
    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

/// An endpoint of a headless Service, and why it is not in an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Its address.
    pub address: IpAddr,
    /// Its node.
    pub node: Option<Name>,
    /// Its zone.
    pub zone: Option<Name>,
    /// Its share of the answers, if shares differ.
    pub weight: u32,
    /// Why it is left out; `None` if it is in the answer.
    pub excluded: Option<Exclusion>,
}

/// For every endpoint of a headless Service in a family: whether the answer for a place contains
/// it, and if not, why. Also returns the reason of the choice. Without a place, the answer contains
/// all endpoints.
pub fn explain_headless(
    index: &Index,
    gates: &Gates,
    service: &ServiceKey,
    family: Family,
    place: Option<&Place>,
) -> (Vec<Candidate>, Option<RouteSet>) {
    let Some(filed) = index.get(&service.namespace, &service.name) else {
        return (Vec::new(), None);
    };
    let candidates: Vec<Entry<'_>> = filed.published_in(family, None).collect();
    let set = place.map(|place| choose(gates, filed, family, &candidates, place));
    let node = place.and_then(|place| place.node.as_ref());
    let all = filed.slices().flat_map(|slice| {
        let endpoints = slice.endpoints.iter();
        endpoints.flat_map(move |endpoint| {
            let addresses = endpoint.addresses.as_slice().iter();
            addresses.map(move |address| Entry { slice, endpoint, address: *address, weight: 0 })
        })
    });
    let mut candidates: Vec<Candidate> = all
        .filter(|entry| Family::of(entry.address) == family && fits(entry.slice, entry.address))
        .map(|entry| explain_candidate(&entry, set.as_ref(), node))
        .collect();
    candidates.sort_by_key(|candidate| candidate.address);
    (candidates, set)
}

fn explain_candidate(entry: &Entry<'_>, set: Option<&RouteSet>, node: Option<&Name>) -> Candidate {
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
