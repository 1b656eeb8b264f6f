//! Sets defaults. They apply inside existing objects and never create the objects around them.

use serde_json::{Map, Value};

use super::MAX_DEPTH;
use super::keywords::Keywords;

/// Removes `null` from fields that are not nullable and have no default, then sets defaults, also
/// in place of `null` in a field that is not nullable.
pub fn apply_defaults(schema: &Value, value: &mut Value) {
    drop_nulls(Some(schema), value, 0);
    fill(schema, value, 0);
}

fn drop_nulls(schema: Option<&Value>, value: &mut Value, depth: usize) {
    let Some(schema) = schema.filter(|_| depth <= MAX_DEPTH) else { return };
    match value {
        Value::Object(object) => {
            let keywords = Keywords::of(schema);
            object.retain(|key, value| {
                let below = keywords.below(key);
                if value.is_null() {
                    return below.is_none_or(may_be_null_for_now);
                }
                drop_nulls(below, value, depth + 1);
                true
            });
        }
        Value::Array(items) => {
            let below = Keywords::of(schema).items;
            items.iter_mut().for_each(|item| drop_nulls(below, item, depth + 1));
        }
        _ => {}
    }
}

/// Whether `null` stays: it is a valid value, or a default replaces it later.
fn may_be_null_for_now(schema: &Value) -> bool {
    let keywords = Keywords::of(schema);
    keywords.nullable || keywords.default.is_some()
}

fn fill(schema: &Value, value: &mut Value, depth: usize) {
    if depth > MAX_DEPTH {
        return;
    }
    match value {
        Value::Object(object) => fill_object(&Keywords::of(schema), object, depth),
        Value::Array(items) => {
            let Some(below) = Keywords::of(schema).items else { return };
            for item in items {
                replace_null(below, item);
                fill(below, item, depth + 1);
            }
        }
        _ => {}
    }
}

fn fill_object(keywords: &Keywords<'_>, object: &mut Map<String, Value>, depth: usize) {
    for (name, field) in keywords.properties() {
        match object.get_mut(name) {
            Some(value) => replace_null(field, value),
            None => {
                // Most fields have no default, so their other keywords are not read.
                if let Some(default) = field.get("default").filter(|default| !default.is_null()) {
                    object.insert(name.clone(), default.clone());
                }
            }
        }
    }
    for (key, value) in object.iter_mut() {
        if let Some(field) = keywords.property(key) {
            fill(field, value, depth + 1);
        } else if let Some(values) = keywords.additional_schema() {
            replace_null(values, value);
            fill(values, value, depth + 1);
        }
    }
}

fn replace_null(schema: &Value, value: &mut Value) {
    if value.is_null() {
        let keywords = Keywords::of(schema);
        if let Some(default) = keywords.default.filter(|_| !keywords.nullable) {
            *value = default.clone();
        }
    }
}
