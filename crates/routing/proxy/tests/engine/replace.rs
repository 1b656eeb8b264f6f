//! Replacing a table of another version's layout: packets are served all the time, affinity records
//! stay, and the next pass completes an interrupted replacement.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use nearhop_core::Family;
use nearhop_net::sandbox;
use nearhop_net::traffic::{Outcome as Answer, Protocol, connect};
use nearhop_netfilter::layout::SetId;
use nearhop_netfilter::object::{Batch, Op};
use nearhop_proxy::engine::{ApplyError, Engine, Scope, Tables, Verified, spare_of};
use nearhop_simulator::fake::Fake;
use nearhop_simulator::walk::{Host, Outcome, Packet, every_outcome};

use crate::follow::{Follower, v4};
use crate::net::{Net, SERVICE, ip, pod};
use crate::on::{FakeTables, Watched, on_both};
use crate::records::{client, clients_of, endpoint, record, web};

const CLUSTER: &str = "
node n1 zone=a
node n2 zone=b
service web cluster-ip=10.96.0.1 affinity=300s
service other cluster-ip=10.96.0.2
pod web-1 for=web on=n1 ip=10.244.0.1
pod web-2 for=web on=n2 ip=10.244.0.2
";

/// Changes the key of a set, as another version might define it.
fn make_outdated(tables: &mut impl Tables) {
    let mut firewall = SetId::Firewall.define(Family::Ipv4);
    firewall.key.pop();
    let ops = vec![
        Op::FlushChain("check-sources".into()),
        Op::DeleteSet(firewall.name.clone()),
        Op::AddSet(firewall),
    ];
    tables.apply(&Batch { table: v4().table, ops }).unwrap();
    assert!(tables.read(&v4().table).unwrap().unwrap().outdated);
}

fn add_records(tables: &mut impl Tables, clients: u32) {
    let elements = (0..clients).map(|i| record(client(i), endpoint(1 + i as u8 % 2))).collect();
    let ops = vec![Op::AddTimed { set: web().into(), elements }];
    tables.apply(&Batch { table: v4().table, ops }).unwrap();
}

/// The error of every batch after the proxy is killed.
fn killed() -> ApplyError {
    ApplyError::Failed(String::from("killed"))
}

/// The outcomes for packets of a new client to the Service.
fn ends(fake: &Fake) -> BTreeSet<Outcome> {
    let packet = Packet {
        source: SocketAddr::new(ip("10.244.9.1"), 40_000),
        destination: SERVICE.parse().unwrap(),
        protocol: nearhop_core::Protocol::Tcp,
        iif: String::from("eth0"),
        mark: 0,
    };
    let host = Host { node_addresses: vec![ip("192.0.2.250")] };
    every_outcome(fake, &packet, &host).unwrap().into_keys().collect()
}

#[test]
fn packets_reach_their_endpoints_after_every_batch() {
    let mut tables = Watched::new(FakeTables::default());
    let mut follower = Follower::start(&mut tables, CLUSTER);
    make_outdated(&mut tables);
    let mut fake = tables.inner.fake.clone();
    let expected = ends(&fake);
    let delivered = |end: &Outcome| matches!(end, Outcome::Delivered { translated: true, .. });
    assert!(expected.len() == 2 && expected.iter().all(delivered), "{expected:?}");
    tables.forget();
    follower.engine = Engine::new(v4());
    follower.sync_all(&mut tables);
    follower.check_exactly(&mut tables);
    assert!(tables.batches.len() > 4);
    for (number, batch) in tables.batches.iter().enumerate() {
        fake.apply(batch).unwrap();
        assert_eq!(ends(&fake), expected, "after batch {number}");
    }
}

on_both! {
    fn a_foreign_change_of_a_set_is_repaired_and_records_stay(tables) {
        let mut follower = Follower::start(tables, CLUSTER);
        add_records(tables, 10);
        let before = clients_of(tables, web());
        make_outdated(tables);
        assert!(matches!(follower.engine.verify(tables).unwrap(), Verified::Repaired(1..)));
        follower.check_exactly(tables);
        assert_eq!(clients_of(tables, web()), before);
        assert!(!tables.has(&spare_of(&v4().table)).unwrap());
        assert_eq!(follower.engine.verify(tables).unwrap(), Verified::Untouched);
    }

    fn the_next_proxy_completes_the_replacement_of_a_killed_one(tables) {
        let mut passing = 0;
        loop {
            let mut follower = Follower::start(tables, CLUSTER);
            add_records(tables, 10);
            let before = clients_of(tables, web());
            make_outdated(tables);
            follower.engine = Engine::new(v4());
            // From here on every batch fails, as if the proxy had been killed.
            tables.failures.extend((0..passing).map(|_| None));
            tables.failures.extend((0..50).map(|_| Some(killed())));
            let routes = follower.cluster.routes.clone();
            let ended = follower.engine.sync(tables, &routes, Scope::All).is_ok();
            tables.failures.clear();
            follower.engine = Engine::new(v4());
            follower.sync_all(tables);
            follower.check_exactly(tables);
            assert_eq!(clients_of(tables, web()), before, "killed after {passing} batches");
            assert!(!tables.has(&spare_of(&v4().table)).unwrap());
            Engine::remove(tables, &v4()).unwrap();
            if ended {
                break;
            }
            passing += 1;
        }
        assert!(passing > 4, "{passing} batches");
    }

    fn cleanup_deletes_all_tables_of_a_killed_proxy(tables) {
        let mut follower = Follower::start(tables, CLUSTER);
        make_outdated(tables);
        follower.engine = Engine::new(v4());
        tables.failures.extend([None, None]);
        tables.failures.extend((0..50).map(|_| Some(killed())));
        let routes = follower.cluster.routes.clone();
        follower.engine.sync(tables, &routes, Scope::All).unwrap_err();
        tables.failures.clear();
        assert!(tables.has(&spare_of(&v4().table)).unwrap());
        Engine::remove(tables, &v4()).unwrap();
        assert!(!tables.has(&spare_of(&v4().table)).unwrap());
        assert!(!tables.has(&v4().table).unwrap());
    }
}

/// Many Services, so that filling the table takes some time.
fn large() -> String {
    let mut text = String::from(
        "node n1 zone=a\nnode n2 zone=b\nservice web cluster-ip=10.96.0.1 affinity=300s\n",
    );
    for i in 1..=4 {
        text += &format!("pod web-{i} for=web on=n2 ip=10.244.0.{i}\n");
    }
    for i in 0..1_000 {
        text += &format!("service s{i} cluster-ip=10.97.{}.{}\n", i / 250, 1 + i % 250);
        text += &format!("pod s{i} for=s{i} on=n2 ip=10.245.{}.{}\n", i / 250, 1 + i % 250);
    }
    text
}

/// The endpoints that answered each client.
type Answers = BTreeMap<IpAddr, BTreeSet<SocketAddr>>;

/// Clients connect one after the other until `stop` is set.
fn connect_until(net: &Net, stop: &AtomicBool, made: &AtomicUsize) -> Answers {
    let to: SocketAddr = SERVICE.parse().unwrap();
    let mut answers = Answers::new();
    for source in net.sources.iter().cycle() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        // Longer than the retransmission of a lost SYN: a connection that missed the rules is never
        // answered.
        let patience = Duration::from_secs(10);
        let got = connect(&net.client, Protocol::Tcp, to, patience, Some(*source)).unwrap();
        let Answer::Answered { server, .. } = got else { panic!("{source}: {got:?}") };
        answers.entry(*source).or_default().insert(server);
        made.fetch_add(1, Ordering::Relaxed);
    }
    answers
}

#[test]
fn replacing_a_table_keeps_connections_and_affinity() {
    let test = "replace::replacing_a_table_keeps_connections_and_affinity";
    sandbox::run(test, || {
        let net = Net::new();
        let mut kernel = net.kernel();
        let mut follower = Follower::start(&mut kernel, &large());
        // Every client has an endpoint before the replacement.
        for source in &net.sources {
            net.reached(*source, 1, 1);
        }
        let (stop, made) = (AtomicBool::new(false), AtomicUsize::new(0));
        let answers = thread::scope(|scope| {
            let clients = scope.spawn(|| connect_until(&net, &stop, &made));
            for _ in 0..4 {
                let began = made.load(Ordering::Relaxed);
                while made.load(Ordering::Relaxed) < began + 20 && !clients.is_finished() {
                    thread::sleep(Duration::from_millis(5));
                }
                make_outdated(&mut kernel);
                follower.engine = Engine::new(v4());
                follower.sync_all(&mut kernel);
            }
            stop.store(true, Ordering::Relaxed);
            clients.join().expect("every connection is answered")
        });
        follower.check_exactly(&mut kernel);
        assert_eq!(answers.len(), net.sources.len());
        let pods: BTreeSet<SocketAddr> = (1..=4).map(pod).collect();
        for (source, answered) in answers {
            assert_eq!(answered.len(), 1, "{source} stays with one of {pods:?}: {answered:?}");
            assert!(answered.is_subset(&pods));
        }
    });
}
