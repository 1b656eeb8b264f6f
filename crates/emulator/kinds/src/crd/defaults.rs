//! Defaults of a CustomResourceDefinition, and fields that clients cannot write.

use serde_json::{Map, Value, json};

use super::{storage_version, text};

/// Sets `spec.names.singular`, `spec.names.listKind`, `spec.conversion`, and
/// `status.storedVersions` where that is empty.
pub fn default_crd(crd: &mut Value) {
    let kind = text(crd, "/spec/names/kind").to_owned();
    if let Some(Value::Object(names)) = crd.pointer_mut("/spec/names") {
        fill_text(names, "singular", kind.to_lowercase());
        if !kind.is_empty() {
            fill_text(names, "listKind", format!("{kind}List"));
        }
    }
    if let Some(Value::Object(spec)) = crd.get_mut("spec")
        && spec.get("conversion").is_none_or(Value::is_null)
    {
        spec.insert("conversion".to_owned(), json!({"strategy": "None"}));
    }
    fill_ports(crd);
    if super::list(crd, "/status/storedVersions").is_empty() {
        store_version(crd);
    }
}

/// Sets the initial status and generation.
pub fn prepare_crd_create(crd: &mut Value) {
    let stored: Vec<&str> = storage_version(crd).into_iter().collect();
    // Go writes a nil slice as null.
    let stored = if stored.is_empty() { Value::Null } else { json!(stored) };
    let Value::Object(object) = &mut *crd else { return };
    let status = json!({
        "conditions": null,
        "acceptedNames": {"plural": "", "kind": ""},
        "storedVersions": stored,
    });
    object.insert("status".to_owned(), status);
    set_generation(crd, 1);
}

/// Restores the status, and moves the generation.
pub fn prepare_crd_update(new: &mut Value, old: &Value) {
    if let Value::Object(object) = &mut *new {
        object.insert("status".to_owned(), old.get("status").cloned().unwrap_or(Value::Null));
    }
    if new.get("spec") != old.get("spec") {
        set_generation(new, generation(old) + 1);
    }
    store_version(new);
}

/// Restores the spec.
pub fn prepare_crd_status_update(new: &mut Value, old: &Value) {
    if let (Value::Object(object), Some(spec)) = (new, old.get("spec")) {
        object.insert("spec".to_owned(), spec.clone());
    }
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
    let Value::Object(object) = crd else { return };
    let status = object.entry("status").or_insert(Value::Null);
    if status.is_null() {
        *status = json!({});
    }
    let Value::Object(status) = status else { return };
    let stored = status.entry("storedVersions").or_insert(Value::Null);
    match stored {
        Value::Array(all) if !all.contains(&version) => all.push(version),
        Value::Null => *stored = json!([version]),
        _ => {}
    }
}

fn fill_ports(crd: &mut Value) {
    let service = crd.pointer_mut("/spec/conversion/webhook/clientConfig/service");
    if let Some(Value::Object(service)) = service
        && service.get("port").is_none_or(Value::is_null)
    {
        service.insert("port".to_owned(), 443.into());
    }
}

fn fill_text(object: &mut Map<String, Value>, key: &str, text: String) {
    if object.get(key).and_then(Value::as_str).is_none_or(str::is_empty) {
        object.insert(key.to_owned(), text.into());
    }
}
