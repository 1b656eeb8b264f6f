//! Writes Auto's assignment into slices, with the events of its transitions.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::auto::{self, AutoRefusal, AutoState, Candidate, HintsAreSet};
use super::{
    AUTO_DISABLED, AUTO_ENABLED, EventKind, FamilyState, HintContext, HintEvent, HintOutcome,
    HintRefusal, Hinted, ready_endpoints, strip_hints, write_hints,
};
use crate::key::{Family, Name};
use crate::model::{Endpoint, Hints};
use crate::routing::SliceRouting;
use crate::slice::SliceLists;

pub(super) fn hint_auto(
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

/// Without state (after a restart), existing hints on the ready endpoints count as set: they are
/// kept like other hints, and no event reports them again. Endpoints that are new or changed have
/// no hints yet; they are in slices that are written anyway.
pub(super) fn adopt(lists: &SliceLists, before: AutoState) -> AutoState {
    if before != AutoState::Unknown {
        return before;
    }
    let written = lists.create.len() + lists.update.len();
    let slices = lists.create.iter().chain(&lists.update);
    let slices = slices.chain(lists.unchanged.iter().map(Arc::as_ref));
    let mut zones = BTreeMap::new();
    for (i, slice) in slices.enumerate() {
        for endpoint in slice.endpoints.iter().filter(|endpoint| endpoint.is_ready()) {
            match endpoint.hint_zones() {
                [zone] => *zones.entry(zone.clone()).or_default() += 1,
                [] if i < written => {}
                _ => return before,
            }
        }
    }
    if zones.is_empty() { before } else { AutoState::On(zones) }
}

/// Sets Auto's hints in the slices, or removes them if Auto is not possible.
fn assign_auto(
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
        let set = match before {
            AutoState::On(_) => HintsAreSet::Yes,
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

/// The event that a change of state raises.
pub(super) fn auto_event(before: &AutoState, now: &AutoState, family: Family) -> Option<HintEvent> {
    let (kind, reason, text) = match (before, now) {
        (AutoState::On(_), AutoState::On(_)) => return None,
        (_, AutoState::On(_)) => {
            let text = "Topology Aware Hints has been enabled".to_owned();
            (EventKind::Normal, AUTO_ENABLED, text)
        }
        (AutoState::Refused { why: before, .. }, AutoState::Refused { why, .. })
            if before.same_reason(why) =>
        {
            return None;
        }
        (_, AutoState::Refused { why, .. }) => (EventKind::Warning, AUTO_DISABLED, why.to_string()),
        (AutoState::On(_), _) => {
            let text = "Topology Aware Hints has been disabled".to_owned();
            (EventKind::Warning, AUTO_DISABLED, text)
        }
        _ => return None,
    };
    Some(HintEvent { kind, reason, message: format!("{text}, addressType: {family}") })
}
