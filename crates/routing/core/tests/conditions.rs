//! The conditions of a Service: one row per reason, with the responsible object.

use jiff::Timestamp;
use nearhop_core::condition::{Writing, judge};
use nearhop_core::fixture::Fixture;
use nearhop_core::world::{PlanTime, Settings};
use nearhop_core::{Gates, ServiceKey, World};

const ZONES: &str = "node n1 zone=a cpu=4\nnode n2 zone=b cpu=4\nnode n3 zone=c cpu=4\n";

/// The conditions of Service `web`: type, status, reason and message of each.
fn conditions_of(settings: Settings, text: &str, writing: &Writing) -> Vec<String> {
    let fixture = Fixture::parse(text).expect("the fixture is valid");
    let mut world = World::new(settings);
    world.apply_all(fixture.changes());
    let key = ServiceKey::new("default", "web");
    let plan = world.plan(&key, PlanTime::at(Timestamp::UNIX_EPOCH)).expect("the Service exists");
    let service = world.service(&key).expect("the Service exists");
    let intent = world.intent(&key).expect("the Service has an intent");
    let judgements = judge("nearhop.dev", service, intent, &plan, writing);
    for judgement in &judgements {
        assert!(judgement.message.contains(&judgement.responsible), "the message names the object");
    }
    let lines = judgements.iter().map(|j| {
        let kind = j.kind.strip_prefix("nearhop.dev/").expect("the type has the domain");
        format!("{kind} {} {} {}", j.status.as_str(), j.reason, j.message)
    });
    lines.collect()
}

fn check(text: &str, accepted: &str, programmed: &str) {
    let conditions = conditions_of(Settings::default(), &format!("{ZONES}{text}"), &Writing::Done);
    let starts = |line: &str, start: &str| {
        assert!(line.starts_with(start), "{text}\n  found  {line}\n  wanted {start}");
    };
    assert_eq!(conditions.len(), 2, "{text}: {conditions:?}");
    starts(&conditions[0], &format!("TrafficDistributionAccepted {accepted}"));
    starts(&conditions[1], &format!("TrafficDistributionProgrammed {programmed}"));
}

#[test]
fn a_service_without_a_policy_has_no_conditions() {
    let text = format!("{ZONES}service web\npods p x3 for=web on=n1,n2,n3");
    assert_eq!(conditions_of(Settings::default(), &text, &Writing::Done), [""; 0]);
}

#[test]
fn every_outcome_has_a_reason_and_names_the_responsible_object() {
    let spread = "pods p x9 for=web on=n1,n2,n3";
    check(
        &format!("service web traffic-distribution=PreferSameZone\n{spread}"),
        "True Accepted spec.trafficDistribution is PreferSameZone",
        "True HintsWritten the EndpointSlices have hints for SameZone",
    );
    check(
        &format!("service web traffic-distribution-annotation=Nonsense\n{spread}"),
        "False UnsupportedValue metadata.annotations[nearhop.dev/traffic-distribution]: \"Nonsense\"",
        "False NotAccepted Accepted is False: ",
    );
    check(
        &format!(
            "service web traffic-distribution-annotation=Nonsense traffic-distribution=PreferSameNode\n{spread}"
        ),
        "False UnsupportedValue metadata.annotations[nearhop.dev/traffic-distribution]: ",
        "True HintsWritten the EndpointSlices have hints for SameNode",
    );
    check(
        &format!("service web topology-mode=Auto topology-keys-annotation=*\n{spread}"),
        "False Conflict metadata.annotations[nearhop.dev/topology-keys]: ",
        "True HintsWritten the EndpointSlices have hints for Auto",
    );
    check(
        "service web topology-mode=Auto\npods p x2 for=web on=n1,n2",
        "True Accepted",
        "False TooFewEndpoints endpoints: Insufficient number of endpoints (2 endpoints, 3 zones)",
    );
    check(
        "service web topology-mode=Auto\npods p x4 for=web on=n1,n2,n3",
        "True Accepted",
        "False OverloadThreshold endpoints: Unable to allocate minimum required endpoints",
    );
    check(
        "node dark\nservice web traffic-distribution=PreferSameZone\npods p x2 for=web on=n1,dark",
        "True Accepted",
        "False EndpointsWithoutZone nodes dark: 1 ready endpoints have no zone",
    );
    check(
        "service web traffic-distribution=PreferSameZone\npods p x2 for=web on=n1,lost",
        "True Accepted",
        "False NodeUnknown Pod default/p-1: 1 of its Pods left out: ",
    );
    check(
        "service web no-selector traffic-distribution=PreferSameZone",
        "True Accepted",
        "False NoSelector spec.selector: ",
    );
    check(
        "service web type=ExternalName traffic-distribution=PreferSameZone",
        "True Accepted",
        "False NotRouted spec.type: ",
    );
}

#[test]
fn auto_names_the_nodes_without_a_zone() {
    let text = "nodes dark x3 cpu=4\nnode n1 zone=a cpu=4\nservice web topology-mode=Auto\n\
                pods p x4 for=web on=n1";
    let conditions = conditions_of(Settings::default(), text, &Writing::Done);
    let wanted = "TrafficDistributionProgrammed False InsufficientNodeInformation \
                  nodes dark-0, dark-1, dark-2: Insufficient Node information";
    assert!(conditions[1].starts_with(wanted), "{conditions:?}");
}

#[test]
fn a_disabled_feature_gate_is_named() {
    let gates = Gates::parse("ServiceTrafficDistribution=false").unwrap();
    let text =
        format!("{ZONES}service web traffic-distribution=PreferClose\npods p x3 for=web on=n1");
    let conditions =
        conditions_of(Settings { gates, ..Settings::default() }, &text, &Writing::Done);
    let wanted = "TrafficDistributionAccepted False FeatureGateDisabled spec.trafficDistribution: \
                  the feature gate ServiceTrafficDistribution is off";
    assert!(conditions[0].starts_with(wanted), "{conditions:?}");
}

#[test]
fn the_routing_preference_has_its_own_conditions() {
    let gates = Gates::parse("ServiceRoutingPreference=true").unwrap();
    let text = format!("{ZONES}service web routing-preference=Spread\npods p x3 for=web on=n1");
    let conditions =
        conditions_of(Settings { gates, ..Settings::default() }, &text, &Writing::Done);
    assert!(conditions[0].starts_with("RoutingPreferenceAccepted True"), "{conditions:?}");
    assert!(
        conditions[1].starts_with("RoutingPreferenceProgrammed True NoHintsNeeded"),
        "{conditions:?}"
    );
}

#[test]
fn a_failed_write_is_shown() {
    let text =
        format!("{ZONES}service web traffic-distribution=PreferSameZone\npods p x3 for=web on=n1");
    let (responsible, message) = ("RBAC".to_owned(), "not allowed".to_owned());
    let conditions =
        conditions_of(Settings::default(), &text, &Writing::Failed { responsible, message });
    assert_eq!(conditions[1], "TrafficDistributionProgrammed False WriteFailed RBAC: not allowed");
}
