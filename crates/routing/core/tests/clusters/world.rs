//! What a change of an object affects, for cases that are not obvious.

use crate::common::{apply_text, key, now, plan, world};
use nearhop_core::fixture::Fixture;
use nearhop_core::model::Slice;
use nearhop_core::world::Settings;
use nearhop_core::{Affected, Change, Gate, Gates, World};

const CLUSTER: &str = "
    node a zone=a cpu=4 address=192.168.0.2
    node b zone=b cpu=4 address=192.168.0.3
    service near traffic-distribution=PreferSameZone
    service auto topology-mode=Auto
    service keys topology-keys=rack,*
    service balanced traffic-distribution=nearhop.dev/Balanced
    pods near x3 for=near on=a,b
    pods auto x6 for=auto on=a,b
    pods keys x3 for=keys on=a,b
    pods balanced x3 for=balanced on=a,b
";

/// Fields of a Node that only its own proxy reads affect no Service.
#[test]
fn addresses_and_deletion_of_a_node_affect_no_service() {
    for line in [
        "node a zone=a cpu=4 address=192.168.0.9",
        "node a zone=a cpu=4 address=192.168.0.2 address=203.0.113.5",
        "node a zone=a cpu=4",
        "node a zone=a cpu=4 address=192.168.0.2 pod-cidr=10.1.0.0/16",
        "node a zone=a cpu=4 address=192.168.0.2 deleting",
        "node a zone=a cpu=4 address=192.168.0.2 tainted-for-deletion",
    ] {
        let mut world = world(CLUSTER);
        let before = world.nodes().next().expect("the world has two nodes").clone();
        assert_eq!(apply_text(&mut world, line), Affected::default(), "{line}");
        let after = world.nodes().next().expect("the world has two nodes");
        assert_ne!(*after, before, "{line}: the world has the new Node");
        for service in ["near", "auto", "keys", "balanced"] {
            let plan = plan(&world, service);
            assert!(plan.is_noop(), "{line}: {service}: {plan:?}");
        }
    }
}

/// The check above can fail: a field that the plan reads does affect Services.
#[test]
fn zone_and_cpu_of_a_node_affect_services() {
    let mut world = world(CLUSTER);
    let touched = apply_text(&mut world, "node a zone=c cpu=4 address=192.168.0.2");
    assert!(touched.plan.contains(&key("near")), "{touched:?}");
    let touched = apply_text(&mut world, "node a zone=c cpu=64 address=192.168.0.2");
    assert!(touched.plan.contains(&key("balanced")), "{touched:?}");
}

/// The proxy measures the latency of a change with the trigger time.
#[test]
fn a_changed_trigger_time_affects_the_routes() {
    let mut world = world(CLUSTER);
    let slice: Slice =
        world.slices(&key("near")).next().map(|s| (**s).clone()).expect("the Service has a slice");
    assert_eq!(world.apply(Change::put(slice.clone())), Affected::default());
    let later = Slice { trigger_time: Some("2025-03-01T08:00:07Z".into()), ..slice };
    let touched = world.apply(Change::put(later.clone()));
    assert!(touched.routes.contains(&key("near")), "{touched:?}");
    let kept = world.slice(&later.namespace, &later.name).expect("the slice exists");
    assert_eq!(kept.trigger_time, later.trigger_time);
    assert!(world.plan(&key("near"), now()).expect("the Service exists").is_noop());
}

/// A change of any Service field that the proxy reads affects the routes.
#[test]
fn service_fields_for_the_proxy_affect_the_routes() {
    for option in ["source-ranges=10.0.0.0/8", "source-ranges=\"\"", "affinity=7s", "health-port=9"]
    {
        let mut world = world("service web cluster-ip=10.96.0.1");
        let touched = apply_text(&mut world, &format!("service web cluster-ip=10.96.0.1 {option}"));
        assert!(touched.routes.contains(&key("web")), "{option}: {touched:?}");
        assert!(plan(&world, "web").is_noop(), "{option}");
    }
}

#[test]
fn external_ips_are_used_only_with_their_feature_gate() {
    let text = "service web external-ip=192.0.2.1";
    let fixture = Fixture::parse(text).expect("the fixture is valid");
    let known = |gates| {
        let mut world = World::new(Settings { gates, ..Settings::default() });
        world.apply_all(fixture.changes());
        world.service(&key("web")).expect("the Service exists").external_ips.len()
    };
    assert_eq!(known(Gates::default()), 1);
    assert_eq!(known(Gates::default().without(Gate::AllowServiceExternalIPs)), 0);
}
