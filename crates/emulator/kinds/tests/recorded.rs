//! Recorded requests to kube-apiserver 1.36.2 for Services, EndpointSlices and Endpoints: the stored
//! objects, the errors and the warnings.

use nearhop_kinds::allocate::{Allocator, Refusal};
use nearhop_kinds::config::{ClusterConfig, ServiceCidrs};
use nearhop_kinds::{endpoints, endpointslice, service};
use nearhop_object::decode::conform;
use nearhop_object::{FieldError, builtin};
use serde_json::{Value, json};

/// The random number that gives the recorded address of a Service with a generated name.
const CHANCE: u64 = 56_131;

#[derive(Default)]
struct Answer {
    stored: Value,
    errors: Vec<FieldError>,
    warnings: Vec<String>,
}

fn cases(text: &str) -> Vec<Value> {
    serde_json::from_str(text).expect("the file is JSON")
}

fn flag(case: &Value, name: &str) -> bool {
    case.get(name) == Some(&Value::Bool(true))
}

fn config(case: &Value) -> ClusterConfig {
    let cidrs =
        if flag(case, "dualStack") { "10.96.0.0/16,fd00:10:96::/112" } else { "10.96.0.0/16" };
    ClusterConfig::new(ServiceCidrs::parse(cidrs).expect("the ranges are valid"))
}

/// The allocations of the recorded cluster: the Service `kubernetes` and the old object.
fn allocator(case: &Value, config: &ClusterConfig) -> Allocator {
    let mut allocator = Allocator::new(config);
    let kubernetes = json!({"spec": {"type": "ClusterIP", "clusterIPs": ["10.96.0.1"]}});
    assert!(allocator.adopt(&kubernetes).is_empty());
    if let Some(old) = case.get("old") {
        assert!(allocator.adopt(old).is_empty());
    }
    allocator
}

/// The new object after decoding.
fn decoded(case: &Value, group: &str, kind: &str) -> Value {
    let mut new = case["new"].clone();
    let schema = builtin::schema_of(group, "v1", kind).expect("the kind is built in");
    conform(schema.node(), &mut new).expect("the recorded body was decoded");
    new
}

fn write_service(case: &Value) -> Answer {
    let config = config(case);
    let mut allocator = allocator(case, &config);
    let (mut new, old) = (decoded(case, "", "Service"), case.get("old"));
    service::default(&mut new);
    if let Some(owned) = case.get("owned") {
        let said: Vec<&String> =
            new["spec"].as_object().into_iter().flat_map(|s| s.keys()).collect();
        assert_eq!(&json!(said), owned, "{}: the fields that the writer owns", case["name"]);
    }
    if flag(case, "status") {
        let errors =
            service::validate_status_update(&new, old.expect("a status update has an old object"));
        let warnings = service::status_warnings(&new);
        return Answer { stored: new, errors, warnings };
    }
    if new["metadata"]["name"].is_null() && !new["metadata"]["generateName"].is_null() {
        new["metadata"]["name"] = json!("generated");
    }
    let mut random = |below: u64| CHANCE % below;
    let result = if flag(case, "dryRun") {
        allocator.dry_run(&mut new, old).map(|()| None)
    } else {
        allocator.allocate(&mut new, old, &mut random).map(Some)
    };
    let reserved = match result {
        Ok(reserved) => reserved,
        Err(Refusal::Invalid(errors)) => return Answer { errors, ..Answer::default() },
        Err(Refusal::Internal(text)) => panic!("{text}"),
    };
    let errors = match old {
        None => {
            service::prepare_create(&mut new, &config);
            service::validate_create(&new, &config)
        }
        Some(old) => {
            service::prepare_update(&mut new, old, &config);
            service::validate_update(&new, old, &config)
        }
    };
    if let Some(reserved) = reserved {
        allocator.commit(reserved);
    }
    let warnings = service::warnings(&new);
    Answer { stored: new, errors, warnings }
}

fn write_slice(case: &Value) -> Answer {
    let config = config(case);
    let mut new = decoded(case, "discovery.k8s.io", "EndpointSlice");
    let old = case.get("old");
    endpointslice::default(&mut new);
    let (errors, warnings) = match old {
        None => {
            endpointslice::prepare_create(&mut new, &config);
            (endpointslice::validate_create(&new), endpointslice::warnings(&new, None))
        }
        Some(old) => {
            endpointslice::prepare_update(&mut new, old, &config);
            (endpointslice::validate_update(&new, old), endpointslice::warnings(&new, Some(old)))
        }
    };
    Answer { stored: new, errors, warnings }
}

fn write_endpoints(case: &Value) -> Answer {
    let mut new = decoded(case, "", "Endpoints");
    endpoints::default(&mut new);
    let (errors, warnings) = (endpoints::validate(&new, None), endpoints::warnings(&new));
    Answer { stored: new, errors, warnings }
}

/// The object without fields that the metadata checks or random numbers set.
fn comparable(value: &Value, key: &str) -> Value {
    let is_address = |text: &str| text.parse::<std::net::IpAddr>().is_ok();
    match value {
        Value::Object(map) => {
            let fields = map.iter().filter(|(name, _)| !is_elsewhere(key, name));
            let fields = fields.map(|(name, value)| (name.clone(), comparable(value, name)));
            Value::Object(fields.collect())
        }
        Value::Array(list) => list.iter().map(|value| comparable(value, key)).collect(),
        Value::String(text) if key.starts_with("clusterIP") && is_address(text) => {
            Value::from(if text.contains(':') { "some IPv6" } else { "some IPv4" })
        }
        Value::Number(_) if key.ends_with("odePort") => Value::from("some port"),
        value => value.clone(),
    }
}

fn is_elsewhere(key: &str, name: &str) -> bool {
    let top = key.is_empty() && matches!(name, "apiVersion" | "kind");
    top || (key == "metadata" && name != "generation")
}

fn causes(errors: &[FieldError]) -> Value {
    let cause =
        |e: &FieldError| json!({"reason": e.kind.reason(), "message": e.message, "field": e.field});
    errors.iter().map(cause).collect()
}

fn check(text: &str, write: fn(&Value) -> Answer) -> usize {
    let cases = cases(text);
    for case in &cases {
        let name = &case["name"];
        let answer = write(case);
        let expected = case.get("causes").cloned().unwrap_or_else(|| json!([]));
        assert_eq!(causes(&answer.errors), expected, "{name}");
        if let Some(stored) = case.get("stored") {
            assert_eq!(comparable(&answer.stored, ""), comparable(stored, ""), "{name}");
            // Only exchanges were recorded with their headers.
            let exchange = name.as_str().is_some_and(|name| name.contains('#'));
            let expected = case.get("warnings").cloned().unwrap_or_else(|| json!([]));
            assert!(!exchange || json!(answer.warnings) == expected, "{name}: {expected}");
        }
    }
    cases.len()
}

#[test]
fn services_match_the_recordings() {
    assert!(check(include_str!("data/recorded-services.json"), write_service) >= 80);
}

#[test]
fn endpoint_slices_match_the_recordings() {
    assert!(check(include_str!("data/recorded-endpointslices.json"), write_slice) >= 14);
}

#[test]
fn endpoints_match_the_recordings() {
    assert!(check(include_str!("data/recorded-endpoints.json"), write_endpoints) >= 2);
}

#[test]
fn more_than_a_thousand_endpoints_are_refused() {
    let endpoints: Vec<Value> = (0..1001).map(|_| json!({"addresses": ["10.0.0.1"]})).collect();
    let slice = json!({"addressType": "IPv4", "endpoints": endpoints});
    let errors = endpointslice::validate_create(&slice);
    assert_eq!(
        causes(&errors),
        json!([{
            "reason": "FieldValueTooMany",
            "message": "Too many: 1001: must have at most 1000 items",
            "field": "endpoints",
        }])
    );
}

#[test]
fn a_dry_run_has_placeholder_values() {
    let config = config(&Value::Null);
    let allocator = Allocator::new(&config);
    let mut new = json!({"metadata": {"name": "x"}, "spec": {"type": "LoadBalancer",
        "externalTrafficPolicy": "Local", "ports": [{"name": "a", "port": 80}, {"name": "b", "port": 81}]}});
    service::default(&mut new);
    allocator.dry_run(&mut new, None).unwrap();
    let spec = &new["spec"];
    assert_eq!(spec["clusterIP"], "10.96.0.0");
    assert_eq!(spec["ports"][0]["nodePort"], 32_769);
    assert_eq!(spec["ports"][1]["nodePort"], 32_770);
    assert_eq!(spec["healthCheckNodePort"], 32_771);
    assert_eq!(allocator, Allocator::new(&config));
}
