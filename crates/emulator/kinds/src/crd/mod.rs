//! CustomResourceDefinitions: defaults, validation, status, and their resources ([`resources_of`])
//! with the rules, scale and columns of their objects.
//!
//! Not supported: conversion by webhook (all versions have the stored object), and the rules of
//! `x-kubernetes-validations` (see `nearhop_object::structural`).

mod columns;
mod conditions;
mod defaults;
mod jsonpath;
mod names;
mod objects;
mod resources;
mod scale;
mod validate;

use nearhop_object::structural;
use serde_json::Value;

pub use columns::{Column, columns};
pub(crate) use conditions::mark_terminating;
pub use conditions::{
    CLEANUP_FINALIZER, accept_names, establish, has_condition, is_established, remove_finalizer,
    terminating,
};
pub(crate) use defaults::prepare_crd_status_update;
pub use defaults::{default_crd, prepare_crd_create, prepare_crd_update};
pub use jsonpath::cell;
pub use objects::{conform, prepare_create, prepare_update, validate};
pub use resources::resources_of;
pub use scale::{ScaleError, scale_for_update, scale_of, set_scale};
pub use validate::{validate_crd, validate_crd_update};

/// The warnings that go with writing a CustomResourceDefinition.
pub fn warnings(crd: &Value) -> Vec<String> {
    let mut warnings = Vec::new();
    let schemas = || versions(crd).iter().filter_map(schema);
    for format in schemas().flat_map(structural::unrecognized_formats) {
        let warning = format!("unrecognized format {format:?}");
        if !warnings.contains(&warning) {
            warnings.push(warning);
        }
    }
    if schemas().any(structural::has_rules) {
        warnings.push("x-kubernetes-validations are not evaluated by this server".to_owned());
    }
    warnings
}

/// The text at a JSON pointer; empty if there is none.
fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The list at a JSON pointer; empty if there is none.
fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn flag(value: &Value, key: &str) -> bool {
    value.get(key).and_then(Value::as_bool).unwrap_or_default()
}

fn versions(crd: &Value) -> &[Value] {
    list(crd, "/spec/versions")
}

/// The schema of an entry of `spec.versions`.
fn schema(version: &Value) -> Option<&Value> {
    version.pointer("/schema/openAPIV3Schema").filter(|schema| schema.is_object())
}

/// The name of the version in which objects are stored.
fn storage_version(crd: &Value) -> Option<&str> {
    let stored = versions(crd).iter().find(|version| flag(version, "storage"))?;
    Some(text(stored, "/name"))
}
