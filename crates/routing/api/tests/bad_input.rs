//! An invalid object is reported with its field, and affects only itself.
//!
//! Each case tests the whole path: JSON text, conversion, and a world that also contains a valid
//! Service. The problems are exactly the expected ones, the valid Service has the same routes as
//! without the invalid object, and the valid parts of the invalid object still work.

use jiff::Timestamp;
use nearhop_api::convert_json;
use nearhop_core::fixture::{Fixture, apply_plan};
use nearhop_core::intent::{Intent, MaxOverload};
use nearhop_core::route::{Miss, Place, Route, RouteKey, RouteSet, RouteTable, Tier};
use nearhop_core::world::{PlanTime, Settings};
use nearhop_core::{Change, Problem, ServiceKey, World};
use serde_json::{Value, json};

const HEALTHY: &str = "
    node a1 zone=a cpu=4
    node b1 zone=b cpu=4
    service shop/good traffic-distribution=PreferSameZone
    pods shop/good x4 for=good on=a1,b1
    pods shop/bad x2 for=bad on=a1,b1 port=web:8080
";

const NODES: [&str; 2] = ["a1", "b1"];

struct Outcome {
    world: World,
    problems: Vec<Problem>,
}

fn healthy() -> World {
    Fixture::parse(HEALTHY).expect("the fixture is valid").world(Settings::default())
}

fn good() -> ServiceKey {
    ServiceKey::new("shop", "good")
}

fn bad() -> ServiceKey {
    ServiceKey::new("shop", "bad")
}

/// The valid world with these objects added, as the feed and the controller add them.
fn add(objects: &[Value]) -> Outcome {
    let mut world = healthy();
    let mut problems = Vec::new();
    for object in objects {
        let (object, found) = convert_json(object.to_string().as_bytes());
        problems.extend(found);
        let touched = object.map(|object| world.apply(Change::Put(object))).unwrap_or_default();
        for key in touched.plan {
            let plan =
                world.plan(&key, PlanTime::at(Timestamp::UNIX_EPOCH)).expect("the Service exists");
            apply_plan(&mut world, &key, plan);
        }
    }
    problems.extend(world.problems());
    Outcome { world, problems }
}

fn routes<'a>(table: &'a RouteTable, service: &ServiceKey) -> Vec<(&'a RouteKey, &'a Route)> {
    table.iter().filter(|(key, _)| key.port.service == *service).collect()
}

fn table(world: &World, node: &str) -> RouteTable {
    RouteTable::build(world, Place::of(world.node(node).expect("the node exists")))
}

/// Adds the objects, checks that exactly these fields of these objects are reported, and that the
/// valid Service has the same routes.
fn check(objects: &[Value], expected: &[(&str, &str)]) -> Outcome {
    let outcome = add(objects);
    let found: Vec<(String, String)> = (outcome.problems.iter())
        .map(|problem| (problem.subject.to_string(), problem.field.to_string()))
        .collect();
    let wanted: Vec<(String, String)> = (expected.iter())
        .map(|(object, field)| ((*object).to_owned(), (*field).to_owned()))
        .collect();
    assert_eq!(found, wanted, "{:#?}", outcome.problems);
    let without = healthy();
    for node in NODES {
        let (with, without) = (table(&outcome.world, node), table(&without, node));
        assert!(!routes(&without, &good()).is_empty());
        assert_eq!(routes(&with, &good()), routes(&without, &good()), "on {node}");
    }
    outcome
}

/// The endpoints that a node uses for a port of the invalid Service.
fn chosen(outcome: &Outcome, node: &str, port: &str) -> RouteSet {
    let table = table(&outcome.world, node);
    let routes = routes(&table, &bad());
    let (_, route) =
        routes.iter().find(|(key, _)| key.port.port == port).expect("the port has a route");
    route.decision.cluster.clone().expect("the cluster set is used")
}

fn ips(set: &RouteSet) -> Vec<String> {
    set.backends.iter().map(|backend| backend.key.ip.to_string()).collect()
}

fn service(annotations: Value, spec: Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "namespace": "shop", "name": "bad", "uid": "u-bad", "annotations": annotations,
        },
        "spec": spec,
    })
}

fn selecting(mut spec: Value) -> Value {
    spec["selector"] = json!({"app": "bad"});
    spec["clusterIP"] = json!("10.96.7.7");
    spec
}

/// A Service without a selector, whose slices the user writes.
fn manual(families: &[&str]) -> Value {
    let ports = [json!({"port": 80, "targetPort": 8080})];
    service(json!({}), json!({"clusterIP": "10.96.7.7", "ipFamilies": families, "ports": ports}))
}

fn slice(address_type: &str, annotations: Value, endpoints: Value) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": "shop", "name": "bad-x",
            "labels": {"kubernetes.io/service-name": "bad"},
            "annotations": annotations,
        },
        "addressType": address_type,
        "ports": [{"name": "", "port": 8080}],
        "endpoints": endpoints,
    })
}

fn hinted(ip: &str, zone: &str) -> Value {
    json!({"addresses": [ip], "zone": "a", "hints": {"forZones": [{"name": zone}]}})
}

#[test]
fn port_0_is_reported_and_not_served() {
    let ports = [
        json!({"name": "zero", "port": 0}),
        json!({"name": "ok", "port": 80, "targetPort": "web"}),
    ];
    let outcome = check(
        &[service(json!({}), selecting(json!({"ports": ports})))],
        &[("Service shop/bad", "spec.ports[0].port")],
    );
    assert_eq!(chosen(&outcome, "a1", "ok").backends.len(), 2);
    assert_eq!(routes(&table(&outcome.world, "a1"), &bad()).len(), 1, "port 0 is not served");
}

#[test]
fn problems_have_the_original_port_index() {
    let ports = [
        json!({"name": "far", "port": 70000}),
        json!({"name": "zero", "port": 0}),
        json!({"name": "odd", "port": 1, "protocol": "QUIC"}),
        json!({"name": "ok", "port": 80, "targetPort": 8080}),
    ];
    let outcome = check(
        &[service(json!({}), selecting(json!({"ports": ports})))],
        &[
            ("Service shop/bad", "spec.ports[0].port"),
            ("Service shop/bad", "spec.ports[1].port"),
            ("Service shop/bad", "spec.ports[2].protocol"),
        ],
    );
    assert_eq!(chosen(&outcome, "a1", "ok").backends.len(), 2);
}

#[test]
fn endpoints_with_malformed_addresses_are_reported_and_ignored() {
    let endpoints = json!([
        {"addresses": ["10.9.0.300"]},
        {"addresses": ["10.9.0.1"], "zone": "?"},
        {"addresses": ["not an address", "010.9.0.2"]},
    ]);
    let outcome = check(
        &[manual(&["IPv4"]), slice("IPv4", json!({}), endpoints)],
        &[
            ("EndpointSlice shop/bad-x", "endpoints[0].addresses[0]"),
            ("EndpointSlice shop/bad-x", "endpoints[2].addresses[0]"),
            ("EndpointSlice shop/bad-x", "endpoints[1].zone"),
        ],
    );
    assert_eq!(ips(&chosen(&outcome, "a1", "")), ["10.9.0.1", "10.9.0.2"]);
}

#[test]
fn an_endpoint_without_an_address_does_not_count_as_unhinted() {
    let broken = json!({"addresses": ["?"], "conditions": {"ready": true}});
    let endpoints = json!([broken, hinted("10.9.0.1", "a"), hinted("10.9.0.2", "b")]);
    let outcome = check(
        &[manual(&["IPv4"]), slice("IPv4", json!({}), endpoints)],
        &[("EndpointSlice shop/bad-x", "endpoints[0].addresses[0]")],
    );
    let set = chosen(&outcome, "a1", "");
    assert_eq!((ips(&set), set.reason.tier), (vec!["10.9.0.1".to_owned()], Tier::SameZone));
}

#[test]
fn invalid_zones_of_nodes_are_reported_and_ignored() {
    for zone in [String::new(), "z".repeat(1000)] {
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "odd", "labels": {"topology.kubernetes.io/zone": zone}},
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"cpu": "4"},
            },
        });
        let field = "metadata.labels[topology.kubernetes.io/zone]";
        let outcome = check(&[node], &[("Node odd", field)]);
        let table = table(&outcome.world, "odd");
        let good = routes(&table, &good());
        let set = good[0].1.decision.cluster.as_ref().unwrap();
        assert_eq!((set.backends.len(), &set.reason.tier), (4, &Tier::All));
        assert_eq!(set.reason.tried[0].miss, Miss::NodeWithoutZone);
        let problem = outcome.problems[0].to_string();
        assert!(problem.len() < 400, "a long value is shortened: {problem}");
    }
}

#[test]
fn invalid_zones_of_endpoints_and_hints_are_reported_and_ignored() {
    for zone in [String::new(), "z".repeat(1000)] {
        let endpoints = json!([
            {"addresses": ["10.9.0.1"], "zone": zone, "hints": {"forZones": [{"name": "a"}]}},
            {"addresses": ["10.9.0.2"], "hints": {"forZones": [{"name": "b"}, {"name": zone}]}},
        ]);
        let outcome = check(
            &[manual(&["IPv4"]), slice("IPv4", json!({}), endpoints)],
            &[
                ("EndpointSlice shop/bad-x", "endpoints[0].zone"),
                ("EndpointSlice shop/bad-x", "endpoints[1].hints.forZones[1].name"),
            ],
        );
        assert_eq!(ips(&chosen(&outcome, "a1", "")), ["10.9.0.1"]);
        assert_eq!(ips(&chosen(&outcome, "b1", "")), ["10.9.0.2"]);
    }
}

#[test]
fn hints_for_unknown_zones_are_reported_and_not_used() {
    let endpoints = json!([hinted("10.9.0.1", "mars"), hinted("10.9.0.2", "a")]);
    let outcome = check(
        &[manual(&["IPv4"]), slice("IPv4", json!({}), endpoints)],
        &[("EndpointSlice shop/bad-x", "endpoints[0].hints.forZones[0].name")],
    );
    let near = chosen(&outcome, "a1", "");
    assert_eq!((ips(&near), near.reason.tier), (vec!["10.9.0.2".to_owned()], Tier::SameZone));
    let far = chosen(&outcome, "b1", "");
    assert_eq!(ips(&far), ["10.9.0.1", "10.9.0.2"]);
    assert_eq!(far.reason.tier, Tier::All);
    assert_eq!(far.reason.tried.last().unwrap().tier, Tier::SameZone);
    assert_eq!(far.reason.tried.last().unwrap().miss, Miss::HintedElsewhere);
}

#[test]
fn addresses_of_the_wrong_family_are_reported_and_ignored() {
    let endpoints = json!([
        {"addresses": ["10.9.0.1"]},
        {"addresses": ["::ffff:10.9.0.2"]},
        {"addresses": ["fd00::1"]},
    ]);
    let outcome = check(
        &[manual(&["IPv6", "IPv4"]), slice("IPv6", json!({}), endpoints)],
        &[
            ("EndpointSlice shop/bad-x", "endpoints[0].addresses"),
            ("EndpointSlice shop/bad-x", "endpoints[1].addresses"),
        ],
    );
    let table = table(&outcome.world, "a1");
    let used: Vec<Vec<String>> = (routes(&table, &bad()).iter())
        .map(|(_, route)| ips(route.decision.cluster.as_ref().unwrap()))
        .collect();
    assert_eq!(used, [vec![], vec!["fd00::1".to_owned()]], "IPv4, then IPv6");
}

#[test]
fn an_invalid_routing_annotation_falls_back_to_hints() {
    for text in ["{", "{\"v\":1,\"keys\":[\"a\",\"a\"]}", "[]", ""] {
        let annotations = json!({"nearhop.dev/routing": text});
        let endpoints = json!([hinted("10.9.0.1", "a"), hinted("10.9.0.2", "b")]);
        let outcome = check(
            &[manual(&["IPv4"]), slice("IPv4", annotations, endpoints)],
            &[("EndpointSlice shop/bad-x", "metadata.annotations[nearhop.dev/routing]")],
        );
        let set = chosen(&outcome, "a1", "");
        assert_eq!((ips(&set), set.reason.tier), (vec!["10.9.0.1".to_owned()], Tier::SameZone));
        assert_eq!(set.reason.tried[0].miss, Miss::RoutingBroken { slice: "bad-x".into() });
    }
}

#[test]
fn an_unknown_topology_mode_counts_as_unset() {
    let spec = json!({
        "ports": [{"port": 80, "targetPort": 8080}],
        "trafficDistribution": "PreferClose",
    });
    let annotations = json!({"service.kubernetes.io/topology-mode": "Sometimes"});
    let field = "metadata.annotations[service.kubernetes.io/topology-mode]";
    let outcome = check(&[service(annotations, selecting(spec))], &[("Service shop/bad", field)]);
    assert_eq!(outcome.world.intent(&bad()).unwrap().intent, Intent::SameZone);
    assert_eq!(chosen(&outcome, "a1", "").reason.tier, Tier::SameZone);
}

#[test]
fn an_invalid_max_overload_becomes_the_default() {
    for text in ["a lot", "", "-1%", "20", "1e9%"] {
        let spec = json!({"ports": [{"port": 80, "targetPort": 8080}]});
        let annotations = json!({
            "nearhop.dev/max-overload": text,
            "nearhop.dev/traffic-distribution": "nearhop.dev/Balanced",
        });
        let field = "metadata.annotations[nearhop.dev/max-overload]";
        let outcome =
            check(&[service(annotations, selecting(spec))], &[("Service shop/bad", field)]);
        let intent = &outcome.world.intent(&bad()).unwrap().intent;
        assert_eq!(*intent, Intent::Balanced(MaxOverload::default()));
        assert_eq!(chosen(&outcome, "a1", "").reason.tier, Tier::Weights);
    }
}

#[test]
fn invalid_pod_addresses_and_times_are_reported() {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "shop", "name": "stray", "labels": {"app": "good"}},
        "spec": {"nodeName": "a1"},
        "status": {
            "phase": "Running",
            "podIPs": [{"ip": "10.9.9"}],
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "yesterday"}],
        },
    });
    check(
        &[pod],
        &[
            ("Pod shop/stray", "status.conditions[0].lastTransitionTime"),
            ("Pod shop/stray", "status.podIPs[0].ip"),
        ],
    );
}
