//! Checks that the defaults in a schema conform to it.

use serde_json::Value;

use super::keywords::Keywords;
use super::prune::prune_part;
use super::shape::part_to_schema;
use super::validate::validate_values;
use super::{MAX_DEPTH, embedded};
use crate::FieldError;

/// The errors in the defaults of a structural schema.
pub(super) fn check(schema: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    walk(schema, path, 0, &mut errors);
    errors
}

fn walk(schema: &Value, path: &str, depth: usize, errors: &mut Vec<FieldError>) {
    if depth > MAX_DEPTH {
        return;
    }
    let keywords = Keywords::of(schema);
    if let Some(default) = keywords.default {
        check_default(schema, default, &format!("{path}.default"), errors);
    }
    // Defaults below additionalProperties are not checked here: they are forbidden there, or
    // reported separately.
    if let Some(items) = keywords.items {
        walk(items, &format!("{path}.items"), depth + 1, errors);
    }
    for (name, field) in keywords.properties() {
        walk(field, &format!("{path}.properties[{name}]"), depth + 1, errors);
    }
}

fn check_default(schema: &Value, default: &Value, field: &str, errors: &mut Vec<FieldError>) {
    if default.is_object() || default.is_array() {
        let mut pruned = default.clone();
        let shape = part_to_schema(schema);
        prune_part(shape.node(), &mut pruned);
        if pruned != *default {
            errors.push(FieldError::invalid(field, default, "must not have unknown fields"));
        }
        let wrong = embedded::validate(schema, default);
        if !wrong.is_empty() {
            errors.extend(wrong.into_iter().map(|error| below(field, error)));
            return;
        }
    }
    errors.extend(validate_values(schema, default, None, field));
}

fn below(field: &str, error: FieldError) -> FieldError {
    FieldError { field: format!("{field}.{}", error.field), ..error }
}
