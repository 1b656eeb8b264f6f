//! The conditions of a Service: one row per reason, with the responsible object and the sentence
//! that the user reads.

use jiff::Timestamp;
use nearhop_core::condition::{Writing, judge};
use nearhop_core::fixture::Fixture;
use nearhop_core::key::Family;
use nearhop_core::model::{AddressType, Slice};
use nearhop_core::object::Change;
use nearhop_core::route::{Place, RouteTable, Verdict};
use nearhop_core::routing::{Routing, SliceRouting};
use nearhop_core::world::{PlanTime, Settings};
use nearhop_core::{Gates, ServiceKey, World};

const ZONES: &str = "node n1 zone=a cpu=4\nnode n2 zone=b cpu=4\nnode n3 zone=c cpu=4\n";

/// The conditions of Service `web`: type, status, reason and message of each.
fn conditions_of(settings: Settings, text: &str, writing: &Writing) -> Vec<String> {
    let fixture = Fixture::parse(text).expect("the fixture is valid");
    judge_web(&fixture.world(settings), writing)
}

/// The conditions of Service `web` in a world whose slices are written.
fn judge_web(world: &World, writing: &Writing) -> Vec<String> {
    let key = ServiceKey::new("default", "web");
    let plan = world.plan(&key, PlanTime::at(Timestamp::UNIX_EPOCH)).expect("the Service exists");
    let service = world.service(&key).expect("the Service exists");
    let intent = world.intent(&key).expect("the Service has an intent");
    let judgements =
        judge("nearhop.dev", service, intent, &plan, writing, world.reach(&key).as_ref());
    for judgement in &judgements {
        assert!(judgement.message.contains(&judgement.responsible), "the message names the object");
    }
    let lines = judgements.iter().map(|j| {
        let kind = j.kind.strip_prefix("nearhop.dev/").expect("the type has the domain");
        format!("{kind} {} {} {}", j.status.as_str(), j.reason, j.message)
    });
    lines.collect()
}

/// The condition Reachable of Service `web`, after a cluster of three zones.
fn reachable(text: &str) -> Option<String> {
    let conditions = conditions_of(Settings::default(), &format!("{ZONES}{text}"), &Writing::Done);
    let found = conditions.iter().find_map(|line| line.strip_prefix("Reachable "));
    found.map(str::to_owned)
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
        "True HintsWritten zone hints written to 1 EndpointSlice (9 endpoints)",
    );
    check(
        &format!("service web traffic-distribution-annotation=Nonsense\n{spread}"),
        "False UnsupportedValue metadata.annotations[nearhop.dev/traffic-distribution]: \"Nonsense\"",
        "False NotAccepted ignored, see Accepted; traffic goes to all endpoints",
    );
    check(
        &format!(
            "service web traffic-distribution-annotation=Nonsense traffic-distribution=PreferSameNode\n{spread}"
        ),
        "False UnsupportedValue metadata.annotations[nearhop.dev/traffic-distribution]: ",
        "True HintsWritten node and zone hints written to 1 EndpointSlice (9 endpoints)",
    );
    check(
        &format!("service web topology-mode=Auto topology-keys-annotation=*\n{spread}"),
        "False Conflict metadata.annotations[nearhop.dev/topology-keys]: ",
        "True HintsWritten zone hints written to 1 EndpointSlice (9 endpoints)",
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
        "False EndpointsWithoutZone nodes dark: 1 ready endpoint has no zone, so proxies ignore all",
    );
    check(
        "service web traffic-distribution=PreferSameZone\npods p x2 for=web on=n1,lost",
        "True Accepted",
        "False NodeUnknown Pod default/p-1: 1 of its Pods left out: ",
    );
    check(
        "service web no-selector traffic-distribution=PreferSameZone",
        "True Accepted",
        "Unknown NoSelector spec.selector: absent",
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

#[test]
fn an_unlabelled_node_is_judged_by_what_the_keys_do() {
    let pods = "node nz\nservice web traffic-distribution=VALUE\npods p x4 for=web on=n1,n2,n3,nz";
    let conditions = |value: &str| {
        let text = format!("{ZONES}{}", pods.replace("VALUE", value));
        conditions_of(Settings::default(), &text, &Writing::Done)
    };
    let hard = conditions("nearhop.dev/RequireZone");
    assert_eq!(
        hard[1],
        "TrafficDistributionProgrammed True HintsWritten routing annotation with the keys \
         [topology.kubernetes.io/zone] written to 1 EndpointSlice (4 endpoints)"
    );
    assert_eq!(
        hard[2],
        "Reachable False NoEndpointInZone node nz without zone label: no ready endpoint, so \
         connections from 1 of 4 nodes are refused; 1 endpoint is on node nz, which has no zone \
         label; clients cannot reach it under RequireZone"
    );
    assert!(!hard.concat().contains("hints are used"), "{hard:?}");
    let soft = conditions("PreferSameZone");
    assert_eq!(soft.len(), 2, "only hard keys cut nodes off: {soft:?}");
    assert!(soft[1].contains("proxies ignore all hints and traffic goes to all endpoints"));
}

#[test]
fn zones_and_label_values_without_an_endpoint_are_named() {
    let web = "service web traffic-distribution=nearhop.dev/RequireZone\n";
    let cases = [
        (
            "pods p x3 for=web on=n1,n2,n3",
            "True EndpointForEveryNode the keys lead every node to an endpoint",
        ),
        (
            "pods p x3 for=web on=n1",
            "False NoEndpointInZone zones b, c: no ready endpoint, so connections from 2 of 3 nodes are refused",
        ),
        (
            "node n4 zone=c\npods p x3 for=web on=n1,n2",
            "False NoEndpointInZone zone c: no ready endpoint, so connections from 2 of 4 nodes are refused",
        ),
        (
            "pods p x2 for=web on=n1 notready",
            "False NoEndpoint endpoints: none is ready, so connections from all 3 nodes are refused",
        ),
        (
            "",
            "False NoEndpoint endpoints: none is ready, so connections from all 3 nodes are refused",
        ),
    ];
    for (text, wanted) in cases {
        assert_eq!(reachable(&format!("{web}{text}")).as_deref(), Some(wanted), "{text}");
    }
    let keys = [
        (
            "example.com/none",
            "False NoEndpointForKeys label example.com/none: no node has it, so connections from all 3 nodes \
             are refused; 3 endpoints are on nodes n1, n2, n3, which have no label example.com/none; \
             clients cannot reach them under topologyKeys",
        ),
        (
            "kubernetes.io/hostname",
            "False NoEndpointForKeys node n4: no ready endpoint, so connections from 1 of 4 nodes",
        ),
        (
            "rack,topology.kubernetes.io/zone",
            "False NoEndpointForKeys rack=r4: no ready endpoint, so connections from 1 of 4",
        ),
    ];
    for (keys, wanted) in keys {
        let nodes = if keys == "example.com/none" { "" } else { "node n4 label:rack=r4\n" };
        let text =
            format!("{nodes}service web topology-keys={keys}\npods p x3 for=web on=n1,n2,n3");
        let found = reachable(&text).expect("hard keys are judged");
        assert!(found.starts_with(wanted), "{keys}\n  found  {found}\n  wanted {wanted}");
    }
    assert_eq!(reachable("service web topology-keys=rack,*\npods p x3 for=web on=n1"), None);
}

#[test]
fn terminating_endpoints_that_serve_keep_a_zone_reachable() {
    let web = "service web traffic-distribution=nearhop.dev/RequireZone\n";
    let leaving = "pods p x2 for=web on=n1,n2 terminating\n";
    assert_eq!(
        reachable(&format!("{web}{leaving}")).unwrap(),
        "False NoEndpointInZone zone c: no serving endpoint, so connections from 1 of 3 nodes are refused"
    );
    let found = reachable(&format!("{web}{leaving}pods q x1 for=web on=n3")).unwrap();
    assert!(found.starts_with("False NoEndpointInZone zones a, b: no ready endpoint"), "{found}");
}

#[test]
fn many_zones_are_counted_and_some_are_named() {
    let nodes: String = (10..24).map(|i| format!("node m{i} zone=z{i}\n")).collect();
    let text = format!(
        "{nodes}service web traffic-distribution=nearhop.dev/RequireZone\npods p x3 for=web on=n1,n2,n3"
    );
    let found = reachable(&text).unwrap();
    assert_eq!(
        found,
        "False NoEndpointInZone more than 10 zones: no ready endpoint in z10, z11, z12, z13, z14, z15, z16, \
         z17, z18, z19 and 4 more, so connections from 14 of 17 nodes are refused"
    );
}

#[test]
fn only_ports_that_follow_the_keys_are_judged() {
    let web = "service web traffic-distribution=nearhop.dev/RequireZone";
    let pods = "pods p x1 for=web on=n1";
    assert_eq!(reachable(&format!("{web} itp=Local\n{pods}")), None, "the keys have no effect");
    let exposed = format!("{web} itp=Local type=NodePort port=80 node-port=30080\n{pods}");
    let found = reachable(&exposed).expect("connections from outside follow the keys");
    assert!(found.starts_with("False NoEndpointInZone zones b, c"), "{found}");
    let headless = reachable(&format!("{web} cluster-ip=None\n{pods}")).unwrap();
    let wanted =
        "zones b, c: no ready endpoint, so DNS answers have no addresses for clients on 2 of 3";
    assert!(headless.contains(wanted), "{headless}");
}

/// The slices of one family still have other hard keys, those of the other have none.
#[test]
fn one_family_with_other_keys_leaves_the_reach_unknown() {
    let text = format!(
        "{ZONES}service web families=IPv4,IPv6 traffic-distribution=nearhop.dev/RequireZone\n\
         pods p x3 for=web on=n1,n2,n3"
    );
    let fixture = Fixture::parse(&text).expect("the fixture is valid");
    let mut world = fixture.world(Settings::default());
    let key = ServiceKey::new("default", "web");
    let slices: Vec<Slice> = world.slices(&key).map(|slice| Slice::clone(slice)).collect();
    assert_eq!(slices.len(), 2, "one per family");
    for mut slice in slices {
        slice.routing = match slice.address_type {
            AddressType::Ip(Family::Ipv4) => other_keys(&slice.routing),
            _ => SliceRouting::Absent,
        };
        world.apply(Change::put(slice));
    }
    let conditions = judge_web(&world, &Writing::Done);
    assert!(conditions[2].starts_with("Reachable Unknown NotProgrammed"), "{conditions:?}");
}

/// The same endpoints by the key `rack`.
fn other_keys(routing: &SliceRouting) -> SliceRouting {
    let SliceRouting::Valid(routing) = routing else { panic!("no routing: {routing:?}") };
    let mut routing = Routing::clone(routing);
    let Routing::Keys(keys) = &mut routing else { panic!("no keys: {routing:?}") };
    keys.keys = vec!["rack".into()];
    SliceRouting::Valid(routing.into())
}

#[test]
fn ignored_requests_are_named_in_accepted() {
    let accepted = |asks: &str| {
        let text = format!("{ZONES}{asks}\npods p x3 for=web on=n1,n2,n3");
        conditions_of(Settings::default(), &text, &Writing::Done)[0].clone()
    };
    let cases = [
        (
            "service web traffic-distribution-annotation=PreferSameNode traffic-distribution=PreferSameZone",
            "TrafficDistributionAccepted True Accepted metadata.annotations[nearhop.dev/traffic-distribution] \
             is PreferSameNode; spec.trafficDistribution: \"PreferSameZone\" is ignored, because \
             metadata.annotations[nearhop.dev/traffic-distribution] takes precedence",
        ),
        (
            "service web traffic-distribution-annotation=PreferClose traffic-distribution=PreferSameZone",
            "TrafficDistributionAccepted True Accepted metadata.annotations[nearhop.dev/traffic-distribution] \
             is PreferClose",
        ),
        (
            "service web traffic-policy=Local",
            "TrafficDistributionAccepted False UnsupportedValue spec.trafficPolicy: \"Local\" has no effect in \
             this field; spec.internalTrafficPolicy: Local keeps traffic on the node; correct or remove it; \
             it counts as unset",
        ),
        (
            "service web routing-preference-annotation=Zone traffic-distribution=PreferSameZone",
            "TrafficDistributionAccepted True Accepted spec.trafficDistribution is PreferSameZone; \
             metadata.annotations[nearhop.dev/routing-preference]: \"Zone\" is ignored, because the feature \
             gate ServiceRoutingPreference is off",
        ),
        (
            "service web traffic-distribution=nearhop.dev/Balanced max-overload=lots",
            "TrafficDistributionAccepted True Accepted spec.trafficDistribution is nearhop.dev/Balanced; \
             metadata.annotations[nearhop.dev/max-overload]: \"lots\" is not a percentage; write it as 20%, \
             12.5% or inf; 20% is used until then",
        ),
    ];
    for (asks, wanted) in cases {
        assert_eq!(accepted(asks), wanted, "{asks}");
    }
}

#[test]
fn a_default_of_the_namespace_is_reported_as_such() {
    let conditions = |namespace: &str, asks: &str| {
        let text = format!(
            "{ZONES}namespace default traffic-distribution={namespace}\nservice web {asks}\n\
             pods p x3 for=web on=n1,n2,n3"
        );
        conditions_of(Settings::default(), &text, &Writing::Done)
    };
    let origin = "Namespace default's annotation nearhop.dev/traffic-distribution";
    assert_eq!(
        conditions("PreferSameZone", "")[0],
        format!(
            "TrafficDistributionAccepted True Accepted PreferSameZone from {origin}; nearhop.dev/None \
             in spec.trafficDistribution opts out"
        )
    );
    let bogus = conditions("Bogus", "");
    let wanted = format!(
        "TrafficDistributionAccepted False UnsupportedValue {origin}: \"Bogus\" is none of"
    );
    assert!(bogus[0].starts_with(&wanted), "{bogus:?}");
    assert!(
        bogus[1].ends_with("ignored, see Accepted; traffic goes to all endpoints"),
        "{bogus:?}"
    );
    let own = conditions("Bogus", "traffic-distribution=PreferSameNode");
    assert_eq!(
        own[0],
        "TrafficDistributionAccepted True Accepted spec.trafficDistribution is PreferSameNode"
    );
    for asks in ["traffic-distribution", "traffic-distribution-annotation"] {
        let out = conditions("PreferSameZone", &format!("{asks}=nearhop.dev/None"));
        assert!(out[0].contains("is nearhop.dev/None; no default of the Namespace"), "{out:?}");
        assert_eq!(
            out[1],
            "TrafficDistributionProgrammed True NoHintsNeeded no hints are needed; traffic goes to all endpoints"
        );
    }
}

/// The judgement over groups of nodes agrees with the choice of each node's proxy, also after nodes
/// came, went and moved.
#[test]
fn the_reach_equals_the_choices_of_all_proxies() {
    let steps = [
        "",
        "node n2 zone=c cpu=4",
        "node n5\nnode n6 zone=d label:rack=r1",
        "node n5 zone=a label:rack=r9",
        "pods q x2 for=web on=n6",
    ];
    for keys in [
        "topology.kubernetes.io/zone",
        "rack,topology.kubernetes.io/zone",
        "topology.kubernetes.io/zone,rack",
        "none",
    ] {
        let text = format!("{ZONES}service web topology-keys={keys}\npods p x3 for=web on=n1,n2");
        let mut world = Fixture::parse(&text).unwrap().world(Settings::default());
        for step in steps {
            let touched = world.apply_all(Fixture::parse(step).unwrap().changes());
            for key in touched.plan {
                let plan = world.plan(&key, PlanTime::at(Timestamp::UNIX_EPOCH)).unwrap();
                nearhop_core::fixture::apply_plan(&mut world, &key, plan);
            }
            let refused = world.nodes().filter(|node| {
                let table = RouteTable::build(&world, Place::of(node));
                table.iter().any(|(_, route)| route.decision.internal == Verdict::Reject)
            });
            let reach = world.reach(&ServiceKey::new("default", "web")).unwrap();
            assert_eq!(reach.cut_off, refused.count(), "{keys} after {step:?}: {reach:?}");
        }
    }
}

#[test]
fn a_node_affects_the_reach_only_by_labels_that_keys_name() {
    let text = format!(
        "{ZONES}service web traffic-distribution=nearhop.dev/RequireZone\nservice soft traffic-distribution=PreferSameZone"
    );
    let mut world = Fixture::parse(&text).unwrap().world(Settings::default());
    let mut reach =
        |text: &str| world.apply_all(Fixture::parse(text).unwrap().changes()).reach.len();
    assert_eq!(
        reach("node n1 zone=a cpu=8 label:agent=v2"),
        0,
        "neither CPU nor other labels count"
    );
    assert_eq!(reach("node n1 zone=b"), 1);
    assert_eq!(reach("node n9 zone=a"), 1);
    assert_eq!(reach("node n9 zone=a"), 0, "a heartbeat");
}
