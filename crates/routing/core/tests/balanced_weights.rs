//! Balanced, compared with its closed formula, which this test implements separately in rational
//! arithmetic.

use std::collections::BTreeSet;

use jiff::Timestamp;
use nearhop_core::Name;
use nearhop_core::hint::balanced::{Flows, Weighed, ZoneLoad, apportion, balance, settle, weigh};
use nearhop_core::intent::MaxOverload;
use nearhop_core::routing::{WHOLE, WeightTable};
use proptest::prelude::*;

fn zone(name: &str, region: &str, demand: u64, endpoints: u64) -> ZoneLoad {
    let region = (!region.is_empty()).then(|| Name::from(region));
    ZoneLoad { zone: Name::from(name), region, demand, endpoints }
}

/// Demand and limit of a set of zones, over the common denominator `all demand * all endpoints *
/// 1000`.
fn demand_and_bound(
    zones: &[ZoneLoad],
    of: impl Fn(&ZoneLoad) -> bool,
    permille: u64,
) -> (i128, i128) {
    let (all_demand, all_endpoints) = totals(zones);
    let sum =
        |value: &dyn Fn(&ZoneLoad) -> i128| zones.iter().filter(|z| of(z)).map(value).sum::<i128>();
    let demand = sum(&|z| i128::from(z.demand) * all_endpoints * 1000);
    let bound = sum(&|z| i128::from(z.endpoints) * all_demand * i128::from(1000 + permille));
    (demand, bound)
}

fn totals(zones: &[ZoneLoad]) -> (i128, i128) {
    let sum = |value: fn(&ZoneLoad) -> u64| zones.iter().map(|z| i128::from(value(z))).sum();
    (sum(|z| z.demand), sum(|z| z.endpoints))
}

fn sent(flows: &Flows, when: impl Fn(usize, usize) -> bool) -> i128 {
    let all = flows.flow.iter().enumerate();
    let all =
        all.flat_map(|(from, row)| row.iter().enumerate().map(move |(to, flow)| (from, to, *flow)));
    all.filter(|(from, to, _)| when(*from, *to)).map(|(_, _, flow)| flow as i128).sum()
}

prop_compose! {
    fn zones()(loads in prop::collection::vec((0_u64..1000, 0_u64..20, 0_usize..4), 1..7)) -> Vec<ZoneLoad> {
        loads.iter().enumerate()
            .map(|(i, (demand, endpoints, region))| {
                zone(&format!("z{i}"), ["", "r1", "r2", "r3"][*region], *demand, *endpoints)
            })
            .collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn bounded_and_cross_zone_share_minimal(zones in zones(), permille in 0_u64..2000) {
        let flows = balance(&zones, MaxOverload::Permille(permille as u32));
        let (all_demand, all_endpoints) = totals(&zones);
        if all_demand == 0 || all_endpoints == 0 {
            prop_assert_eq!(flows.total, 0);
            return Ok(());
        }
        // All demand is served, and the flows from each zone add up to its demand.
        for (z, load) in zones.iter().enumerate() {
            let expected = i128::from(load.demand) * all_endpoints * 1000;
            prop_assert_eq!(sent(&flows, |from, _| from == z), expected);
        }
        // No endpoint has more than 1 + t times the mean load.
        for z in 0..zones.len() {
            let (_, bound) = demand_and_bound(&zones, |load| load.zone == zones[z].zone, permille);
            prop_assert!(sent(&flows, |_, to| to == z) <= bound);
        }
        // The minimum of cross-zone traffic: the demand above the limit of each zone, and of each
        // region.
        let excess = |of: &dyn Fn(&ZoneLoad) -> bool| {
            let (demand, bound) = demand_and_bound(&zones, of, permille);
            (demand - bound).max(0)
        };
        let minimum: i128 = zones.iter().map(|z| excess(&|load| load.zone == z.zone)).sum();
        prop_assert_eq!(sent(&flows, |from, to| from != to), minimum);
        let regions: BTreeSet<&Option<Name>> = zones.iter().map(|z| &z.region).collect();
        let out_of_regions: i128 = regions.iter()
            .filter(|region| region.is_some())
            .map(|region| excess(&|load| load.region == **region))
            .sum();
        let leaves = |from: usize, to: usize| {
            zones[from].region.is_some() && zones[from].region != zones[to].region
        };
        prop_assert_eq!(sent(&flows, leaves), out_of_regions);
    }

    #[test]
    fn without_a_limit_traffic_stays_in_its_zone(zones in zones()) {
        let flows = balance(&zones, MaxOverload::Unlimited);
        for (z, load) in zones.iter().enumerate().filter(|(_, load)| load.endpoints > 0) {
            let out = sent(&flows, |from, to| from == z && to != z);
            prop_assert_eq!(out, 0, "zone {} sends traffic to other zones", load.zone);
        }
    }

    #[test]
    fn with_zero_overload_all_endpoints_get_the_same_load(zones in zones()) {
        let flows = balance(&zones, MaxOverload::Permille(0));
        let (all_demand, all_endpoints) = totals(&zones);
        for (z, load) in zones.iter().enumerate().filter(|_| all_demand > 0 && all_endpoints > 0) {
            let fair = i128::from(load.endpoints) * all_demand * 1000;
            prop_assert_eq!(sent(&flows, |_, to| to == z), fair);
        }
    }

    #[test]
    fn rows_add_up_and_are_exact_to_a_millionth(zones in zones(), permille in 0_u32..2000) {
        let flows = balance(&zones, MaxOverload::Permille(permille));
        for (from, row) in &weigh(&zones, &flows).0 {
            prop_assert_eq!(row.values().sum::<u32>(), WHOLE);
            let z = zones.iter().position(|load| load.zone == *from).expect("every row has a zone");
            let all: u128 = flows.flow[z].iter().sum();
            for (to, weight) in row.iter().filter(|_| all > 0) {
                let t = zones.iter().position(|load| load.zone == *to).expect("every weight has a zone");
                prop_assert!(zones[t].endpoints > 0, "weight for a zone without endpoints");
                let exact = flows.flow[z][t] as f64 / all as f64 * f64::from(WHOLE);
                prop_assert!((f64::from(*weight) - exact).abs() <= 1.0);
            }
        }
    }

    /// The weight table that nodes use stays within the limit, up to its resolution.
    #[test]
    fn the_weight_table_keeps_the_limit(zones in zones(), permille in 0_u32..2000) {
        let table = weigh(&zones, &balance(&zones, MaxOverload::Permille(permille)));
        let (all_demand, all_endpoints) = totals(&zones);
        for to in zones.iter().filter(|z| z.endpoints > 0 && all_demand > 0) {
            let sent = |from: &ZoneLoad| {
                let weight = table.0.get(&from.zone).and_then(|row| row.get(&to.zone));
                from.demand as f64 * f64::from(weight.copied().unwrap_or(0)) / f64::from(WHOLE)
            };
            let load: f64 = zones.iter().map(sent).sum::<f64>() / all_demand as f64;
            let mean = to.endpoints as f64 / all_endpoints as f64;
            let bound = mean * (1.0 + f64::from(permille) / 1000.0);
            prop_assert!(load <= bound + 1.0 / f64::from(WHOLE), "{load} above {bound}");
        }
    }

    #[test]
    fn apportioned_parts_add_up(amount in 0_u128..1_000_000, weights in prop::collection::vec(0_u128..1000, 1..9)) {
        let parts = apportion(amount, &weights);
        let sum: u128 = weights.iter().sum();
        prop_assert_eq!(parts.iter().sum::<u128>(), if sum == 0 { 0 } else { amount });
        for (part, weight) in parts.iter().zip(&weights).filter(|_| sum > 0) {
            prop_assert!(*part >= amount * weight / sum);
            prop_assert!(*part <= (amount * weight).div_ceil(sum));
        }
    }
}

/// Endpoints 1/4/4, equal demand, 20 %: without balancing, one endpoint has three times the mean
/// load. With balancing no endpoint is above 1.2; a fifth of all traffic leaves zone a, and no
/// other traffic leaves its zone.
#[test]
fn a_zone_with_few_endpoints_sends_a_fifth_of_all_traffic_away() {
    let zones = [zone("a", "", 1, 1), zone("b", "", 1, 4), zone("c", "", 1, 4)];
    let flows = balance(&zones, MaxOverload::Permille(200));
    let all = sent(&flows, |_, _| true);
    assert_eq!(sent(&flows, |from, to| from != to) * 1000 / all, 200);
    let table = weigh(&zones, &flows).0;
    assert_eq!(table["a"].values().copied().collect::<Vec<_>>(), [400_000, 300_000, 300_000]);
    assert_eq!(table["b"].values().copied().collect::<Vec<_>>(), [1_000_000]);
    assert_eq!(table["c"].values().copied().collect::<Vec<_>>(), [1_000_000]);
}

#[test]
fn excess_traffic_stays_in_the_region_first() {
    let zones = [zone("a", "eu", 4, 1), zone("b", "eu", 1, 3), zone("c", "us", 1, 2)];
    let table = weigh(&zones, &balance(&zones, MaxOverload::Permille(0))).0;
    // Zone a keeps 1 of 4, b has capacity for 2, the last goes to c.
    assert_eq!(table["a"].values().copied().collect::<Vec<_>>(), [250_000, 500_000, 250_000]);
}

#[test]
fn unusual_zones_are_weighed() {
    let rows = |zones: &[ZoneLoad]| weigh(zones, &balance(zones, MaxOverload::default())).0.len();
    assert_eq!(rows(&[]), 0, "no zone");
    assert_eq!(rows(&[zone("a", "", 5, 0)]), 0, "no endpoint: no weights");
    assert_eq!(rows(&[zone("a", "", 0, 3)]), 1, "no demand: traffic would stay in the zone");
    assert_eq!(rows(&[zone("a", "", 5, 3)]), 1, "one zone");
    let table = weigh(
        &[zone("a", "", 5, 0), zone("b", "", 0, 2)],
        &balance(&[zone("a", "", 5, 0), zone("b", "", 0, 2)], MaxOverload::default()),
    );
    assert_eq!(table.0["a"]["b"], WHOLE, "demand of a zone without endpoints goes to another zone");
    let huge = [zone("a", "", u64::MAX, 1_000_000), zone("b", "", u64::MAX, 1)];
    assert_eq!(rows(&huge), 2, "no overflow");
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("a valid time")
}

/// A table in which zone a keeps `home` millionths and sends the rest to b.
fn keeping(home: u32, since: i64) -> Weighed {
    let row = |pairs: &[(&str, u32)]| pairs.iter().map(|(z, w)| (Name::from(*z), *w)).collect();
    let a = row(&[("a", home), ("b", WHOLE - home)]);
    let rows = [(Name::from("a"), a), (Name::from("b"), row(&[("b", WHOLE)]))];
    let table = WeightTable(rows.into_iter().collect()).into();
    Weighed { table, max: MaxOverload::default(), since: at(since) }
}

#[test]
fn weights_change_by_more_than_five_points_and_every_thirty_seconds() {
    let zones = [zone("a", "", 1, 2), zone("b", "", 1, 2)];
    let first = keeping(500_000, 0);
    assert_eq!(settle(None, first.clone(), &zones), (first.clone(), None));
    let five = keeping(550_000, 100);
    assert_eq!(settle(Some(&first), five, &zones), (first.clone(), None), "five points");
    let early = keeping(550_001, 29);
    let kept = settle(Some(&first), early, &zones);
    assert_eq!(kept, (first.clone(), Some(at(30))), "more than five points, too early");
    let late = keeping(550_001, 30);
    assert_eq!(
        settle(Some(&first), late.clone(), &zones),
        (late, None),
        "more than five points, after 30 s"
    );
}

/// The waiting time and the deadband apply to weights only, not to zones that gain or lose their
/// endpoints, and not to a new setting of the user.
#[test]
fn some_changes_apply_at_once() {
    let first = keeping(500_000, 0);
    let soon = keeping(500_001, 1);
    let gone = [zone("a", "", 1, 2), zone("b", "", 1, 0)];
    assert_eq!(settle(Some(&first), soon.clone(), &gone).0, soon, "b has no endpoints left");
    let new = [zone("a", "", 1, 2), zone("b", "", 1, 2), zone("c", "", 1, 1)];
    assert_eq!(
        settle(Some(&first), soon.clone(), &new).0,
        soon,
        "no client uses the endpoint of c"
    );
    let changed = Weighed { max: MaxOverload::Permille(100), ..soon };
    let zones = [zone("a", "", 1, 2), zone("b", "", 1, 2)];
    assert_eq!(
        settle(Some(&first), changed.clone(), &zones).0,
        changed,
        "the user changed max-overload"
    );
}

/// A zone with a very small weight is still used.
#[test]
fn small_weights_are_not_rounded_to_zero() {
    let zones = [zone("a", "", 10_000_000, 1), zone("b", "", 4, 3_000_000)];
    let table = weigh(&zones, &balance(&zones, MaxOverload::Permille(0)));
    assert!(table.0["a"]["a"] > 0, "{table:?}");
    assert_eq!(table.0["a"].values().sum::<u32>(), WHOLE);
}
