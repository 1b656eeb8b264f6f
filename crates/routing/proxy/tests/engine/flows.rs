//! Established connections are not affected by any write.

use std::time::Duration;

use nearhop_core::Name;
use nearhop_net::sandbox;
use nearhop_net::traffic::{Client, Outcome, Protocol};
use nearhop_netfilter::object::{Batch, Op};
use nearhop_proxy::engine::{Engine, Pass, Tables, Verified};
use nearhop_proxy::kernel::Kernel;

use crate::follow::{Follower, v4};
use crate::net::{CLUSTER, Net, SERVICE, pod};

const CONNECTIONS: usize = 400;

/// Established connections, each with its endpoint.
struct Flows(Vec<(Client, Outcome)>);

impl Flows {
    fn open(net: &Net) -> Self {
        let to = SERVICE.parse().unwrap();
        let patience = Duration::from_secs(20);
        let open = |_| {
            let mut client = Client::new(&net.client, Protocol::Tcp, to, patience, None).unwrap();
            let outcome = client.ask().unwrap();
            assert!(outcome.server().is_some(), "{outcome:?}");
            (client, outcome)
        };
        Self((0..CONNECTIONS).map(open).collect())
    }

    /// Asserts that each connection still gets its echo.
    fn check(&mut self) {
        for (client, outcome) in &mut self.0 {
            assert_eq!(client.ask().unwrap(), *outcome);
        }
    }

    fn servers(&self) -> Vec<std::net::SocketAddr> {
        let mut servers: Vec<_> =
            self.0.iter().filter_map(|(_, outcome)| outcome.server()).collect();
        servers.sort_unstable();
        servers.dedup();
        servers
    }
}

/// Opens four hundred connections and asserts that `check` does not affect them.
fn with_flows(test: &str, check: impl FnOnce(&Net, &mut Kernel, &mut Follower, &mut Flows) + Send) {
    sandbox::run(test, || {
        let net = Net::new();
        let mut kernel = net.kernel();
        let mut follower = Follower::start(&mut kernel, CLUSTER);
        let mut flows = Flows::open(&net);
        assert_eq!(flows.servers(), [1, 2, 3, 4].map(pod), "every endpoint has connections");
        check(&net, &mut kernel, &mut follower, &mut flows);
        flows.check();
    });
}

#[test]
fn a_restart_and_full_passes_keep_connections() {
    with_flows(
        "flows::a_restart_and_full_passes_keep_connections",
        |_, kernel, follower, flows| {
            follower.engine = Engine::new(v4());
            let synced = follower.sync_all(kernel);
            assert_eq!((synced.pass, synced.elements), (Pass::Full, 0));
            flows.check();
            follower.engine.require_full();
            follower.sync_all(kernel);
            flows.check();
            // A proxy that starts without a table, or with other priorities, does not affect them.
            // Without the table nothing is translated; with the new table the connections
            // continue.
            Engine::remove(kernel, &v4()).unwrap();
            follower.full(kernel);
            flows.check();
            let mut config = v4();
            config.priorities.dstnat = -105;
            follower.engine.configure(config);
            follower.sync_all(kernel);
        },
    );
}

#[test]
fn policy_changes_keep_connections() {
    with_flows("flows::policy_changes_keep_connections", |net, kernel, follower, flows| {
        let source = net.sources[0];
        follower.turn_into(kernel, &CLUSTER.replace("10.96.0.1", "10.96.0.1 itp=Local"));
        assert_eq!(net.reached(source, 50, 4), [pod(1)], "new connections use the new policy");
        flows.check();
        let zones = "10.96.0.1 traffic-distribution=PreferSameZone";
        follower.turn_into(kernel, &CLUSTER.replace("10.96.0.1", zones));
        assert_eq!(net.reached(source, 50, 4), [pod(1)]);
        flows.check();
        let elsewhere =
            CLUSTER.replace("10.96.0.1", zones).replace("node n1 zone=a", "node n1 zone=b");
        follower
            .turn_into(kernel, &elsewhere.replace("web-1 for=web on=n1", "web-1 for=web on=n3"));
        flows.check();
        // The engine does not end connections to a removed endpoint: the pod does that.
        follower.pod_gone(kernel, "web-2");
        assert!(!net.reached(source, 50, 4).contains(&pod(2)));
    });
}

#[test]
fn repairs_keep_connections() {
    with_flows("flows::repairs_keep_connections", |_, kernel, follower, flows| {
        let table = v4().table;
        let mut damage = |ops: Vec<Op>| {
            Tables::apply(kernel, &Batch { table: table.clone(), ops }).unwrap();
            let verified = follower.engine.verify(kernel).unwrap();
            assert!(matches!(verified, Verified::Repaired(1..)), "{verified:?}");
            follower.check_exactly(kernel);
            flows.check();
        };
        damage(["nat-prerouting", "pick-4"].map(|name| Op::FlushChain(Name::from(name))).into());
        damage(vec![Op::DeleteTable]);
    });
}
