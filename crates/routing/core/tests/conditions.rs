//! The conditions of a Service: one row per reason, with the responsible object.

use jiff::Timestamp;
use nearhop_core::condition::{Writing, judge};
use nearhop_core::fixture::Fixture;
use nearhop_core::world::{PlanTime, Settings};
use nearhop_core::{Gates, ServiceKey, World};

const ZONES: &str = "node n1 zone=a cpu=4\nnode n2 zone=b cpu=4\nnode n3 zone=c cpu=4\n";

/// The conditions of Service `web`: type, status, reason and message of each.
fn said(settings: Settings, text: &str, writing: &Writing) -> Vec<String> {
    let fixture = Fixture::parse(text).expect("a sound fixture");
    let mut world = World::new(settings);
    world.apply_all(fixture.changes());
    let key = ServiceKey::new("default", "web");
    let plan = world.plan(&key, PlanTime::at(Timestamp::UNIX_EPOCH)).expect("a Service");
    let service = world.service(&key).expect("a Service");
    let intent = world.intent(&key).expect("a Service has an intent");
    let judgements = judge("nearhop.dev", service, intent, &plan, writing);
    for judgement in &judgements {
        assert!(judgement.message.contains(&judgement.culprit), "the message names the culprit");
    }
    let lines = judgements.iter().map(|j| {
        let kind = j.kind.strip_prefix("nearhop.dev/").expect("the domain");
        format!("{kind} {} {} {}", j.status.as_str(), j.reason, j.message)
    });
    lines.collect()
}

fn check(text: &str, accepted: &str, programmed: &str) {
    let said = said(Settings::default(), &format!("{ZONES}{text}"), &Writing::Done);
    let starts = |line: &str, start: &str| {
        assert!(line.starts_with(start), "{text}\n  said   {line}\n  wanted {start}");
    };
    assert_eq!(said.len(), 2, "{text}: {said:?}");
    starts(&said[0], &format!("TrafficDistributionAccepted {accepted}"));
    starts(&said[1], &format!("TrafficDistributionProgrammed {programmed}"));
}

#[test]
fn who_asks_for_nothing_is_told_nothing() {
    let text = format!("{ZONES}service web\npods p x3 for=web on=n1,n2,n3");
    assert_eq!(said(Settings::default(), &text, &Writing::Done), [""; 0]);
}

#[test]
fn every_outcome_has_a_reason_and_names_its_culprit() {
    let spread = "pods p x9 for=web on=n1,n2,n3";
    check(
        &format!("service web traffic-distribution=PreferSameZone\n{spread}"),
        "True Accepted spec.trafficDistribution is PreferSameZone",
        "True HintsWritten the EndpointSlices say SameZone",
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
        "True HintsWritten the EndpointSlices say SameNode",
    );
    check(
        &format!("service web topology-mode=Auto topology-keys-annotation=*\n{spread}"),
        "False Conflict metadata.annotations[nearhop.dev/topology-keys]: ",
        "True HintsWritten the EndpointSlices say Auto",
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
fn auto_names_the_nodes_that_say_too_little() {
    let text = "nodes dark x3 cpu=4\nnode n1 zone=a cpu=4\nservice web topology-mode=Auto\n\
                pods p x4 for=web on=n1";
    let said = said(Settings::default(), text, &Writing::Done);
    let wanted = "TrafficDistributionProgrammed False InsufficientNodeInformation \
                  nodes dark-0, dark-1, dark-2: Insufficient Node information";
    assert!(said[1].starts_with(wanted), "{said:?}");
}

#[test]
fn a_gate_that_is_off_is_named() {
    let gates = Gates::parse("ServiceTrafficDistribution=false").unwrap();
    let text =
        format!("{ZONES}service web traffic-distribution=PreferClose\npods p x3 for=web on=n1");
    let said = said(Settings { gates, ..Settings::default() }, &text, &Writing::Done);
    let wanted = "TrafficDistributionAccepted False FeatureGateDisabled spec.trafficDistribution: \
                  the feature gate ServiceTrafficDistribution is off";
    assert!(said[0].starts_with(wanted), "{said:?}");
}

#[test]
fn the_draft_of_kep_4444_has_conditions_of_its_own() {
    let gates = Gates::parse("ServiceRoutingPreference=true").unwrap();
    let text = format!("{ZONES}service web routing-preference=Spread\npods p x3 for=web on=n1");
    let said = said(Settings { gates, ..Settings::default() }, &text, &Writing::Done);
    assert!(said[0].starts_with("RoutingPreferenceAccepted True"), "{said:?}");
    assert!(said[1].starts_with("RoutingPreferenceProgrammed True NoHintsNeeded"), "{said:?}");
}

#[test]
fn a_write_that_fails_shows() {
    let text =
        format!("{ZONES}service web traffic-distribution=PreferSameZone\npods p x3 for=web on=n1");
    let (culprit, message) = ("RBAC".to_owned(), "not allowed".to_owned());
    let said = said(Settings::default(), &text, &Writing::Failed { culprit, message });
    assert_eq!(said[1], "TrafficDistributionProgrammed False WriteFailed RBAC: not allowed");
}
