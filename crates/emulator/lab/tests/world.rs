//! Builds the network of a topology and sends packets: which nodes reach each other, and which do not
//! while a cable is cut.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use nearhop_lab::Topology;
use nearhop_lab::config::ConfigFile;
use nearhop_lab::ranges::Ranges;
use nearhop_lab::world::{Cable, World};
use nearhop_net::traffic::{Protocol, Server, connect};
use nearhop_net::{Namespace, sandbox};

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(300);

fn reaches(from: &Namespace, at: &Namespace, address: IpAddr, patience: Duration) -> bool {
    let server = SocketAddr::new(address, 7000);
    let _running = Server::start(at, Protocol::Udp, server).unwrap();
    // A datagram that is sent while a link comes up is lost, so the client sends until the deadline.
    let deadline = Instant::now() + patience;
    loop {
        let tried = connect(from, Protocol::Udp, server, SHORT, None);
        if tried.is_ok_and(|it| it.server() == Some(server)) {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
    }
}

#[test]
fn nodes_reach_each_other_until_a_cable_is_cut() {
    sandbox::run("nodes_reach_each_other_until_a_cable_is_cut", || {
        let topology = Topology::grid(2, 2, Ranges::default()).unwrap();
        let world = World::build(&topology).unwrap();
        let node = |name: &str| world.node(name).unwrap();
        let at = |name: &str| topology.node(name).unwrap().addresses;
        for address in at("node-b2") {
            assert!(reaches(node("node-a1"), node("node-b2"), address, LONG), "{address}");
            assert!(reaches(world.external(), node("node-b2"), address, LONG), "{address}");
            assert!(reaches(world.control_plane(), node("node-b2"), address, LONG), "{address}");
        }

        world.set_zone("zone-b", Cable::Cut).unwrap();
        let [b1, b2] = [at("node-b1")[0], at("node-b2")[0]];
        assert!(
            !reaches(node("node-a1"), node("node-b2"), b2, SHORT),
            "the cable of the zone is cut"
        );
        assert!(
            reaches(node("node-b1"), node("node-b2"), b2, LONG),
            "traffic inside the zone continues"
        );
        world.set_zone("zone-b", Cable::Healed).unwrap();
        assert!(reaches(node("node-a1"), node("node-b2"), b2, LONG), "healed");

        world.set_node("node-b1", Cable::Cut).unwrap();
        assert!(
            !reaches(node("node-b2"), node("node-b1"), b1, SHORT),
            "the cable of the node is cut"
        );
        assert!(
            reaches(node("node-a1"), node("node-b2"), b2, LONG),
            "the cable of the other node is not cut"
        );
        world.set_node("node-b1", Cable::Healed).unwrap();
        assert!(reaches(node("node-b2"), node("node-b1"), b1, LONG), "healed");

        let missing = world.set_node("node-c1", Cable::Cut).unwrap_err().to_string();
        assert!(missing.contains("node-c1") && missing.contains("node-a1"), "{missing}");
    });
}

#[test]
fn nodes_in_different_regions_reach_each_other() {
    sandbox::run("nodes_in_different_regions_reach_each_other", || {
        let text = "node n1 zone=a region=eu\nnode n2 zone=a region=us\nnode n3\n";
        let topology =
            ConfigFile::parse("test", text).unwrap().topology(Ranges::default()).unwrap();
        let world = World::build(&topology).unwrap();
        for (from, to) in [("n1", "n2"), ("n2", "n3"), ("n3", "n1")] {
            let address = topology.node(to).unwrap().addresses[1];
            let (from, to) = (world.node(from).unwrap(), world.node(to).unwrap());
            assert!(reaches(from, to, address, LONG), "{address}");
        }
    });
}
