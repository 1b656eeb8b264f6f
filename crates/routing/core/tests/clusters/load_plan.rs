//! The effect of a policy on the load, compared with figures calculated by hand.

use crate::common::{key, now, world};
use nearhop_core::Family;
use nearhop_core::hint::HintOutcome;
use nearhop_core::plan::{LoadPlan, LoadQuestion, plan_load};

/// Equal demand in three zones, endpoints 1/4/4.
fn load(ask: &str) -> LoadPlan {
    let world = world(&format!(
        "node a zone=a cpu=4\nnode b zone=b cpu=4\nnode c zone=c cpu=4\nservice web {ask}\n\
         pod a0 for=web on=a\npods b x4 for=web on=b\npods c x4 for=web on=c"
    ));
    ask_load(&world, now())
}

fn ask_load(world: &nearhop_core::World, now: nearhop_core::world::PlanTime) -> LoadPlan {
    let service = key("web");
    let question = LoadQuestion { service: &service, port: 0, family: Family::Ipv4 };
    plan_load(world, question, now).expect("the Service exists")
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-3
}

#[test]
fn spread_is_even_and_crosses_zones() {
    let load = load("");
    assert!(close(load.worst, 1.0), "{}", load.worst);
    // Of each third of the demand, b and c keep 4/9, and a keeps 1/9.
    assert!(close(load.cross_zone, 2.0 / 3.0), "{}", load.cross_zone);
    assert_eq!(load.endpoints.len(), 9);
}

#[test]
fn same_zone_overloads_the_small_zone() {
    let load = load("traffic-distribution=PreferSameZone");
    assert!(close(load.worst, 3.0), "{}", load.worst);
    assert!(close(load.cross_zone, 0.0));
    assert!(close(load.arriving("a"), 1.0 / 3.0));
}

#[test]
fn balanced_bounds_the_overload_at_the_least_cost() {
    let load = load("traffic-distribution=nearhop.dev/Balanced");
    assert!(close(load.worst, 1.2), "{}", load.worst);
    assert!(close(load.cross_zone, 0.2), "{}", load.cross_zone);
}

#[test]
fn hard_keys_leave_demand_unserved() {
    let world = world(
        "node a zone=a cpu=4\nnode b zone=b cpu=12\n\
         service web traffic-distribution=nearhop.dev/RequireZone\npod p for=web on=a",
    );
    let load = ask_load(&world, now());
    assert!(close(load.unserved, 0.75), "{}", load.unserved);
    assert!(close(load.worst, 1.0));
}

#[test]
fn a_load_plan_without_hints_has_a_reason() {
    let cluster = world(
        "node a zone=a cpu=4\nnode b zone=b cpu=4\nnode c zone=c cpu=4\n\
         service web topology-mode=Auto\npods web x4 for=web on=a,b,c",
    );
    let load = ask_load(&cluster, now());
    assert!(matches!(load.outcome, Some(HintOutcome::Refused(_))), "{:?}", load.outcome);
    assert!(close(load.worst, 1.0), "without hints every endpoint is used");
}

#[test]
fn an_unknown_service_or_port_has_no_plan() {
    let world = world("service web no-ports");
    let (web, nope) = (key("web"), key("nope"));
    for service in [&web, &nope] {
        let question = LoadQuestion { service, port: 0, family: Family::Ipv4 };
        assert!(plan_load(&world, question, now()).is_none());
    }
}
