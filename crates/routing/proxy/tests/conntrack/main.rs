//! The conntrack table of the kernel: a sweep deletes stale flows, and nothing else.
//!
//! Each test has its own network namespace and creates flows in it by netlink.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../../../netfilter/tests/sets/mod.rs"]
mod sets;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use nearhop_core::{EndpointKey, Family, Protocol};
use nearhop_net::sandbox;
use nearhop_netfilter::conntrack::{Flow, Rehome, View, Why};
use nearhop_netfilter::frontend::{At, Frontend};
use nearhop_proxy::conntrack::{Conntrack, Deletion, Extent};

use sets::{Sets, plan_deletions};
use table::{NewFlow, everything, flows, insert, new_flow, udp};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn endpoint(text: &str) -> EndpointKey {
    let at: SocketAddr = text.parse().unwrap();
    EndpointKey { ip: at.ip(), port: at.port() }
}

fn allowed(endpoints: &[&str]) -> Sets {
    Sets { allowed: endpoints.iter().map(|text| endpoint(text)).collect(), ..Sets::default() }
}

fn address(protocol: Protocol, text: &str) -> Frontend {
    let at: SocketAddr = text.parse().unwrap();
    Frontend { at: At::Address(at.ip()), protocol, port: at.port() }
}

fn sorted(mut flows: Vec<NewFlow>) -> Vec<NewFlow> {
    flows.sort();
    flows
}

/// Flows that stay, and flows that are deleted, with the reason.
fn population() -> (Vec<NewFlow>, Vec<(NewFlow, Why)>) {
    let dns = "10.96.0.10:53";
    let kept = vec![
        udp("10.0.0.1:1001", dns, "10.1.0.1:5353"),
        udp("10.0.0.2:1001", dns, "10.1.0.1:5353"),
        udp("192.0.2.77:1001", "192.0.2.5:30053", "10.1.0.1:5353"),
        // Foreign flows: not through a frontend, TCP, another port, a node port at a foreign
        // address.
        udp("10.0.0.1:1002", "10.9.0.1:5353", "10.9.0.1:5353"),
        udp("10.0.0.1:1003", "10.96.0.10:54", "10.9.0.1:5353"),
        udp("10.0.0.1:1004", "192.0.2.6:30053", "10.9.0.1:5353"),
        new_flow(Protocol::Tcp, "10.0.0.1:1001", dns, "10.9.0.1:5353"),
        new_flow(Protocol::Sctp, "10.0.0.1:1005", "10.96.0.11:7", "10.1.0.1:7"),
        udp("[fd00::1]:1001", "[fd96::10]:53", "[fd09::1]:5353"),
    ];
    let stale = vec![
        (udp("10.0.0.1:1006", dns, "10.9.0.1:5353"), Why::EndpointGone),
        (udp("10.0.0.1:1007", dns, dns), Why::NeverTranslated),
        (udp("192.0.2.77:1008", "192.0.2.5:30053", "10.9.0.1:5353"), Why::EndpointGone),
        (udp("10.0.0.1:1009", "10.96.0.99:53", "10.9.0.1:5353"), Why::FrontendRemoved),
        (
            new_flow(Protocol::Sctp, "10.0.0.1:1010", "10.96.0.11:7", "10.9.0.1:7"),
            Why::EndpointGone,
        ),
    ];
    (kept, stale)
}

fn view() -> View<Sets> {
    let mut view = View::new(Rehome::NewOnly, BTreeSet::from([ip("192.0.2.5")]));
    view.insert(address(Protocol::Udp, "10.96.0.10:53"), allowed(&["10.1.0.1:5353"]));
    let node_port = Frontend { at: At::Node, protocol: Protocol::Udp, port: 30053 };
    view.insert(node_port, allowed(&["10.1.0.1:5353"]));
    view.insert(address(Protocol::Sctp, "10.96.0.11:7"), allowed(&["10.1.0.1:7"]));
    let removed = address(Protocol::Udp, "10.96.0.99:53");
    view.insert_removed(removed, allowed(&["10.9.0.1:5353"]));
    view
}

#[test]
fn a_sweep_deletes_only_stale_flows() {
    sandbox::run("a_sweep_deletes_only_stale_flows", || {
        let (kept, stale) = population();
        insert(&kept);
        insert(&stale.iter().map(|(flow, _)| *flow).collect::<Vec<_>>());
        let mut table = Conntrack::open().unwrap();
        assert_eq!(everything(&mut table).len(), kept.len() + stale.len());

        let swept = table.sweep(Family::Ipv4, &view()).unwrap();
        let mut expected = BTreeMap::new();
        for (_, why) in &stale {
            *expected.entry(*why).or_default() += 1;
        }
        assert_eq!(swept.deleted, expected, "{swept:?}");
        assert_eq!((swept.kept, swept.foreign), (4, 3), "{swept:?}");
        assert_eq!((swept.already_gone, swept.failed, swept.extent), (0, 0, Extent::Whole));
        assert_eq!(everything(&mut table), sorted(kept.clone()));

        let again = table.sweep(Family::Ipv4, &view()).unwrap();
        assert_eq!(again.deleted, BTreeMap::new(), "the second sweep deletes nothing");
        assert_eq!(everything(&mut table), sorted(kept));
    });
}

#[test]
fn stale_ipv6_flows_are_deleted() {
    sandbox::run("stale_ipv6_flows_are_deleted", || {
        let kept = [
            udp("[fd00::1]:1", "[fd96::10]:53", "[fd01::1]:5353"),
            udp("10.0.0.1:1", "10.96.0.10:53", "10.9.0.1:5353"),
            udp("[fd00::1]:2", "[fd96::11]:53", "[fd09::1]:5353"),
        ];
        insert(&kept);
        insert(&[udp("[fd00::1]:3", "[fd96::10]:53", "[fd09::1]:5353")]);
        let mut view = View::new(Rehome::NewOnly, BTreeSet::new());
        view.insert(address(Protocol::Udp, "[fd96::10]:53"), allowed(&["[fd01::1]:5353"]));
        let mut table = Conntrack::open().unwrap();
        let swept = table.sweep(Family::Ipv6, &view).unwrap();
        assert_eq!(swept.deleted, BTreeMap::from([(Why::EndpointGone, 1)]));
        assert_eq!(everything(&mut table), sorted(kept.to_vec()));
    });
}

/// The endpoint is first demoted, then removed.
#[test]
fn a_flow_stays_until_its_endpoint_is_removed() {
    sandbox::run("a_flow_stays_until_its_endpoint_is_removed", || {
        insert(&[udp("10.0.0.1:1", "10.96.0.10:53", "10.9.0.1:5353")]);
        let frontend = address(Protocol::Udp, "10.96.0.10:53");
        let far = BTreeSet::from([endpoint("10.9.0.1:5353")]);
        let view = |demoted: BTreeSet<EndpointKey>, rehome| {
            let mut view = View::new(rehome, BTreeSet::new());
            view.insert(frontend, Sets { demoted, ..allowed(&["10.1.0.1:5353"]) });
            view
        };
        let mut table = Conntrack::open().unwrap();
        let swept = table.sweep(Family::Ipv4, &view(far, Rehome::NewOnly)).unwrap();
        assert_eq!((swept.deleted.len(), swept.kept), (0, 1));
        let swept = table.sweep(Family::Ipv4, &view(BTreeSet::new(), Rehome::NewOnly)).unwrap();
        assert_eq!(swept.deleted, BTreeMap::from([(Why::EndpointGone, 1)]));
    });
}

#[test]
fn a_view_without_frontends_deletes_nothing() {
    sandbox::run("a_view_without_frontends_deletes_nothing", || {
        let (kept, stale) = population();
        let all: Vec<NewFlow> = kept.into_iter().chain(stale.into_iter().map(|s| s.0)).collect();
        insert(&all);
        let mut table = Conntrack::open().unwrap();
        let nothing: View<Sets> = View::new(Rehome::Immediate, BTreeSet::from([ip("192.0.2.5")]));
        for family in [Family::Ipv4, Family::Ipv6] {
            let swept = table.sweep(family, &nothing).unwrap();
            assert_eq!(swept.deleted, BTreeMap::new());
        }
        assert_eq!(everything(&mut table), sorted(all));
    });
}

#[test]
fn a_dump_contains_one_protocol_and_family() {
    sandbox::run("a_dump_contains_one_protocol_and_family", || {
        let of = |protocol| {
            [
                new_flow(protocol, "10.0.0.1:1", "10.96.0.10:53", "10.1.0.1:5353"),
                new_flow(protocol, "[fd00::1]:1", "[fd96::10]:53", "[fd01::1]:5353"),
            ]
        };
        let protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
        protocols.into_iter().for_each(|protocol| insert(&of(protocol)));
        let mut table = Conntrack::open().unwrap();
        for protocol in protocols {
            let found: Vec<NewFlow> =
                flows(&mut table, protocol).iter().map(NewFlow::from).collect();
            assert_eq!(found, sorted(of(protocol).to_vec()));
        }
    });
}

#[test]
fn a_deletion_requires_the_id_of_the_flow() {
    sandbox::run("a_deletion_requires_the_id_of_the_flow", || {
        let flow = udp("10.0.0.1:1", "10.96.0.10:53", "10.9.0.1:5353");
        insert(&[flow]);
        let mut table = Conntrack::open().unwrap();
        let [found] = flows(&mut table, Protocol::Udp)[..] else {
            panic!("the table has one flow")
        };
        let later = Flow { id: found.id.wrapping_add(1), ..found };
        assert_eq!(
            table.delete(&later).unwrap(),
            Deletion::AlreadyGone,
            "the flow in the table has another id"
        );
        assert_eq!(everything(&mut table), [flow]);
        assert_eq!(table.delete(&found).unwrap(), Deletion::Deleted);
        assert_eq!(everything(&mut table), []);
        assert_eq!(table.delete(&found).unwrap(), Deletion::AlreadyGone);
    });
}

/// Other programs may use conntrack zones; the sweep finds our flows there, and deletes only those.
#[test]
fn a_flow_in_a_conntrack_zone_is_deleted() {
    sandbox::run("a_flow_in_a_conntrack_zone_is_deleted", || {
        let flow = udp("10.0.0.1:1", "10.96.0.10:53", "10.9.0.1:5353");
        let twin = NewFlow { zone: 7, ..flow };
        insert(&[flow, twin]);
        let mut table = Conntrack::open().unwrap();
        let found = flows(&mut table, Protocol::Udp);
        let in_zone =
            found.iter().find(|flow| flow.zone == 7).expect("the table has a flow in zone 7");
        assert_eq!(table.delete(in_zone).unwrap(), Deletion::Deleted);
        assert_eq!(everything(&mut table), [flow]);
    });
}

/// A sweep deletes 270 flows of one endpoint among 2,859.
#[test]
fn only_flows_of_the_removed_endpoint_are_deleted() {
    sandbox::run("only_flows_of_the_removed_endpoint_are_deleted", || {
        let frontend = "10.96.0.10:53";
        let client = |n: usize| format!("10.0.{}.{}:{}", n / 250, n % 250 + 1, 1000 + n);
        let flow = |n: usize| match n {
            0..270 => udp(&client(n), frontend, "10.9.0.1:5353"),
            // The same endpoint through another frontend, without a frontend, and over TCP.
            270..280 => udp(&client(n), "10.96.0.11:53", "10.9.0.1:5353"),
            280..290 => udp(&client(n), "10.9.0.1:5353", "10.9.0.1:5353"),
            290..300 => new_flow(Protocol::Tcp, &client(n), frontend, "10.9.0.1:5353"),
            300..310 => udp(&client(n), frontend, "10.9.0.1:5354"),
            _ => udp(&client(n), frontend, "10.1.0.1:5353"),
        };
        let all: Vec<NewFlow> = (0..2859).map(flow).collect();
        let rest = sorted(all[270..].to_vec());
        let mut table = Conntrack::open().unwrap();

        insert(&all);
        let mut view = View::new(Rehome::NewOnly, BTreeSet::new());
        let left = allowed(&["10.1.0.1:5353", "10.9.0.1:5354"]);
        view.insert(address(Protocol::Udp, frontend), left);
        let begin = Instant::now();
        let swept = table.sweep(Family::Ipv4, &view).unwrap();
        println!("270 of 2,859 flows by a sweep: {:?}", begin.elapsed());
        assert_eq!(swept.deleted, BTreeMap::from([(Why::EndpointGone, 270)]));
        assert_eq!(everything(&mut table), rest);
    });
}

#[test]
fn ten_thousand_of_a_hundred_thousand_flows_are_deleted() {
    sandbox::run("ten_thousand_of_a_hundred_thousand_flows_are_deleted", || {
        let client = |n: u32| format!("10.{}.{}.1:{}", n >> 14, (n >> 6) & 255, 1000 + (n & 63));
        let all: Vec<NewFlow> = (0..100_000_u32)
            .map(|n| {
                let frontend = format!("10.96.{}.10:53", n % 200);
                let endpoint = format!("10.200.{}.{}:5353", n % 200, n / 200 % 10 + 1);
                udp(&client(n), &frontend, &endpoint)
            })
            .collect();
        insert(&all);
        let mut view = View::new(Rehome::NewOnly, BTreeSet::new());
        for service in 0..200 {
            // Nine of ten endpoints remain.
            let left: Vec<String> = (1..10).map(|n| format!("10.200.{service}.{n}:5353")).collect();
            let left: Vec<&str> = left.iter().map(String::as_str).collect();
            let frontend = format!("10.96.{service}.10:53");
            view.insert(address(Protocol::Udp, &frontend), allowed(&left));
        }
        let mut table = Conntrack::open().unwrap();
        let begin = Instant::now();
        let found = table.dump(Family::Ipv4, Protocol::Udp, Vec::new, |all, flow| all.push(*flow));
        let found = found.unwrap();
        println!("dump of {} flows: {:?}", found.value.len(), begin.elapsed());
        assert_eq!((found.value.len(), found.extent), (100_000, Extent::Whole));
        let begin = Instant::now();
        let plan = plan_deletions(&found.value, &view);
        println!("plan: {:?}, {} stale", begin.elapsed(), plan.stale.len());
        let begin = Instant::now();
        let swept = table.sweep(Family::Ipv4, &view).unwrap();
        println!("sweep: {:?}", begin.elapsed());
        assert_eq!(swept.deleted, BTreeMap::from([(Why::EndpointGone, 10_000)]));
        assert_eq!((swept.kept, swept.foreign, swept.failed), (90_000, 0, 0));
        assert_eq!(flows(&mut table, Protocol::Udp).len(), 90_000);
    });
}
