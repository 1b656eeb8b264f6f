//! Values: one invalid value for each error message.

use serde_json::{Value, json};

use super::{field, said};
use crate::structural::{validate, validate_lists, validate_values};

#[test]
fn values_that_are_refused() {
    let one = |schema: Value, value: Value| {
        let errors = validate(&field(schema), &json!({"f": value}), None);
        said(&errors).join(" | ")
    };
    let cases = [
        (
            json!({"type": "string"}),
            json!(1),
            r#"f: Invalid value: "integer": f in body must be of type string: "integer""#,
        ),
        (
            json!({"type": "string"}),
            json!(null),
            r#"f: Invalid value: "null": f in body must be of type string: "null""#,
        ),
        (
            json!({"type": "boolean"}),
            json!([]),
            r#"f: Invalid value: "array": f in body must be of type boolean: "array""#,
        ),
        (
            json!({"type": "integer"}),
            json!("x"),
            r#"f: Invalid value: "string": f in body must be of type integer: "string""#,
        ),
        (
            json!({"type": "integer"}),
            json!(1.5),
            r#"f: Invalid value: "number": f in body must be of type integer: "number" | <nil>: Invalid value: "": Checked value must be of type integer (default format) in f"#,
        ),
        (
            json!({"type": "integer", "format": "int32"}),
            json!(3_000_000_000_u32),
            r#"<nil>: Invalid value: "": Checked value must be of type integer with format int32 in f"#,
        ),
        (
            json!({"x-kubernetes-int-or-string": true}),
            json!(true),
            r#"f: Invalid value: "boolean": f in body must be of type integer,string: "boolean""#,
        ),
        (
            json!({"type": "string", "minLength": 2}),
            json!("x"),
            r#"f: Invalid value: "x": f in body should be at least 2 chars long"#,
        ),
        (
            json!({"type": "string", "maxLength": 2}),
            json!("xyz"),
            "f: Too long: may not be more than 2 bytes",
        ),
        (
            json!({"type": "string", "pattern": "^a$"}),
            json!("b"),
            r#"f: Invalid value: "b": f in body should match '^a$'"#,
        ),
        (
            json!({"type": "string", "format": "ipv4"}),
            json!("b"),
            r#"f: Invalid value: "b": f in body must be of type ipv4: "b""#,
        ),
        (
            json!({"type": "string", "format": "date-time"}),
            json!(1),
            r#"f: Invalid value: "int64": f in body must be of type date-time: "int64""#,
        ),
        (
            json!({"type": "integer", "minimum": 1, "exclusiveMinimum": true}),
            json!(1),
            "f: Invalid value: 1: f in body should be greater than 1",
        ),
        (
            json!({"type": "integer", "maximum": 1, "exclusiveMaximum": true}),
            json!(1),
            "f: Invalid value: 1: f in body should be less than 1",
        ),
        (
            json!({"type": "number", "minimum": 1.5}),
            json!(1.25),
            "f: Invalid value: 1.25: f in body should be greater than or equal to 1.5",
        ),
        (
            json!({"type": "integer", "multipleOf": 5}),
            json!(7),
            "f: Invalid value: 7: f in body should be a multiple of 5",
        ),
        (
            json!({"type": "number", "multipleOf": 0.1}),
            json!(0.25),
            "f: Invalid value: 0.25: f in body should be a multiple of 0.1",
        ),
        (
            json!({"type": "integer", "enum": [1, 2]}),
            json!(3),
            r#"f: Unsupported value: 3: supported values: "1", "2""#,
        ),
        (
            json!({"type": "string", "enum": ["a"], "nullable": true}),
            json!(null),
            r#"f: Unsupported value: null: supported values: "a""#,
        ),
        (
            json!({"type": "array", "items": {"type": "string"}, "maxItems": 1}),
            json!(["a", "b"]),
            "f: Too many: 2: must have at most 1 items",
        ),
        (
            json!({"type": "array", "items": {"type": "string"}, "minItems": 1}),
            json!([]),
            "f: Invalid value: 0: f in body should have at least 1 items",
        ),
        (
            json!({"type": "array", "items": {"type": "string"}}),
            json!(["a", 1]),
            r#"f[1]: Invalid value: "integer": f[1] in body must be of type string: "integer""#,
        ),
        (
            json!({"type": "array", "items": {"type": "string"}, "uniqueItems": true}),
            json!(["a", "a"]),
            r#"f: Invalid value: "": f in body shouldn't contain duplicates"#,
        ),
        (
            json!({"type": "object", "maxProperties": 1}),
            json!({"a": 1, "b": 2}),
            "f: Too many: 2: must have at most 1 items",
        ),
        (
            json!({"type": "object", "minProperties": 1}),
            json!({}),
            "f: Invalid value: 0: f in body should have at least 1 properties",
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "string"}}),
            json!({"a": 1}),
            r#"f.a: Invalid value: "integer": f.a in body must be of type string: "integer""#,
        ),
        (
            json!({"type": "object", "additionalProperties": false}),
            json!({"a": 1}),
            r#"f: Invalid value: "a": f.a in body is a forbidden property"#,
        ),
        (json!({"type": "object", "required": ["a"]}), json!({}), "f.a: Required value"),
        (
            json!({"type": "integer", "anyOf": [{"minimum": 5}, {"maximum": 1}]}),
            json!(3),
            r#"<nil>: Invalid value: "": "f" must validate at least one schema (anyOf) | f: Invalid value: 3: f in body should be greater than or equal to 5"#,
        ),
        (
            json!({"type": "integer", "oneOf": [{"minimum": 1}, {"maximum": 5}]}),
            json!(3),
            r#"<nil>: Invalid value: "": "f" must validate one and only one schema (oneOf). Found 2 valid alternatives"#,
        ),
        (
            json!({"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}),
            json!({}),
            r#"<nil>: Invalid value: "": "f" must validate one and only one schema (oneOf). Found none valid | f.a: Required value"#,
        ),
        (
            json!({"type": "integer", "allOf": [{"minimum": 5}, {"maximum": 7}]}),
            json!(3),
            r#"f: Invalid value: 3: f in body should be greater than or equal to 5 | <nil>: Invalid value: "": "f" must validate all the schemas (allOf)"#,
        ),
        (
            json!({"type": "integer", "not": {"enum": [3]}}),
            json!(3),
            r#"<nil>: Invalid value: "": "f" must not validate the schema (not)"#,
        ),
        (
            json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}),
            json!({"kind": ""}),
            r#"f.apiVersion: Required value | f.kind: Invalid value: "": must not be empty"#,
        ),
    ];
    for (schema, value, text) in cases {
        assert_eq!(one(schema.clone(), value), text, "{schema}");
    }
}

#[test]
fn values_that_are_accepted() {
    for (schema, value) in [
        (json!({"type": "number"}), json!(1)),
        (json!({"type": "integer"}), json!(2.0)),
        (json!({"type": "string", "nullable": true}), json!(null)),
        (json!({"type": "string", "format": "unknown"}), json!("x")),
        (json!({"x-kubernetes-int-or-string": true}), json!("25%")),
        (json!({"x-kubernetes-int-or-string": true}), json!(25)),
        (json!({"x-kubernetes-preserve-unknown-fields": true}), json!([{"a": null}])),
        (json!({"type": "string", "maxLength": 2}), json!("\u{e9}\u{e9}")),
        (json!({"type": "integer", "enum": [1]}), json!(1.0)),
        (json!({"type": "integer", "maximum": 1e300}), json!(i64::MAX)),
    ] {
        let errors = validate(&field(schema.clone()), &json!({"f": value}), None);
        assert_eq!(errors, [], "{schema} {value}");
    }
}

#[test]
fn what_did_not_change_is_let_through() {
    let schema = json!({"type": "object", "properties": {
        "a": {"type": "string", "maxLength": 1}, "b": {"type": "string", "maxLength": 1},
        "m": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
              "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": {"maximum": 3, "type": "integer"}}}},
        "s": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
    }});
    let old = json!({"a": "old", "b": "x", "m": [{"k": "1", "v": 9}], "s": ["a", "a"]});
    let new = json!({"a": "old", "b": "new", "m": [{"k": "2", "v": 8}, {"k": "1", "v": 9}], "s": ["b", "b"]});
    assert_eq!(
        said(&validate(&schema, &new, Some(&old))),
        [
            "b: Too long: may not be more than 1 bytes",
            "m[0].v: Invalid value: 8: m[0].v in body should be less than or equal to 3",
        ]
    );
    assert_eq!(validate(&schema, &old, Some(&old)), []);
}

#[test]
fn a_status_is_named_relative_to_itself() {
    let schema = json!({"type": "object", "properties": {"phase": {"type": "string"}}});
    let errors = validate_values(&schema, &json!({"phase": 1}), None, "status");
    let text = r#"status.phase: Invalid value: "integer": phase in body must be of type string: "integer""#;
    assert_eq!(said(&errors), [text]);
    let errors = validate_values(&schema, &json!([]), None, "status");
    let text = r#"status: Invalid value: "array":  in body must be of type object: "array""#;
    assert_eq!(said(&errors), [text]);
}

#[test]
fn duplicates_in_lists() {
    let schema = json!({"type": "object", "additionalProperties": {
        "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a", "b"],
        "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
    }});
    let value = json!({"m": [{"a": 1}, {"a": 1, "b": 2}, {"a": 1, "c": 3}, {"a": 1}]});
    assert_eq!(
        said(&validate_lists(&schema, &value, None)),
        [r#"[m][2]: Duplicate value: {"a":1}"#]
    );
    let value = json!({"m": [{"a": 1}, 2]});
    let text = "[m][1]: Invalid value: 2: must be an object for an array of list-type map";
    assert_eq!(said(&validate_lists(&schema, &value, None)), [text]);
}
