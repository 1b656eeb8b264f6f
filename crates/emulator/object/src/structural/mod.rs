//! Structural schemas: the `openAPIV3Schema` of a CustomResourceDefinition, and its effects on
//! objects: [`prune`], [`apply_defaults`], [`validate`]. [`check_schema`] checks whether a schema
//! is structural; [`to_schema`] converts one into the [`Schema`](crate::Schema) that the other
//! modules use.
//!
//! Error messages and fields are those of kube-apiserver, because clients print them.
//! kube-apiserver reports some errors in random order (it iterates over Go maps); here they are
//! sorted by field name.
//!
//! The rules of `x-kubernetes-validations` are stored and returned, but never evaluated;
//! [`has_rules`] lets a server report that.
//!
//! Schemas and objects may be any JSON: invalid keywords are ignored, and levels deeper than
//! `MAX_DEPTH` are skipped.

mod alternatives;
mod check;
mod check_defaults;
mod check_keywords;
mod defaults;
mod embedded;
mod formats;
mod keywords;
mod lists;
mod numbers;
mod pattern;
mod prune;
mod shape;
mod validate;

use serde_json::Value;

use crate::FieldError;

pub use check::check_schema;
pub use defaults::apply_defaults;
pub use embedded::validate as validate_embedded;
pub use formats::unrecognized_formats;
pub use lists::validate_lists;
pub use prune::prune;
pub use shape::to_schema;
pub use validate::validate_values;

use validate::ROOT;

use keywords::Keywords;

/// The deepest level of schemas and objects that is checked; JSON parsers allow less.
const MAX_DEPTH: usize = 160;

/// All errors of an object: values, embedded objects, duplicates in lists, and the note about
/// skipped rules. With the `old` object, unchanged values cause no errors.
pub fn validate(schema: &Value, value: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = validate_values(schema, value, old, "");
    errors.extend(embedded::validate(schema, value));
    errors.extend(validate_lists(schema, value, old));
    errors.extend(skipped_rules(schema, &errors));
    errors
}

/// The note that Kubernetes adds if the schema has rules that were not evaluated because the object
/// has values of the wrong type.
pub fn skipped_rules(schema: &Value, errors: &[FieldError]) -> Option<FieldError> {
    use crate::FieldErrorKind as Kind;
    let blocks = |error: &FieldError| {
        matches!(
            error.kind,
            Kind::NotSupported | Kind::Required | Kind::TooLong | Kind::TooMany | Kind::TypeInvalid
        )
    };
    let skipped = errors.iter().any(blocks) && has_rules(schema);
    skipped.then(|| {
        let text = "some validation rules were not checked because the object was invalid; \
                    correct the existing errors to complete validation";
        FieldError::invalid(ROOT, &Value::Null, text)
    })
}

/// Whether a schema has `x-kubernetes-validations` anywhere.
pub fn has_rules(schema: &Value) -> bool {
    some_schema(schema, 0, &mut |keywords| !keywords.rules.is_empty())
}

/// Whether any schema, including those of fields, items and map values, satisfies a predicate.
fn some_schema(schema: &Value, depth: usize, ask: &mut impl FnMut(&Keywords<'_>) -> bool) -> bool {
    let keywords = Keywords::of(schema);
    if depth > MAX_DEPTH {
        return false;
    }
    ask(&keywords)
        || keywords.properties().any(|(_, field)| some_schema(field, depth + 1, ask))
        || keywords.items.is_some_and(|items| some_schema(items, depth + 1, ask))
        || keywords.additional_schema().is_some_and(|values| some_schema(values, depth + 1, ask))
}

/// Visits an object or list and those inside it, with the keywords of their schemas and their paths.
fn walk(schema: &Value, value: &Value, visit: &mut impl FnMut(&Keywords<'_>, &Value, &str)) {
    walk_at(schema, value, &mut String::new(), 0, visit);
}

fn walk_at(
    schema: &Value,
    value: &Value,
    path: &mut String,
    depth: usize,
    visit: &mut impl FnMut(&Keywords<'_>, &Value, &str),
) {
    if depth > MAX_DEPTH || !(value.is_object() || value.is_array()) {
        return;
    }
    let keywords = Keywords::of(schema);
    visit(&keywords, value, path);
    let length = path.len();
    for (key, value) in value.as_object().into_iter().flatten() {
        if let Some(field) = keywords.property(key) {
            path.push_str(if length == 0 { "" } else { "." });
            path.push_str(key);
            walk_at(field, value, path, depth + 1, visit);
        } else if let Some(values) = keywords.additional_schema() {
            path.push_str(&format!("[{key}]"));
            walk_at(values, value, path, depth + 1, visit);
        }
        path.truncate(length);
    }
    let Some(items) = keywords.items else { return };
    for (at, item) in value.as_array().into_iter().flatten().enumerate() {
        path.push_str(&format!("[{at}]"));
        walk_at(items, item, path, depth + 1, visit);
        path.truncate(length);
    }
}

#[cfg(test)]
mod tests;
