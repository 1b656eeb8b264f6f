//! Services that are reachable from outside: types, policies, affinity and source ranges change.

use nearhop_netfilter::layout::SetId;
use nearhop_proxy::engine::Tables;

use crate::follow::{Follower, content, v4};
use crate::on::on_both;

const REST: &str = "
    node n1
    node n2
    pod web-0 for=web on=n1 ip=10.244.0.1
    pod web-1 for=web on=n2 ip=10.244.0.2
    pod web-2 for=web on=n2 ip=10.244.0.3
";

/// The cluster with these options of its Service.
fn web(options: &str) -> String {
    format!("service web cluster-ip=10.96.0.1 port=80->8080 {options}\n{REST}")
}

/// Changes from each of these to each other and back; the table always matches one written from
/// scratch.
fn change_to_each(tables: &mut impl Tables, all: &[&str]) {
    let mut follower = Follower::start(tables, &web(all[0]));
    for from in all {
        for to in all {
            follower.turn_into(tables, &web(from));
            follower.check(tables);
            follower.turn_into(tables, &web(to));
            follower.check(tables);
        }
    }
    follower.full(tables);
    follower.check_exactly(tables);
}

on_both! {
    fn every_type_can_change_to_every_other(tables) {
        change_to_each(tables, &[
            "",
            "node-port=30080 type=NodePort",
            "node-port=30081 type=LoadBalancer lb-ip=192.0.2.1",
            "type=LoadBalancer lb-ip=192.0.2.2 lb-ip=192.0.2.1",
            "external-ip=192.0.2.1",
            "type=ExternalName",
            "type=LoadBalancer",
        ]);
    }

    fn every_policy_can_change_to_every_other(tables) {
        let exposed = "node-port=30080 type=LoadBalancer lb-ip=192.0.2.1 external-ip=203.0.113.1";
        let all = ["", "etp=Local", "itp=Local", "itp=Local etp=Local", "etp=Local affinity=5s"];
        let all = all.map(|policy| format!("{exposed} {policy}"));
        change_to_each(tables, &all.each_ref().map(String::as_str));
    }

    fn session_affinity_can_change(tables) {
        let exposed = "node-port=30080 type=LoadBalancer lb-ip=192.0.2.1";
        let all = ["", "affinity=10s", "affinity=20s", "affinity=86400s", "affinity=10s etp=Local"];
        let all = all.map(|affinity| format!("{exposed} {affinity}"));
        change_to_each(tables, &all.each_ref().map(String::as_str));
    }

    fn source_ranges_can_change(tables) {
        let exposed = "type=LoadBalancer lb-ip=192.0.2.1";
        let all = [
            "",
            "source-ranges=\"\"",
            "source-ranges=10.0.0.0/8",
            "source-ranges=10.0.0.0/9",
            "source-ranges=10.1.0.0/16,10.0.0.0/8,10.1.2.0/24",
            "source-ranges=10.1.0.0/16,10.2.0.0/16",
            "source-ranges=0.0.0.0/0,10.1.0.0/16",
            "source-ranges=fd00::/8",
        ];
        let all = all.map(|ranges| format!("{exposed} {ranges}"));
        change_to_each(tables, &all.each_ref().map(String::as_str));
    }

    fn overlapping_source_ranges_are_merged(tables) {
        let exposed = "type=LoadBalancer lb-ip=192.0.2.1 source-ranges";
        let ranges = format!("{exposed}=198.51.100.0/24,198.51.0.0/16,198.51.100.0/24,203.0.113.0/24");
        let mut follower = Follower::start(tables, &web(&ranges));
        assert_eq!(content(tables, &v4()).set(SetId::FirewallAllowed).len(), 2);
        // A range inside another one is removed: no change. The outer range is removed: the
        // interval shrinks.
        tables.forget();
        follower.turn_into(tables, &web(&format!("{exposed}=198.51.0.0/16,203.0.113.0/24")));
        assert!(tables.batches.is_empty());
        follower.turn_into(tables, &web(&format!("{exposed}=198.51.100.0/24,203.0.113.0/24")));
        assert_eq!(tables.counts()[&SetId::FirewallAllowed], (1, 1));
        follower.check(tables);
        // The interval grows again around the inner range.
        follower.turn_into(tables, &web(&format!("{exposed}=198.51.0.0/16,203.0.113.0/24")));
        follower.check(tables);
    }

    fn a_thousand_source_ranges_can_be_replaced(tables) {
        let ranges = |third: u32| {
            let all: Vec<String> = (0..1000).map(|i| format!("10.{}.{}.0/25", i / 256, i % 256))
                .map(|range| range.replace("10.", &format!("{third}."))).collect();
            web(&format!("type=LoadBalancer lb-ip=192.0.2.1 source-ranges={}", all.join(",")))
        };
        let mut follower = Follower::start(tables, &ranges(10));
        follower.turn_into(tables, &ranges(11));
        follower.check(tables);
        follower.turn_into(tables, &ranges(11).replace("/25", "/24"));
        follower.check_exactly(tables);
    }
}
