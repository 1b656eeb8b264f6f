//! Defaults of a CustomResourceDefinition, and fields that clients cannot write.

use serde_json::{Value, json};

use super::{storage_version, text};
use crate::json::{at_mut, carry, fill, fill_absent, make, push};

/// Sets `spec.names.singular`, `spec.names.listKind`, `spec.conversion`, and
/// `status.storedVersions` where that is empty.
pub fn default_crd(crd: &mut Value) {
    let kind = text(crd, "/spec/names/kind").to_owned();
    if let Some(names) = at_mut(crd, &["spec", "names"]) {
        fill(names, "singular", kind.to_lowercase());
        if !kind.is_empty() {
            fill(names, "listKind", format!("{kind}List"));
        }
    }
    if let Some(spec) = at_mut(crd, &["spec"]) {
        fill_absent(spec, "conversion", json!({"strategy": "None"}));
    }
    let service = ["spec", "conversion", "webhook", "clientConfig", "service"];
    if let Some(service) = at_mut(crd, &service) {
        fill_absent(service, "port", 443);
    }
    if super::list(crd, "/status/storedVersions").is_empty() {
        store_version(crd);
    }
}

/// Sets the initial status and generation.
pub fn prepare_crd_create(crd: &mut Value) {
    // Go writes a nil slice as null.
    let stored = storage_version(crd).map(|version| [version.to_owned()]);
    *make(crd, &["status"]) = json!({
        "conditions": null,
        "acceptedNames": {"plural": "", "kind": ""},
        "storedVersions": stored,
    });
    set_generation(crd, 1);
}

/// Restores the status, and moves the generation.
pub fn prepare_crd_update(new: &mut Value, old: &Value) {
    *make(new, &["status"]) = old.get("status").cloned().unwrap_or_default();
    if new.get("spec") != old.get("spec") {
        set_generation(new, generation(old) + 1);
    }
    store_version(new);
}

/// Restores the spec.
pub(crate) fn prepare_crd_status_update(new: &mut Value, old: &Value) {
    carry(new, old, &["spec"]);
}

/// `metadata.generation`; 0 if there is none.
pub(super) fn generation(object: &Value) -> i64 {
    object.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or_default()
}

pub(super) fn set_generation(object: &mut Value, generation: i64) {
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        metadata.insert("generation".to_owned(), generation.into());
    }
}

/// Adds the storage version to `status.storedVersions`.
fn store_version(crd: &mut Value) {
    let Some(version) = storage_version(crd).map(Value::from) else { return };
    if !super::list(crd, "/status/storedVersions").contains(&version) {
        push(crd, &["status", "storedVersions"], version);
    }
}
