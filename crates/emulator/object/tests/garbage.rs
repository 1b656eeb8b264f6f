//! Decodes arbitrary input: it never panics, and decoding an accepted object again does not change
//! it.

use nearhop_object::builtin;
use nearhop_object::decode::{conform, parse_json, parse_yaml, strict_errors};
use proptest::prelude::*;
use serde_json::{Value, json};

const KINDS: [&str; 8] = [
    "core.v1.Service",
    "core.v1.Pod",
    "core.v1.Node",
    "core.v1.Event",
    "discovery.v1.EndpointSlice",
    "apps.v1.StatefulSet",
    "apiextensions.v1.CustomResourceDefinition",
    "meta.v1.ObjectMeta",
];

/// Values with real field names, so that some of them fit.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0..70_000_i64).prop_map(Value::from),
        (-4000..4000_i32).prop_map(|quarters| Value::from(f64::from(quarters) / 4.0)),
        "[a-z0-9.:TZ+-]{0,24}".prop_map(Value::from),
        Just(json!("2026-01-01T00:00:00.5+01:00")),
        Just(json!("1.5Gi")),
        Just(json!({})),
        Just(json!([])),
    ];
    let name = prop_oneof![
        Just("metadata"),
        Just("spec"),
        Just("status"),
        Just("ports"),
        Just("port"),
        Just("name"),
        Just("labels"),
        Just("endpoints"),
        Just("addresses"),
        Just("containers"),
        Just("resources"),
        Just("limits"),
        Just("cpu"),
        Just("creationTimestamp"),
        Just("eventTime"),
        Just("targetPort"),
        Just("versions"),
        Just("schema"),
        Just("openAPIV3Schema"),
        Just("items"),
        Just("properties"),
        Just("additionalProperties"),
        Just("volumes"),
        Just("template"),
        Just("capacity"),
        Just("x"),
    ];
    leaf.prop_recursive(7, 80, 6, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(name.clone(), inner, 0..6).prop_map(|map| {
                Value::Object(map.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn conform_is_idempotent(value in value(), kind in 0..KINDS.len()) {
        let schema = builtin::schema(KINDS[kind]).expect("the struct is known");
        let mut once = value;
        if conform(schema.node(), &mut once).is_ok() {
            let mut twice = once.clone();
            prop_assert_eq!(conform(schema.node(), &mut twice), Ok(Vec::new()));
            prop_assert_eq!(twice, once);
        }
    }

    #[test]
    fn parsers_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100), text in "[a-c:{}\\[\\], \n\"'&*#|>-]{0,60}") {
        for input in [bytes.as_slice(), text.as_bytes()] {
            let _ = parse_json(input);
            let _ = parse_yaml(input);
            let _ = strict_errors(input, &["a".to_owned()], &["b".to_owned()]);
        }
    }

    /// A text that the JSON parser rejects has Go's error message.
    #[test]
    fn json_round_trips(value in value()) {
        let text = value.to_string();
        let parsed = parse_json(text.as_bytes()).expect("the text is valid JSON");
        prop_assert_eq!(parsed.value, value);
        let cut = &text[..text.len() - 1];
        if text.starts_with(['{', '[', '"']) {
            let problem = parse_json(cut.as_bytes()).expect_err("the text is truncated").to_string();
            prop_assert_eq!(problem, "unexpected end of JSON input");
        }
    }
}
