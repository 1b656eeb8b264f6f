//! A node that has a cluster IP as a local address, as with NodeLocal DNSCache.

use std::time::Duration;

use nearhop_net::traffic::{Outcome, Protocol, Server, connect};
use nearhop_net::{Star, sandbox};
use nearhop_proxy::kernel::Kernel;

use crate::follow::Follower;
use crate::net::ip;

const CLUSTER: &str = "
node n1
service web cluster-ip=10.96.0.1
service empty cluster-ip=10.96.0.2
pod web-1 for=web on=n1 ip=10.244.0.1
";

/// As in kube-proxy: a port that the Service does not have is refused for forwarded packets, not
/// for packets to the node itself.
#[test]
fn other_ports_of_a_cluster_ip_on_the_node_are_served() {
    sandbox::run("local_address::other_ports_of_a_cluster_ip_on_the_node_are_served", || {
        let addresses = ["192.0.2.250", "10.96.0.1", "10.96.0.2"].map(ip);
        let mut star = Star::new(&addresses).unwrap();
        let client = star.host("client", &[ip("10.244.9.1")]).unwrap();
        let own = "10.96.0.1:9153".parse().unwrap();
        let _server = Server::start(star.node(), Protocol::Tcp, own).unwrap();
        let mut kernel = star.node().run(|| Kernel::open().unwrap());
        Follower::start(&mut kernel, CLUSTER);
        let reach = |to: &str| {
            let patience = Duration::from_secs(20);
            connect(&client, Protocol::Tcp, to.parse().unwrap(), patience, None).unwrap()
        };
        assert!(matches!(reach("10.96.0.1:9153"), Outcome::Answered { .. }));
        // A Service without endpoints is refused for all packets.
        assert_eq!(reach("10.96.0.2:80"), Outcome::Refused);
    });
}
