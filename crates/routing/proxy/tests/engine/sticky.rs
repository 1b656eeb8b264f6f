//! Session affinity on the kernel: a client keeps its endpoint while the endpoint exists and the
//! client connects again before the timeout.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nearhop_core::Family;
use nearhop_net::sandbox;
use nearhop_net::traffic::{Protocol, connect, connect_many};
use nearhop_netfilter::object::{
    Batch, Chain, ChainKind, Expr, Hook, HookPoint, MOST_DYNAMIC, Op, Rule, Table, Verdict,
};
use nearhop_proxy::engine::{Engine, Tables};
use nearhop_proxy::kernel::Kernel;

use crate::follow::{Follower, v4};
use crate::net::{CLUSTER, Net, SERVICE, ip, pod};
use crate::records::{client, clients_of, endpoint, record, web};

/// The cluster, with this affinity timeout for its Service.
fn sticky(seconds: u32) -> String {
    CLUSTER.replace("cluster-ip=10.96.0.1", &format!("cluster-ip=10.96.0.1 affinity={seconds}s"))
}

/// Deletes stale affinity records, as the proxy does after a sync.
fn delete_stale_records(kernel: &mut Kernel, follower: &mut Follower) -> usize {
    let ports = follower.engine.take_releases();
    ports.iter().map(|port| follower.engine.release(kernel, port).unwrap()).sum()
}

/// Waits for a condition that other processes or the kernel cause.
fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < end, "{what}");
        sleep(Duration::from_millis(50));
    }
}

/// The single endpoint that all of `count` connections reach.
fn only(net: &Net, source: IpAddr, count: usize) -> SocketAddr {
    // Connect once first: parallel first connections would each choose an endpoint.
    let first = net.reached(source, 1, 1);
    assert_eq!(net.reached(source, count, 4), first);
    first[0]
}

/// The endpoint of every source.
fn all(net: &Net, count: usize) -> BTreeMap<IpAddr, SocketAddr> {
    net.sources.iter().map(|source| (*source, only(net, *source, count))).collect()
}

#[test]
fn a_client_keeps_its_endpoint() {
    sandbox::run("sticky::a_client_keeps_its_endpoint", || {
        let net = Net::new();
        let mut kernel = net.kernel();
        let kernel = &mut kernel;
        let mut follower = Follower::start(kernel, &sticky(300));
        let mine = only(&net, net.sources[0], 1_000);
        let before = all(&net, 5);
        assert_eq!(before[&net.sources[0]], mine);
        assert!(
            before.values().any(|endpoint| *endpoint != mine),
            "the clients use several endpoints"
        );

        // A new process.
        follower.engine = Engine::new(v4());
        follower.sync_all(kernel);
        assert_eq!(delete_stale_records(kernel, &mut follower), 0);
        assert_eq!(all(&net, 20), before);

        // Unrelated changes: another Service, another endpoint, another timeout.
        let more = format!("{}pod other-1 for=other on=n2 ip=10.244.1.1\n", sticky(300));
        follower.turn_into(kernel, &more);
        follower.turn_into(kernel, &format!("{more}pod web-5 for=web on=n2 ip=10.244.0.5\n"));
        follower.turn_into(kernel, &more);
        follower.turn_into(kernel, &more.replace("300s", "200s"));
        delete_stale_records(kernel, &mut follower);
        assert_eq!(all(&net, 20), before);
    });
}

#[test]
fn a_client_moves_once_after_its_endpoint_is_removed() {
    sandbox::run("sticky::a_client_moves_once_after_its_endpoint_is_removed", || {
        let net = Net::new();
        let mut kernel = net.kernel();
        let kernel = &mut kernel;
        let mut follower = Follower::start(kernel, &sticky(300));
        let before = all(&net, 5);
        let gone = before[&net.sources[0]];
        let pod = format!("web-{}", gone.ip().to_string().rsplit('.').next().unwrap());
        follower.pod_gone(kernel, &pod);
        let moving = before.values().filter(|endpoint| **endpoint == gone).count();
        assert_eq!(delete_stale_records(kernel, &mut follower), moving);
        assert_eq!(
            delete_stale_records(kernel, &mut follower),
            0,
            "the second sweep deletes nothing"
        );

        let after = all(&net, 50);
        for (source, endpoint) in &before {
            if *endpoint == gone {
                assert_ne!(after[source], gone);
            } else {
                assert_eq!(
                    after[source], *endpoint,
                    "{source} had another endpoint and must keep it"
                );
            }
        }
        // The endpoint returns, and no client moves back.
        follower.turn_into(kernel, &sticky(300));
        delete_stale_records(kernel, &mut follower);
        assert_eq!(all(&net, 20), after);

        // The endpoint is removed while no proxy runs: the next start deletes its records.
        let lost = after[&net.sources[1]];
        let pod = format!("web-{}", lost.ip().to_string().rsplit('.').next().unwrap());
        follower.engine = Engine::new(v4());
        follower.pod_gone(kernel, &pod);
        assert!(delete_stale_records(kernel, &mut follower) >= 1);
        assert!(all(&net, 20).values().all(|endpoint| *endpoint != lost));
    });
}

#[test]
fn without_affinity_clients_use_all_endpoints() {
    sandbox::run("sticky::without_affinity_clients_use_all_endpoints", || {
        let net = Net::new();
        let mut kernel = net.kernel();
        let kernel = &mut kernel;
        let mut follower = Follower::start(kernel, &sticky(300));
        only(&net, net.sources[0], 20);
        follower.turn_into(kernel, CLUSTER);
        assert_eq!(net.reached(net.sources[0], 200, 4).len(), 4);
    });
}

#[test]
fn a_client_can_move_after_the_timeout() {
    sandbox::run("sticky::a_client_can_move_after_the_timeout", || {
        let net = Net::new();
        let mut kernel = net.kernel();
        let kernel = &mut kernel;
        Follower::start(kernel, &sticky(1));
        let source = net.sources[0];
        let first = net.reached(source, 1, 1);
        // Each time the client moves with a probability of 3/4.
        let moved = (0..20).any(|_| {
            wait_until("the record expires", || {
                clients_of(kernel, "affinity/default/web/tcp").is_empty()
            });
            net.reached(source, 1, 1) != first
        });
        assert!(moved);
    });
}

/// The Service with all kinds of addresses.
const EXPOSED: &str = "
node n1 zone=a
node n2 zone=b
service web type=LoadBalancer cluster-ip=10.96.0.1 port=80->8080 node-port=30080 external-ip=192.0.2.1 lb-ip=192.0.2.2 affinity=300s
pod web-1 for=web on=n1 ip=10.244.0.1
pod web-2 for=web on=n2 ip=10.244.0.2
pod web-3 for=web on=n2 ip=10.244.0.3
pod web-4 for=web on=n2 ip=10.244.0.4
";

#[test]
fn a_client_has_the_same_endpoint_at_all_addresses_of_a_service_port() {
    let test = "sticky::a_client_has_the_same_endpoint_at_all_addresses_of_a_service_port";
    sandbox::run(test, || {
        let net = Net::new();
        let mut kernel = net.kernel();
        Follower::start(&mut kernel, EXPOSED);
        let addresses = ["10.96.0.1:80", "192.0.2.250:30080", "192.0.2.1:80", "192.0.2.2:80"];
        let mut reached = BTreeMap::new();
        for (i, source) in net.sources.iter().enumerate() {
            // Every source starts with another address.
            let mut order = addresses.to_vec();
            order.rotate_left(i % addresses.len());
            let first = net.reached_at(order[0], *source, 1, 1);
            for to in order {
                assert_eq!(net.reached_at(to, *source, 10, 2), first, "{source} at {to}");
            }
            reached.insert(first, ());
        }
        assert!(reached.len() > 1, "the clients use several endpoints");
    });
}

/// Drops all packets from and to this namespace.
fn drop_everything(host: &nearhop_net::Namespace) {
    let rule = Rule { exprs: vec![Expr::Verdict(Verdict::Drop)], comment: None };
    let hook = Hook { kind: ChainKind::Filter, point: HookPoint::Input, priority: 0 };
    let chain = Chain { name: "cut".into(), hook: Some(hook), rules: vec![rule], comment: None };
    let table = Table { family: Family::Ipv4, name: "cut".into() };
    let ops = vec![Op::AddTable { comment: "cut".into() }, Op::AddChain(chain)];
    host.run(|| Kernel::open().unwrap().apply(&Batch { table, ops }).unwrap());
}

/// Number of TCP segments that this namespace has retransmitted.
fn retransmitted(host: &nearhop_net::Namespace) -> u64 {
    let text = host.run(|| std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap());
    let mut tcp = text.lines().filter(|line| line.starts_with("Tcp:"));
    let (names, values) = (tcp.next().unwrap(), tcp.next().unwrap());
    let at = names.split(' ').position(|name| name == "RetransSegs").unwrap();
    values.split(' ').nth(at).unwrap().parse().unwrap()
}

/// A Service with this pod as its single endpoint.
fn only_pod(protocol: &str, number: usize) -> String {
    format!(
        "node n1 zone=a\nnode n2 zone=b\n\
         service web cluster-ip=10.96.0.1 port=80->8080{protocol} affinity=300s\n\
         pod web-{number} for=web on=n2 ip=10.244.0.{number}\n"
    )
}

#[test]
fn a_retransmission_does_not_record_a_removed_endpoint() {
    let test = "sticky::a_retransmission_does_not_record_a_removed_endpoint";
    sandbox::run(test, || {
        let net = Net::new();
        let mut kernel = net.kernel();
        let kernel = &mut kernel;
        drop_everything(net.star.get("pod-2").unwrap());
        let mut follower = Follower::start(kernel, &only_pod("", 2));
        let (source, map) = (net.sources[0], "affinity/default/web/tcp");
        let (client, service) = (net.client.clone(), SERVICE.parse().unwrap());
        // The client sends until the test ends.
        std::thread::spawn(move || {
            connect(&client, Protocol::Tcp, service, Duration::from_secs(60), Some(source))
        });
        wait_until("the rules record the endpoint", || !clients_of(kernel, map).is_empty());
        follower.turn_into(kernel, &only_pod("", 3));
        assert_eq!(delete_stale_records(kernel, &mut follower), 1);
        let before = retransmitted(&net.client);
        wait_until("the client retransmits", || retransmitted(&net.client) > before);
        sleep(Duration::from_millis(50));
        assert_eq!(clients_of(kernel, map), BTreeMap::new());
        assert_eq!(net.reached(source, 5, 1), [pod(3)]);
    });
}

#[test]
fn unanswered_datagrams_do_not_record_a_removed_endpoint() {
    let test = "sticky::unanswered_datagrams_do_not_record_a_removed_endpoint";
    sandbox::run(test, || {
        let net = Net::new();
        let mut kernel = net.kernel();
        let kernel = &mut kernel;
        drop_everything(net.star.get("pod-2").unwrap());
        let mut follower = Follower::start(kernel, &only_pod("/udp", 2));
        let (source, map) = (net.sources[0], "affinity/default/web/udp");
        let sender = net.client.run(|| UdpSocket::bind((source, 0)).unwrap());
        let send = || sender.send_to(b"x", SERVICE).unwrap();
        send();
        wait_until("the rules record the endpoint", || !clients_of(kernel, map).is_empty());
        follower.turn_into(kernel, &only_pod("/udp", 3));
        assert_eq!(delete_stale_records(kernel, &mut follower), 1);
        for _ in 0..10 {
            send();
            sleep(Duration::from_millis(20));
        }
        assert_eq!(clients_of(kernel, map), BTreeMap::new());
    });
}

#[test]
fn the_affinity_records_of_one_service_do_not_use_the_space_of_another() {
    let test = "sticky::the_affinity_records_of_one_service_do_not_use_the_space_of_another";
    sandbox::run(test, || {
        let net = Net::new();
        let mut kernel = net.kernel();
        let kernel = &mut kernel;
        let text = sticky(300).replace("10.96.0.2", "10.96.0.2 affinity=300s");
        let pods: String =
            (1..=4).map(|i| format!("pod other-{i} for=other on=n2 ip=10.244.0.{i}\n")).collect();
        Follower::start(kernel, &format!("{text}{pods}"));
        let flood: Vec<u32> = (0..MOST_DYNAMIC).collect();
        for some in flood.chunks(4_096) {
            let elements = some.iter().map(|i| record(client(*i), endpoint(1))).collect();
            let ops = vec![Op::AddTimed { set: web().into(), elements }];
            Tables::apply(kernel, &Batch { table: v4().table, ops }).unwrap();
        }
        // One more client is served, but not recorded.
        assert_eq!(net.reached(net.sources[0], 100, 4).len(), 4);
        let began = Instant::now();
        let held = clients_of(kernel, web());
        println!("{} records read in {:?}", held.len(), began.elapsed());
        assert!(!held.contains_key(&net.sources[0]));
        // The map of the other Service has room.
        let first = net.reached_at("10.96.0.2:80", net.sources[0], 1, 1);
        assert_eq!(net.reached_at("10.96.0.2:80", net.sources[0], 50, 4), first);
    });
}

/// Clients from outside that connect under the policy `Local` get an endpoint on this node, even if
/// they have another one at the cluster IP.
#[test]
fn with_external_policy_local_a_client_keeps_a_local_endpoint() {
    let test = "sticky::with_external_policy_local_a_client_keeps_a_local_endpoint";
    sandbox::run(test, || {
        let net = Net::new();
        let mut kernel = net.kernel();
        let kernel = &mut kernel;
        let mut follower = Follower::start(kernel, EXPOSED);
        let at = |to: &str, source: &IpAddr| net.reached_at(to, *source, 5, 1);
        let first: BTreeMap<IpAddr, Vec<SocketAddr>> =
            net.sources.iter().map(|source| (*source, at("192.0.2.2:80", source))).collect();
        follower.turn_into(kernel, &EXPOSED.replace("affinity", "etp=Local affinity"));
        delete_stale_records(kernel, &mut follower);
        for (source, first) in &first {
            assert_eq!(at("192.0.2.2:80", source), [pod(1)], "the only endpoint on this node");
            assert_eq!(at("192.0.2.250:30080", source), [pod(1)]);
            assert_eq!(
                at("10.96.0.1:80", source),
                *first,
                "the policy does not apply to the cluster IP"
            );
        }
        // A client that first connects under the policy has that endpoint at every address.
        let new = ip("10.244.9.8");
        let forget = clients_of(kernel, web());
        assert!(forget.contains_key(&new));
        let set = web().into();
        let elements = vec![record(new, endpoint(1)).element];
        let ops = vec![Op::DeleteElements { set, elements }];
        Tables::apply(kernel, &Batch { table: v4().table, ops }).unwrap();
        assert_eq!(at("192.0.2.2:80", &new), [pod(1)]);
        assert_eq!(at("10.96.0.1:80", &new), [pod(1)]);
    });
}

/// Services over TCP and UDP with the remaining pods out of four.
fn rolling(left: &[usize]) -> String {
    let mut text = String::from(
        "node n1 zone=a\nnode n2 zone=b\n\
         service web cluster-ip=10.96.0.1 port=tcp:80->8080 port=udp:80->8080/udp affinity=300s\n",
    );
    for number in left {
        let node = if *number == 1 { "n1" } else { "n2" };
        text += &format!("pod web-{number} for=web on={node} ip=10.244.0.{number}\n");
    }
    text
}

/// A hundred clients, over TCP and over UDP without reading the answers, while pods are added and
/// removed and the proxy restarts. Removed pods continue to serve, so the test sees every
/// connection that is still sent to one.
#[test]
fn a_hundred_clients_never_reach_a_removed_endpoint() {
    let test = "sticky::a_hundred_clients_never_reach_a_removed_endpoint";
    sandbox::run(test, || {
        let net = Net::with_clients(100);
        let mut kernel = net.kernel();
        let kernel = &mut kernel;
        let mut follower = Follower::start(kernel, &rolling(&[1, 2, 3, 4]));
        let service: SocketAddr = SERVICE.parse().unwrap();
        // Each port is used once: the kernel would assign a reused port to the same flow.
        let open = |source: &IpAddr, port: u16| {
            net.client.run(|| UdpSocket::bind((*source, port)).unwrap())
        };
        // These sockets keep their ports, and so their flows.
        let senders: Vec<UdpSocket> =
            net.sources.iter().map(|source| open(source, 20_000)).collect();
        let maps = ["affinity/default/web/tcp/tcp", "affinity/default/web/udp/udp"];
        for round in 0..12 {
            let gone = 1 + round % 4;
            let left: Vec<usize> = (1..=4).filter(|number| *number != gone).collect();
            if round % 3 == 2 {
                follower.engine = Engine::new(v4());
            }
            follower.turn_into(kernel, &rolling(&left));
            delete_stale_records(kernel, &mut follower);
            for sender in &senders {
                sender.send_to(b"x", service).unwrap();
            }
            for source in &net.sources {
                let fresh = open(source, 20_001 + round as u16);
                fresh.send_to(b"x", service).unwrap();
            }
            let reached = connect_many(&net.client, &net.sources, service, 100, 4).unwrap();
            assert!(!reached.contains_key(&pod(gone)), "round {round}: {reached:?}");
            assert_eq!(reached.values().sum::<usize>(), 100);
            for map in maps {
                wait_until("every client has a record", || clients_of(kernel, map).len() == 100);
                let records = clients_of(kernel, map);
                let stale = records.values().filter(|record| record.ip == pod(gone).ip()).count();
                assert_eq!(stale, 0, "{map} in round {round}");
            }
        }
    });
}
