//! The scale subresource of custom resources, at the three paths of the definition.

use nearhop_object::FieldError;
use serde_json::{Map, Value, json};

use super::text;
use crate::errors::{Errors, Report as _};
use crate::scale::scale_object;
use crate::{Origin, Resource};

/// Why there is no scale.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScaleError {
    /// The resource has no scale subresource (404).
    #[error("the server could not find the requested resource")]
    NotScalable,
    /// The object has no replica count (500).
    #[error("the spec replicas field {0:?} does not exist")]
    NoReplicas(String),
    /// The new scale has no replica count (400).
    #[error("the spec replicas field {0:?} cannot be empty")]
    EmptyReplicas(String),
    /// Something at one of the paths is of another type (500).
    #[error("{0}")]
    WrongType(String),
}

/// The paths of the definition; `None` without the subresource.
fn paths(resource: &Resource) -> Option<&Value> {
    match &resource.origin {
        Origin::Custom(version) => version.pointer("/subresources/scale").filter(|s| s.is_object()),
        Origin::BuiltIn => None,
    }
}

/// The Scale of an object, for reading.
///
/// # Errors
/// If the object has no replica count, or something else in its place.
pub fn scale_of(resource: &Resource, object: &Value) -> Result<Value, ScaleError> {
    let scale = scale_for_update(resource, object)?;
    if scale.pointer("/spec/replicas").is_none() {
        let path = paths(resource).map(|paths| text(paths, "/specReplicasPath"));
        return Err(ScaleError::NoReplicas(path.unwrap_or_default().to_owned()));
    }
    Ok(scale)
}

/// The Scale of an object, to be patched: without a replica count, if the object has none yet.
///
/// # Errors
/// If there is something else at one of the paths.
pub fn scale_for_update(resource: &Resource, object: &Value) -> Result<Value, ScaleError> {
    let paths = paths(resource).ok_or(ScaleError::NotScalable)?;
    let mut spec = Map::new();
    if let Some(replicas) = number_at(object, text(paths, "/specReplicasPath"))? {
        spec.insert("replicas".to_owned(), replicas.into());
    }
    let replicas = number_at(object, text(paths, "/statusReplicasPath"))?.unwrap_or_default();
    let mut status = json!({"replicas": replicas});
    let selector = text(paths, "/labelSelectorPath");
    if !selector.is_empty() {
        let selector = text_at(object, selector)?.unwrap_or_default();
        if !selector.is_empty() {
            status["selector"] = selector.into();
        }
    }
    Ok(scale_object(object, &spec.into(), &status))
}

/// Writes the replica count of a Scale into its object.
///
/// # Errors
/// If the Scale has no replica count, or the object no place for it.
pub fn set_scale(resource: &Resource, object: &mut Value, scale: &Value) -> Result<(), ScaleError> {
    let paths = paths(resource).ok_or(ScaleError::NotScalable)?;
    let path = text(paths, "/specReplicasPath");
    let replicas = scale.pointer("/spec/replicas").and_then(Value::as_i64);
    let replicas = match replicas {
        Some(replicas) => replicas,
        // As in Go, a Scale without a count means 0 if the object has one.
        None if number_at(object, path)?.is_some() => 0,
        None => return Err(ScaleError::EmptyReplicas(path.to_owned())),
    };
    put(object, path, replicas.into())
}

/// Validates the replica count of the spec.
pub(super) fn check_spec(resource: &Resource, object: &Value) -> Option<FieldError> {
    check_count(object, text(paths(resource)?, "/specReplicasPath"))
}

/// Validates the replica count of the status, and the selector.
pub(super) fn check_status(resource: &Resource, object: &Value) -> Errors {
    let Some(paths) = paths(resource) else { return Vec::new() };
    let mut errors: Errors =
        check_count(object, text(paths, "/statusReplicasPath")).into_iter().collect();
    let selector = text(paths, "/labelSelectorPath");
    if !selector.is_empty()
        && let Err(error) = text_at(object, selector)
    {
        errors.invalid(selector, "", &error.to_string());
    }
    errors
}

fn check_count(object: &Value, path: &str) -> Option<FieldError> {
    let said = match number_at(object, path) {
        Err(error) => return Some(FieldError::invalid(path, &0.into(), &error.to_string())),
        Ok(Some(count)) if count < 0 => (count, "should be a non-negative integer".to_owned()),
        Ok(Some(count)) if count > i64::from(i32::MAX) => {
            (count, format!("should be less than or equal to {}", i32::MAX))
        }
        Ok(_) => return None,
    };
    Some(FieldError::invalid(path, &said.0.into(), &said.1))
}

fn number_at(object: &Value, path: &str) -> Result<Option<i64>, ScaleError> {
    match at(object, path)? {
        None => Ok(None),
        Some(value) => value.as_i64().map(Some).ok_or_else(|| wrong_type(path, value, "int64")),
    }
}

fn text_at<'a>(object: &'a Value, path: &str) -> Result<Option<&'a str>, ScaleError> {
    match at(object, path)? {
        None => Ok(None),
        Some(value) => value.as_str().map(Some).ok_or_else(|| wrong_type(path, value, "string")),
    }
}

/// The value at `.spec.a.b`.
fn at<'a>(object: &'a Value, path: &str) -> Result<Option<&'a Value>, ScaleError> {
    let mut value = object;
    for key in keys(path) {
        let Some(fields) = value.as_object() else {
            return Err(wrong_type(path, value, "map[string]interface{}"));
        };
        match fields.get(key) {
            Some(below) => value = below,
            None => return Ok(None),
        }
    }
    Ok(Some(value))
}

fn put(object: &mut Value, path: &str, new: Value) -> Result<(), ScaleError> {
    let mut value = object;
    for key in keys(path) {
        let Value::Object(fields) = value else {
            return Err(wrong_type(path, value, "map[string]interface{}"));
        };
        value = fields.entry(key).or_insert_with(|| json!({}));
    }
    *value = new;
    Ok(())
}

fn keys(path: &str) -> std::str::Split<'_, char> {
    path.strip_prefix('.').unwrap_or(path).split('.')
}

/// As Go's accessor puts it.
fn wrong_type(path: &str, value: &Value, wanted: &str) -> ScaleError {
    let is = match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_i64() => "int64",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    };
    let shown = match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let path = format!(".{}", path.strip_prefix('.').unwrap_or(path));
    let text = format!("{path} accessor error: {shown} is of the type {is}, expected {wanted}");
    ScaleError::WrongType(text)
}
