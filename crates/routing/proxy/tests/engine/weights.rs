//! Weights of zones and endpoints in clusters of any size: the share of connections on one node and
//! on all nodes together, and the number of elements in the kernel.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use nearhop_core::labels::well_known;
use nearhop_core::model::{AddressType, Conditions, Endpoint, Slice, SlicePort};
use nearhop_core::route::{Place, RouteTable};
use nearhop_core::routing::SliceRouting;
use nearhop_core::{Change, Family, Name, Protocol};
use nearhop_net::traffic::{self, Server, connect_many};
use nearhop_net::{Star, sandbox};
use nearhop_netfilter::desired::DesiredTable;
use nearhop_netfilter::frontend::{At, Frontend, Program};
use nearhop_netfilter::layout::SetId;
use nearhop_netfilter::reconcile::reconcile;
use nearhop_proxy::engine::{Engine, Tables, Verified};
use nearhop_proxy::kernel::Kernel;
use nearhop_simulator::fake::Fake;
use nearhop_simulator::walk::{Host, Outcome, Packet, every_outcome};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::equal::runs;
use crate::follow::{Cluster, Follower, v4};
use crate::on::on_both;

const SERVICE: &str = "10.96.0.1:80";
/// The sum of all weights: a million.
const WHOLE: u32 = 1_000_000;

/// The endpoints of one zone, and the share that a node of the first zone sends there.
#[derive(Clone, Copy, Debug)]
struct Zone {
    endpoints: u32,
    millionths: u32,
}

fn zones(all: &[(u32, u32)]) -> Vec<Zone> {
    all.iter()
        .map(|(endpoints, millionths)| Zone { endpoints: *endpoints, millionths: *millionths })
        .collect()
}

/// Endpoint `i` of a zone.
fn endpoint_ip(zone: usize, i: u32) -> IpAddr {
    Ipv4Addr::from(0x0a80_0000 + zone as u32 * 0x1_0000 + i + 1).into()
}

fn zone_of(ip: IpAddr) -> usize {
    let IpAddr::V4(ip) = ip else { panic!("{ip} is no endpoint") };
    ((u32::from(ip) - 0x0a80_0000) >> 16) as usize
}

/// Slices as the controller would write them.
fn slices(zones: &[Zone]) -> Vec<Change> {
    let row: Vec<String> = zones
        .iter()
        .enumerate()
        .map(|(i, zone)| format!(r#""z{i}":{}"#, zone.millionths))
        .collect();
    let routing = format!(r#"{{"v":1,"weights":{{"z0":{{{}}}}}}}"#, row.join(","));
    let routing = SliceRouting::read(Some(&routing));
    assert!(matches!(routing, SliceRouting::Valid(_)), "{routing:?}");
    let ports: Arc<[SlicePort]> = Arc::from([SlicePort {
        name: Name::from(""),
        protocol: Protocol::Tcp,
        port: Some(8080),
        app_protocol: None,
    }]);
    let slice = |(i, zone): (usize, &Zone)| {
        let endpoint = |number| Endpoint {
            conditions: Conditions { ready: Some(true), serving: Some(true), terminating: None },
            node: Some(Name::from("n2")),
            zone: Some(Name::from(format!("z{i}"))),
            ..Endpoint::at(endpoint_ip(i, number))
        };
        Change::put(Slice {
            namespace: Name::from("default"),
            name: Name::from(format!("web-{i}")),
            labels: [(well_known::SERVICE_NAME, "web")].into_iter().collect(),
            owners: Vec::new(),
            deleting: false,
            address_type: AddressType::Ip(Family::Ipv4),
            ports: ports.clone(),
            endpoints: (0..zone.endpoints).map(endpoint).collect(),
            trigger_time: None,
            routing: routing.clone(),
        })
    };
    zones.iter().enumerate().map(slice).collect()
}

const CLUSTER: &str = "node n1 zone=z0\nservice web cluster-ip=10.96.0.1 no-selector";

fn cluster(zones: &[Zone]) -> Cluster {
    let mut cluster = Cluster::new(CLUSTER);
    cluster.apply(slices(zones));
    cluster
}

type Shares = BTreeMap<IpAddr, f64>;

/// The share of connections to the Service that each endpoint gets, according to the rules.
fn walk(fake: &Fake) -> Shares {
    let packet = Packet {
        source: "192.0.2.7:40000".parse().unwrap(),
        destination: SERVICE.parse().unwrap(),
        protocol: Protocol::Tcp,
        iif: String::from("eth0"),
        mark: 0,
    };
    let outcomes = every_outcome(fake, &packet, &Host { node_addresses: Vec::new() });
    let to = |outcome: Outcome| match outcome {
        Outcome::Delivered { destination, translated: true, .. } => destination.ip(),
        other => panic!("a connection ends as {other:?}"),
    };
    outcomes.unwrap().into_iter().map(|(outcome, share)| (to(outcome), share)).collect()
}

/// The rules for the routes of a node.
fn rules(routes: &RouteTable) -> (DesiredTable, Fake) {
    let config = Arc::new(v4());
    let desired = DesiredTable::build(routes, config.clone(), &Program::default());
    let mut fake = Fake::new();
    fake.apply(&reconcile(&desired, None).into_batch(&config.table)).unwrap();
    (desired, fake)
}

fn by_zone(shares: &Shares) -> BTreeMap<usize, f64> {
    let mut zones = BTreeMap::new();
    shares.iter().for_each(|(ip, share)| *zones.entry(zone_of(*ip)).or_default() += share);
    zones
}

/// Checks that every zone gets its share, and that all its endpoints get the same share.
fn check_shares(zones: &[Zone], shares: &Shares) -> Result<(), TestCaseError> {
    for (i, given) in by_zone(shares) {
        let wanted = f64::from(zones[i].millionths) / f64::from(WHOLE);
        prop_assert!(
            (given - wanted).abs() <= 0.01,
            "zone {i} gets {given}, not {wanted}: {zones:?}"
        );
        let own = shares.iter().filter(|(ip, _)| zone_of(**ip) == i).map(|(_, share)| *share);
        let (least, most) = own
            .fold((f64::MAX, 0.0_f64), |(least, most), share| (least.min(share), most.max(share)));
        prop_assert!(most <= least * 1.05, "zone {i}: from {least} to {most}: {zones:?}");
    }
    Ok(())
}

fn check_node(zones: &[Zone]) -> Result<usize, TestCaseError> {
    let (_, fake) = rules(&cluster(zones).routes);
    let shares = walk(&fake);
    let wanted = zones.iter().filter(|zone| zone.millionths > 0).map(|zone| zone.endpoints);
    prop_assert_eq!(shares.len(), wanted.sum::<u32>() as usize, "an endpoint gets no connections");
    check_shares(zones, &shares)?;
    let slots = fake.elements(&v4().table, SetId::Endpoints.name()).into_iter().flatten();
    Ok(slots.count())
}

/// With slots in proportion to the weight, and at least one per endpoint, the remote zone of two
/// zones got 13.7 %, 5.3 % and 21.7 %.
#[test]
fn small_shares_of_large_zones_match_the_weights() {
    for (near, far, millionths) in [(500, 500, 50_000), (200, 200, 20_000), (3, 1_000, 10_000)] {
        check_node(&zones(&[(near, WHOLE - millionths), (far, millionths)])).unwrap();
    }
}

prop_compose! {
    /// Two to five thousand endpoints in two to eight zones; small and large sizes are equally
    /// likely.
    fn any_zones()(
        sizes in prop::collection::vec(0.0..1.0_f64, 2..=8),
        scale in 0.0..1.0_f64,
        weights in prop::collection::vec(0.0..1.0_f64, 8),
    ) -> Vec<Zone> {
        let most = 5_000.0_f64 / sizes.len() as f64;
        let endpoints = |size: &f64| (most.powf(scale) * size).max(1.0) as u32;
        // The third power makes some shares far smaller than 1 %.
        let weights: Vec<f64> = weights.iter().take(sizes.len()).map(|weight| weight.powi(3) + 1e-5).collect();
        let total: f64 = weights.iter().sum();
        let mut zones: Vec<Zone> = sizes.iter().zip(&weights).map(|(size, weight)| Zone {
            endpoints: endpoints(size),
            millionths: (weight / total * f64::from(WHOLE)) as u32,
        }).collect();
        zones[0].millionths += WHOLE - zones.iter().map(|zone| zone.millionths).sum::<u32>();
        zones
    }
}

#[test]
fn zone_shares_hold_from_two_to_five_thousand_endpoints() {
    let (mut slots, mut endpoints) = (0, 0);
    let ran = TestRunner::new(runs(100)).run(&any_zones(), |zones| check_node(&zones).map(drop));
    ran.unwrap_or_else(|error| panic!("{error}"));
    // The range of sizes for which the limit on kernel memory is specified.
    for size in [2, 3, 5, 10, 30, 100, 300, 1_000, 5_000] {
        let some = size / 2;
        let zones = zones(&[(size - some, 700_000), (some, 300_000)]);
        let own = check_node(&zones).unwrap();
        assert!(own <= size as usize * 4, "{own} slots for {size} endpoints");
        slots += own;
        endpoints += size as usize;
    }
    assert_eq!(slots, endpoints, "each endpoint has one slot");
}

/// A cluster with one `Balanced` Service.
#[derive(Clone, Debug)]
struct Balanced {
    /// CPUs of the nodes of each zone, and number of pods in the zone.
    zones: Vec<(Vec<u32>, u32)>,
    percent: u32,
}

impl Balanced {
    fn text(&self) -> String {
        let mut text = format!(
            "service web cluster-ip=10.96.0.1 traffic-distribution=nearhop.dev/Balanced max-overload={}%\n",
            self.percent
        );
        for (z, (nodes, _)) in self.zones.iter().enumerate() {
            for (n, cpu) in nodes.iter().enumerate() {
                text += &format!("node n{z}-{n} zone=z{z} cpu={cpu}\n");
            }
        }
        for (z, (nodes, pods)) in self.zones.iter().enumerate().filter(|(_, (_, pods))| *pods > 0) {
            let on: Vec<String> = (0..nodes.len()).map(|n| format!("n{z}-{n}")).collect();
            text += &format!("pods web-{z} x{pods} for=web on={}\n", on.join(","));
        }
        text
    }
}

prop_compose! {
    fn balanced()(
        shapes in prop::collection::vec(
            (prop::collection::vec(1..64_u32, 1..5), 0.0..1.0_f64), 2..=8),
        scale in 0.0..1.0_f64,
        percent in prop::sample::select(vec![0, 5, 10, 20, 50, 100]),
    ) -> Balanced {
        let most = 2_000.0_f64 / shapes.len() as f64;
        let pods = |size: f64| (most.powf(scale) * size) as u32;
        let mut zones: Vec<(Vec<u32>, u32)> =
            shapes.into_iter().map(|(nodes, size)| (nodes, pods(size))).collect();
        zones[0].1 += 1;
        Balanced { zones, percent }
    }
}

/// Sums the shares of the compiled slots over all nodes, weighted by the connections of each node.
fn check_balanced(case: &Balanced) -> Result<(), TestCaseError> {
    let cluster = Cluster::new(&case.text());
    let frontend = Frontend {
        at: At::Address(Ipv4Addr::new(10, 96, 0, 1).into()),
        protocol: Protocol::Tcp,
        port: 80,
    };
    let mut load: BTreeMap<IpAddr, f64> = BTreeMap::new();
    let all: u32 = case.zones.iter().flat_map(|(nodes, _)| nodes).sum();
    for (z, (nodes, _)) in case.zones.iter().enumerate() {
        for (n, cpu) in nodes.iter().enumerate() {
            let node = cluster.world.node(&format!("n{z}-{n}")).unwrap();
            let (desired, fake) = rules(&RouteTable::build(&cluster.world, Place::of(node)));
            let slots = &desired.frontend(&frontend).unwrap().1.endpoints;
            let shares: Shares =
                slots.iter().map(|key| key.ip).zip(slots.draw().shares()).collect();
            // The rules match the slots; checking one node of each zone is enough.
            if n == 0 {
                for (ip, walked) in walk(&fake) {
                    prop_assert!((shares[&ip] - walked).abs() < 1e-9, "{ip}: {walked}");
                }
            }
            for (ip, share) in shares {
                *load.entry(ip).or_default() += share * f64::from(*cpu) / f64::from(all);
            }
        }
    }
    let pods: u32 = case.zones.iter().map(|(_, pods)| pods).sum();
    let mean = 1.0 / f64::from(pods);
    let bound = mean * (1.0 + f64::from(case.percent) / 100.0);
    for (ip, load) in load {
        // Plus the rounding of the weights to millionths, and of nearly equal weights to equal
        // ones.
        let allowed = bound * 1.001 + 2.0 / f64::from(WHOLE);
        prop_assert!(load <= allowed, "{ip} carries {load}, more than {bound}: {case:?}");
    }
    Ok(())
}

#[test]
fn balanced_keeps_its_limit_with_the_rules_of_all_nodes() {
    // A large zone that sends little to a small one, and a small zone that sends much to a large
    // one.
    for zones in [
        vec![(vec![64, 64, 64], 1_000), (vec![4], 10)],
        vec![(vec![4], 1_000), (vec![64, 64], 990)],
        vec![(vec![16], 1), (vec![16], 4), (vec![16], 4)],
        vec![(vec![9], 667), (vec![10], 667), (vec![11], 666)],
    ] {
        for percent in [0, 20] {
            check_balanced(&Balanced { zones: zones.clone(), percent }).unwrap();
        }
    }
    let ran = TestRunner::new(runs(200)).run(&balanced(), |case| check_balanced(&case));
    ran.unwrap_or_else(|error| panic!("{error}"));
}

on_both! {
    fn adding_an_endpoint_to_a_weighted_zone_changes_few_slots(tables) {
        let all = |more: u32| zones(&[(100 + more, 700_000), (100, 200_000), (100, 100_000)]);
        let mut follower = Follower::start(tables, CLUSTER);
        follower.follow(tables, slices(&all(0)));
        tables.forget();
        follower.follow(tables, slices(&all(1)));
        // The new endpoint takes the first slot of the next zone; that zone's first endpoint moves
        // to its end.
        let expected = [(SetId::Services, (1, 1)), (SetId::Endpoints, (2, 3))];
        assert_eq!(Vec::from_iter(tables.counts()), expected);
        assert_eq!((tables.batches.len(), tables.reads), (1, 0));
        follower.check(tables);
        follower.full(tables);
        follower.check_exactly(tables);
        // A new process leaves all endpoints in their slots.
        tables.forget();
        Engine::new(v4()).full(tables, follower.routes()).unwrap();
        assert_eq!(tables.counts(), BTreeMap::new());
    }

    fn chains_of_unused_weights_are_deleted(tables) {
        let mut follower = Follower::start(tables, CLUSTER);
        let with = |part: u32| slices(&zones(&[(2, WHOLE - part), (3, part)]));
        let weighted = |tables: &mut crate::on::Watched<_>| {
            let chains = Tables::read_chains(tables, &v4().table).unwrap();
            chains.keys().filter(|name| name.contains("weighted")).count()
        };
        for part in 1..=60 {
            follower.follow(tables, with(part * 1_000));
        }
        // A few unused chains may stay: a Service may need them again.
        assert_eq!(follower.engine.verify(tables).unwrap(), Verified::Untouched);
        assert_eq!(weighted(tables), 60);
        for part in 61..=80 {
            follower.follow(tables, with(part * 1_000));
        }
        tables.forget();
        assert_eq!(follower.engine.verify(tables).unwrap(), Verified::Untouched);
        assert_eq!((weighted(tables), tables.reads), (1, 0));
        follower.check_exactly(tables);
        assert_eq!(follower.engine.verify(tables).unwrap(), Verified::Untouched);
        // A Service that needs them creates them again.
        follower.follow(tables, with(1_000));
        follower.check(tables);
        assert_eq!(follower.engine.verify(tables).unwrap(), Verified::Untouched);
    }
}

/// A thousand endpoints in three zones, on the kernel, with 30,000 connections.
#[test]
fn real_connections_to_a_thousand_endpoints_match_the_weights() {
    const CONNECTIONS: usize = 30_000;
    sandbox::run("weights::real_connections_to_a_thousand_endpoints_match_the_weights", || {
        let zones = zones(&[(100, 600_000), (400, 350_000), (500, 50_000)]);
        let mut star = Star::new(&["192.0.2.250".parse().unwrap()]).unwrap();
        let sources = ["10.244.9.1", "10.244.9.2", "10.244.9.3"].map(|ip| ip.parse().unwrap());
        let client = star.host("client", &sources).unwrap();
        let mut servers = Vec::new();
        for (i, zone) in zones.iter().enumerate() {
            let addresses: Vec<IpAddr> =
                (0..zone.endpoints).map(|number| endpoint_ip(i, number)).collect();
            let pods = star.host(&format!("zone-{i}"), &addresses).unwrap();
            let all = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 8080);
            servers.push(Server::start(&pods, traffic::Protocol::Tcp, all).unwrap());
        }
        let mut kernel = star.node().run(|| Kernel::open().unwrap());
        Engine::new(v4()).full(&mut kernel, &cluster(&zones).routes).unwrap();
        let to = SERVICE.parse().unwrap();
        let counts = connect_many(&client, &sources, to, CONNECTIONS, 8).unwrap();
        assert_eq!(counts.values().sum::<usize>(), CONNECTIONS);
        let share = |count: usize| count as f64 / CONNECTIONS as f64;
        let shares = counts.iter().map(|(at, count)| (at.ip(), share(*count))).collect();
        for (i, given) in by_zone(&shares) {
            let wanted = f64::from(zones[i].millionths) / f64::from(WHOLE);
            // Five standard deviations.
            let deviation = (wanted * (1.0 - wanted) / CONNECTIONS as f64).sqrt();
            assert!((given - wanted).abs() < 5.0 * deviation, "zone {i}: {given}, not {wanted}");
        }
        // The chi-square value that is exceeded once in a million times, with 99 degrees of
        // freedom.
        let home = (0..100).map(|i| SocketAddr::new(endpoint_ip(0, i), 8080));
        let home: Vec<f64> = home.map(|at| counts[&at] as f64).collect();
        let mean = home.iter().sum::<f64>() / 100.0;
        let chi_square: f64 = home.iter().map(|count| (count - mean).powi(2) / mean).sum();
        assert!(chi_square < 177.0, "chi-square {chi_square}: {home:?}");
    });
}
