//! Packets go where the routes say: on the fake by every path through the rules, on the kernel by
//! connecting.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use nearhop_core::model::{Service, SourceRanges, TrafficPolicy};
use nearhop_core::route::{PortPolicy, Route, RouteKey, RouteSet, Verdict};
use nearhop_core::routing::SliceRouting;
use nearhop_core::{Change, EndpointKey, Family, Object, Protocol, ServiceKey};
use nearhop_net::traffic::{self, Server, connect_many};
use nearhop_net::{Namespace, Star, sandbox};
use nearhop_netfilter::config::Config;
use nearhop_netfilter::frontend::{At, Frontend};
use nearhop_proxy::engine::Engine;
use nearhop_proxy::kernel::Kernel;
use nearhop_simulator::fake::Fake;
use nearhop_simulator::walk::{Host, Outcome, Packet, every_outcome};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::equal::runs;
use crate::follow::Cluster;
use crate::on::FakeTables;
use crate::random::{address, cluster};

/// Maximum difference between actual and desired shares, summed over all endpoints: nearly equal
/// weights count as equal.
const TOLERANCE: f64 = 0.001_001;

fn node_address(family: Family) -> IpAddr {
    address(family, 8, 1)
}

/// A client outside all source ranges and outside this node's pod range.
fn outside_client(family: Family) -> IpAddr {
    address(family, 7, 7)
}

/// Each outcome with its desired share.
type Expected = BTreeMap<Outcome, f64>;

fn delivered(set: Option<&RouteSet>, masqueraded: bool) -> Expected {
    let backends = set.map_or(&[][..], |set| &set.backends);
    let total: f64 = backends.iter().map(|backend| f64::from(backend.weight)).sum();
    let outcome = |key: EndpointKey| Outcome::Delivered {
        destination: SocketAddr::new(key.ip, key.port),
        masqueraded,
        translated: true,
    };
    backends.iter().map(|b| (outcome(b.key), f64::from(b.weight) / total)).collect()
}

fn expect(verdict: Verdict, route: &Route, masqueraded: bool) -> Expected {
    match verdict {
        Verdict::Cluster => delivered(route.decision.cluster.as_ref(), masqueraded),
        Verdict::Local => delivered(route.decision.local.as_ref(), masqueraded),
        Verdict::Reject => Expected::from([(Outcome::Rejected, 1.0)]),
        Verdict::Drop => Expected::from([(Outcome::Dropped, 1.0)]),
    }
}

/// The owner of each frontend: by cluster IP, then load balancer, then external IP, then name.
fn owners(cluster: &Cluster, family: Family) -> BTreeMap<Frontend, ServiceKey> {
    let mut claims: BTreeMap<Frontend, BTreeSet<(u8, ServiceKey)>> = BTreeMap::new();
    for (key, route) in of_family(cluster, family) {
        let rank = |at: At| match at {
            At::Address(ip) if route.service.cluster_ip(family) == Some(ip) => 0,
            At::Address(ip) if route.service.load_balancer_ips.contains(&ip) => 1,
            At::Address(_) | At::Node => 2,
        };
        for frontend in frontends(route, family) {
            let claim = (rank(frontend.at), key.port.service.clone());
            claims.entry(frontend).or_default().insert(claim);
        }
    }
    let first = |claims: BTreeSet<(u8, ServiceKey)>| claims.into_iter().next().unwrap().1;
    claims.into_iter().map(|(frontend, claims)| (frontend, first(claims))).collect()
}

fn of_family(cluster: &Cluster, family: Family) -> impl Iterator<Item = (&RouteKey, &Route)> {
    let routed = cluster.routes.iter();
    routed.filter(move |(key, route)| {
        key.family == family && route.service.cluster_ip(family).is_some()
    })
}

/// The frontends of a route; the cluster IP comes first.
fn frontends(route: &Route, family: Family) -> Vec<Frontend> {
    let port = &route.service.ports[route.port];
    let service = &route.service;
    let addresses = service.cluster_ip(family).into_iter();
    let others = service.external_ips.iter().chain(&service.load_balancer_ips).copied();
    let mut all: Vec<Frontend> = addresses
        .chain(others.filter(|address| Family::of(*address) == family))
        .map(|ip| Frontend { at: At::Address(ip), protocol: port.protocol, port: port.port })
        .collect();
    if port.node_port != 0 {
        all.push(Frontend { at: At::Node, protocol: port.protocol, port: port.node_port });
    }
    all
}

/// Whether `loadBalancerSourceRanges` excludes a client.
fn is_excluded(service: &Service, at: At, client: IpAddr) -> bool {
    let SourceRanges::Only(ranges) = &service.source_ranges else { return false };
    let At::Address(address) = at else { return false };
    let family = Family::of(client);
    let own = || ranges.iter().filter(|range| range.family() == family);
    let guarded = ranges.is_empty() || own().next().is_some();
    service.load_balancer_ips.contains(&address)
        && guarded
        && !own().any(|range| range.contains(client))
}

/// The expected outcome of a connection from outside this node.
fn expected(route: &Route, frontend: &Frontend, family: Family, client: IpAddr) -> Expected {
    let service = &route.service;
    if service.cluster_ip(family).map(At::Address) == Some(frontend.at) {
        return expect(route.decision.internal, route, false);
    }
    if is_excluded(service, frontend.at, client) {
        return Expected::from([(Outcome::Dropped, 1.0)]);
    }
    let policy = PortPolicy::of(service, &service.ports[route.port]).external;
    let masqueraded = policy == TrafficPolicy::Cluster;
    expect(route.decision.external.unwrap_or(Verdict::Reject), route, masqueraded)
}

fn walk(fake: &Fake, frontend: &Frontend, family: Family, client: IpAddr) -> Expected {
    let to = match frontend.at {
        At::Address(address) => address,
        At::Node => node_address(family),
    };
    let packet = Packet {
        source: SocketAddr::new(client, 40_000),
        destination: SocketAddr::new(to, frontend.port),
        protocol: frontend.protocol,
        iif: String::from("eth0"),
        mark: 0,
    };
    let host = Host { node_addresses: vec![node_address(family)] };
    every_outcome(fake, &packet, &host).unwrap()
}

fn check_all(cluster: &Cluster, family: Family) -> Result<(), TestCaseError> {
    let mut tables = FakeTables::default();
    Engine::new(Config::new(family)).full(&mut tables, &cluster.routes).unwrap();
    let owners = owners(cluster, family);
    let client = outside_client(family);
    for (key, route) in of_family(cluster, family) {
        for frontend in frontends(route, family) {
            if owners[&frontend] != key.port.service {
                continue;
            }
            let wanted = expected(route, &frontend, family, client);
            let found = walk(&tables.fake, &frontend, family, client);
            let outcomes = |shares: &Expected| shares.keys().copied().collect::<BTreeSet<_>>();
            prop_assert_eq!(
                outcomes(&found),
                outcomes(&wanted),
                "{:?} of {}",
                frontend,
                key.port.service
            );
            let off: f64 = found.iter().map(|(at, share)| (share - wanted[at]).abs()).sum();
            prop_assert!(off <= TOLERANCE, "{found:?} is not {wanted:?}");
        }
    }
    Ok(())
}

#[test]
fn every_path_through_the_rules_matches_the_routes() {
    for family in [Family::Ipv4, Family::Ipv6] {
        let walked = TestRunner::new(runs(40)).run(&cluster(family), |changes| {
            let mut cluster = Cluster::empty();
            cluster.apply(changes);
            check_all(&cluster, family)
        });
        walked.unwrap_or_else(|error| panic!("{family}: {error}"));
    }
}

/// A node, a client, and a server for each possible endpoint.
struct Net {
    star: Star,
    client: Namespace,
    _servers: Vec<Server>,
}

impl Net {
    fn new() -> Self {
        let v4 = Family::Ipv4;
        let mut star = Star::new(&[node_address(v4)]).unwrap();
        let client = star.host("client", &[outside_client(v4)]).unwrap();
        let mut servers = Vec::new();
        for i in 1..7 {
            let ip = address(v4, 3, i);
            let pod = star.host(&format!("pod-{i}"), &[ip]).unwrap();
            for port in [8080, 8081] {
                let address = SocketAddr::new(ip, port);
                servers.push(Server::start(&pod, traffic::Protocol::Tcp, address).unwrap());
            }
        }
        Self { star, client, _servers: servers }
    }

    /// The endpoints that answer connections to a frontend.
    fn reached(&self, frontend: &Frontend, backends: usize) -> BTreeSet<SocketAddr> {
        let to = match frontend.at {
            At::Address(address) => address,
            At::Node => node_address(Family::Ipv4),
        };
        let to = SocketAddr::new(to, frontend.port);
        // With this many connections one in a billion runs misses an endpoint, if shares are
        // similar.
        let count = 1 + (backends - 1) * 60;
        connect_many(&self.client, &[], to, count, 8).unwrap().into_keys().collect()
    }
}

/// Only TCP, no session affinity, and equal weights.
fn plain(change: Change) -> Change {
    match change {
        Change::Put(Object::Service(mut service)) => {
            service.session_affinity = None;
            service.ports.iter_mut().for_each(|port| port.protocol = Protocol::Tcp);
            Change::Put(Object::Service(service))
        }
        Change::Put(Object::Slice(mut slice)) => {
            // A small weight would need thousands of connections.
            slice.routing = SliceRouting::Absent;
            Change::Put(Object::Slice(slice))
        }
        other => other,
    }
}

#[test]
fn real_connections_match_the_routes() {
    sandbox::run("reach::real_connections_match_the_routes", || {
        let net = Net::new();
        let mut kernel = net.star.node().run(|| Kernel::open().unwrap());
        let mut engine = Engine::new(Config::new(Family::Ipv4));
        let mut runner = TestRunner::new(runs(1));
        // Only clusters with endpoints count.
        let mut with_endpoints = 0;
        let mut drawn = 0;
        while with_endpoints < 10 {
            drawn += 1;
            assert!(drawn < 1_000, "too few random clusters have endpoints");
            let changes = cluster(Family::Ipv4).new_tree(&mut runner).unwrap().current();
            let mut cluster = Cluster::empty();
            cluster.apply(changes.into_iter().map(plain).collect());
            engine.full(&mut kernel, &cluster.routes).unwrap();
            with_endpoints += usize::from(compare(&net, &cluster) > 0);
        }
    });
}

/// Connects to every frontend with endpoints and returns the number of these frontends.
fn compare(net: &Net, cluster: &Cluster) -> usize {
    let family = Family::Ipv4;
    let owners = owners(cluster, family);
    let mut compared = 0;
    for (key, route) in of_family(cluster, family) {
        let own = frontends(route, family);
        for frontend in own.iter().filter(|frontend| owners[*frontend] == key.port.service) {
            let wanted = expected(route, frontend, family, outside_client(family));
            let wanted: BTreeSet<SocketAddr> = wanted.into_keys().filter_map(destination).collect();
            if wanted.is_empty() {
                continue;
            }
            compared += 1;
            let service = &key.port.service;
            assert_eq!(net.reached(frontend, wanted.len()), wanted, "{service}, {frontend:?}");
        }
    }
    compared
}

fn destination(outcome: Outcome) -> Option<SocketAddr> {
    match outcome {
        Outcome::Delivered { destination, .. } => Some(destination),
        Outcome::Rejected | Outcome::Dropped => None,
    }
}
