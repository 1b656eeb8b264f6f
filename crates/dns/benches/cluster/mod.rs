//! A cluster as big as those that the targets are stated for: 10,000 Services, 50,000 Pods with
//! PodLocators, 500 nodes in five zones. Only what a DNS server watches: no Pods.

#![allow(dead_code, reason = "each bench uses a part")]

use std::fmt::Write as _;
use std::net::IpAddr;

use nearhop_core::answer::{Config, Index, PodMode, Synced, Zone};
use nearhop_core::fixture::Fixture;
use nearhop_core::model::{Addresses, Locator, Pod};
use nearhop_core::world::Settings;
use nearhop_core::{Change, Name, PodKey, World};
use nearhop_dns::options::Options;
use nearhop_dns::state::State;

/// How many Services; every other one is headless and asks for topology.
pub(crate) const SERVICES: usize = 10_000;
/// Pods of each Service.
pub(crate) const PODS: usize = 5;
const NODES: usize = 500;
const ZONES: usize = 5;

/// What the operator chose.
pub(crate) fn options() -> Options {
    let mut config = Config::new(Zone::parse("cluster.local").expect("a name"));
    config.pods = PodMode::Insecure;
    Options::new(config)
}

/// The name of a Service: even ones have a cluster IP, odd ones are headless.
pub(crate) fn service_name(number: usize) -> String {
    format!("service-{number}.default.svc.cluster.local.")
}

/// The cluster as text.
pub(crate) fn text() -> String {
    let mut text = String::from("namespace default\n");
    for node in 0..NODES {
        let (zone, rack) = (node % ZONES, node % 50);
        writeln!(text, "node node-{node} zone=zone-{zone} rack=rack-{rack} region=r")
            .expect("text");
    }
    for number in 0..SERVICES {
        let headless = if number % 2 == 0 { "" } else { " cluster-ip=None" };
        let keys = "kubernetes.io/hostname,topology.kubernetes.io/zone,*";
        let nodes = (0..PODS).map(|pod| format!("node-{}", (number * 7 + pod * 101) % NODES));
        let nodes = nodes.collect::<Vec<_>>().join(",");
        writeln!(
            text,
            "service service-{number} port=http:80->8080{headless} topology-keys={keys}"
        )
        .expect("text");
        writeln!(text, "pods service-{number} x{PODS} for=service-{number} on={nodes}")
            .expect("text");
    }
    text
}

/// The locators of the cluster's Pods, each with texts of its own, as they come from the API.
pub(crate) fn locators(fixture: &Fixture) -> Vec<Change> {
    let fresh = |name: &Name| Name::from(name.as_str());
    let locator = |pod: &Pod| {
        let node = pod.node.as_ref().map(fresh);
        let known = fixture.nodes.iter().find(|known| Some(&known.name) == node.as_ref());
        let labels = known.into_iter().flat_map(|node| node.labels.iter());
        Change::Locator(Box::new(Locator {
            owner: Some(fresh(&pod.uid)),
            key: PodKey { namespace: fresh(&pod.key.namespace), name: fresh(&pod.key.name) },
            ips: pod.ips.clone(),
            node_labels: labels.map(|(key, value)| (fresh(key), fresh(value))).collect(),
            node,
        }))
    };
    fixture.pods.iter().map(locator).collect()
}

/// The cluster, without its locators and with them aside.
pub(crate) fn build() -> (State, Fixture) {
    let fixture = Fixture::parse(&text()).expect("it is written here");
    let planned = fixture.world(Settings::default());
    let mut world = World::new(Settings::default());
    let services = fixture.services.iter();
    let slices = services.flat_map(|service| planned.slices(&service.key));
    let slices: Vec<Change> =
        slices.map(|slice| Change::Slice(Box::new((**slice).clone()))).collect();
    let changes = fixture.changes().into_iter().filter(|change| !matches!(change, Change::Pod(_)));
    world.apply_all(changes.chain(slices));
    let index = Index::build(&world);
    (State { world, index, serial: 1_700_000_000, synced: Synced::Yes }, fixture)
}

/// The address of a Pod, from which questions come.
pub(crate) fn client(fixture: &Fixture, number: usize) -> IpAddr {
    match &fixture.pods[number % fixture.pods.len()].ips {
        Addresses::One(address) => *address,
        Addresses::Many(addresses) => addresses[0],
    }
}

/// A question as a packet.
pub(crate) fn packet(name: &str, type_number: u16) -> Vec<u8> {
    let mut packet = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1];
    for label in name.trim_end_matches('.').split('.') {
        packet.push(label.len() as u8);
        packet.extend(label.as_bytes());
    }
    packet.push(0);
    packet.extend(type_number.to_be_bytes());
    packet.extend([0, 1]);
    // OPT: 1232 octets.
    packet.extend([0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
    packet
}
