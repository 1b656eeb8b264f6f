//! Which PodLocators a change affects: only those whose content changes. Heartbeats, readiness and
//! labels that are not copied affect none.

use std::collections::BTreeSet;

use nearhop_core::labels::well_known;
use nearhop_core::locate::{LabelKeys, LocatorLabels, LocatorPlan};
use nearhop_core::model::{Addresses, Locator, Node, Pod, Service};
use nearhop_core::world::Settings;
use nearhop_core::{Change, Gate, Gates, Kind, Labels, Name, ObjectRef, PodKey, ServiceKey, World};

fn key(name: &str) -> PodKey {
    PodKey::new("ns", name)
}

fn ips(texts: &[&str]) -> Addresses {
    texts.iter().map(|ip| ip.parse().expect("a valid address")).collect()
}

fn pod(name: &str, node: &str) -> Pod {
    Pod {
        uid: Name::from(format!("uid-{name}")),
        node: Some(Name::from(node)),
        ips: ips(&["10.0.0.1"]),
        ..Pod::new(key(name))
    }
}

fn node(name: &str, labels: &[(&str, &str)]) -> Node {
    Node { labels: labels.iter().copied().collect(), ..Node::new(name) }
}

const RED: [(&str, &str); 3] = [(well_known::ZONE, "a"), ("rack", "r1"), ("colour", "red")];

fn service(name: &str, keys: &[&str]) -> Change {
    let mut service = Service::new(ServiceKey::new("ns", name));
    service.topology.topology_keys = keys.iter().map(|key| Name::from(*key)).collect();
    Change::put(service)
}

fn put(pod: Pod) -> Change {
    Change::put(pod)
}

/// Pods a and b on node n1, c on n2, d on an unknown node. All PodLocators are up to date.
fn settled(locator_labels: LocatorLabels, gates: Gates) -> World {
    let mut world = World::new(Settings { gates, locator_labels, ..Settings::default() });
    world.apply_all([
        Change::put(node("n1", &RED)),
        Change::put(node("n2", &[(well_known::ZONE, "b")])),
        put(pod("a", "n1")),
        put(pod("b", "n1")),
        put(pod("c", "n2")),
        put(pod("d", "n3")),
    ]);
    settle(&mut world);
    world
}

fn settle(world: &mut World) {
    let keys: Vec<PodKey> = world.pod_keys().cloned().collect();
    for key in keys {
        if let LocatorPlan::Create(locator) | LocatorPlan::Update(locator) =
            world.plan_locator(&key)
        {
            world.apply(Change::put(locator));
        }
    }
}

fn on() -> Gates {
    Gates::default().with(Gate::PodLocator)
}

fn world() -> World {
    settled(LocatorLabels::Topology, on())
}

/// Names of the Pods whose PodLocators a change affects. Each of them needs a write.
fn touched(world: &mut World, change: Change) -> Vec<String> {
    let touched = world.apply(change).locators;
    touched.iter().map(|key| key.name.to_string()).collect()
}

#[test]
fn changes_of_copied_fields_affect_the_locator() {
    let moved =
        Change::put(node("n1", &[(well_known::ZONE, "z"), ("rack", "r1"), ("colour", "red")]));
    let no_ips = Pod { ips: ips(&[]), ..pod("a", "n1") };
    let two_ips = Pod { ips: ips(&["10.0.0.1", "fd00::1"]), ..pod("a", "n1") };
    let again = Pod { uid: Name::from("another-uid"), ..pod("a", "n1") };
    let foreign = Locator {
        key: key("c"),
        owner: None,
        ips: ips(&[]),
        node: None,
        node_labels: Labels::default(),
    };
    let cases: [(Change, &[&str]); 14] = [
        (put(pod("new", "n1")), &["new"]),
        (put(no_ips), &["a"]),
        (put(two_ips), &["a"]),
        (put(again), &["a"]),
        (put(pod("a", "n2")), &["a"]),
        (put(Pod { terminal: true, ..pod("a", "n1") }), &["a"]),
        (Change::Gone(ObjectRef::Pod(key("b"))), &["b"]),
        (
            Change::Listed(Kind::Pod, ["a", "c"].map(|pod| ObjectRef::Pod(key(pod))).into()),
            &["b", "d"],
        ),
        (moved, &["a", "b"]),
        (Change::Gone(ObjectRef::Node(Name::from("n1"))), &["a", "b"]),
        (Change::put(node("n3", &[])), &["d"]),
        (Change::put(foreign), &["c"]),
        (Change::Gone(ObjectRef::Locator(key("c"))), &["c"]),
        (Change::Listed(Kind::Locator, [ObjectRef::Locator(key("a"))].into()), &["b", "c", "d"]),
    ];
    for (change, expected) in cases {
        let (mut world, what) = (world(), format!("{change:?}"));
        assert_eq!(touched(&mut world, change), expected, "{what}");
        for name in expected {
            assert_ne!(world.plan_locator(&key(name)), LocatorPlan::Keep, "{name}: {what}");
        }
        let others = ["a", "b", "c", "d"].into_iter().filter(|name| !expected.contains(name));
        for name in others {
            assert_eq!(world.plan_locator(&key(name)), LocatorPlan::Keep, "{name}: {what}");
        }
    }
}

#[test]
fn irrelevant_changes_affect_no_locator() {
    let heartbeat = Node { cpu_milli: Some(4000), ..node("n1", &RED) };
    let unready = Node { ready: false, ..node("n1", &RED) };
    let recoloured = [(well_known::ZONE, "a"), ("rack", "r2"), ("colour", "blue")];
    let relabelled = Pod { labels: [("app", "web")].into_iter().collect(), ..pod("a", "n1") };
    let cases = [
        Change::put(node("n1", &RED)),
        Change::put(heartbeat),
        Change::put(unready),
        Change::put(node("n1", &recoloured)),
        Change::put(node("unused", &RED)),
        put(pod("a", "n1")),
        put(Pod { ready: false, ..pod("a", "n1") }),
        put(Pod { deleting: true, ..pod("a", "n1") }),
        put(relabelled),
        Change::Gone(ObjectRef::Pod(key("missing"))),
        Change::Gone(ObjectRef::Locator(key("missing"))),
        service("s", &[]),
        service("s", &[well_known::ZONE, "*"]),
        service("s", &["no-node-has-this", "*"]),
    ];
    for change in cases {
        let (mut world, what) = (world(), format!("{change:?}"));
        assert_eq!(touched(&mut world, change), [""; 0], "{what}");
    }
}

#[test]
fn adding_and_removing_a_topology_key_affects_pods_on_nodes_with_it() {
    let mut world = world();
    assert_eq!(touched(&mut world, service("one", &["rack", "*"])), ["a", "b"]);
    let labels = |world: &World| {
        let LocatorPlan::Update(locator) = world.plan_locator(&key("a")) else { return None };
        Some(locator.node_labels.get("rack").map(Name::to_string))
    };
    assert_eq!(labels(&world), Some(Some("r1".to_owned())));
    settle(&mut world);
    let copied = LabelKeys::Only(
        [well_known::HOSTNAME, well_known::ZONE, well_known::REGION, "rack"].map(Name::from).into(),
    );
    assert_eq!(world.locator_keys(), Some(&copied));
    assert_eq!(touched(&mut world, service("two", &["rack", well_known::ZONE])), [""; 0]);
    let gone = |name: &str| Change::Gone(ObjectRef::Service(ServiceKey::new("ns", name)));
    assert_eq!(touched(&mut world, gone("one")), [""; 0], "another Service still has the key");
    // The other Service now names another key.
    assert_eq!(touched(&mut world, service("two", &[well_known::ZONE])), ["a", "b"]);
    assert_eq!(labels(&world), Some(None));
    settle(&mut world);
    assert_eq!(touched(&mut world, gone("two")), [""; 0], "the zone label is always copied");
    assert!(world.locators().get(&key("a")).is_some_and(|l| l.node_labels.len() == 1));
}

#[test]
fn only_configured_labels_are_copied() {
    let only = LocatorLabels::Only(BTreeSet::from([Name::from("colour")]));
    let mut world = settled(only, on());
    let labels = |world: &World| world.locators().get(&key("a")).map(|l| l.node_labels.clone());
    assert_eq!(labels(&world), Some([("colour", "red")].into_iter().collect()));
    assert_eq!(touched(&mut world, service("s", &["rack"])), [""; 0]);
    let moved = [(well_known::ZONE, "z"), ("rack", "r9"), ("colour", "red")];
    assert_eq!(touched(&mut world, Change::put(node("n1", &moved))), [""; 0]);

    let mut world = settled(LocatorLabels::All, on());
    assert_eq!(labels(&world), Some(RED.into_iter().collect()));
    let recoloured = [(well_known::ZONE, "a"), ("rack", "r1"), ("colour", "blue")];
    assert_eq!(touched(&mut world, Change::put(node("n1", &recoloured))), ["a", "b"]);
}

#[test]
fn with_the_feature_gate_off_no_locator_is_affected_or_planned() {
    let mut world = settled(LocatorLabels::All, Gates::default());
    assert_eq!(world.locator_keys(), None);
    let foreign = Locator {
        key: key("c"),
        owner: None,
        ips: ips(&["10.0.0.3"]),
        node: Some(Name::from("n2")),
        node_labels: Labels::default(),
    };
    for change in [
        put(pod("new", "n1")),
        Change::Gone(ObjectRef::Pod(key("a"))),
        Change::Gone(ObjectRef::Node(Name::from("n1"))),
        Change::put(foreign),
        service("s", &["rack"]),
    ] {
        assert_eq!(touched(&mut world, change), [""; 0]);
    }
    assert_eq!(world.plan_locator(&key("new")), LocatorPlan::Keep);
    assert!(
        world.locators().get(&key("c")).is_some(),
        "PodLocators of other writers are still read"
    );
    assert_eq!(touched(&mut world, Change::Gone(ObjectRef::Locator(key("c")))), [""; 0]);
}
