//! The endpoints that one node uses for one Service port.
//!
//! The tiers, nearest first: the routing annotation, node hints, zone hints, all endpoints
//! (KEP-3015 "Design Details"). The first tier with endpoints wins. The decision lists every tier
//! tried before it, with the reason. No later step decides about topology.

use std::collections::BTreeMap;

use super::collect::{Agreed, RouteEndpoint};
use super::reason::{Candidates, Miss, Reason, Tier, Tried};
use crate::gate::{Gate, Gates};
use crate::key::{EndpointKey, Name};
use crate::labels::Labels;
use crate::model::{Node, Service, ServicePort, TrafficPolicy, zone_of};
use crate::routing::{KeyRouting, WeightTable};

/// The topology of a node, or of a DNS client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Node name.
    pub node: Option<Name>,
    /// Its zone.
    pub zone: Option<Name>,
    /// All its labels.
    pub labels: Labels,
}

impl Place {
    /// The place of a node.
    pub fn of(node: &Node) -> Self {
        Self::at(node.name.clone(), node.labels.clone())
    }

    /// The place of a node with these labels.
    pub fn at(node: Name, labels: Labels) -> Self {
        Self { node: Some(node), zone: zone_of(&labels).cloned(), labels }
    }
}

/// The traffic policies of a Service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortPolicy {
    /// `internalTrafficPolicy`.
    pub internal: TrafficPolicy,
    /// `externalTrafficPolicy`, if the Service type uses it.
    pub external: TrafficPolicy,
    /// Whether traffic from outside the cluster can reach the port.
    pub exposed: bool,
}

impl PortPolicy {
    /// The policy of a Service's port.
    pub fn of(service: &Service, port: &ServicePort) -> Self {
        let external = if service.external_policy_local() {
            TrafficPolicy::Local
        } else {
            TrafficPolicy::Cluster
        };
        Self {
            internal: service.internal_traffic_policy,
            external,
            exposed: service.externally_accessible(port),
        }
    }

    /// Whether the cluster set is needed. External traffic needs it even with the Local policy, for
    /// clients on the node itself.
    pub fn uses_cluster(self) -> bool {
        self.internal == TrafficPolicy::Cluster || self.exposed
    }

    /// Whether the local set is needed.
    pub fn uses_local(self) -> bool {
        self.internal == TrafficPolicy::Local
            || (self.external == TrafficPolicy::Local && self.exposed)
    }
}

/// Which hints a proxy uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HintGates {
    /// `forZones`: on if any feature that writes zone hints is on.
    pub zones: bool,
    /// `forNodes`.
    pub nodes: bool,
}

const WRITE_ZONE_HINTS: [Gate; 4] = [
    Gate::TopologyAwareHints,
    Gate::ServiceTopology,
    Gate::ServiceTrafficDistribution,
    Gate::ServiceRoutingPreference,
];

impl From<&Gates> for HintGates {
    fn from(gates: &Gates) -> Self {
        Self {
            zones: WRITE_ZONE_HINTS.into_iter().any(|gate| gates.on(gate)),
            nodes: gates.on(Gate::PreferSameTrafficDistribution),
        }
    }
}

/// The input of [`choose_route`].
#[derive(Clone, Copy, Debug)]
pub struct RouteInput<'a> {
    /// Traffic policies.
    pub policy: PortPolicy,
    /// Endpoints of the port, without duplicate keys.
    pub endpoints: &'a [RouteEndpoint<'a>],
    /// The routing annotation, if all slices of the Service have the same one.
    pub routing: Agreed<'a>,
    /// The node's topology.
    pub place: &'a Place,
    /// Which hints are used.
    pub gates: HintGates,
}

/// A chosen endpoint with its weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    /// Address and port.
    pub key: EndpointKey,
    /// Relative weight.
    pub weight: u32,
    /// Its zone, for metrics.
    pub zone: Option<Name>,
    /// Whether it is on this node (hairpin).
    pub local: bool,
}

/// A chosen set with its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteSet {
    /// The endpoints, sorted by key.
    pub backends: Vec<Backend>,
    /// Why these endpoints were chosen.
    pub reason: Reason,
}

/// What happens to a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes to the cluster set.
    Cluster,
    /// It goes to the local set.
    Local,
    /// It is rejected: the cluster has no usable endpoint.
    Reject,
    /// It is dropped: usable endpoints are only on other nodes, and the policy is Local.
    Drop,
}

/// The decision for one Service port on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteDecision {
    /// The traffic policies that it follows.
    pub policy: PortPolicy,
    /// The set for policy Cluster, if it is needed.
    pub cluster: Option<RouteSet>,
    /// The set for policy Local (endpoints on this node), if it is needed.
    pub local: Option<RouteSet>,
    /// Whether the port has a usable endpoint in the cluster.
    pub has_any: bool,
    /// For traffic to the cluster IP.
    pub internal: Verdict,
    /// For traffic from outside the cluster, if the port is exposed.
    pub external: Option<Verdict>,
}

impl RouteDecision {
    /// Endpoints of both sets, without duplicates, sorted by key.
    pub fn reachable(&self) -> Vec<&Backend> {
        let sets = [&self.cluster, &self.local].into_iter().flatten();
        let by_key: BTreeMap<EndpointKey, &Backend> =
            sets.flat_map(|set| &set.backends).map(|backend| (backend.key, backend)).collect();
        by_key.into_values().collect()
    }
}

/// Chooses the endpoints for one Service port on one node.
pub fn choose_route(input: RouteInput<'_>) -> RouteDecision {
    let policy = input.policy;
    let cluster = policy.uses_cluster().then(|| choose_cluster(input));
    let local = policy.uses_local().then(|| choose_local(input.endpoints));
    let empty = |set: &Option<RouteSet>| set.as_ref().is_none_or(|set| set.backends.is_empty());
    let has_any = if policy.uses_local() {
        input.endpoints.iter().any(RouteEndpoint::is_usable)
    } else {
        !empty(&cluster)
    };
    let verdict = |policy: TrafficPolicy| match policy {
        TrafficPolicy::Cluster if !empty(&cluster) => Verdict::Cluster,
        TrafficPolicy::Local if !empty(&local) => Verdict::Local,
        TrafficPolicy::Local if has_any => Verdict::Drop,
        _ => Verdict::Reject,
    };
    let internal = verdict(policy.internal);
    let external = policy.exposed.then(|| verdict(policy.external));
    RouteDecision { policy, internal, external, has_any, cluster, local }
}

/// The candidates of a set: ready endpoints, else endpoints that still serve while they terminate.
pub(super) fn candidates<'e, 'a>(
    endpoints: &'e [RouteEndpoint<'a>],
    wanted: impl Fn(&RouteEndpoint<'a>) -> bool,
) -> (Vec<&'e RouteEndpoint<'a>>, Candidates) {
    let mut chosen = Vec::with_capacity(endpoints.len());
    chosen.extend(endpoints.iter().filter(|e| e.ready && wanted(e)));
    if !chosen.is_empty() {
        return (chosen, Candidates::Ready);
    }
    chosen.extend(endpoints.iter().filter(|e| e.serving && e.terminating && wanted(e)));
    let kind = if chosen.is_empty() { Candidates::None } else { Candidates::ServingTerminating };
    (chosen, kind)
}

fn choose_local(endpoints: &[RouteEndpoint<'_>]) -> RouteSet {
    let (chosen, candidates) = candidates(endpoints, |endpoint| endpoint.local);
    let tier = if chosen.is_empty() { Tier::NoEndpoint } else { Tier::Local };
    RouteSet {
        backends: chosen.into_iter().map(|endpoint| backend(endpoint, 1)).collect(),
        reason: Reason { tier, candidates, tried: Vec::new() },
    }
}

fn backend(endpoint: &RouteEndpoint<'_>, weight: u32) -> Backend {
    Backend {
        key: endpoint.key,
        weight,
        zone: endpoint.endpoint.zone.clone(),
        local: endpoint.local,
    }
}

fn choose_cluster(input: RouteInput<'_>) -> RouteSet {
    let (endpoints, candidates) = candidates(input.endpoints, |_| true);
    let mut cascade = Cascade { endpoints, place: input.place, tried: Vec::new() };
    let (tier, backends) = cascade.choose(input.routing, input.gates, candidates);
    RouteSet { backends, reason: Reason { tier, candidates, tried: cascade.tried } }
}

/// KEP-536: the first key for which an endpoint has the same value as the node. `value_of` returns
/// the node's value of the key at a position, `find` the endpoints with a value; `missed` gets each
/// key before the match.
pub(super) fn first_match<'v, T>(
    keys: &[Name],
    value_of: impl Fn(usize) -> Option<&'v Name>,
    find: impl Fn(usize, &Name) -> Option<T>,
    mut missed: impl FnMut(Tried),
) -> Option<(usize, T)> {
    for (at, key) in keys.iter().enumerate() {
        let miss = match value_of(at) {
            None => Miss::NodeWithoutLabel(key.clone()),
            Some(value) => match find(at, value) {
                Some(found) => return Some((at, found)),
                None => Miss::NoMatchingEndpoint { key: key.clone(), value: value.clone() },
            },
        };
        missed(Tried { tier: Tier::Key(key.clone()), miss });
    }
    None
}

/// The candidates, and the tiers tried so far.
struct Cascade<'e, 'a> {
    endpoints: Vec<&'e RouteEndpoint<'a>>,
    place: &'a Place,
    tried: Vec<Tried>,
}

impl Cascade<'_, '_> {
    fn choose(
        &mut self,
        routing: Agreed<'_>,
        gates: HintGates,
        candidates: Candidates,
    ) -> (Tier, Vec<Backend>) {
        if candidates == Candidates::None {
            return (Tier::NoEndpoint, Vec::new());
        }
        let by_routing = match routing {
            Agreed::Keys(keys) => Some(self.by_keys(keys)),
            Agreed::Weights(table) => self.by_weights(table),
            Agreed::Absent => None,
            Agreed::Disagrees(slice) => {
                self.miss(Tier::Routing, Miss::RoutingDisagrees { slice: slice.clone() })
            }
            Agreed::Broken(slice) => {
                self.miss(Tier::Routing, Miss::RoutingBroken { slice: slice.clone() })
            }
        };
        // Terminating endpoints have no hints, so hints do not apply to the fallback.
        let hints_count = candidates == Candidates::Ready;
        by_routing
            .or_else(|| hints_count.then(|| self.by_hints(gates)).flatten())
            .unwrap_or_else(|| (Tier::All, self.take(|_| Some(1))))
    }

    fn miss<T>(&mut self, tier: Tier, miss: Miss) -> Option<T> {
        self.tried.push(Tried { tier, miss });
        None
    }

    /// The candidates for which `weight` returns a weight.
    fn take(&self, weight: impl Fn(&RouteEndpoint<'_>) -> Option<u32>) -> Vec<Backend> {
        self.endpoints.iter().filter_map(|e| Some(backend(e, weight(e)?))).collect()
    }

    fn by_keys(&mut self, routing: &KeyRouting) -> (Tier, Vec<Backend>) {
        let mut tried = Vec::new();
        let found = first_match(
            &routing.keys,
            |at| self.place.labels.get(&routing.keys[at]),
            |at, value| {
                let there =
                    |e: &RouteEndpoint<'_>| e.place.get(at).and_then(Option::as_ref) == Some(value);
                let backends = self.take(|endpoint| there(endpoint).then_some(1));
                (!backends.is_empty()).then_some(backends)
            },
            |miss| tried.push(miss),
        );
        self.tried.append(&mut tried);
        match found {
            Some((at, backends)) => (Tier::Key(routing.keys[at].clone()), backends),
            None if routing.soft => (Tier::AnyKey, self.take(|_| Some(1))),
            None => (Tier::OutOfReach, Vec::new()),
        }
    }

    /// Balanced: the endpoints of a zone share the weight of the zone.
    fn by_weights(&mut self, table: &WeightTable) -> Option<(Tier, Vec<Backend>)> {
        /// Splits millionths over a thousand endpoints without loss, within 32 bits.
        const SCALE: u64 = 1_000;
        let Some(zone) = &self.place.zone else {
            return self.miss(Tier::Weights, Miss::NodeWithoutZone);
        };
        let Some(row) = table.0.get(zone) else {
            return self.miss(Tier::Weights, Miss::ZoneWithoutWeights(zone.clone()));
        };
        // There are few zones: a linear search is faster than a map.
        let mut zones: Vec<(&Name, u64, u64)> =
            row.iter().map(|(zone, weight)| (zone, u64::from(*weight), 0)).collect();
        for zone in self.endpoints.iter().filter_map(|e| e.endpoint.zone.as_ref()) {
            if let Some((_, _, count)) = zones.iter_mut().find(|(name, ..)| *name == zone) {
                *count += 1;
            }
        }
        let weight = |e: &RouteEndpoint<'_>| {
            let zone = e.endpoint.zone.as_ref()?;
            let (_, weight, count) = zones.iter().find(|(name, ..)| *name == zone)?;
            let weight = weight * SCALE / count;
            (weight > 0).then_some(weight as u32)
        };
        let backends = self.take(weight);
        if backends.is_empty() {
            return self.miss(Tier::Weights, Miss::ZoneWithoutWeights(zone.clone()));
        }
        Some((Tier::Weights, backends))
    }

    fn by_hints(&mut self, gates: HintGates) -> Option<(Tier, Vec<Backend>)> {
        let node = self.place.node.clone();
        let zone = self.place.zone.clone();
        self.by_hint(Tier::SameNode, gates.nodes, node, |e| e.endpoint.hint_nodes()).or_else(|| {
            self.by_hint(Tier::SameZone, gates.zones, zone, |e| e.endpoint.hint_zones())
        })
    }

    /// A hint tier applies only if all candidates have that hint and at least one matches.
    fn by_hint(
        &mut self,
        tier: Tier,
        gate_on: bool,
        here: Option<Name>,
        hints: impl for<'h> Fn(&'h RouteEndpoint<'_>) -> &'h [Name],
    ) -> Option<(Tier, Vec<Backend>)> {
        let of = self.endpoints.len();
        let unhinted = self.endpoints.iter().filter(|e| hints(e).is_empty()).count();
        if unhinted == of {
            return None;
        }
        if !gate_on {
            return self.miss(tier, Miss::GateOff);
        }
        if unhinted > 0 {
            return self.miss(tier, Miss::Unhinted { count: unhinted, of });
        }
        let Some(here) = here else {
            return self.miss(tier, Miss::NodeWithoutZone);
        };
        let backends = self.take(|e| hints(e).contains(&here).then_some(1));
        if backends.is_empty() {
            return self.miss(tier, Miss::HintedElsewhere);
        }
        Some((tier, backends))
    }
}
