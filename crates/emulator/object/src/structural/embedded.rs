//! Embedded objects (`x-kubernetes-embedded-resource`): they must have an apiVersion and a kind.
//! Their metadata is not checked.

use serde_json::{Map, Value};

use super::MAX_DEPTH;
use super::keywords::Keywords;
use crate::FieldError;

/// The errors in the type and kind of embedded objects.
pub(super) fn validate(schema: &Value, value: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    // Few schemas have embedded objects: one walk over the schema avoids a walk over each object.
    if super::some_schema(schema, 0, &mut |keywords| keywords.embedded_resource) {
        walk(schema, value, "", 0, &mut errors);
    }
    errors
}

fn walk(schema: &Value, value: &Value, path: &str, depth: usize, errors: &mut Vec<FieldError>) {
    if depth > MAX_DEPTH {
        return;
    }
    let keywords = Keywords::of(schema);
    match value {
        Value::Object(object) => {
            if keywords.embedded_resource {
                check(object, path, errors);
            }
            for (key, value) in object {
                if let Some(field) = keywords.property(key) {
                    walk(field, value, &child(path, key), depth + 1, errors);
                } else if let Some(values) = keywords.additional_schema() {
                    walk(values, value, &format!("{path}[{key}]"), depth + 1, errors);
                }
            }
        }
        Value::Array(list) => {
            let Some(items) = keywords.items else { return };
            for (at, item) in list.iter().enumerate() {
                walk(items, item, &format!("{path}[{at}]"), depth + 1, errors);
            }
        }
        _ => {}
    }
}

fn check(object: &Map<String, Value>, path: &str, errors: &mut Vec<FieldError>) {
    for name in ["apiVersion", "kind"] {
        let field = child(path, name);
        match object.get(name) {
            None => errors.push(FieldError::required(field, "")),
            Some(Value::String(text)) if text.is_empty() => {
                errors.push(FieldError::invalid(field, &text.as_str().into(), "must not be empty"));
            }
            Some(Value::String(_)) => {}
            Some(other) => errors.push(FieldError::invalid(field, other, "must be a string")),
        }
    }
}

fn child(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}
