//! Changes that do not fit into one batch: each frontend still changes atomically, and a new table
//! is filled before any packet passes it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use nearhop_netfilter::frontend::{At, Frontend};
use nearhop_netfilter::object::{Batch, Op};
use nearhop_proxy::engine::{Engine, Pass, Tables};
use nearhop_simulator::fake::Fake;
use nearhop_simulator::walk::{Host, Outcome, Packet, every_outcome};

use crate::follow::{Follower, NODE, v4};
use crate::on::{FakeTables, Watched, on_both};
use crate::steps::CLUSTER;

/// The possible outcomes of a connection.
type Outcomes = BTreeSet<Outcome>;

/// A pod on another node, a local pod that is an endpoint itself, and a client outside the cluster.
const CLIENTS: [&str; 3] = ["10.244.99.1", "10.244.0.1", "198.51.100.9"];
const NODE_ADDRESS: &str = "192.0.2.250";

/// The outcomes of connections to every frontend of the desired table, by client.
fn outcomes(fake: &Fake, frontends: &BTreeSet<Frontend>) -> BTreeMap<(IpAddr, Frontend), Outcomes> {
    let node: IpAddr = NODE_ADDRESS.parse().unwrap();
    let host = Host { node_addresses: vec![node] };
    let mut all = BTreeMap::new();
    for client in CLIENTS.map(|client| client.parse::<IpAddr>().unwrap()) {
        for frontend in frontends {
            let address = match frontend.at {
                At::Address(address) => address,
                At::Node => node,
            };
            let packet = Packet {
                source: SocketAddr::new(client, 40_000),
                destination: SocketAddr::new(address, frontend.port),
                protocol: frontend.protocol,
                iif: String::from("eth0"),
                mark: 0,
            };
            let found = every_outcome(fake, &packet, &host).unwrap();
            all.insert((client, *frontend), found.into_keys().collect());
        }
    }
    all
}

fn frontends(engine: &Engine) -> BTreeSet<Frontend> {
    engine.desired().frontends().map(|(frontend, _)| *frontend).collect()
}

/// Changes one cluster to another in small batches, and checks every frontend after each.
fn in_small_batches(from: &str, to: &str, at_least: usize) {
    let mut tables = Watched::new(FakeTables::default());
    let mut follower = Follower::start(&mut tables, from);
    let mut replay = tables.inner.fake.clone();
    let mut known = frontends(&follower.engine);
    tables.forget();
    tables.limit = Some(10);
    let synced = follower.turn_into(&mut tables, to);
    assert_eq!(synced.pass, Pass::Partial);
    follower.check(&mut tables);
    known.extend(frontends(&follower.engine));
    let before = outcomes(&replay, &known);
    let after = outcomes(&tables.inner.fake, &known);
    assert!(tables.batches.len() >= at_least, "{} batches", tables.batches.len());
    for (number, batch) in tables.batches.iter().enumerate() {
        replay.apply(batch).unwrap();
        for (at, now) in outcomes(&replay, &known) {
            assert!(
                now == before[&at] || now == after[&at],
                "after batch {number}, {at:?} has {now:?}, neither {:?} nor {:?}",
                before[&at],
                after[&at],
            );
        }
    }
    assert_eq!(outcomes(&replay, &known), after);
}

/// Services of several kinds with endpoints on these nodes.
fn services(count: usize, asks: &str, nodes: &str) -> String {
    let kinds = [
        "",
        "type=NodePort",
        "type=LoadBalancer etp=Local",
        "affinity=30s",
        "type=LoadBalancer source-ranges=198.51.100.0/24",
    ];
    let mut text = String::from("node n1 zone=a\nnode n2 zone=b\nnode n3 zone=a\n");
    for i in 0..count {
        let kind = kinds[i % kinds.len()];
        let port = format!("port=80->8080 node-port={}", 30_000 + i);
        let port = if kind.starts_with("type") { &port } else { "port=80->8080" };
        let lb =
            if kind.contains("Balancer") { format!("lb-ip=203.0.113.{i}") } else { String::new() };
        text += &format!("service s{i} cluster-ip=10.96.0.{} {port} {kind} {lb} {asks}\n", i + 1);
        text += &format!("pods s{i} x4 for=s{i} on={nodes}\n");
    }
    text
}

#[test]
fn each_frontend_has_its_old_or_its_new_endpoints() {
    let before = services(12, "", "n1,n2");
    in_small_batches(&before, &services(12, "", "n2,n3"), 2);
    in_small_batches(&before, &before.replace("x4", "x5"), 3);
    in_small_batches(&before, &before.replace("x4", "x1"), 3);
    in_small_batches(&before, &services(12, "itp=Local", "n1,n2"), 3);
    in_small_batches(&before, &before.replace("->8080", "->9090"), 3);
}

#[test]
fn services_are_added_and_removed_atomically() {
    in_small_batches(&services(3, "", "n1,n2"), &services(12, "", "n1,n2"), 3);
    in_small_batches(&services(12, "", "n1,n2"), &services(3, "", "n1,n2"), 3);
}

#[test]
fn a_relabelled_node_changes_each_frontend_atomically() {
    let text = services(12, "traffic-distribution=PreferSameZone", "n2,n3");
    in_small_batches(&text, &text.replace("node n1 zone=a", "node n1 zone=b"), 3);
}

on_both! {
    fn a_relabelled_node_needs_one_batch_if_it_fits(tables) {
        let text = services(12, "traffic-distribution=PreferSameZone", "n2,n3");
        let mut follower = Follower::start(tables, &text);
        tables.forget();
        let synced = follower.turn_into(tables, &text.replace("node n1 zone=a", "node n1 zone=b"));
        assert_eq!((synced.pass, tables.batches.len(), tables.reads), (Pass::Partial, 1, 0));
        assert!(synced.elements >= 24);
        follower.check(tables);
    }

    fn small_batches_give_the_same_table(tables) {
        let text = services(12, "", "n1,n2");
        tables.limit = Some(10);
        let mut follower = Follower::start(tables, &text);
        follower.check_exactly(tables);
        follower.turn_into(tables, &services(12, "", "n2,n3").replace("etp=Local", ""));
        follower.check(tables);
        follower.turn_into(tables, CLUSTER);
        follower.check(tables);
        follower.engine = Engine::new(v4());
        follower.cluster.turn_into(&text);
        follower.sync_all(tables);
        follower.check_exactly(tables);
    }

    fn base_chains_are_added_after_all_elements(tables) {
        tables.limit = Some(10);
        let follower = Follower::start(tables, &services(12, "", "n1,n2"));
        follower.check_exactly(tables);
        let (last, others) = tables.batches.split_last().unwrap();
        assert!(others.len() > 10);
        assert!(others.iter().all(|batch| !adds_base_chain(batch)));
        assert!(adds_base_chain(last));
        let elements = |op: &Op| matches!(op, Op::AddElements { .. });
        assert!(!last.ops.iter().any(elements), "all elements are in earlier batches");
    }
}

fn adds_base_chain(batch: &Batch) -> bool {
    let is_base = |op: &Op| matches!(op, Op::AddChain(chain) if chain.hook.is_some());
    batch.ops.iter().any(is_base)
}

#[test]
fn the_test_packets_are_translated() {
    // The comparisons of the other tests would also pass if no rule matched any packet.
    let mut tables = Watched::new(FakeTables::default());
    let follower = Follower::start(&mut tables, &services(5, "", NODE));
    let found = outcomes(&tables.inner.fake, &frontends(&follower.engine));
    let translated =
        |outcome: &Outcome| matches!(outcome, Outcome::Delivered { translated: true, .. });
    let reached = found.values().filter(|outcomes| outcomes.iter().all(translated)).count();
    // All except those of the clients that `source-ranges` excludes.
    assert_eq!((reached, found.len()), (28, 30));
}
