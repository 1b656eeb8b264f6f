//! Session affinity, on the kernel: a client stays with its endpoint as long as there is one, and
//! as long as it comes back in time.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::thread::sleep;
use std::time::Duration;

use nearhop_net::sandbox;
use nearhop_netfilter::fake::Record;
use nearhop_netfilter::layout::SetId;
use nearhop_netfilter::object::Bytes;
use nearhop_proxy::engine::{Engine, Tables};
use nearhop_proxy::kernel::Kernel;

use crate::follow::{Follower, v4};
use crate::net::{CLUSTER, Net};
use crate::on::FakeTables;

/// The cluster whose Service keeps clients for so many seconds.
fn sticky(seconds: u32) -> String {
    CLUSTER.replace("cluster-ip=10.96.0.1", &format!("cluster-ip=10.96.0.1 affinity={seconds}s"))
}

/// What the proxy does after a sync.
fn let_go(kernel: &mut Kernel, follower: &mut Follower) -> usize {
    follower.engine.release(kernel, BTreeSet::new).unwrap()
}

/// The one endpoint that all of so many connections reach.
fn only(net: &Net, source: IpAddr, count: usize) -> SocketAddr {
    // The first alone: of several at once each would choose for itself.
    let first = net.reached(source, 1, 1);
    assert_eq!(net.reached(source, count, 4), first);
    first[0]
}

/// Every source's endpoint.
fn all(net: &Net, count: usize) -> BTreeMap<IpAddr, SocketAddr> {
    net.sources.iter().map(|source| (*source, only(net, *source, count))).collect()
}

#[test]
fn a_client_stays_with_its_endpoint() {
    sandbox::run("sticky::a_client_stays_with_its_endpoint", || {
        let net = Net::new();
        let mut kernel = net.kernel();
        let kernel = &mut kernel;
        let mut follower = Follower::start(kernel, &sticky(300));
        let mine = only(&net, net.sources[0], 1_000);
        let before = all(&net, 5);
        assert_eq!(before[&net.sources[0]], mine);
        assert!(before.values().any(|endpoint| *endpoint != mine), "not all have the same");

        // A new process.
        follower.engine = Engine::new(v4());
        follower.sync_all(kernel);
        assert_eq!(let_go(kernel, &mut follower), 0);
        assert_eq!(all(&net, 20), before);

        // What is none of its business: another Service, another endpoint, another timeout.
        let more = format!("{}pod other-1 for=other on=n2 ip=10.244.1.1\n", sticky(300));
        follower.turn_into(kernel, &more);
        follower.turn_into(kernel, &format!("{more}pod web-5 for=web on=n2 ip=10.244.0.5\n"));
        follower.turn_into(kernel, &more);
        follower.turn_into(kernel, &more.replace("300s", "200s"));
        let_go(kernel, &mut follower);
        assert_eq!(all(&net, 20), before);
    });
}

#[test]
fn a_client_whose_endpoint_goes_moves_once() {
    sandbox::run("sticky::a_client_whose_endpoint_goes_moves_once", || {
        let net = Net::new();
        let mut kernel = net.kernel();
        let kernel = &mut kernel;
        let mut follower = Follower::start(kernel, &sticky(300));
        let before = all(&net, 5);
        let gone = before[&net.sources[0]];
        let pod = format!("web-{}", gone.ip().to_string().rsplit('.').next().unwrap());
        follower.pod_gone(kernel, &pod);
        let moving = before.values().filter(|endpoint| **endpoint == gone).count();
        assert_eq!(let_go(kernel, &mut follower), moving);
        assert_eq!(let_go(kernel, &mut follower), 0, "asked once");

        let after = all(&net, 50);
        for (source, endpoint) in &before {
            if *endpoint == gone {
                assert_ne!(after[source], gone);
            } else {
                assert_eq!(after[source], *endpoint, "{source} had another one");
            }
        }
        // It comes back, and nobody moves back.
        follower.turn_into(kernel, &sticky(300));
        let_go(kernel, &mut follower);
        assert_eq!(all(&net, 20), after);

        // The endpoint goes while nobody is looking: the next start lets go.
        let lost = after[&net.sources[1]];
        let pod = format!("web-{}", lost.ip().to_string().rsplit('.').next().unwrap());
        follower.engine = Engine::new(v4());
        follower.pod_gone(kernel, &pod);
        assert!(let_go(kernel, &mut follower) >= 1);
        assert!(all(&net, 20).values().all(|endpoint| *endpoint != lost));
    });
}

#[test]
fn without_affinity_nobody_stays() {
    sandbox::run("sticky::without_affinity_nobody_stays", || {
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
fn a_client_that_stays_away_may_move() {
    sandbox::run("sticky::a_client_that_stays_away_may_move", || {
        let net = Net::new();
        let mut kernel = net.kernel();
        let kernel = &mut kernel;
        Follower::start(kernel, &sticky(1));
        let source = net.sources[0];
        let first = net.reached(source, 1, 1);
        // Each time it moves with three chances in four.
        let moved = (0..20).any(|_| {
            while !kernel.read_affinity(&v4().table).unwrap().is_empty() {
                sleep(Duration::from_millis(50));
            }
            net.reached(source, 1, 1) != first
        });
        assert!(moved);
    });
}

/// Under another policy a client must leave an endpoint that others still use.
#[test]
fn a_policy_that_becomes_local_lets_clients_from_elsewhere_go() {
    const EXPOSED: &str = "
node n1
node n2
service web type=LoadBalancer lb-ip=192.0.2.1 affinity=60s
pod web-0 for=web on=n1 ip=10.244.0.1
pod web-1 for=web on=n2 ip=10.244.0.2
";
    let mut tables = FakeTables::default();
    let mut follower = Follower::start(&mut tables, EXPOSED);
    assert_eq!(follower.engine.release(&mut tables, BTreeSet::new), Ok(0));
    let stay = |client: &str, endpoint: &str| Record {
        table: v4().table,
        set: SetId::Affinity.name().into(),
        key: Bytes::EMPTY
            .address(client.parse().unwrap())
            .address("192.0.2.1".parse().unwrap())
            .protocol(6)
            .port(80),
        data: Bytes::EMPTY.address(endpoint.parse().unwrap()).port(8080),
        timeout_ms: 60_000,
    };
    for (client, endpoint) in [("203.0.113.1", "10.244.0.1"), ("203.0.113.2", "10.244.0.2")] {
        assert!(tables.fake.record(&stay(client, endpoint)));
    }
    follower.turn_into(&mut tables, &EXPOSED.replace("affinity", "etp=Local affinity"));
    let let_go = follower.engine.release(&mut tables, BTreeSet::new).unwrap();
    assert_eq!(let_go, 1, "who stayed with the other node's endpoint");
    let left = tables.read_affinity(&v4().table).unwrap();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].key, stay("203.0.113.1", "10.244.0.1").key);
}
