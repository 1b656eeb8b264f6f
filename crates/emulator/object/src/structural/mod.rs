//! Structural schemas: the `openAPIV3Schema` of a CustomResourceDefinition and what it does to the
//! objects of its kind: [`prune`], [`apply_defaults`], [`validate`]. [`check_schema`] says whether a
//! schema is structural at all, [`to_schema`] turns one into the [`Schema`](crate::Schema) that
//! everything else walks.
//!
//! Error texts and their fields are those of kube-apiserver, because clients print them. Where it
//! reports in random order (it iterates over Go maps), errors come in the order of field names.
//!
//! Deliberately not here: the rules of `x-kubernetes-validations`. They are kept and shown, but
//! never evaluated; [`has_rules`] lets a server say so.
//!
//! Schemas and objects may be any JSON: what makes no sense as a keyword is ignored, and nothing
//! deeper than [`MAX_DEPTH`] is looked at.

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
pub use formats::unrecognized_formats;
pub use lists::validate_lists;
pub use prune::prune;
pub use shape::to_schema;
pub use validate::{ROOT, validate_values};

use keywords::Keywords;

/// How deep schemas and objects are followed: more than any JSON that a parser lets in.
pub const MAX_DEPTH: usize = 160;

/// Everything that is wrong with an object: values, embedded objects, lists with duplicates, and
/// the note that rules were skipped. With the `old` object, what did not change is not reported.
pub fn validate(schema: &Value, value: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = validate_values(schema, value, old, "");
    errors.extend(validate_embedded(schema, value));
    errors.extend(validate_lists(schema, value, old));
    errors.extend(skipped_rules(schema, &errors));
    errors
}

/// What is wrong with the type and the name of objects inside an object
/// (`x-kubernetes-embedded-resource`).
pub fn validate_embedded(schema: &Value, value: &Value) -> Vec<FieldError> {
    embedded::validate(schema, value)
}

/// The note that Kubernetes adds when the schema has rules that it did not come to, because the
/// object is not even of the right types.
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

/// Whether some schema below fields, items and map values satisfies a question.
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

#[cfg(test)]
mod tests;
