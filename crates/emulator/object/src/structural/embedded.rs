//! Embedded objects (`x-kubernetes-embedded-resource`): they must have an apiVersion and a kind.
//! Their metadata is not checked.

use serde_json::{Map, Value};

use super::walk;
use crate::FieldError;

/// The errors in the type and kind of embedded objects.
pub fn validate(schema: &Value, value: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    // Few schemas have embedded objects: one walk over the schema avoids a walk over each object.
    if super::some_schema(schema, 0, &mut |keywords| keywords.embedded_resource) {
        walk(schema, value, &mut |keywords, value, path| {
            if let (Value::Object(object), true) = (value, keywords.embedded_resource) {
                check(object, path, &mut errors);
            }
        });
    }
    errors
}

fn check(object: &Map<String, Value>, path: &str, errors: &mut Vec<FieldError>) {
    for name in ["apiVersion", "kind"] {
        let dot = if path.is_empty() { "" } else { "." };
        let field = format!("{path}{dot}{name}");
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
