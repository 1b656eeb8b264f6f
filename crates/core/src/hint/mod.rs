//! From an intent to what slices carry: standard hints, and where those cannot say it, the
//! annotation `nearhop.dev/routing`.
//!
//! KEP-4444's rule holds: here only the Service's wish counts; what a node makes of the hints is
//! `route`'s business.

pub mod auto;
pub mod balanced;
pub mod capacity;
mod write;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;

use crate::intent::{Intent, MaxOverload, TopologyKeys};
use crate::key::{Family, Name};
use crate::labels::well_known;
use crate::model::{Endpoint, Hints, Node, Slice};
use crate::problem::{ObjectRef, Problem};
use crate::routing::{KeyRouting, MAX_BYTES, Routing, SliceRouting};
use crate::slice::{PlanInput, SliceLists};
use auto::{AutoRefusal, AutoState, Candidate, HintsAreSet};
use balanced::{Weighed, ZoneLoad};
use capacity::{Capacity, MaxUnzonedShare};
pub use write::{strip_hints, write_hints};

/// What hints depend on besides the Service and its endpoints.
#[derive(Clone, Copy, Debug)]
pub struct HintContext<'a> {
    /// The cluster's zones. Without it Auto and Balanced do nothing.
    pub capacity: Option<&'a Capacity>,
    /// `--max-unzoned-share`.
    pub max_unzoned: MaxUnzonedShare,
    /// Measured connections by client zone, where nodes report them.
    pub demand: Option<&'a BTreeMap<Name, u64>>,
    /// Now.
    pub now: Timestamp,
}

/// What one plan leaves for the next, for one Service. Every Service has one and few have
/// anything to remember, so that little is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HintState {
    planned: bool,
    ipv4: Option<Box<FamilyState>>,
    ipv6: Option<Box<FamilyState>>,
}

/// Hint state of one family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FamilyState {
    /// Where Auto stands.
    pub auto: AutoState,
    /// Balanced's table in use.
    pub weighed: Option<Weighed>,
}

impl HintState {
    fn slot(&mut self, family: Family) -> &mut Option<Box<FamilyState>> {
        match family {
            Family::Ipv4 => &mut self.ipv4,
            Family::Ipv6 => &mut self.ipv6,
        }
    }

    /// Takes out the state of one family.
    fn take(&mut self, family: Family) -> FamilyState {
        let unsaid = if self.planned { AutoState::Off } else { AutoState::Unknown };
        let nothing = FamilyState { auto: unsaid, weighed: None };
        self.slot(family).take().map_or(nothing, |state| *state)
    }

    fn put(&mut self, family: Family, state: FamilyState) {
        let nothing = state == FamilyState { auto: AutoState::Off, weighed: None };
        *self.slot(family) = (!nothing).then(|| Box::new(state));
    }

    /// Remembers that a plan was made, and forgets families that the Service no longer has.
    pub fn finish(&mut self, families: &[Family]) {
        self.planned = true;
        self.ipv4 = self.ipv4.take().filter(|_| families.contains(&Family::Ipv4));
        self.ipv6 = self.ipv6.take().filter(|_| families.contains(&Family::Ipv6));
    }

    /// The states there are.
    pub fn iter(&self) -> impl Iterator<Item = &FamilyState> {
        self.ipv4.as_deref().into_iter().chain(self.ipv6.as_deref())
    }
}

/// How the hints of one family came out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HintOutcome {
    /// Nothing asked, nothing written.
    NotAsked,
    /// Every ready endpoint carries what the intent says.
    Written,
    /// Some ready endpoints have no place to hint at, so consumers will use none of the hints.
    Partial {
        /// Ready endpoints without a hint.
        without: usize,
        /// Nodes they are on, as far as known.
        nodes: Vec<Name>,
    },
    /// Asked for and not possible.
    Refused(HintRefusal),
}

/// Why an intent was not turned into hints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HintRefusal {
    /// Auto could not.
    Auto(AutoRefusal),
    /// Balanced needs a zone for each ready endpoint.
    EndpointsWithoutZone(Vec<Name>),
    /// Nothing is known about the cluster's zones.
    NoCapacity,
}

impl fmt::Display for HintRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto(why) => why.fmt(f),
            Self::EndpointsWithoutZone(nodes) => {
                let nodes = capacity::some_of(nodes);
                write!(f, "One or more endpoints do not have a zone specified (nodes: {nodes})")
            }
            Self::NoCapacity => f.write_str("The zones of the cluster are not known"),
        }
    }
}

/// An event to raise on the Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HintEvent {
    /// `Normal` or `Warning`.
    pub kind: EventKind,
    /// Reason, as upstream spells it.
    pub reason: &'static str,
    /// Message.
    pub message: String,
}

/// `type` of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// As asked.
    Normal,
    /// Not as asked.
    Warning,
}

impl EventKind {
    /// The API's spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// What hinting one family gave, besides the changed slices.
#[derive(Debug)]
pub struct Hinted {
    /// How it came out.
    pub outcome: HintOutcome,
    /// Events.
    pub events: Vec<HintEvent>,
    /// Problems.
    pub problems: Vec<Problem>,
    /// When to plan again.
    pub again_at: Option<Timestamp>,
}

impl Hinted {
    fn new(outcome: HintOutcome) -> Self {
        Self { outcome, events: Vec::new(), problems: Vec::new(), again_at: None }
    }
}

/// Hints the slices of one family by the Service's intent. Unchanged slices that must change
/// move to the updates.
pub fn hint_slices(
    lists: &mut SliceLists,
    input: &PlanInput<'_>,
    family: Family,
    state: &mut HintState,
) -> Hinted {
    let FamilyState { auto: before, weighed } = state.take(family);
    let mut now = FamilyState { auto: AutoState::Off, weighed: None };
    let mut hinted = match &input.intent.intent {
        Intent::Auto => hint_auto(lists, &input.hints, &before, &mut now),
        Intent::Default | Intent::Spread => {
            strip_hints(lists);
            Hinted::new(HintOutcome::NotAsked)
        }
        Intent::SameZone => hint_close(lists, Closeness { zone: true, node: false }),
        Intent::SameNode => hint_close(lists, Closeness { zone: true, node: true }),
        Intent::Keys(keys) => hint_keys(lists, keys, input),
        Intent::Balanced(max) => hint_balanced(lists, input, *max, weighed, &mut now),
    };
    hinted.events.extend(auto_event(&before, &now.auto, family));
    state.put(family, now);
    hinted
}

/// Which of an endpoint's own places are hinted at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closeness {
    /// `forZones`.
    pub zone: bool,
    /// `forNodes`.
    pub node: bool,
}

/// Hints every ready endpoint at its own place (KEP-4444, KEP-3015).
pub fn hint_close(lists: &mut SliceLists, close: Closeness) -> Hinted {
    let outcome = write_close(lists, close, &|_| SliceRouting::Absent);
    Hinted::new(outcome)
}

fn write_close(
    lists: &mut SliceLists,
    close: Closeness,
    routing: &dyn Fn(&Slice) -> SliceRouting,
) -> HintOutcome {
    let (mut without, mut nodes) = (0, Vec::new());
    let mut shared: BTreeMap<(Option<Name>, Option<Name>), Arc<Hints>> = BTreeMap::new();
    let mut own_place = |endpoint: &Endpoint| {
        let zone = endpoint.zone.as_ref().filter(|_| close.zone);
        let node = endpoint.node.as_ref().filter(|_| close.node);
        if zone.is_none() && node.is_none() {
            without += 1;
            nodes.extend(endpoint.node.clone().filter(|node| !nodes.contains(node)));
            return None;
        }
        let has = |have: &[Name], want: Option<&Name>| have.iter().eq(want);
        if has(endpoint.hint_zones(), zone) && has(endpoint.hint_nodes(), node) {
            return endpoint.hints.clone();
        }
        let list = |name: Option<&Name>| name.cloned().into_iter().collect();
        let new = || Arc::new(Hints { zones: list(zone), nodes: list(node) });
        Some(shared.entry((zone.cloned(), node.cloned())).or_insert_with(new).clone())
    };
    write_hints(lists, &mut own_place, routing);
    if without == 0 { HintOutcome::Written } else { HintOutcome::Partial { without, nodes } }
}

fn hint_auto(
    lists: &mut SliceLists,
    context: &HintContext<'_>,
    before: &AutoState,
    state: &mut FamilyState,
) -> Hinted {
    let Some(capacity) = context.capacity else {
        strip_hints(lists);
        return Hinted::new(HintOutcome::Refused(HintRefusal::NoCapacity));
    };
    let shares = capacity.shares(context.max_unzoned).map_err(AutoRefusal::from);
    state.auto = assign_auto(lists, shares, before);
    let outcome = match &state.auto {
        AutoState::Refused { why, .. } => HintOutcome::Refused(HintRefusal::Auto(why.clone())),
        _ => HintOutcome::Written,
    };
    Hinted::new(outcome)
}

/// Assigns Auto's hints in the slices, or strips them where it cannot.
pub fn assign_auto(
    lists: &mut SliceLists,
    shares: Result<&BTreeMap<Name, u64>, AutoRefusal>,
    before: &AutoState,
) -> AutoState {
    let ready = ready_endpoints(lists).count();
    let assigned = shares.and_then(|shares| {
        let candidates: Vec<Candidate<'_>> = ready_endpoints(lists)
            .map(|endpoint| {
                let hinted = endpoint.hint_zones();
                let hinted = if hinted.len() == 1 { hinted.first() } else { None };
                Candidate { zone: endpoint.zone.as_ref(), hinted }
            })
            .collect();
        // After a restart nothing is remembered; hints found in all slices count as set.
        let adopted = || !candidates.is_empty() && candidates.iter().all(|c| c.hinted.is_some());
        let set = match before {
            AutoState::On(_) => HintsAreSet::Yes,
            AutoState::Unknown if adopted() => HintsAreSet::Yes,
            _ => HintsAreSet::No,
        };
        auto::assign(&candidates, shares, set)
    });
    match assigned {
        Err(why) => {
            strip_hints(lists);
            AutoState::Refused { ready: ready as u32, why }
        }
        Ok(zones) => AutoState::On(write_zones(lists, zones)),
    }
}

/// Writes one zone hint per ready endpoint and counts them.
fn write_zones(lists: &mut SliceLists, zones: Vec<Name>) -> BTreeMap<Name, u32> {
    let mut shared: BTreeMap<Name, (Arc<Hints>, u32)> = BTreeMap::new();
    let mut zones = zones.into_iter();
    let mut next = |_: &Endpoint| {
        let zone = zones.next()?;
        let new = || (Arc::new(Hints::for_zones(vec![zone.clone()])), 0);
        let (hints, count) = shared.entry(zone.clone()).or_insert_with(new);
        *count += 1;
        Some(hints.clone())
    };
    write_hints(lists, &mut next, &|_| SliceRouting::Absent);
    shared.into_iter().map(|(zone, (_, count))| (zone, count)).collect()
}

fn auto_event(before: &AutoState, now: &AutoState, family: Family) -> Option<HintEvent> {
    let (kind, reason, text) = match (before, now) {
        (AutoState::On(_), AutoState::On(_)) => return None,
        (_, AutoState::On(_)) => {
            let text = "Topology Aware Hints has been enabled".to_owned();
            (EventKind::Normal, "TopologyAwareHintsEnabled", text)
        }
        (AutoState::Refused { why: before, .. }, AutoState::Refused { why, .. })
            if before.same_reason(why) =>
        {
            return None;
        }
        (_, AutoState::Refused { why, .. }) => {
            (EventKind::Warning, "TopologyAwareHintsDisabled", why.to_string())
        }
        (AutoState::On(_), _) => {
            let text = "Topology Aware Hints has been disabled".to_owned();
            (EventKind::Warning, "TopologyAwareHintsDisabled", text)
        }
        _ => return None,
    };
    Some(HintEvent { kind, reason, message: format!("{text}, addressType: {family}") })
}

/// Ordered keys: the annotation for nearhop, the nearest standard hints for everybody else.
/// `forNodes` would come before everything, so it is written only if the host name is first.
fn hint_keys(lists: &mut SliceLists, keys: &TopologyKeys, input: &PlanInput<'_>) -> Hinted {
    let nodes: BTreeMap<&Name, &Node> =
        (input.pods.iter()).filter_map(|(_, node)| node.map(|node| (&node.name, node))).collect();
    let too_long = std::cell::Cell::new(false);
    let routing = |slice: &Slice| match key_routing(slice, keys, &nodes) {
        Some(routing) if routing.to_string().len() > MAX_BYTES => {
            too_long.set(true);
            SliceRouting::Absent
        }
        Some(routing) => SliceRouting::Valid(Arc::new(routing)),
        None => SliceRouting::Absent,
    };
    let first = keys.keys.first();
    let close = Closeness {
        zone: keys.keys.iter().any(|key| *key == well_known::ZONE),
        node: first.is_some_and(|key| *key == well_known::HOSTNAME),
    };
    let outcome = if close.zone || close.node {
        write_close(lists, close, &routing)
    } else {
        write_hints(lists, &mut |_| None, &routing);
        HintOutcome::Written
    };
    let mut hinted = Hinted::new(outcome);
    if too_long.get() {
        hinted.problems.push(annotation_too_long(input));
    }
    hinted
}

fn annotation_too_long(input: &PlanInput<'_>) -> Problem {
    Problem::new(
        ObjectRef::Service(input.service.key.clone()),
        "spec.topologyKeys",
        "the label values of its nodes do not fit into a slice's annotation",
        "use fewer keys or a smaller --max-endpoints-per-slice; standard hints are used until then",
    )
}

fn key_routing(
    slice: &Slice,
    keys: &TopologyKeys,
    nodes: &BTreeMap<&Name, &Node>,
) -> Option<Routing> {
    if slice.endpoints.is_empty() {
        return None;
    }
    let mut values = BTreeMap::new();
    for name in slice.endpoints.iter().filter_map(|endpoint| endpoint.node.as_ref()) {
        values.entry(name.clone()).or_insert_with(|| {
            let label = |key: &Name| nodes.get(name).and_then(|node| node.labels.get(key)).cloned();
            keys.keys.iter().map(label).collect()
        });
    }
    Some(Routing::Keys(KeyRouting { keys: keys.keys.clone(), soft: keys.soft, nodes: values }))
}

/// Balanced: the weight table for nearhop; for everybody else each endpoint is hinted at the
/// zones that send it something.
fn hint_balanced(
    lists: &mut SliceLists,
    input: &PlanInput<'_>,
    max: MaxOverload,
    weighed: Option<Weighed>,
    state: &mut FamilyState,
) -> Hinted {
    let zones = match zone_loads(lists, &input.hints) {
        Ok(zones) => zones,
        Err(why) => {
            strip_hints(lists);
            return Hinted::new(HintOutcome::Refused(why));
        }
    };
    let fresh = balanced::weigh(&zones, &balanced::balance(&zones, max));
    let (weighed, again_at) = balanced::settle(weighed.as_ref(), fresh, &zones, input.hints.now);
    if weighed.table.0.is_empty() {
        strip_hints(lists);
        return Hinted::new(HintOutcome::Written);
    }
    let senders = senders_by_zone(&weighed.table);
    let routing = SliceRouting::Valid(Arc::new(Routing::Weights(weighed.table.clone())));
    let mut of_zone = |endpoint: &Endpoint| senders.get(endpoint.zone.as_ref()?)?.clone();
    let on_slices = |slice: &Slice| {
        if slice.endpoints.is_empty() { SliceRouting::Absent } else { routing.clone() }
    };
    write_hints(lists, &mut of_zone, &on_slices);
    state.weighed = Some(weighed);
    Hinted { again_at, ..Hinted::new(HintOutcome::Written) }
}

/// For each endpoint zone the hint that names the zones sending to it. The API allows eight
/// zones; if any endpoint needs more, or gets nothing, nobody is hinted (all or nothing).
fn senders_by_zone(table: &crate::routing::WeightTable) -> BTreeMap<Name, Option<Arc<Hints>>> {
    const MOST: usize = 8;
    let mut senders: BTreeMap<Name, Vec<Name>> = BTreeMap::new();
    for (from, row) in &table.0 {
        for to in row.keys() {
            senders.entry(to.clone()).or_default().push(from.clone());
        }
    }
    let fits = senders.values().all(|zones| zones.len() <= MOST);
    let hint = |zones| fits.then(|| Arc::new(Hints::for_zones(zones)));
    senders.into_iter().map(|(to, zones)| (to, hint(zones))).collect()
}

fn zone_loads(lists: &SliceLists, context: &HintContext<'_>) -> Result<Vec<ZoneLoad>, HintRefusal> {
    let capacity = context.capacity.ok_or(HintRefusal::NoCapacity)?;
    let mut endpoints: BTreeMap<&Name, u64> = BTreeMap::new();
    let mut without = Vec::new();
    for endpoint in ready_endpoints(lists) {
        match &endpoint.zone {
            Some(zone) => *endpoints.entry(zone).or_default() += 1,
            None => without.extend(endpoint.node.clone()),
        }
    }
    if ready_endpoints(lists).any(|endpoint| endpoint.zone.is_none()) {
        without.dedup();
        return Err(HintRefusal::EndpointsWithoutZone(without));
    }
    let measured = context.demand.filter(|demand| demand.values().any(|count| *count > 0));
    let demand = measured.unwrap_or(&capacity.zones);
    let names: std::collections::BTreeSet<&Name> =
        demand.keys().chain(capacity.zones.keys()).chain(endpoints.keys().copied()).collect();
    let load = |zone: &Name| ZoneLoad {
        zone: zone.clone(),
        region: capacity.regions.get(zone).cloned(),
        demand: demand.get(zone).copied().unwrap_or(0),
        endpoints: endpoints.get(zone).copied().unwrap_or(0),
    };
    Ok(names.into_iter().map(load).collect())
}

/// Ready endpoints in the order in which they are hinted: created, updated, unchanged slices.
fn ready_endpoints(lists: &SliceLists) -> impl Iterator<Item = &Endpoint> {
    let slices = lists.create.iter().chain(&lists.update);
    let slices = slices.chain(lists.unchanged.iter().map(Arc::as_ref));
    slices.flat_map(|slice| &slice.endpoints).filter(|endpoint| endpoint.is_ready())
}
