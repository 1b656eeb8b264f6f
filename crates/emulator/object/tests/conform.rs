//! `conform` with recorded objects: an object from a server must stay unchanged, and an object from
//! a client must be accepted.

use std::fs;
use std::path::Path;

use nearhop_object::decode::{conform, parse_json, strict_errors, zero_object};
use nearhop_object::{Schema, builtin};
use serde_json::{Value, json};

fn schema_for(object: &Value) -> Option<Schema> {
    let api_version = object["apiVersion"].as_str()?;
    let kind = object["kind"].as_str()?;
    match (api_version.split_once('/'), kind) {
        (None, "Status") => builtin::schema("meta.v1.Status"),
        (None, kind) => builtin::schema_of("", api_version, kind),
        (Some((group, version)), kind) => builtin::schema_of(group, version, kind),
    }
}

fn recorded() -> Vec<(String, Value)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/defaults");
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("the data is part of the crate") {
        let path = entry.expect("readable").path();
        let text = fs::read(&path).expect("readable");
        let name = path.file_name().expect("a file").to_string_lossy().into_owned();
        found.push((name, parse_json(&text).expect("valid JSON").value));
    }
    found
}

#[test]
fn recorded_objects_stay_unchanged() {
    let mut checked = 0;
    for (name, case) in recorded() {
        let output = &case["output"];
        let mut conformed = output.clone();
        match schema_for(output) {
            Some(schema) => {
                let unknown = conform(schema.node(), &mut conformed).expect(&name);
                assert_eq!(unknown, Vec::<String>::new(), "{name}");
            }
            None => {
                let meta = builtin::object_meta();
                let unknown = conform(meta.node(), &mut conformed["metadata"]).expect(&name);
                assert_eq!(unknown, Vec::<String>::new(), "{name}");
            }
        }
        assert_eq!(conformed, *output, "{name}");
        checked += 1;
    }
    assert!(checked >= 49, "{checked}");
}

#[test]
fn recorded_inputs_are_accepted_and_stable() {
    for (name, case) in recorded() {
        let mut input = case["input"].clone();
        let Some(schema) = schema_for(&input) else { continue };
        assert_eq!(conform(schema.node(), &mut input), Ok(Vec::new()), "{name}");
        let once = input.clone();
        assert_eq!(conform(schema.node(), &mut input), Ok(Vec::new()), "{name}");
        assert_eq!(input, once, "{name}");
    }
}

#[test]
fn values_are_written_like_go() {
    let cases = [
        (
            "discovery.v1.EndpointSlice",
            json!({"metadata":{"name":"x","creationTimestamp":null},"addressType":"IPv4","endpoints":[],"ports":[]}),
            json!({"metadata":{"name":"x"},"addressType":"IPv4","endpoints":null,"ports":null}),
        ),
        (
            "discovery.v1.EndpointSlice",
            json!({"addressType":"IPv4","endpoints":[{"addresses":["10.0.0.1"],"hostname":null,"hints":{"forZones":[]}}],"ports":[{"port":80}]}),
            json!({"metadata":{},"addressType":"IPv4","endpoints":[{"addresses":["10.0.0.1"],"conditions":{},"hints":{}}],"ports":[{"port":80}]}),
        ),
        (
            "core.v1.Service",
            json!({"kind":"Service","apiVersion":"v1","metadata":{"labels":{"a":null},"annotations":{}},"spec":{"type":"","ports":[{"port":80}],"selector":{},"publishNotReadyAddresses":false,"internalTrafficPolicy":""}}),
            json!({"kind":"Service","apiVersion":"v1","metadata":{"labels":{"a":""}},"spec":{"ports":[{"port":80,"targetPort":0}],"internalTrafficPolicy":""},"status":{"loadBalancer":{}}}),
        ),
        (
            "core.v1.ResourceQuota",
            json!({"spec":{"hard":{"cpu":"1000m","memory":"1024Ki","pods":10,"x":0.5}}}),
            json!({"metadata":{},"spec":{"hard":{"cpu":"1","memory":"1Mi","pods":"10","x":"500m"}},"status":{}}),
        ),
        (
            "core.v1.Secret",
            json!({"data":{"a":"aGk=","b":"","c":null}}),
            json!({"metadata":{},"data":{"a":"aGk=","b":"","c":null}}),
        ),
        (
            "core.v1.Pod",
            json!({"spec":{"containers":[null,{"name":"c","resources":null}]}}),
            json!({"metadata":{},"spec":{"containers":[{"name":"","resources":{}},{"name":"c","resources":{}}]},"status":{}}),
        ),
        (
            "apiextensions.v1.JSONSchemaProps",
            json!({"minimum":1.0,"maximum":1.5,"items":{"type":"string","bogus":1},"additionalProperties":false,"default":{"bogus":null},"enum":["a",null]}),
            json!({"minimum":1,"maximum":1.5,"items":{"type":"string"},"additionalProperties":false,"default":{"bogus":null},"enum":["a",null]}),
        ),
    ];
    for (name, mut value, expected) in cases {
        let schema = builtin::schema(name).expect(name);
        assert_eq!(conform(schema.node(), &mut value), Ok(Vec::new()), "{name}");
        assert_eq!(value, expected, "{name}");
    }
}

#[test]
fn unknown_fields_are_removed_and_reported() {
    let body = br#"{"kind":"Service","apiVersion":"v1","metadata":{"name":"x","Labels":{}},"spec":{"bogus":1,"type":"ClusterIP","type":"NodePort","ports":[{"port":80,"nope":true}]},"kindd":1}"#;
    let parsed = parse_json(body).expect("valid");
    let mut value = parsed.value;
    let schema = builtin::schema("core.v1.Service").expect("the struct is known");
    let unknown = conform(schema.node(), &mut value).expect("the object conforms");
    assert_eq!(unknown, ["kindd", "metadata.Labels", "spec.bogus", "spec.ports[0].nope"]);
    assert_eq!(value["spec"], json!({"type":"NodePort","ports":[{"port":80,"targetPort":0}]}));
    let complaints = [
        "unknown field \"metadata.Labels\"",
        "unknown field \"spec.bogus\"",
        "duplicate field \"spec.type\"",
        "unknown field \"spec.ports[0].nope\"",
        "unknown field \"kindd\"",
    ];
    assert_eq!(strict_errors(body, &unknown, &parsed.duplicates), complaints);
}

#[test]
fn errors_for_wrong_types_match_go() {
    let quantity = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
    let cases = [
        (
            "core.v1.Service",
            json!({"spec":{"ports":[{"port":"eighty"}]}}),
            "json: cannot unmarshal string into Go struct field ServicePort.spec.ports.port of type int32",
        ),
        (
            "core.v1.Service",
            json!({"spec":{"ports":"none"}}),
            "json: cannot unmarshal string into Go struct field ServiceSpec.spec.ports of type []v1.ServicePort",
        ),
        (
            "core.v1.Service",
            json!({"spec":{"type":true}}),
            "json: cannot unmarshal bool into Go struct field ServiceSpec.spec.type of type v1.ServiceType",
        ),
        (
            "core.v1.Service",
            json!({"spec":{"ipFamilies":[1]}}),
            "json: cannot unmarshal number into Go struct field ServiceSpec.spec.ipFamilies of type v1.IPFamily",
        ),
        (
            "core.v1.Service",
            json!({"spec":{"ports":[{"port":1.5}]}}),
            "json: cannot unmarshal number 1.5 into Go struct field ServicePort.spec.ports.port of type int32",
        ),
        (
            "core.v1.Service",
            json!({"spec":{"ports":[{"port":4294967296_u64}]}}),
            "json: cannot unmarshal number 4294967296 into Go struct field ServicePort.spec.ports.port of type int32",
        ),
        (
            "core.v1.Service",
            json!({"spec":{"ports":[{"targetPort":true}]}}),
            "json: cannot unmarshal bool into Go struct field ServicePort.spec.ports.targetPort of type int32",
        ),
        (
            "core.v1.Service",
            json!({"metadata":{"name":true}}),
            "json: cannot unmarshal bool into Go struct field ObjectMeta.metadata.name of type string",
        ),
        (
            "core.v1.Service",
            json!({"metadata":{"labels":{"a":1}}}),
            "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string",
        ),
        (
            "core.v1.Service",
            json!({"metadata":{"labels":[]}}),
            "json: cannot unmarshal array into Go struct field ObjectMeta.metadata.labels of type map[string]string",
        ),
        (
            "core.v1.Service",
            json!({"metadata":{"creationTimestamp":1}}),
            "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.creationTimestamp of type string",
        ),
        (
            "core.v1.Service",
            json!([]),
            "json: cannot unmarshal array into Go value of type v1.Service",
        ),
        (
            "core.v1.Pod",
            json!({"spec":{"volumes":[{"hostPath":1}]}}),
            "json: cannot unmarshal number into Go struct field Volume.spec.volumes.VolumeSource.hostPath of type v1.HostPathVolumeSource",
        ),
        (
            "core.v1.Pod",
            json!({"spec":{"containers":[{"resources":{"limits":{"cpu":"much"}}}]}}),
            quantity,
        ),
        (
            "core.v1.Pod",
            json!({"spec":{"containers":[{"resources":{"limits":"much"}}]}}),
            "json: cannot unmarshal string into Go struct field ResourceRequirements.spec.containers.resources.limits of type v1.ResourceList",
        ),
        (
            "core.v1.Secret",
            json!({"data":{"a":"not base64"}}),
            "illegal base64 data at input byte 3",
        ),
        (
            "core.v1.Event",
            json!({"firstTimestamp":"yesterday"}),
            r#"parsing time "yesterday" as "2006-01-02T15:04:05Z07:00": cannot parse "yesterday" as "2006""#,
        ),
    ];
    for (name, mut value, message) in cases {
        let schema = builtin::schema(name).expect(name);
        let error = conform(schema.node(), &mut value).expect_err(message);
        assert_eq!(error.to_string(), message);
    }
}

#[test]
fn zero_objects_match_bookmarks() {
    for (name, expected) in [
        ("core.v1.Service", json!({"metadata":{},"spec":{},"status":{"loadBalancer":{}}})),
        (
            "discovery.v1.EndpointSlice",
            json!({"metadata":{},"addressType":"","endpoints":null,"ports":null}),
        ),
        ("core.v1.ConfigMap", json!({"metadata":{}})),
        ("core.v1.Pod", json!({"metadata":{},"spec":{"containers":null},"status":{}})),
    ] {
        let schema = builtin::schema(name).expect(name);
        assert_eq!(zero_object(schema.node()), expected, "{name}");
    }
}
