//! Balanced: as much traffic as possible stays in its zone, while no endpoint gets more than `1 +
//! t` times the mean load.
//!
//! With demand share d and capacity share c, zone z keeps `min(d[z], c[z] * (1 + t))`. The rest
//! goes to zones with free capacity, first in the same region, in proportion to their free
//! capacity. This is the minimum of cross-zone traffic without overload. `t = 0` is perfect
//! balance, `t = inf` is PreferSameZone.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::intent::MaxOverload;
use crate::key::Name;
use crate::routing::{WHOLE, WeightTable};

/// Weights change only if a share changes by more than this, in millionths.
const DEADBAND: u32 = 50_000;
/// The minimum time between two changes of the weights.
const REST: SignedDuration = SignedDuration::from_secs(30);

/// One zone: the demand of its clients and the capacity of its endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneLoad {
    /// Zone.
    pub zone: Name,
    /// Region, if known.
    pub region: Option<Name>,
    /// Relative demand of its clients.
    pub demand: u64,
    /// Ready endpoints.
    pub endpoints: u64,
}

/// Demand by client zone and endpoint zone, in units that make all values integers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flows {
    /// `flow[from][to]`.
    pub flow: Vec<Vec<u128>>,
    /// The sum of all.
    pub total: u128,
}

/// Distributes the demand of zones over their endpoints.
pub fn balance(zones: &[ZoneLoad], max: MaxOverload) -> Flows {
    let demand = scaled_demand(zones);
    let endpoints: Vec<u128> = zones.iter().map(|zone| u128::from(zone.endpoints)).collect();
    let (all_demand, all_endpoints): (u128, u128) = (demand.iter().sum(), endpoints.iter().sum());
    let mut flows = Flows { flow: vec![vec![0; zones.len()]; zones.len()], total: 0 };
    if all_endpoints == 0 || all_demand == 0 {
        return flows;
    }
    // In these units demand and capacity have the same mean and are integers.
    let demand: Vec<u128> = demand.iter().map(|d| d * all_endpoints * 1000).collect();
    let mut rest = demand.clone();
    let mut room = Room::new(&endpoints, all_demand, max);
    for (z, rest) in rest.iter_mut().enumerate() {
        let keep = room.take(z, *rest);
        flows.flow[z][z] += keep;
        *rest -= keep;
    }
    let regions: std::collections::BTreeSet<&Name> =
        zones.iter().filter_map(|zone| zone.region.as_ref()).collect();
    for region in regions {
        let of_region = |z: &usize| zones[*z].region.as_ref() == Some(region);
        let members: Vec<usize> = (0..zones.len()).filter(of_region).collect();
        spill(&members, &mut rest, &mut room, &mut flows);
    }
    let all: Vec<usize> = (0..zones.len()).collect();
    spill(&all, &mut rest, &mut room, &mut flows);
    flows.total = demand.iter().sum();
    flows
}

/// The demand of the zones, scaled so that products fit in 128 bits; only sums above 2^28 lose low
/// bits.
fn scaled_demand(zones: &[ZoneLoad]) -> Vec<u128> {
    let sum: u128 = zones.iter().map(|zone| u128::from(zone.demand)).sum();
    let excess = (128 - sum.leading_zeros()).saturating_sub(28);
    let scale = |demand: u64| {
        if demand == 0 { 0 } else { (u128::from(demand) >> excess).max(1) }
    };
    zones.iter().map(|zone| scale(zone.demand)).collect()
}

/// The free capacity of zones.
struct Room {
    left: Vec<u128>,
    unlimited: bool,
}

impl Room {
    fn new(endpoints: &[u128], all_demand: u128, max: MaxOverload) -> Self {
        match max {
            MaxOverload::Unlimited => Self { left: endpoints.to_vec(), unlimited: true },
            MaxOverload::Permille(permille) => {
                let factor = all_demand * u128::from(1000 + permille);
                let left = endpoints.iter().map(|count| count * factor).collect();
                Self { left, unlimited: false }
            }
        }
    }

    fn total(&self, members: &[usize]) -> u128 {
        let sum: u128 = members.iter().map(|z| self.left[*z]).sum();
        if self.unlimited && sum > 0 { u128::MAX } else { sum }
    }

    fn take(&mut self, zone: usize, wanted: u128) -> u128 {
        if self.unlimited {
            return if self.left[zone] > 0 { wanted } else { 0 };
        }
        let taken = wanted.min(self.left[zone]);
        self.left[zone] -= taken;
        taken
    }
}

/// Sends the demand that members could not keep to members with free capacity, in proportion to it.
fn spill(members: &[usize], rest: &mut [u128], room: &mut Room, flows: &mut Flows) {
    let wanted: Vec<u128> = members.iter().map(|z| rest[*z]).collect();
    let all: u128 = wanted.iter().sum();
    let sent = all.min(room.total(members));
    if sent == 0 {
        return;
    }
    for (from, amount) in members.iter().zip(apportion(sent, &wanted)) {
        let left: Vec<u128> = members.iter().map(|z| room.left[*z]).collect();
        for (to, part) in members.iter().zip(apportion(amount, &left)) {
            let taken = room.take(*to, part);
            flows.flow[*from][*to] += taken;
            rest[*from] -= taken;
        }
    }
}

/// Splits an amount in proportion to weights by largest remainders: the sum is exact, and no part
/// is above its rounded-up share.
pub fn apportion(amount: u128, weights: &[u128]) -> Vec<u128> {
    let sum: u128 = weights.iter().sum();
    if sum == 0 {
        return vec![0; weights.len()];
    }
    let mut parts: Vec<u128> = weights.iter().map(|weight| amount * weight / sum).collect();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|i| (std::cmp::Reverse(amount * weights[*i] % sum), *i));
    let missing = amount - parts.iter().sum::<u128>();
    for i in order.into_iter().take(missing as usize) {
        parts[i] += 1;
    }
    parts
}

/// The weight table for the flows, in millionths of each client zone's demand. A zone with
/// endpoints but without demand keeps its own traffic; a zone with neither has no row.
pub fn weigh(zones: &[ZoneLoad], flows: &Flows) -> WeightTable {
    let mut table = BTreeMap::new();
    for (z, zone) in zones.iter().enumerate() {
        let row = if flows.flow[z].iter().any(|flow| *flow > 0) {
            apportion(u128::from(WHOLE), &flows.flow[z])
        } else if zone.endpoints > 0 {
            (0..zones.len()).map(|to| if to == z { WHOLE.into() } else { 0 }).collect()
        } else {
            continue;
        };
        let row = zones.iter().zip(row).filter(|(_, weight)| *weight > 0);
        let row = row.map(|(to, weight)| (to.zone.clone(), weight as u32)).collect();
        table.insert(zone.zone.clone(), row);
    }
    let mut table = WeightTable(table);
    for zone in zones.iter().filter(|zone| zone.endpoints > 0) {
        keep_in_use(&mut table, &zone.zone);
    }
    table
}

/// Ensures that no zone with ready endpoints is rounded to zero: its own clients send it at least
/// the smallest weight.
fn keep_in_use(table: &mut WeightTable, zone: &Name) {
    if sends_to(table, zone) {
        return;
    }
    let Some(row) = table.0.get_mut(zone) else { return };
    if let Some(most) = row.values_mut().max() {
        *most -= 1;
    }
    row.insert(zone.clone(), 1);
}

fn sends_to(table: &WeightTable, zone: &Name) -> bool {
    table.0.values().any(|row| row.contains_key(zone))
}

/// A table in use, and the time since when it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weighed {
    /// The table.
    pub table: Arc<WeightTable>,
    /// The maximum overload that it was computed for.
    pub max: MaxOverload,
    /// The time since when it is used.
    pub since: Timestamp,
}

/// Decides whether a new table replaces the one in use. If it has to wait, returns until when.
pub fn settle(
    previous: Option<&Weighed>,
    fresh: Weighed,
    zones: &[ZoneLoad],
) -> (Weighed, Option<Timestamp>) {
    let now = fresh.since;
    // A change of the maximum overload takes effect at once.
    let Some(previous) = previous.filter(|previous| previous.max == fresh.max) else {
        return (fresh, None);
    };
    if must_move(&previous.table, zones) {
        return (fresh, None);
    }
    if shift(&previous.table, &fresh.table) <= DEADBAND {
        return (previous.clone(), None);
    }
    let rested = previous.since.checked_add(REST).unwrap_or(previous.since);
    if now < rested { (previous.clone(), Some(rested)) } else { (fresh, None) }
}

/// Whether a table sends traffic to a zone without endpoints, or none to a zone with endpoints.
fn must_move(table: &WeightTable, zones: &[ZoneLoad]) -> bool {
    let has_endpoints = |name: &Name| zones.iter().any(|z| z.zone == *name && z.endpoints > 0);
    let in_use = zones.iter().filter(|zone| zone.endpoints > 0);
    table.0.values().any(|row| row.keys().any(|zone| !has_endpoints(zone)))
        || in_use.into_iter().any(|zone| !sends_to(table, &zone.zone))
}

/// The largest change of any share.
fn shift(old: &WeightTable, fresh: &WeightTable) -> u32 {
    let weight = |table: &WeightTable, from: &Name, to: &Name| {
        table.0.get(from).and_then(|row| row.get(to)).copied().unwrap_or(0)
    };
    let pairs =
        (old.0.iter().chain(&fresh.0)).flat_map(|(from, row)| row.keys().map(move |to| (from, to)));
    pairs
        .map(|(from, to)| weight(old, from, to).abs_diff(weight(fresh, from, to)))
        .max()
        .unwrap_or(0)
}
