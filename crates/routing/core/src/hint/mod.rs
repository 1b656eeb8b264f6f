//! From an intent to the content of slices: standard hints, and the annotation
//! `nearhop.dev/routing` for routing that hints cannot express.
//!
//! By the rule of KEP-4444, only the request of the Service counts here. How a node uses the hints
//! is decided in `route`.

pub mod auto;
pub mod balanced;
pub mod capacity;
mod close;
mod keys;
mod weights;
mod write;
mod zones;

use std::sync::Arc;

use jiff::Timestamp;

use crate::intent::Intent;
use crate::key::{Family, Name};
use crate::model::Endpoint;
use crate::problem::Problem;
use crate::routing::WeightTable;
use crate::slice::{PlanInput, SliceLists};
use auto::{AutoRefusal, AutoState};
use balanced::Weighed;
use capacity::{Capacity, MaxUnzonedShare, some_of};
use close::{Closeness, hint_close};
use write::{strip_hints, write_hints};
use zones::auto_event;

/// The input for hints besides the Service and its endpoints.
#[derive(Clone, Copy, Debug)]
pub struct HintContext<'a> {
    /// The capacity of the cluster's zones. Without it Auto and Balanced set no hints.
    pub capacity: Option<&'a Capacity>,
    /// `--max-unzoned-share`.
    pub max_unzoned: MaxUnzonedShare,
    /// The current time.
    pub now: Timestamp,
}

/// The state that one plan of a Service leaves for the next. Every Service has one, and most are
/// empty, so it is kept small.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HintState {
    planned: bool,
    ipv4: Option<Box<FamilyState>>,
    ipv6: Option<Box<FamilyState>>,
}

/// Hint state of one family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FamilyState {
    /// The state of Auto.
    pub auto: AutoState,
    /// The weight table of Balanced in use.
    pub weighed: Option<Weighed>,
}

impl HintState {
    fn slot(&mut self, family: Family) -> &mut Option<Box<FamilyState>> {
        match family {
            Family::Ipv4 => &mut self.ipv4,
            Family::Ipv6 => &mut self.ipv6,
        }
    }

    /// Removes and returns the state of one family.
    fn take(&mut self, family: Family) -> FamilyState {
        let unsaid = if self.planned { AutoState::Off } else { AutoState::Unknown };
        let nothing = FamilyState { auto: unsaid, weighed: None };
        self.slot(family).take().map_or(nothing, |state| *state)
    }

    fn put(&mut self, family: Family, state: FamilyState) {
        let nothing = state == FamilyState { auto: AutoState::Off, weighed: None };
        *self.slot(family) = (!nothing).then(|| Box::new(state));
    }

    /// Records that a plan was made, and removes the state of families that the Service no longer
    /// has.
    pub fn finish(&mut self, families: &[Family]) {
        self.planned = true;
        self.ipv4 = self.ipv4.take().filter(|_| families.contains(&Family::Ipv4));
        self.ipv6 = self.ipv6.take().filter(|_| families.contains(&Family::Ipv6));
    }

    /// All weight tables, for the interner.
    pub(crate) fn tables(&mut self) -> impl Iterator<Item = &mut Arc<WeightTable>> {
        let states = self.ipv4.as_deref_mut().into_iter().chain(self.ipv6.as_deref_mut());
        states.filter_map(|state| state.weighed.as_mut()).map(|weighed| &mut weighed.table)
    }

    /// The states of all families.
    pub fn iter(&self) -> impl Iterator<Item = &FamilyState> {
        self.ipv4.as_deref().into_iter().chain(self.ipv6.as_deref())
    }
}

/// The result of hinting one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HintOutcome {
    /// Nothing is requested, and nothing is written.
    NotAsked,
    /// All ready endpoints have the hints or routing of the intent.
    Written,
    /// Some ready endpoints have no zone or node to hint, so proxies ignore all hints.
    Partial {
        /// Ready endpoints without a hint.
        without: usize,
        /// The nodes of these endpoints, if known.
        nodes: Vec<Name>,
    },
    /// The intent is requested and not possible.
    Refused(HintRefusal),
}

/// Why an intent has no hints.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HintRefusal {
    /// Auto is not possible.
    #[error("{0}")]
    Auto(AutoRefusal),
    /// Balanced needs a zone for each ready endpoint.
    #[error("One or more endpoints do not have a zone specified (nodes: {})", some_of(.0))]
    EndpointsWithoutZone(Vec<Name>),
    /// The capacity of the cluster's zones is unknown.
    #[error("The zones of the cluster are not known")]
    NoCapacity,
    /// The label values of the nodes of a slice do not fit into its annotation.
    #[error(
        "the label values of its nodes do not fit into the annotation of an EndpointSlice; nodes \
         use its standard hints"
    )]
    RoutingTooLong,
}

/// Reason of the event for Auto hints that are set, as in upstream.
pub const AUTO_ENABLED: &str = "TopologyAwareHintsEnabled";
/// Reason of the event for Auto hints that are removed or impossible, as in upstream.
pub const AUTO_DISABLED: &str = "TopologyAwareHintsDisabled";

/// An event to raise on the Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HintEvent {
    /// `Normal` or `Warning`.
    pub kind: EventKind,
    /// Reason, as in upstream.
    pub reason: &'static str,
    /// Message.
    pub message: String,
}

/// `type` of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The request is fulfilled.
    Normal,
    /// The request is not fulfilled.
    Warning,
}

impl EventKind {
    /// The value in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// The result of hinting one family, besides the changed slices.
#[derive(Debug)]
pub struct Hinted {
    /// The outcome.
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

/// Sets the hints in the slices of one family by the Service's intent. Unchanged slices that need
/// other hints move to the updates.
pub fn hint_slices(
    lists: &mut SliceLists,
    input: &PlanInput<'_>,
    family: Family,
    state: &mut HintState,
) -> Hinted {
    let FamilyState { auto: before, weighed } = state.take(family);
    let before = match input.intent.intent {
        Intent::Auto => zones::adopt(lists, before),
        _ => before,
    };
    let mut now = FamilyState { auto: AutoState::Off, weighed: None };
    let mut hinted = match &input.intent.intent {
        Intent::Auto => zones::hint_auto(lists, &input.hints, &before, &mut now),
        Intent::Default | Intent::Spread => {
            strip_hints(lists);
            Hinted::new(HintOutcome::NotAsked)
        }
        Intent::SameZone => hint_close(lists, Closeness { zone: true, node: false }),
        Intent::SameNode => hint_close(lists, Closeness { zone: true, node: true }),
        Intent::Keys(keys) => keys::hint_keys(lists, keys, input),
        Intent::Balanced(max) => weights::hint_balanced(lists, input, *max, weighed, &mut now),
    };
    hinted.events.extend(auto_event(&before, &now.auto, family));
    state.put(family, now);
    hinted
}

/// Ready endpoints in the order of hinting: created, updated, unchanged slices.
fn ready_endpoints(lists: &SliceLists) -> impl Iterator<Item = &Endpoint> {
    let slices = lists.create.iter().chain(&lists.update);
    let slices = slices.chain(lists.unchanged.iter().map(Arc::as_ref));
    slices.flat_map(|slice| &slice.endpoints).filter(|endpoint| endpoint.is_ready())
}
