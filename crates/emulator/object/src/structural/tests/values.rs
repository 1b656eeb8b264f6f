//! Values: one invalid value for each error message.

use serde_json::{Value, json};

use super::{field, texts_of};
use crate::structural::{validate, validate_lists, validate_values};

fn parse(text: &str) -> Value {
    serde_json::from_str(text).expect(text)
}

#[test]
fn invalid_values_are_rejected() {
    // Schema => value => errors.
    let cases = r#"
{"type": "string"} => 1 => f: Invalid value: "integer": f in body must be of type string: "integer"
{"type": "string"} => null => f: Invalid value: "null": f in body must be of type string: "null"
{"type": "boolean"} => [] => f: Invalid value: "array": f in body must be of type boolean: "array"
{"type": "integer"} => "x" => f: Invalid value: "string": f in body must be of type integer: "string"
{"type": "integer"} => 1.5 => f: Invalid value: "number": f in body must be of type integer: "number" | <nil>: Invalid value: "": Checked value must be of type integer (default format) in f
{"type": "integer", "format": "int32"} => 3000000000 => <nil>: Invalid value: "": Checked value must be of type integer with format int32 in f
{"x-kubernetes-int-or-string": true} => true => f: Invalid value: "boolean": f in body must be of type integer,string: "boolean"
{"type": "string", "minLength": 2} => "x" => f: Invalid value: "x": f in body should be at least 2 chars long
{"type": "string", "maxLength": 2} => "xyz" => f: Too long: may not be more than 2 bytes
{"type": "string", "pattern": "^a$"} => "b" => f: Invalid value: "b": f in body should match '^a$'
{"type": "string", "format": "ipv4"} => "b" => f: Invalid value: "b": f in body must be of type ipv4: "b"
{"type": "string", "format": "date-time"} => 1 => f: Invalid value: "int64": f in body must be of type date-time: "int64"
{"type": "integer", "minimum": 1, "exclusiveMinimum": true} => 1 => f: Invalid value: 1: f in body should be greater than 1
{"type": "integer", "maximum": 1, "exclusiveMaximum": true} => 1 => f: Invalid value: 1: f in body should be less than 1
{"type": "number", "minimum": 1.5} => 1.25 => f: Invalid value: 1.25: f in body should be greater than or equal to 1.5
{"type": "integer", "multipleOf": 5} => 7 => f: Invalid value: 7: f in body should be a multiple of 5
{"type": "number", "multipleOf": 0.1} => 0.25 => f: Invalid value: 0.25: f in body should be a multiple of 0.1
{"type": "integer", "enum": [1, 2]} => 3 => f: Unsupported value: 3: supported values: "1", "2"
{"type": "string", "enum": ["a"], "nullable": true} => null => f: Unsupported value: null: supported values: "a"
{"type": "array", "items": {"type": "string"}, "maxItems": 1} => ["a", "b"] => f: Too many: 2: must have at most 1 items
{"type": "array", "items": {"type": "string"}, "minItems": 1} => [] => f: Invalid value: 0: f in body should have at least 1 items
{"type": "array", "items": {"type": "string"}} => ["a", 1] => f[1]: Invalid value: "integer": f[1] in body must be of type string: "integer"
{"type": "array", "items": {"type": "string"}, "uniqueItems": true} => ["a", "a"] => f: Invalid value: "": f in body shouldn't contain duplicates
{"type": "object", "maxProperties": 1} => {"a": 1, "b": 2} => f: Too many: 2: must have at most 1 items
{"type": "object", "minProperties": 1} => {} => f: Invalid value: 0: f in body should have at least 1 properties
{"type": "object", "additionalProperties": {"type": "string"}} => {"a": 1} => f.a: Invalid value: "integer": f.a in body must be of type string: "integer"
{"type": "object", "additionalProperties": false} => {"a": 1} => f: Invalid value: "a": f.a in body is a forbidden property
{"type": "object", "required": ["a"]} => {} => f.a: Required value
{"type": "integer", "anyOf": [{"minimum": 5}, {"maximum": 1}]} => 3 => <nil>: Invalid value: "": "f" must validate at least one schema (anyOf) | f: Invalid value: 3: f in body should be greater than or equal to 5
{"type": "integer", "oneOf": [{"minimum": 1}, {"maximum": 5}]} => 3 => <nil>: Invalid value: "": "f" must validate one and only one schema (oneOf). Found 2 valid alternatives
{"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]} => {} => <nil>: Invalid value: "": "f" must validate one and only one schema (oneOf). Found none valid | f.a: Required value
{"type": "integer", "allOf": [{"minimum": 5}, {"maximum": 7}]} => 3 => f: Invalid value: 3: f in body should be greater than or equal to 5 | <nil>: Invalid value: "": "f" must validate all the schemas (allOf)
{"type": "integer", "not": {"enum": [3]}} => 3 => <nil>: Invalid value: "": "f" must not validate the schema (not)
{"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true} => {"kind": ""} => f.apiVersion: Required value | f.kind: Invalid value: "": must not be empty"#;
    for case in cases.trim().lines() {
        let parts: Vec<&str> = case.splitn(3, " => ").collect();
        let (schema, value) = (parse(parts[0]), parse(parts[1]));
        let errors = validate(&field(schema), &json!({"f": value}), None);
        assert_eq!(texts_of(&errors).join(" | "), parts[2], "{case}");
    }
}

#[test]
fn valid_values_are_accepted() {
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
fn unchanged_invalid_values_are_accepted() {
    let schema = json!({"type": "object", "properties": {
        "a": {"type": "string", "maxLength": 1}, "b": {"type": "string", "maxLength": 1},
        "m": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
              "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": {"maximum": 3, "type": "integer"}}}},
        "s": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
    }});
    let old = json!({"a": "old", "b": "x", "m": [{"k": "1", "v": 9}], "s": ["a", "a"]});
    let new = json!({"a": "old", "b": "new", "m": [{"k": "2", "v": 8}, {"k": "1", "v": 9}], "s": ["b", "b"]});
    assert_eq!(
        texts_of(&validate(&schema, &new, Some(&old))),
        [
            "b: Too long: may not be more than 1 bytes",
            "m[0].v: Invalid value: 8: m[0].v in body should be less than or equal to 3",
        ]
    );
    assert_eq!(validate(&schema, &old, Some(&old)), []);
}

#[test]
fn messages_for_a_status_have_a_relative_path() {
    let schema = json!({"type": "object", "properties": {"phase": {"type": "string"}}});
    let errors = validate_values(&schema, &json!({"phase": 1}), None, "status");
    let text = r#"status.phase: Invalid value: "integer": phase in body must be of type string: "integer""#;
    assert_eq!(texts_of(&errors), [text]);
    let errors = validate_values(&schema, &json!([]), None, "status");
    let text = r#"status: Invalid value: "array":  in body must be of type object: "array""#;
    assert_eq!(texts_of(&errors), [text]);
}

#[test]
fn duplicates_in_lists_are_rejected() {
    let schema = json!({"type": "object", "additionalProperties": {
        "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a", "b"],
        "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
    }});
    let value = json!({"m": [{"a": 1}, {"a": 1, "b": 2}, {"a": 1, "c": 3}, {"a": 1}]});
    assert_eq!(
        texts_of(&validate_lists(&schema, &value, None)),
        [r#"[m][2]: Duplicate value: {"a":1}"#]
    );
    let value = json!({"m": [{"a": 1}, 2]});
    let text = "[m][1]: Invalid value: 2: must be an object for an array of list-type map";
    assert_eq!(texts_of(&validate_lists(&schema, &value, None)), [text]);
}
