//! Hints written into given slices, without packing.

use std::sync::Arc;

use jiff::Timestamp;
use nearhop_core::hint::auto::AutoState;
use nearhop_core::hint::capacity::{Capacity, MaxUnzonedShare};
use nearhop_core::hint::{HintContext, HintEvent, HintState, hint_slices};
use nearhop_core::model::{AddressType, Service, Slice};
use nearhop_core::slice::{PlanInput, SliceLists, new_slice};
use nearhop_core::{Family, Gates, Labels, Name};
use serde_json::{Value, json};

use super::{Case, intent};
use crate::check::Check;
use crate::diff::Rule;
use crate::objects::{family_or_ipv4, hinted_endpoint, hinted_value, usual_service};
use crate::read::{CaseError, Field};

/// The result of adding hints to the slices of a row.
struct Outcome {
    lists: SliceLists,
    auto: AutoState,
    events: Vec<HintEvent>,
    /// The slices that were unchanged before, with their hints.
    input: Vec<Arc<Slice>>,
}

impl Outcome {
    /// The keys of both groups.
    fn value(&self, key: &str) -> Option<(Rule, Value)> {
        let value = match key {
            "create" => self.lists.create.iter().map(slice_value).collect(),
            "update" => self.lists.update.iter().map(slice_value).collect(),
            "unchanged" => self.lists.unchanged.iter().map(|slice| slice_value(slice)).collect(),
            "input_unchanged_still" => self.input.iter().map(|slice| slice_value(slice)).collect(),
            "events" => {
                return Some((Rule::Subset, self.events.iter().map(event_value).collect()));
            }
            _ => return None,
        };
        Some((Rule::Sparse, value))
    }
}

fn slice_value(slice: &Slice) -> Value {
    slice.endpoints.iter().map(hinted_value).collect()
}

fn event_value(event: &HintEvent) -> Value {
    json!({"type": event.kind.as_str(), "reason": event.reason, "message": event.message})
}

/// Adds hints to the slices of a row as the Service requests.
fn hint(
    case: &Case<'_>,
    service: &Service,
    family: Family,
    capacity: Option<&Capacity>,
) -> Result<Outcome, CaseError> {
    let slices = |list: &str| read_slices(&case.row.get(list)?, service, family);
    let unchanged: Vec<Arc<Slice>> = slices("unchanged")?.into_iter().map(Arc::new).collect();
    let input = unchanged.clone();
    let mut lists = SliceLists { create: slices("create")?, update: slices("update")?, unchanged };
    let decision = intent::decide(service, &Gates::default());
    let (mut state, controller) = (HintState::default(), case.controller()?);
    let plan = PlanInput {
        service,
        intent: &decision,
        pods: &[],
        existing: &[],
        state: &HintState::default(),
        hints: HintContext {
            capacity,
            max_unzoned: MaxUnzonedShare::default(),
            now: Timestamp::UNIX_EPOCH,
        },
        controller: &controller,
        max_endpoints_per_slice: 100,
        trigger_time: None,
    };
    let hinted = hint_slices(&mut lists, &plan, family, &mut state);
    // Each family has its own state.
    let auto = state.iter().next().map(|state| state.auto.clone()).unwrap_or_default();
    Ok(Outcome { lists, auto, events: hinted.events, input })
}

fn read_slices(
    list: &Field<'_>,
    service: &Service,
    family: Family,
) -> Result<Vec<Slice>, CaseError> {
    let empty = new_slice(service, &Labels::default(), AddressType::Ip(family));
    let slice = |row: &Field<'_>| {
        let endpoints = row.each(hinted_endpoint)?;
        Ok(Slice { name: Name::from(row.path()), endpoints, ..empty.clone() })
    };
    list.each(slice)
}

/// `trafficdist_reconcile_hints`: the field alone decides.
pub(super) fn traffic_distribution(
    case: &Case<'_>,
    check: &mut Check<'_>,
) -> Result<(), CaseError> {
    let mut service = usual_service();
    service.topology.traffic_distribution = case.row.get("traffic_distribution")?.set_name()?;
    let outcome = hint(case, &service, Family::Ipv4, None)?;
    check.fields(&case.row, |key| outcome.value(key))
}

/// `topology_add_hints`: Auto, with the zones' shares given.
pub(super) fn auto(case: &Case<'_>, check: &mut Check<'_>) -> Result<(), CaseError> {
    let family = family_or_ipv4(case.row.get("address_type")?)?;
    let mut service = usual_service();
    service.topology.topology_mode = Some(Name::from("Auto"));
    let capacity = shares(&case.row.get("cpu_ratios")?)?;
    let outcome = hint(case, &service, family, Some(&capacity))?;
    check.fields(&case.row, |key| match key {
        "cached_hints_by_addr_type" => Some((Rule::Exact, cached(&outcome.auto, family))),
        _ => outcome.value(key),
    })
}

/// The capacity with these shares; without ratios, an empty capacity.
fn shares(ratios: &Field<'_>) -> Result<Capacity, CaseError> {
    /// Ratios are compared to the ninth digit.
    const WHOLE: f64 = 1e9;
    let mut capacity = Capacity::default();
    for (zone, ratio) in ratios.entries()? {
        let number = ratio.value().as_f64().filter(|number| (0.0..=1.0).contains(number));
        let number = number.ok_or_else(|| ratio.error("is not a number from 0 to 1"))?;
        capacity.zones.insert(Name::from(zone), (number * WHOLE).round() as u64);
    }
    if capacity.zones.is_empty() && !ratios.is_null() {
        // Upstream reports the same before it has seen a node as for a single zone.
        capacity.zones.insert(Name::from("none"), 1);
    }
    Ok(capacity)
}

fn cached(auto: &AutoState, family: Family) -> Value {
    let AutoState::On(zones) = auto else { return Value::Null };
    let zones: serde_json::Map<String, Value> =
        zones.iter().map(|(zone, count)| (zone.to_string(), json!(count))).collect();
    json!({ family.as_str(): zones })
}
