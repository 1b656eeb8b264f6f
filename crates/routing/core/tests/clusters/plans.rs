//! Plans over time: policy changes, hints that become impossible and possible again, restarts.

use crate::common::*;
use jiff::{SignedDuration, Timestamp};
use nearhop_core::fixture::{Fixture, apply_plan};
use nearhop_core::hint::{EventKind, HintOutcome, HintRefusal};
use nearhop_core::model::AddressType;
use nearhop_core::world::{PlanTime, Settings};
use nearhop_core::{Change, Family, Name, ObjectRef, SlicePlan, World};

/// Applies a change, writes the new plan of Service `web`, and returns that plan.
fn step(world: &mut World, text: &str) -> SlicePlan {
    apply_text(world, text);
    let done = plan(world, "web");
    apply_plan(world, &key("web"), plan(world, "web"));
    done
}

fn event_reasons(plan: &SlicePlan) -> Vec<&'static str> {
    plan.events.iter().map(|event| event.reason).collect()
}

/// One ready Pod on a node with a zone. The policy changes step by step and the hints follow.
#[test]
fn hints_follow_policy_changes() {
    let mut world = world("node n zone=z cpu=4\nservice web\npod p for=web on=n");
    let steps = [
        ("", false, false),
        ("traffic-distribution=PreferClose", true, false),
        // Auto needs more than one endpoint, and does not fall back to the field.
        ("traffic-distribution=PreferClose topology-mode=Auto", false, false),
        ("traffic-distribution=PreferClose", true, false),
        ("", false, false),
        ("traffic-distribution=PreferSameZone", true, false),
        ("traffic-distribution=PreferSameNode", true, true),
        ("", false, false),
    ];
    for (ask, zone, node) in steps {
        step(&mut world, &format!("service web {ask}"));
        let slice = world.slices(&key("web")).next().expect("the Service has a slice").clone();
        assert_eq!(!slice.endpoints[0].hint_zones().is_empty(), zone, "{ask}");
        assert_eq!(!slice.endpoints[0].hint_nodes().is_empty(), node, "{ask}");
    }
    step(&mut world, "node n cpu=4\nservice web traffic-distribution=PreferSameNode");
    let slice = world.slices(&key("web")).next().expect("the Service has a slice").clone();
    assert_eq!(
        (slice.endpoints[0].hint_zones().len(), slice.endpoints[0].hint_nodes().len()),
        (0, 1)
    );
}

/// Each intent can follow each other intent, and leaves no data of the earlier one.
#[test]
fn a_policy_change_leaves_no_data_of_the_earlier_policy() {
    let asks = [
        "",
        "topology-mode=Auto",
        "topology-keys=rack,*",
        "traffic-distribution=PreferSameZone",
        "traffic-distribution=PreferSameNode",
        "traffic-distribution=nearhop.dev/Balanced",
        "traffic-distribution=nearhop.dev/Nearest",
        "traffic-distribution=nearhop.dev/RequireZone",
    ];
    let cluster = |ask: &str| {
        world(&format!(
            "node a zone=a rack=r1 cpu=4\nnode b zone=b rack=r2 cpu=4\nservice web {ask}\n\
             pods web x4 for=web on=a,b"
        ))
    };
    let carried = |world: &World| -> Vec<_> {
        let web = key("web");
        let slices = world.slices(&web);
        slices.map(|slice| (slice.endpoints.clone(), slice.routing.clone())).collect()
    };
    for before in asks {
        for after in asks {
            let mut switched = cluster(before);
            step(&mut switched, &format!("service web {after}"));
            assert_eq!(carried(&switched), carried(&cluster(after)), "{before} then {after}");
        }
    }
}

const FOUR: &str = "node a zone=a cpu=4\nnode b zone=b cpu=4\nservice web topology-mode=Auto\n\
                    pods web x4 for=web on=a,b";

/// Events report transitions, not states (upstream repeats a refusal on every sync).
#[test]
fn auto_raises_events_on_transitions_only() {
    let mut world = World::new(Settings::default());
    let first = step(&mut world, FOUR);
    assert_eq!(event_reasons(&first), ["TopologyAwareHintsEnabled"]);
    assert!(event_reasons(&step(&mut world, "node a zone=a cpu=4")).is_empty());
    // Too much CPU without a zone: Auto turns off, with one event that names the node.
    let off = step(&mut world, "node bare cpu=64");
    assert_eq!(event_reasons(&off), ["TopologyAwareHintsDisabled"]);
    assert_eq!(off.events[0].kind, EventKind::Warning);
    let message = &off.events[0].message;
    assert!(message.starts_with("Insufficient Node information"), "{message}");
    assert!(message.contains("without a zone: bare; 88.8 % of the CPU"), "{message}");
    assert!(
        event_reasons(&step(&mut world, "node bare cpu=65")).is_empty(),
        "the responsible node is the same"
    );
    // The change of the node alone restores the hints, without any change of a Pod.
    let touched = apply_text(&mut world, "node bare zone=a cpu=1");
    assert!(touched.plan.contains(&key("web")));
    assert_eq!(event_reasons(&plan(&world, "web")), ["TopologyAwareHintsEnabled"]);
}

/// One node without a zone label among many does not remove any hints, also not for Services with
/// endpoints on it: Auto assigns these endpoints to the zones that need them.
#[test]
fn one_node_without_a_zone_is_ignored_and_reported() {
    let nodes = "nodes a x10 zone=a cpu=4\nnodes b x10 zone=b cpu=4\n";
    let text = format!(
        "{nodes}node bare cpu=4\nservice web topology-mode=Auto\n\
         pods web x6 for=web on=a-0,b-0\npod odd for=web on=bare"
    );
    let world = world(&text);
    assert_eq!(world.capacity().without_zone, [Name::from("bare")]);
    let named: Vec<String> =
        world.problems().iter().map(|p| format!("{}: {}", p.subject, p.field)).collect();
    assert_eq!(named, ["Node bare: metadata.labels[topology.kubernetes.io/zone]"]);
    assert_eq!(hints(&world, "web").values().sum::<usize>(), 7, "every endpoint is hinted");
    assert!(chosen(&world, "a-1", "web").len() < 7);
    assert_eq!(chosen(&world, "bare", "web").len(), 7, "clients on that node use all endpoints");
}

/// If a Node changes while a plan is being written, the Service is planned again.
#[test]
fn a_node_change_during_a_write_repeats_the_plan() {
    let mut world = World::new(Settings::default());
    apply_text(&mut world, FOUR);
    let slow = plan(&world, "web");
    let touched = apply_text(&mut world, "node c zone=c cpu=4");
    assert!(touched.plan.is_empty(), "the world has no hints yet");
    let touched = apply_plan(&mut world, &key("web"), slow);
    assert!(touched.plan.contains(&key("web")));
    // Four endpoints are too few for three zones.
    assert!(matches!(plan(&world, "web").outcome[&Family::Ipv4], HintOutcome::Refused(_)));
}

/// After a restart the controller uses the existing hints as its state, and keeps them up to an
/// overload of 30 %.
#[test]
fn a_restart_keeps_hints_within_the_limit() {
    let mut world = world(
        "node a zone=a cpu=4\nnode b zone=b cpu=4\nservice web topology-mode=Auto\n\
         pods web x8 for=web on=a,b",
    );
    // 4 and 4 hints; with 60 % of the CPU in b it is overloaded by 20 %, with 64 % by 28 %.
    let touched = apply_text(&mut world, "node b zone=b cpu=7.2");
    assert!(touched.plan.is_empty(), "28 % is below the threshold: {touched:?}");
    let mut restarted = World::new(Settings::default());
    let fixture = "node a zone=a cpu=4\nnode b zone=b cpu=7.2\nservice web topology-mode=Auto\n\
                   pods web x8 for=web on=a,b";
    restarted.apply_all(Fixture::parse(fixture).unwrap().changes());
    for slice in world.slices(&key("web")) {
        restarted.apply(Change::put((**slice).clone()));
    }
    let first = plan(&restarted, "web");
    assert!(first.is_noop());
    assert!(first.events.is_empty(), "nothing changed: {:?}", first.events);
    // Without existing hints the plan differs.
    let fresh = Fixture::parse(fixture).unwrap().world(Settings::default());
    assert_eq!(hints(&fresh, "web"), counts(&[("a", 3), ("b", 5)]));
}

/// Weights change at most every 30 seconds, but a zone that lost its endpoints stops receiving
/// traffic at once.
#[test]
fn weights_change_slowly_and_lost_zones_at_once() {
    let text = "node a zone=a cpu=4\nnode b zone=b cpu=4\n\
                service web traffic-distribution=nearhop.dev/Balanced max-overload=0%\n\
                pods a x2 for=web on=a\npods b x2 for=web on=b";
    let mut world = world(text);
    let at =
        |seconds: i64| PlanTime::at(Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds));
    // Zone a has twice the demand: a third of it should go to b, but only after the waiting time.
    apply_text(&mut world, "node a zone=a cpu=8");
    let early = world.plan(&key("web"), at(10)).expect("the Service exists");
    assert!(early.is_noop());
    assert_eq!(early.again_at, Some(at(30).now));
    let late = world.plan(&key("web"), at(30)).expect("the Service exists");
    assert!(!late.is_noop());
    assert_eq!(late.again_at, None);
    // The endpoints in b are gone: the weights change immediately.
    for pod in ["b-0", "b-1"] {
        world.apply(Change::Gone(ObjectRef::Pod(nearhop_core::PodKey::new("default", pod))));
    }
    let lost = world.plan(&key("web"), at(11)).expect("the Service exists");
    apply_plan(&mut world, &key("web"), lost);
    assert_eq!(chosen(&world, "b", "web"), ["a-0", "a-1"]);
}

#[test]
fn balanced_needs_a_zone_for_each_endpoint_and_names_nodes_without_one() {
    let world = world(
        "node a zone=a cpu=4\nnode bare cpu=4\n\
         service web traffic-distribution=nearhop.dev/Balanced\npods web x2 for=web on=a,bare",
    );
    let outcome = plan(&world, "web").outcome[&Family::Ipv4].clone();
    let HintOutcome::Refused(why @ HintRefusal::EndpointsWithoutZone(_)) = outcome else {
        panic!("{outcome:?}");
    };
    assert!(why.to_string().ends_with("(nodes: bare)"), "{why}");
    assert_eq!(chosen(&world, "a", "web").len(), 2, "all endpoints, evenly");
}

/// A plan reports same-zone hints that cannot be complete, because proxies ignore incomplete hints.
#[test]
fn incomplete_hints_are_reported() {
    let world = world(
        "node a zone=a cpu=4\nnode bare cpu=4\nservice web traffic-distribution=PreferSameZone\n\
         pods web x2 for=web on=a,bare",
    );
    let outcome = &plan(&world, "web").outcome[&Family::Ipv4];
    assert_eq!(*outcome, HintOutcome::Partial { without: 1, nodes: vec![Name::from("bare")] });
}

/// A plan leaves out a Pod whose Node is unknown, and must be repeated. When the Node appears, this
/// change alone affects the Service.
#[test]
fn pods_on_an_unknown_node_are_left_out_until_it_appears() {
    let mut world = world("node a zone=a cpu=4\nservice web\npods web x2 for=web on=a,late");
    let held = &plan(&world, "web").missing_nodes;
    assert_eq!(held.len(), 1);
    let expected = "Pod default/web-1: spec.nodeName: skipping Pod web-1 for Service default/web: \
                    Node late Not Found";
    assert!(held[0].to_string().starts_with(expected), "{}", held[0]);
    let touched = apply_text(&mut world, "node late zone=b cpu=4");
    assert!(touched.plan.contains(&key("web")));
    converge(&mut world, touched);
    assert_eq!(chosen(&world, "a", "web").len(), 2);
}

#[test]
fn services_without_selector_keep_their_slices() {
    for ask in ["no-selector", "type=ExternalName"] {
        let mut world = world("node a zone=a\nservice web\npod p for=web on=a");
        let before: Vec<_> = world.slices(&key("web")).cloned().collect();
        let plan = step(&mut world, &format!("service web {ask}"));
        assert!(plan.is_noop(), "{ask}");
        assert_eq!(plan.unchanged, before);
    }
}

/// The controller creates no new slices for a Service with a deletionTimestamp, but updates the
/// existing ones.
#[test]
fn nothing_is_created_for_a_service_being_deleted() {
    let mut world = World::new(Settings { max_endpoints_per_slice: 1, ..Settings::default() });
    step(&mut world, "node a zone=a\nservice web\npod p0 for=web on=a ip=10.9.0.1");
    let plan = step(&mut world, "service web deleting\npod p1 for=web on=a ip=10.9.0.2");
    assert!(plan.create.is_empty() && plan.update.is_empty());
    let plan = step(&mut world, "pod p0 for=web on=a ip=10.9.0.1 notready");
    assert_eq!(plan.update.len(), 1);
}

#[test]
fn families_are_planned_separately_and_removed_with_the_service_family() {
    let mut world = world(
        "node a zone=a\nservice web families=IPv4,IPv6\npod p for=web on=a ip=10.9.0.1 ip=fd00::1\n\
         pod four for=web on=a ip=10.9.0.2",
    );
    let sizes = |world: &World| -> Vec<(String, usize)> {
        let mut sizes: Vec<_> = world
            .slices(&key("web"))
            .map(|slice| (slice.address_type.as_str().to_owned(), slice.endpoints.len()))
            .collect();
        sizes.sort();
        sizes
    };
    assert_eq!(sizes(&world), [("IPv4".to_owned(), 2), ("IPv6".to_owned(), 1)]);
    let plan = step(&mut world, "service web families=IPv4");
    assert_eq!(plan.delete[0].address_type, AddressType::Ip(Family::Ipv6));
    assert_eq!(sizes(&world), [("IPv4".to_owned(), 2)]);
}

/// A restart does not change weights that are still within the limits.
#[test]
fn a_restart_keeps_weights_within_the_limit() {
    let nodes = "node a zone=a cpu=4\nnode b zone=b cpu=4\n\
                 service web traffic-distribution=nearhop.dev/Balanced max-overload=0%\n\
                 pods a x50 for=web on=a\n";
    let before = world(&format!("{nodes}pods b x50 for=web on=b"));
    let mut restarted = World::new(Settings::default());
    restarted
        .apply_all(Fixture::parse(&format!("{nodes}pods b x49 for=web on=b")).unwrap().changes());
    for slice in before.slices(&key("web")) {
        restarted.apply(Change::put((**slice).clone()));
    }
    let plan = plan(&restarted, "web");
    assert_eq!(plan.update.len(), 1, "only the slice that lost an endpoint");
    let routing =
        before.slices(&key("web")).next().expect("the Service has a slice").routing.clone();
    assert_eq!(plan.update[0].routing, routing, "the weights stay the same");
}

/// The first endpoint of a zone gets traffic at once, even if its share is small.
#[test]
fn balanced_sends_traffic_to_every_zone() {
    let mut world = world(
        "node a zone=a cpu=4\nnode b zone=b cpu=4\nnode c zone=c cpu=4\n\
         service web traffic-distribution=nearhop.dev/Balanced\n\
         pods a x50 for=web on=a\npods b x49 for=web on=b",
    );
    step(&mut world, "pod c for=web on=c ip=10.9.0.1");
    assert!(chosen(&world, "c", "web").contains(&"c".to_owned()));
    let unhinted = |slice: &std::sync::Arc<nearhop_core::model::Slice>| {
        slice.endpoints.iter().any(|endpoint| endpoint.hint_zones().is_empty())
    };
    assert!(
        !world.slices(&key("web")).any(unhinted),
        "every endpoint has a hint, as standard proxies require"
    );
}

/// The API allows eight zones in a hint. If an endpoint needs more, no endpoint is hinted, and only
/// the weights express the policy.
#[test]
fn more_than_eight_zones_per_endpoint_give_no_standard_hints() {
    let cluster = |zones: usize| {
        let nodes: String = (0..zones).map(|i| format!("node n{i} zone=z{i} cpu=4\n")).collect();
        world(&format!(
            "{nodes}service web traffic-distribution=nearhop.dev/Balanced\npod p for=web on=n0"
        ))
    };
    assert_eq!(hints(&cluster(8), "web").len(), 8);
    let many = cluster(9);
    assert_eq!(hints(&many, "web").len(), 0);
    assert_eq!(chosen(&many, "n8", "web"), ["p"]);
}

/// Auto sets no hints if nodes without a zone have more than a tenth of the CPU.
#[test]
fn auto_allows_a_tenth_of_the_cpu_without_a_zone() {
    let refused = |bare: &str| {
        let world = world(&format!("{FOUR}\nnode bare cpu={bare}"));
        matches!(plan(&world, "web").outcome[&Family::Ipv4], HintOutcome::Refused(_))
    };
    assert!(!refused("888m"), "0.888 of 8.888 is less");
    assert!(refused("890m"), "0.890 of 8.890 is more");
}
