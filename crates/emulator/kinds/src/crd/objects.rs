//! The objects of custom resources on their way into the store: [`conform`] to the schema, prepare,
//! validate. Their metadata is treated like that of all other objects, elsewhere.

use nearhop_object::{FieldError, structural};
use serde_json::Value;

use super::defaults::{generation, set_generation};
use super::{scale, schema, text};
use crate::errors::Report as _;
use crate::{Origin, Resource, Subresource};

/// The schema of a custom resource, in the words of its definition.
fn schema_of(resource: &Resource) -> Option<&Value> {
    match &resource.origin {
        Origin::Custom(version) => schema(version),
        Origin::BuiltIn => None,
    }
}

/// Drops what the schema does not know and fills in its defaults, as on every read of an object from
/// a client; the answer is where something was dropped, for `unknown field "…"`.
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

/// Before a create: no status if it has its own subresource, and the first generation.
pub fn prepare_create(resource: &Resource, object: &mut Value) {
    if let Value::Object(fields) = &mut *object
        && resource.has(Subresource::Status)
    {
        fields.remove("status");
    }
    set_generation(object, 1);
}

/// Before an update: the status is written through its subresource only, and nothing else is
/// through that. Every change outside of metadata counts as a generation.
pub fn prepare_update(
    resource: &Resource,
    subresource: Option<Subresource>,
    new: &mut Value,
    old: &Value,
) {
    if subresource == Some(Subresource::Status) {
        return keep_all_but_status(new, old);
    }
    let (Value::Object(fields), Some(before)) = (&mut *new, old.as_object()) else { return };
    if resource.has(Subresource::Status) {
        match before.get("status") {
            Some(status) => fields.insert("status".to_owned(), status.clone()),
            None => fields.remove("status"),
        };
    }
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
    let Value::Object(fields) = &mut kept else { return };
    match new.get_mut("status").map(Value::take) {
        Some(status) => fields.insert("status".to_owned(), status),
        None => fields.remove("status"),
    };
    // Who owns which field has just been worked out for this very write.
    let managed = new.pointer_mut("/metadata/managedFields").map(Value::take);
    if let Some(Value::Object(metadata)) = fields.get_mut("metadata") {
        match managed {
            Some(managed) => metadata.insert("managedFields".to_owned(), managed),
            None => metadata.remove("managedFields"),
        };
    }
    *new = kept;
}

/// Validates an object. An error of the old object whose value did not change is not reported.
pub fn validate(
    resource: &Resource,
    subresource: Option<Subresource>,
    object: &Value,
    old: Option<&Value>,
) -> Vec<FieldError> {
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

/// A custom resource must say what it is, and be that.
fn check_type(resource: &Resource, object: &Value) -> Vec<FieldError> {
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
