//! The endpoints that a node chooses, tier by tier, and the reason.

use crate::common::*;
use nearhop_core::fixture::Fixture;
use nearhop_core::labels::well_known;
use nearhop_core::model::{Conditions, Slice};
use nearhop_core::route::{Candidates, Miss, Reason, Tier, Verdict};
use nearhop_core::routing::SliceRouting;
use nearhop_core::world::{ReadSlicesOf, Settings};
use nearhop_core::{Change, Name};

const THREE_ZONES: &str = "\
    nodes a x2 zone=a cpu=4\n\
    nodes b x2 zone=b cpu=4\n\
    nodes c x2 zone=c cpu=4\n";

fn reason(world: &nearhop_core::World, node: &str) -> Reason {
    route(world, node, "web").decision.cluster.expect("the cluster set is used").reason
}

fn misses(reason: &Reason) -> Vec<(&Tier, &Miss)> {
    reason.tried.iter().map(|tried| (&tried.tier, &tried.miss)).collect()
}

/// Rewrites the slices of the Service, as another client might.
fn tamper(world: &mut nearhop_core::World, with: impl Fn(usize, &mut Slice)) {
    let slices: Vec<Slice> = world.slices(&key("web")).map(|slice| (**slice).clone()).collect();
    for (i, mut slice) in slices.into_iter().enumerate() {
        with(i, &mut slice);
        world.apply(Change::put(slice));
    }
}

#[test]
fn same_zone_if_it_has_an_endpoint_else_any_endpoint() {
    let text = format!(
        "{THREE_ZONES}service web traffic-distribution=PreferSameZone\n\
         pods web x2 for=web on=a-0,b-0"
    );
    let world = world(&text);
    assert_eq!(chosen(&world, "a-1", "web"), ["web-0"]);
    assert_eq!(chosen(&world, "b-1", "web"), ["web-1"]);
    assert_eq!(chosen(&world, "c-0", "web"), ["web-0", "web-1"]);
    let reason = reason(&world, "c-0");
    assert_eq!(reason.tier, Tier::All);
    assert_eq!(misses(&reason), [(&Tier::SameZone, &Miss::HintedElsewhere)]);
    assert_eq!(
        reason.to_string(),
        "all; not same-zone: no endpoint has a hint for this node or zone"
    );
}

#[test]
fn same_node_then_same_zone_then_any_endpoint() {
    let text = format!(
        "{THREE_ZONES}service web traffic-distribution=PreferSameNode\n\
         pods web x3 for=web on=a-0,a-1,b-0"
    );
    let world = world(&text);
    assert_eq!(chosen(&world, "a-0", "web"), ["web-0"]);
    assert_eq!(chosen(&world, "b-1", "web"), ["web-2"]);
    assert_eq!(reason(&world, "b-1").tier, Tier::SameZone);
    assert_eq!(chosen(&world, "c-0", "web").len(), 3);
}

/// KEP-2433 "Kube-Proxy": if one ready endpoint has no hint, all hints are ignored.
#[test]
fn one_unhinted_endpoint_switches_hints_off() {
    let text = format!(
        "{THREE_ZONES}node bare cpu=4\nservice web traffic-distribution=PreferSameZone\n\
         pods web x3 for=web on=a-0,b-0,bare"
    );
    let world = world(&text);
    assert_eq!(chosen(&world, "a-0", "web").len(), 3);
    let reason = reason(&world, "a-0");
    assert_eq!(misses(&reason), [(&Tier::SameZone, &Miss::Unhinted { count: 1, of: 3 })]);
}

#[test]
fn a_node_without_zone_uses_all_endpoints_and_reports_it() {
    let text = format!(
        "{THREE_ZONES}node bare cpu=4\nservice web traffic-distribution=PreferSameZone\n\
         pods web x2 for=web on=a-0,b-0"
    );
    let world = world(&text);
    assert_eq!(chosen(&world, "bare", "web").len(), 2);
    assert_eq!(misses(&reason(&world, "bare")), [(&Tier::SameZone, &Miss::NodeWithoutZone)]);
}

/// Terminating endpoints on all nodes are used only if no endpoint is ready.
#[test]
fn serving_while_terminating_is_the_last_resort() {
    let text = format!(
        "{THREE_ZONES}service web traffic-distribution=PreferSameZone\n\
         pod t0 for=web on=a-0 terminating\npod t1 for=web on=b-0 terminating\n\
         pod t2 for=web on=c-0 terminating notready"
    );
    let mut world = world(&text);
    assert_eq!(chosen(&world, "a-0", "web"), ["t0", "t1"]);
    assert_eq!(reason(&world, "a-0").candidates, Candidates::ServingTerminating);
    let touched = apply_text(&mut world, "pod r for=web on=c-0 ip=10.9.0.1");
    converge(&mut world, touched);
    assert_eq!(chosen(&world, "a-0", "web"), ["r"]);
}

/// Hints of terminating endpoints are outdated and are ignored.
#[test]
fn hints_do_not_narrow_the_last_resort() {
    let text = format!(
        "{THREE_ZONES}service web traffic-distribution=PreferSameZone\n\
         pods web x2 for=web on=a-0,b-0"
    );
    let mut world = world(&text);
    tamper(&mut world, |_, slice| {
        for endpoint in &mut slice.endpoints {
            assert!(endpoint.hints.is_some());
            endpoint.conditions.ready = Some(false);
            endpoint.conditions.terminating = Some(true);
        }
    });
    assert_eq!(chosen(&world, "a-0", "web"), ["web-0", "web-1"]);
}

#[test]
fn a_port_without_endpoints_is_rejected() {
    let world = world(&format!("{THREE_ZONES}service web\npod n for=web on=a-0 notready"));
    let decision = route(&world, "a-0", "web").decision;
    assert_eq!((decision.internal, decision.has_any), (Verdict::Reject, false));
    assert_eq!(decision.cluster.expect("the cluster set is used").reason.tier, Tier::NoEndpoint);
}

#[test]
fn local_policies_drop_if_the_node_has_no_endpoint() {
    let text = format!(
        "{THREE_ZONES}service web port=80->8080 type=NodePort node-port=30080 itp=Local etp=Local\n\
         pod w for=web on=a-0"
    );
    let world = world(&text);
    let here = route(&world, "a-0", "web").decision;
    assert_eq!((here.internal, here.external), (Verdict::Local, Some(Verdict::Local)));
    let there = route(&world, "b-0", "web").decision;
    assert_eq!((there.internal, there.external), (Verdict::Drop, Some(Verdict::Drop)));
    // Still present for clients on the node itself, which the external policy Local allows.
    assert_eq!(there.cluster.expect("the port is exposed").backends.len(), 1);
}

/// Hard keys also limit the choice if only terminating endpoints remain.
#[test]
fn hard_keys_stay_hard_for_terminating_endpoints() {
    let text = format!(
        "{THREE_ZONES}service web traffic-distribution=nearhop.dev/RequireZone\n\
         pod t for=web on=a-0 terminating"
    );
    let world = world(&text);
    assert_eq!(chosen(&world, "a-1", "web"), ["t"]);
    assert_eq!(route(&world, "b-0", "web").decision.internal, Verdict::Reject);
}

#[test]
fn balanced_spills_by_weight() {
    let text = format!(
        "{THREE_ZONES}service web traffic-distribution=nearhop.dev/Balanced\n\
         pod a0 for=web on=a-0\npods b x4 for=web on=b-0,b-1\npods c x4 for=web on=c-0,c-1"
    );
    let world = world(&text);
    let set = route(&world, "a-0", "web").decision.cluster.expect("the cluster set is used");
    assert_eq!(set.reason.tier, Tier::Weights);
    let weight = |zone: &str| -> u64 {
        let of_zone = set.backends.iter().filter(|b| b.zone.as_ref().is_some_and(|z| *z == zone));
        of_zone.map(|backend| u64::from(backend.weight)).sum()
    };
    let all = weight("a") + weight("b") + weight("c");
    assert_eq!([weight("a"), weight("b"), weight("c")].map(|w| w * 1000 / all), [400, 300, 300]);
    // A zone that keeps all its traffic uses only its own endpoints.
    assert_eq!(chosen(&world, "b-0", "web"), ["b-0", "b-1", "b-2", "b-3"]);
    // A proxy that supports only hints uses the same zones without weights: endpoints in b and c
    // are also hinted for a.
    let hinted_at_a = counts(&[("a", 9), ("b", 4), ("c", 4)]);
    assert_eq!(hints(&world, "web"), hinted_at_a);
}

/// While slices disagree about the routing, nodes use the hints; if the hints are incomplete, nodes
/// use all endpoints.
#[test]
fn endpoints_are_available_at_every_step_of_a_transition() {
    let text = format!(
        "{THREE_ZONES}service web traffic-distribution=nearhop.dev/Nearest\n\
         pods web x250 for=web on=a-0,b-0,c-0"
    );
    let mut world = world(&text);
    assert_eq!(world.slices(&key("web")).count(), 3);
    assert_eq!(chosen(&world, "a-1", "web").len(), 84);
    tamper(&mut world, |i, slice| {
        if i == 1 {
            slice.routing = SliceRouting::Absent;
        }
    });
    let reason_now = reason(&world, "a-1");
    assert_eq!(reason_now.tier, Tier::SameZone, "the hints are for the same zone");
    assert!(matches!(reason_now.tried[0].miss, Miss::RoutingDisagrees { .. }));
    tamper(&mut world, |i, slice| {
        if i == 2 {
            slice.endpoints.iter_mut().for_each(|endpoint| endpoint.hints = None);
        }
    });
    assert_eq!(reason(&world, "a-1").tier, Tier::All);
    assert_eq!(chosen(&world, "a-1", "web").len(), 250);
}

#[test]
fn a_broken_annotation_falls_back_to_hints_and_is_reported() {
    let text = format!(
        "{THREE_ZONES}service web traffic-distribution=nearhop.dev/Nearest\n\
         pods web x2 for=web on=a-0,b-0"
    );
    let mut world = world(&text);
    tamper(&mut world, |_, slice| slice.routing = SliceRouting::read(Some("{\"v\":1,")));
    assert_eq!(reason(&world, "a-1").tier, Tier::SameZone);
    let problem = world.problems().first().expect("the world has a problem").to_string();
    let expected = "EndpointSlice default/web-1: metadata.annotations[nearhop.dev/routing]: \
                    not readable";
    assert!(problem.starts_with(expected), "{problem}");
}

/// Two endpoints with one address: a ready endpoint wins over endpoints that are not ready.
#[test]
fn a_duplicate_address_is_used_once() {
    let text = format!(
        "{THREE_ZONES}service web\npod p0 for=web on=a-0 ip=10.0.0.1\n\
         pod p1 for=web on=b-0 ip=10.0.0.1 terminating\npod p2 for=web on=b-0 ip=10.0.0.1 notready"
    );
    let set = route(&world(&text), "a-0", "web").decision.cluster.expect("the cluster set is used");
    assert_eq!(set.backends.len(), 1);
    assert!(set.backends[0].local, "the ready endpoint is on this node");
}

/// Plans and routes use a zone label that is set late (KEP-2433 "Identifying Zones").
#[test]
fn a_late_zone_label_is_used() {
    let mut world = world(
        "node a zone=a cpu=4\nnode b cpu=4\nservice web traffic-distribution=PreferSameZone\n\
         pods web x2 for=web on=a,b",
    );
    assert_eq!(chosen(&world, "a", "web").len(), 2);
    let touched = apply_text(&mut world, "node b zone=b cpu=4");
    assert!(touched.plan.contains(&key("web")));
    converge(&mut world, touched);
    assert_eq!(chosen(&world, "a", "web"), ["web-0"]);
    assert_eq!(chosen(&world, "b", "web"), ["web-1"]);
}

#[test]
fn unchanged_objects_affect_nothing() {
    let text =
        format!("{THREE_ZONES}service web topology-mode=Auto\npods web x6 for=web on=a-0,b-0,c-0");
    let mut world = world(&text);
    assert!(apply_text(&mut world, &text).is_empty(), "applying the same objects affects nothing");
}

/// The proxy reads an unset `ready` as ready; the controller sets no hint for it.
#[test]
fn unset_conditions_count_as_ready_for_a_proxy() {
    let mut world = world(&format!("{THREE_ZONES}service web\npods web x2 for=web on=a-0,b-0"));
    tamper(&mut world, |_, slice| {
        slice.endpoints.iter_mut().for_each(|e| e.conditions = Conditions::default());
    });
    assert_eq!(chosen(&world, "a-0", "web").len(), 2);
}

/// If nearhop runs beside a cluster's own controller, both write slices for a Service: only
/// nearhop's slices are read.
#[test]
fn beside_another_controller_only_slices_of_nearhop_are_routed() {
    let text = format!("{THREE_ZONES}service web\npods web x2 for=web on=a-0,b-0");
    let ours = Name::from(well_known::NEARHOP_CONTROLLER);
    let settings = Settings {
        controller: ours.clone(),
        read_slices_of: ReadSlicesOf::Only(ours),
        ..Settings::default()
    };
    let mut world = Fixture::parse(&text).unwrap().world(settings);
    let mut theirs = (**world.slices(&key("web")).next().expect("the Service has a slice")).clone();
    theirs.name = "web-theirs".into();
    theirs.labels = [
        (well_known::SERVICE_NAME, "web"),
        (well_known::MANAGED_BY, well_known::IN_TREE_CONTROLLER),
    ]
    .into_iter()
    .collect();
    theirs.endpoints[0].addresses = ["10.7.7.7".parse().unwrap()].into_iter().collect();
    world.apply(Change::put(theirs));
    assert_eq!(
        route(&world, "a-0", "web")
            .decision
            .cluster
            .expect("the cluster set is used")
            .backends
            .len(),
        2
    );
    assert!(plan(&world, "web").is_noop(), "the plan does not change the foreign slice");
}

/// Slices of another controller are routed, and plans never delete them.
#[test]
fn foreign_slices_are_routed_and_not_deleted() {
    let mut world = world(&format!("{THREE_ZONES}service web\npods web x2 for=web on=a-0,b-0"));
    let mut foreign =
        (**world.slices(&key("web")).next().expect("the Service has a slice")).clone();
    foreign.name = "by-hand".into();
    foreign.labels =
        [(well_known::SERVICE_NAME, "web"), (well_known::MANAGED_BY, "me")].into_iter().collect();
    foreign.endpoints.truncate(1);
    foreign.endpoints[0].addresses = ["10.7.7.7".parse().unwrap()].into_iter().collect();
    world.apply(Change::put(foreign));
    assert!(plan(&world, "web").is_noop());
    assert_eq!(
        route(&world, "a-0", "web")
            .decision
            .cluster
            .expect("the cluster set is used")
            .backends
            .len(),
        3
    );
}
