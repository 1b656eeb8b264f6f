//! A cluster of the size in the performance targets: 10,000 Services, 50,000 Pods with PodLocators,
//! 500 nodes in five zones. It has only the objects that the DNS server watches, so no Pod objects.

use std::fmt::Write as _;

use nearhop_core::answer::{Index, Synced};
use nearhop_core::fixture::Fixture;
use nearhop_core::model::{Locator, Pod};
use nearhop_core::world::Settings;
use nearhop_core::{Change, Name, Object, PodKey, World};
use nearhop_dns::state::State;

/// Number of Services. All have topology keys; every second one is headless.
pub(crate) const SERVICES: usize = 10_000;
/// Number of Pods of each Service.
pub(crate) const PODS: usize = 5;
const NODES: usize = 500;
const ZONES: usize = 5;

/// The cluster in the fixture language.
pub(crate) fn text() -> String {
    let mut text = String::from("namespace default\n");
    for node in 0..NODES {
        let (zone, rack) = (node % ZONES, node % 50);
        writeln!(text, "node node-{node} zone=zone-{zone} rack=rack-{rack} region=r")
            .expect("a String accepts all writes");
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
        .expect("a String accepts all writes");
        writeln!(text, "pods service-{number} x{PODS} for=service-{number} on={nodes}")
            .expect("a String accepts all writes");
    }
    text
}

/// The PodLocators of the Pods. No two share a string, like objects from the API server.
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

/// The state without PodLocators, and the fixture to create them from.
pub(crate) fn build() -> (State, Fixture) {
    let fixture = Fixture::parse(&text()).expect("the text is valid");
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
