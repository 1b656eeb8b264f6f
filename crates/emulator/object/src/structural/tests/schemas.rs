//! Schemas: the errors for invalid ones, and the conversion of the others.

use serde_json::json;

use super::{field, texts_of};
use crate::schema::Types;
use crate::structural::{check_schema, to_schema, unrecognized_formats};
use crate::{ListType, Shape};

#[test]
fn invalid_schemas_are_rejected() {
    // Schema => errors; `f: ` is the schema of a field `f`.
    let cases = r##"
{} => s.type: Required value: must not be empty at the root
{"type": "string"} => s.type: Invalid value: "string": must be object at the root
{"type": "object", "nullable": true} => s.nullable: Forbidden: nullable cannot be true at the root
{"type": "object", "additionalProperties": true} => s.additionalProperties: Forbidden: must not be used at the root
f: {"type": "array"} => s.properties[f].items: Required value: must be specified
f: {"type": "array", "items": {}} => s.properties[f].items.type: Required value: must not be empty for specified array items
f: {"type": "foo"} => s.properties[f].type: Unsupported value: "foo": supported values: "array", "boolean", "integer", "number", "object", "string"
f: {"type": "string", "pattern": "("} => s.properties[f].pattern: Invalid value: "(": must be a valid regular expression, but isn't: unclosed group
f: {"type": "string", "$ref": "#/x"} => s.properties[f].$ref: Forbidden: $ref is not supported
f: {"type": "array", "items": [{"type": "string"}]} => s.properties[f].items: Forbidden: items must be a schema object and not an array
{"type": "object", "anyOf": [{"properties": {"a": {"minimum": 1}}}]} => s.properties[a]: Required value: because it is defined in s.anyOf[0].properties[a]
f: {"type": "string", "anyOf": [{"type": "string"}]} => s.properties[f].anyOf[0].type: Forbidden: must be empty to be structural
f: {"type": "string", "default": 1} => s.properties[f].default: Invalid value: "integer": s.properties[f].default in body must be of type string: "integer"
f: {"type": "object", "default": {"a": 1}} => s.properties[f].default: Invalid value: {"a":1}: must not have unknown fields
f: {"type": "object", "default": {"a": 1}, "properties": {"a": {"type": "string"}}} => s.properties[f].default.a: Invalid value: "integer": a in body must be of type string: "integer"
f: {"type": "array", "uniqueItems": true, "items": {"type": "string"}} => s.properties[f].uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic
f: {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "string"}} => s.properties[f].additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive
f: {"type": "string", "x-kubernetes-list-type": "set"} => s.properties[f].type: Invalid value: "string": must be array if x-kubernetes-list-type is specified
f: {"type": "array", "items": {"type": "object", "properties": {"k": {"type": "string"}}}, "x-kubernetes-list-type": "map"} => s.properties[f].x-kubernetes-list-map-keys: Required value: must not be empty if x-kubernetes-list-type is map
f: {"type": "array", "items": {"type": "object", "properties": {"k": {"type": "string"}}}, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]} => s.properties[f].items.properties[k].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property
f: {"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]} => s.properties[f].x-kubernetes-list-map-keys: Invalid value: ["k"]: entries must all be names of item properties
f: {"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "set"} => s.properties[f].items.x-kubernetes-map-type: Invalid value: null: must be atomic as item of a list with x-kubernetes-list-type=set
f: {"type": "object", "x-kubernetes-map-type": "x"} => s.properties[f].x-kubernetes-map-type: Unsupported value: "x": supported values: "atomic", "granular"
f: {"type": "string", "x-kubernetes-preserve-unknown-fields": false} => s.properties[f].x-kubernetes-preserve-unknown-fields: Invalid value: false: must be true or undefined
f: {"type": "string", "x-kubernetes-validations": [{}]} => s.properties[f].x-kubernetes-validations[0].rule: Required value: rule is not specified
{"type": "object", "properties": {"metadata": {"type": "object", "description": "x"}}} => s.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified
{"type": "object", "properties": {"kind": {"type": "integer"}}} => s.properties[kind].type: Invalid value: "integer": must be string
{"type": "object", "properties": {"kind": {"type": "string", "default": "x"}}} => s.properties[kind].default: Forbidden: must not be set in top-level kind"##;
    for case in cases.trim().lines() {
        let (text, expected) = case.split_once(" => ").unwrap();
        let schema = match text.strip_prefix("f: ") {
            Some(text) => field(serde_json::from_str(text).unwrap()),
            None => serde_json::from_str(text).unwrap(),
        };
        // The message about a default names the field by its own path.
        let expected = expected.replace("s.properties[f].default in body", " in body");
        assert_eq!(texts_of(&check_schema(&schema, "s")).join(" | "), expected, "{case}");
    }
}

#[test]
fn valid_schemas_are_accepted() {
    for schema in [
        json!({"type": "object", "properties": {"metadata": {"type": "object"}}}),
        json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}}}}}),
        json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
        field(
            json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}], "pattern": "^[0-9]+%?$"}),
        ),
        field(
            json!({"x-kubernetes-int-or-string": true, "allOf": [{"anyOf": [{"type": "integer"}, {"type": "string"}]}, {"maximum": 3}]}),
        ),
        field(
            json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}, "oneOf": [{"required": ["a"]}, {"required": ["b"], "properties": {"b": {"pattern": "x"}}}]}),
        ),
        field(
            json!({"type": "object", "default": {"a": "x"}, "properties": {"a": {"type": "string"}}}),
        ),
        field(
            json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}),
        ),
    ] {
        assert_eq!(check_schema(&schema, "s"), [], "{schema}");
    }
}

#[test]
fn schemas_are_converted_to_shapes() {
    let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {
            "i": {"x-kubernetes-int-or-string": true},
            "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"x": {"type": "number"}}}},
            "atomic": {"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": {"type": "string"}},
            "list": {"type": "array", "items": {"type": "object", "properties": {"k": {"type": "string", "default": "d"}}},
                     "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]},
            "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "object": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true},
        }},
    }});
    let schema = to_schema(&schema);
    let root = schema.node();
    let spec = root.child("spec").unwrap();
    let shape = |name: &str| spec.child(name).unwrap().shape();
    assert_eq!(*root.child("kind").unwrap().shape(), Shape::String);
    assert!(root.child("metadata").is_some() && root.child("bogus").is_none());
    assert_eq!(*shape("i"), Shape::IntOrString);
    assert_eq!(*shape("any"), Shape::Any);
    assert!(
        spec.child("atomic").unwrap().is_atomic_map()
            && !spec.child("map").unwrap().is_atomic_map()
    );
    let x = spec.child("map").and_then(|map| map.child("whatever")).and_then(|v| v.child("x"));
    assert_eq!(*x.unwrap().shape(), Shape::Float);
    let list = spec.child("list").unwrap();
    assert_eq!(*list.list_type(), ListType::Map(["k".into()].into()));
    let key = list.items().and_then(|items| items.child("k")).unwrap();
    assert_eq!(key.declared().unwrap().default, Some(json!("d")));
    let object = spec.child("object").unwrap();
    assert!(object.as_struct().unwrap().preserve_unknown && object.child("metadata").is_some());
}

#[test]
fn types_are_imported_with_their_dependencies() {
    let from = Types::parse("struct a\n  b 1 []b\n  s 2 string\nstruct b\n  a 1 map[]a\n").unwrap();
    let mut types = Types::default();
    let first = types.import(&from, from.find("b").unwrap());
    assert_eq!(types.import(&from, from.find("b").unwrap()), first);
    let a = types.get(types.find("a").unwrap());
    assert_eq!(a.fields.len(), 2);
    let schema = crate::Schema::new(std::sync::Arc::new(types), Shape::Struct(first));
    let around = schema.node().child("a").and_then(|map| map.child("k"));
    let around = around.and_then(|a| a.child("b")).and_then(crate::Node::items);
    assert_eq!(&*around.unwrap().as_struct().unwrap().name, "b");
}

#[test]
fn unrecognized_formats_are_found() {
    let schema = json!({"type": "object", "format": "o", "properties": {
        "a": {"type": "string", "format": "date-time"}, "b": {"type": "string", "format": "b"},
        "c": {"type": "integer", "format": "int32"}, "d": {"type": "array", "items": {"type": "number", "format": "int32"}},
    }});
    assert_eq!(unrecognized_formats(&schema), ["o", "b", "int32"]);
}
