//! The CPU of zones, and the Services that a change of it affects.

use nearhop_core::Name;
use nearhop_core::hint::auto::{AutoState, crosses_threshold};
use nearhop_core::hint::capacity::{Capacity, MaxUnzonedShare, measure_capacity};
use nearhop_core::quantity::format_cpu;
use serde_json::{Map, Value, json};

use super::Case;
use crate::check::Check;
use crate::diff::Rule;
use crate::objects;
use crate::read::{CaseError, Field};

fn measure(nodes: &Field<'_>) -> Result<Capacity, CaseError> {
    Ok(measure_capacity(&objects::nodes(nodes)?))
}

/// `topology_set_nodes`: the shares of the zones, if they can be used.
pub(super) fn set_nodes(case: &Case<'_>, check: &mut Check<'_>) -> Result<(), CaseError> {
    let capacity = measure(&case.row.get("nodes")?)?;
    let shares = capacity.shares(MaxUnzonedShare::default()).ok();
    let all = shares.iter().flat_map(|shares| shares.values());
    let total: u128 = all.map(|milli| u128::from(*milli)).sum();
    let by_zone = |value: &dyn Fn(u64) -> Value| {
        let zones = shares.map(|shares| {
            shares.iter().map(|(zone, milli)| (zone.to_string(), value(*milli))).collect()
        });
        zones.map_or(Value::Null, |zones: Map<String, Value>| Value::Object(zones))
    };
    check.fields(&case.row, |key| match key {
        "sufficient" => Some((Rule::Exact, json!(shares.is_some()))),
        "cpu_by_zone" => Some((Rule::Cpu, by_zone(&|milli| json!(format_cpu(milli))))),
        "ratios" => Some((Rule::Exact, by_zone(&|milli| json!(milli as f64 / total as f64)))),
        _ => None,
    })
}

/// `topology_overloaded_services`: the Services whose hints overload a zone.
pub(super) fn overloaded(case: &Case<'_>, check: &mut Check<'_>) -> Result<(), CaseError> {
    let capacity = measure(&case.row.get("nodes")?)?;
    let mut queued = 0;
    for (_, hints) in case.row.get("hints_by_service")?.entries()? {
        let hints = hints.entries()?;
        let zones = hints.into_iter().map(|(zone, count)| {
            Ok((Name::from(zone), count.count(u32::MAX as usize / 2)? as u32))
        });
        let state = AutoState::On(zones.collect::<Result<_, CaseError>>()?);
        let shares = capacity.shares(MaxUnzonedShare::default());
        queued += usize::from(crosses_threshold(&state, shares));
    }
    check.fields(&case.row, |key| match key {
        "services_queued" => Some((Rule::Exact, json!(queued))),
        _ => None,
    })
}
