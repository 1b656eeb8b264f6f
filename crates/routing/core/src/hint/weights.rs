//! Writes Balanced's weight table into slices.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::balanced::{self, Weighed, ZoneLoad};
use super::{
    FamilyState, HintContext, HintOutcome, HintRefusal, Hinted, ready_endpoints, strip_hints,
    write_hints,
};
use crate::intent::MaxOverload;
use crate::key::Name;
use crate::model::{Endpoint, Hints, Slice};
use crate::routing::{Routing, SliceRouting, WeightTable};
use crate::slice::{PlanInput, SliceLists};

/// Balanced: writes the weight table for nearhop. For other proxies, each endpoint is hinted for
/// the zones that send traffic to it.
pub(super) fn hint_balanced(
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
    let since = input.hints.now;
    let table = Arc::new(balanced::weigh(&zones, &balanced::balance(&zones, max)));
    let in_use = weighed.or_else(|| Some(Weighed { table: adopt(lists)?, max, since }));
    let fresh = Weighed { table, max, since };
    let (weighed, again_at) = balanced::settle(in_use.as_ref(), fresh, &zones);
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

/// Without state (after a restart), the table in all slices is the one in use, so that it does not
/// change without need.
fn adopt(lists: &SliceLists) -> Option<Arc<WeightTable>> {
    let slices = lists.update.iter().chain(lists.unchanged.iter().map(Arc::as_ref));
    let mut tables = slices.filter(|slice| !slice.endpoints.is_empty()).map(|slice| {
        let SliceRouting::Valid(routing) = &slice.routing else { return None };
        let Routing::Weights(table) = routing.as_ref() else { return None };
        Some(table)
    });
    let first = tables.next()??;
    tables.all(|table| table == Some(first)).then(|| first.clone())
}

/// For each endpoint zone, the hint with the zones that send traffic to it. The API allows eight
/// zones; if any endpoint needs more, no endpoint is hinted.
fn senders_by_zone(table: &WeightTable) -> BTreeMap<Name, Option<Arc<Hints>>> {
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
    let (zoned, unzoned): (Vec<&Endpoint>, Vec<&Endpoint>) =
        ready_endpoints(lists).partition(|endpoint| endpoint.zone.is_some());
    if !unzoned.is_empty() {
        let nodes: BTreeSet<&Name> = unzoned.iter().filter_map(|e| e.node.as_ref()).collect();
        return Err(HintRefusal::EndpointsWithoutZone(nodes.into_iter().cloned().collect()));
    }
    let mut endpoints: BTreeMap<&Name, u64> = BTreeMap::new();
    for zone in zoned.iter().filter_map(|endpoint| endpoint.zone.as_ref()) {
        *endpoints.entry(zone).or_default() += 1;
    }
    let names: BTreeSet<&Name> = capacity.zones.keys().chain(endpoints.keys().copied()).collect();
    let load = |zone: &Name| ZoneLoad {
        zone: zone.clone(),
        region: capacity.regions.get(zone).cloned(),
        demand: capacity.zones.get(zone).copied().unwrap_or(0),
        endpoints: endpoints.get(zone).copied().unwrap_or(0),
    };
    Ok(names.into_iter().map(load).collect())
}
