//! The rules of objects of custom resources.

use nearhop_object::structural;
use serde_json::Value;

use super::defaults::{generation, set_generation};
use super::{scale, schema, text};
use crate::errors::{Errors, Report as _};
use crate::json::carry;
use crate::{Origin, Resource, Subresource};

/// The schema in the definition of a custom resource.
fn schema_of(resource: &Resource) -> Option<&Value> {
    match &resource.origin {
        Origin::Custom(version) => schema(version),
        Origin::BuiltIn => None,
    }
}

/// Drops unknown fields and sets the defaults of the schema; returns the paths of dropped fields.
pub fn conform(resource: &Resource, object: &mut Value) -> Vec<String> {
    let dropped = match &resource.schema {
        Some(shape) => structural::prune(shape.node(), object),
        None => Vec::new(),
    };
    if let Some(schema) = schema_of(resource) {
        structural::apply_defaults(schema, object);
    }
    dropped
}

/// Prepares a create: no status if there is a status subresource, and the first generation.
pub fn prepare_create(resource: &Resource, object: &mut Value) {
    if resource.has(Subresource::Status) {
        carry(object, &Value::Null, &["status"]);
    }
    set_generation(object, 1);
}

/// Prepares an update: only the status subresource changes the status, and nothing else. Every
/// change outside metadata moves the generation.
pub fn prepare_update(
    resource: &Resource,
    subresource: Option<Subresource>,
    new: &mut Value,
    old: &Value,
) {
    if subresource == Some(Subresource::Status) {
        return keep_all_but_status(new, old);
    }
    if resource.has(Subresource::Status) {
        carry(new, old, &["status"]);
    }
    let (Some(fields), Some(before)) = (new.as_object(), old.as_object()) else { return };
    let rest = |key: &&String| *key != "metadata";
    let same = fields.keys().filter(rest).eq(before.keys().filter(rest))
        && fields.iter().all(|(key, value)| key == "metadata" || before.get(key) == Some(value));
    let counted = if same { generation(old) } else { generation(old) + 1 };
    if counted > 0 {
        set_generation(new, counted);
    }
}

fn keep_all_but_status(new: &mut Value, old: &Value) {
    let mut kept = old.clone();
    carry(&mut kept, new, &["status"]);
    // The managed fields of this write are computed already.
    carry(&mut kept, new, &["metadata", "managedFields"]);
    *new = kept;
}

/// Validates an object. An error of the old object whose value did not change is not reported.
pub fn validate(
    resource: &Resource,
    subresource: Option<Subresource>,
    object: &Value,
    old: Option<&Value>,
) -> Errors {
    let mut errors = check_type(resource, object);
    if !errors.is_empty() {
        return errors;
    }
    let schema = schema_of(resource);
    if subresource == Some(Subresource::Status) {
        let of_status = schema.and_then(|schema| schema.pointer("/properties/status"));
        if let (Some(schema), Some(status)) = (of_status, object.get("status")) {
            let old = old.and_then(|old| old.get("status"));
            errors.extend(structural::validate_values(schema, status, old, "status"));
        }
    } else if let Some(schema) = schema {
        errors.extend(structural::validate_values(schema, object, old, ""));
        errors.extend(scale::check_spec(resource, object));
    }
    errors.extend(scale::check_status(resource, object));
    if let Some(schema) = schema {
        if subresource.is_none() {
            errors.extend(structural::validate_embedded(schema, object));
        }
        errors.extend(structural::validate_lists(schema, object, old));
        errors.extend(structural::skipped_rules(schema, &errors));
    }
    errors
}

/// kind and apiVersion are required.
fn check_type(resource: &Resource, object: &Value) -> Errors {
    let mut errors = Vec::new();
    let wanted = [("kind", resource.kind.to_string()), ("apiVersion", resource.api_version())];
    for (field, wanted) in wanted {
        let given = text(object, &format!("/{field}"));
        if given != wanted {
            errors.invalid(field, given, &format!("must be {wanted}"));
        }
    }
    errors
}
