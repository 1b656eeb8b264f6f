//! A cluster as big as those that the targets are stated for: 10,000 Services, 50,000 Pods with
//! PodLocators, 500 nodes in five zones. Only what a DNS server watches: no Pods.

use std::fmt::Write as _;

use nearhop_core::answer::{Index, Synced};
use nearhop_core::fixture::Fixture;
use nearhop_core::model::{Locator, Pod};
use nearhop_core::world::Settings;
use nearhop_core::{Change, Name, Object, PodKey, World};
use nearhop_dns::state::State;

/// How many Services; every other one is headless and asks for topology.
pub(crate) const SERVICES: usize = 10_000;
/// Pods of each Service.
pub(crate) const PODS: usize = 5;
const NODES: usize = 500;
const ZONES: usize = 5;

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
        Change::put(Locator {
            owner: Some(fresh(&pod.uid)),
            key: PodKey { namespace: fresh(&pod.key.namespace), name: fresh(&pod.key.name) },
            ips: pod.ips.clone(),
            node_labels: labels.map(|(key, value)| (fresh(key), fresh(value))).collect(),
            node,
        })
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
    let slices: Vec<Change> = slices.map(|slice| Change::put((**slice).clone())).collect();
    let changes = fixture
        .changes()
        .into_iter()
        .filter(|change| !matches!(change, Change::Put(Object::Pod(_))));
    world.apply_all(changes.chain(slices));
    let index = Index::build(&world);
    (State { world, index, serial: 1_700_000_000, synced: Synced::Yes }, fixture)
}
