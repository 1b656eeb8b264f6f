//! Namespace: the label with its name, the finalizer, and the phase.

use nearhop_object::FieldError;
use serde_json::{Value, json};

use crate::errors::{Errors, Report as _};
use crate::json::{carry, list, make, push, text};
use crate::metadata::{UNKNOWN_FINALIZER, is_unknown_finalizer};
use crate::names;

const NAME_LABEL: &str = "kubernetes.io/metadata.name";
const FINALIZER: &str = "kubernetes";

/// Sets the label with the name, and the phase.
pub(crate) fn default(namespace: &mut Value) {
    let name = text(namespace, &["metadata", "name"]).to_owned();
    if !name.is_empty() && text(namespace, &["metadata", "labels", NAME_LABEL]) != name {
        *make(namespace, &["metadata", "labels", NAME_LABEL]) = json!(name);
    }
    if text(namespace, &["status", "phase"]).is_empty() {
        *make(namespace, &["status", "phase"]) = json!("Active");
    }
}

/// A new namespace is active and has the finalizer.
pub(crate) fn prepare_create(namespace: &mut Value) {
    default(namespace);
    *make(namespace, &["status"]) = json!({"phase": "Active"});
    if !list(namespace, &["spec", "finalizers"]).iter().any(|name| name == FINALIZER) {
        push(namespace, &["spec", "finalizers"], json!(FINALIZER));
    }
}

/// Restores the finalizers of the spec.
pub(crate) fn prepare_update(new: &mut Value, old: &Value) {
    carry(new, old, &["spec", "finalizers"]);
    default(new);
}

pub(crate) fn validate(namespace: &Value) -> Errors {
    let finalizers = list(namespace, &["spec", "finalizers"]).iter();
    finalizers.flat_map(|name| finalizer_errors(name, "spec.finalizers")).collect()
}

/// The phase must match the deletionTimestamp.
pub(crate) fn validate_status(namespace: &Value) -> Errors {
    let phase = text(namespace, &["status", "phase"]);
    let (wanted, detail) = if text(namespace, &["metadata", "deletionTimestamp"]).is_empty() {
        ("Active", "may only be 'Active' if `deletionTimestamp` is empty")
    } else {
        ("Terminating", "may only be 'Terminating' if `deletionTimestamp` is not empty")
    };
    if phase == wanted {
        return Vec::new();
    }
    vec![FieldError::invalid("status.Phase", &json!(phase), detail)]
}

pub(crate) fn validate_finalize(namespace: &Value) -> Errors {
    let finalizers = list(namespace, &["spec", "finalizers"]).iter().enumerate();
    finalizers
        .flat_map(|(index, name)| finalizer_errors(name, &format!("spec.finalizers[{index}]")))
        .collect()
}

/// The namespace that `/finalize` stores: the stored one with the finalizers of the request.
pub fn namespace_finalize(stored: &Value, request: &Value) -> Value {
    let mut namespace = stored.clone();
    carry(&mut namespace, request, &["spec", "finalizers"]);
    if list(&namespace, &["spec", "finalizers"]).is_empty() {
        carry(&mut namespace, &Value::Null, &["spec", "finalizers"]);
    }
    namespace
}

/// Marks a namespace as terminating.
pub(crate) fn terminate(namespace: &mut Value, now: &str) {
    if text(namespace, &["metadata", "deletionTimestamp"]).is_empty() {
        *make(namespace, &["metadata", "deletionTimestamp"]) = json!(now);
    }
    *make(namespace, &["status", "phase"]) = json!("Terminating");
}

fn finalizer_errors(name: &Value, field: &str) -> Errors {
    let text = name.as_str().unwrap_or_default();
    let mut errors = Errors::new();
    errors.invalid_each(field, name, names::qualified_name(text));
    if is_unknown_finalizer(text) {
        errors.invalid(field, name, UNKNOWN_FINALIZER);
    }
    errors
}
