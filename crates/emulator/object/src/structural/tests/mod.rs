//! Cases that the recordings do not contain.

mod schemas;
mod values;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn texts_of(errors: &[FieldError]) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

fn field(schema: Value) -> Value {
    json!({"type": "object", "properties": {"f": schema}})
}

#[test]
fn unknown_fields_are_pruned() {
    let schema = to_schema(&json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {
            "keep": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"strict": {"type": "object", "properties": {"a": {"type": "string"}}}}},
            "list": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}},
            "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"a": {"type": "string"}}}},
            "loose": {"type": "object", "additionalProperties": true},
            "empty": {"type": "object"},
            "object": {"type": "object", "x-kubernetes-embedded-resource": true, "properties": {"spec": {"type": "object"}}},
        }},
    }}));
    let mut value = json!({
        "apiVersion": "v1", "kind": "X", "metadata": {"bogus": 1}, "top": {"x": 1},
        "spec": {
            "keep": {"any": {"thing": 1}, "strict": {"a": "x", "b": 1}}, "list": [{"a": "x"}, {"b": 1}, 3],
            "map": {"k": {"a": "x", "b": 1}}, "loose": {"k": 1, "o": {"x": 1}}, "empty": {"x": 1},
            "object": {"apiVersion": "v1", "kind": "Y", "metadata": {"any": 1}, "spec": {"x": 1}, "y": 1},
        },
    });
    let dropped = prune(schema.node(), &mut value);
    assert_eq!(
        dropped,
        [
            "spec.empty.x",
            "spec.keep.strict.b",
            "spec.list[1].b",
            "spec.loose.o.x",
            "spec.map.k.b",
            "spec.object.metadata.any",
            "spec.object.spec.x",
            "spec.object.y",
            "top",
        ]
    );
    assert_eq!(
        value,
        json!({
            "apiVersion": "v1", "kind": "X", "metadata": {"bogus": 1},
            "spec": {
                "keep": {"any": {"thing": 1}, "strict": {"a": "x"}}, "list": [{"a": "x"}, {}, 3],
                "map": {"k": {"a": "x"}}, "loose": {"k": 1, "o": {}}, "empty": {},
                "object": {"apiVersion": "v1", "kind": "Y", "metadata": {}, "spec": {}},
            },
        })
    );
}

#[test]
fn defaults_are_applied() {
    let schema = json!({"type": "object", "properties": {
        "d": {"type": "integer", "default": 3}, "n": {"type": "integer", "default": 3, "nullable": true},
        "plain": {"type": "string"}, "nul": {"type": "string", "nullable": true},
        "sub": {"type": "object", "default": {"given": 1}, "properties": {"given": {"type": "integer"}, "x": {"type": "integer", "default": 7}}},
        "none": {"type": "object", "properties": {"x": {"type": "integer", "default": 7}}},
        "list": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "integer", "default": 7}}}},
        "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"x": {"type": "integer", "default": 7}}}},
    }});
    let mut value = json!({
        "d": null, "n": null, "plain": null, "nul": null, "list": [{}, {"x": 1}], "map": {"k": {}, "gone": null},
    });
    apply_defaults(&schema, &mut value);
    assert_eq!(
        value,
        json!({
            "d": 3, "n": null, "nul": null, "sub": {"given": 1, "x": 7},
            "list": [{"x": 7}, {"x": 1}], "map": {"k": {"x": 7}},
        })
    );
}

/// Any JSON value, with keys that are keywords of schemas.
fn json_value() -> impl Strategy<Value = Value> {
    let words = |text: &'static str| prop::sample::select(text.split(' ').collect::<Vec<_>>());
    let key = words(
        "type properties items additionalProperties anyOf oneOf allOf not default enum \
         required pattern format nullable minimum maximum multipleOf maxItems minLength \
         maxLength x-kubernetes-list-type x-kubernetes-list-map-keys x-kubernetes-map-type \
         x-kubernetes-int-or-string x-kubernetes-preserve-unknown-fields \
         x-kubernetes-embedded-resource x-kubernetes-validations spec metadata kind a",
    );
    // The double space adds an empty text.
    let text = words(
        "object array string integer number boolean map set atomic a spec  ( ^a$ date-time \
         ipv4 uuid int32",
    );
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text.prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map(key.clone().prop_map(str::to_owned), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn run_all(schema: &Value, value: &Value, old: &Value) {
    check_schema(schema, "s");
    has_rules(schema);
    unrecognized_formats(schema);
    let shape = to_schema(schema);
    let mut changed = value.clone();
    prune(shape.node(), &mut changed);
    apply_defaults(schema, &mut changed);
    validate(schema, &changed, None);
    validate(schema, value, Some(old));
}

proptest! {
    #[test]
    fn any_schema_and_value_are_handled_without_panic(schema in json_value(), value in json_value(), old in json_value()) {
        run_all(&schema, &value, &old);
    }
}

#[test]
fn deeply_nested_schemas_do_not_overflow() {
    // Built without `json!`, which would copy the inner value at every step.
    let object = |fields: Vec<(&str, Value)>| {
        Value::Object(fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    };
    let deep = |wrap: &dyn Fn(Value) -> Value| (0..1000).fold(json!({}), |value, _| wrap(value));
    let value = deep(&|inner| Value::Array(vec![inner]));
    let wraps: [&dyn Fn(Value) -> Value; 5] = [
        &|inner| object(vec![("type", "array".into()), ("items", inner)]),
        &|inner| {
            object(vec![("type", "object".into()), ("properties", object(vec![("a", inner)]))])
        },
        &|inner| object(vec![("type", "object".into()), ("additionalProperties", inner)]),
        &|inner| object(vec![("anyOf", Value::Array(vec![inner]))]),
        &|inner| object(vec![("not", inner)]),
    ];
    for wrap in wraps {
        run_all(&deep(wrap), &value, &json!(null));
    }
}
