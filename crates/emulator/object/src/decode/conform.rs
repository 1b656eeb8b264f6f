//! Checks a value against its schema and rewrites it as Go would encode it.
//!
//! kube-apiserver decodes an object into structs, stores it as protobuf and encodes it again. This
//! module makes the same changes directly on the value: it removes unknown fields, removes or adds
//! `null` and empty values as the struct tags say, and brings numbers, times and quantities into
//! canonical form. It sets no defaults and does not validate.

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde_json::{Map, Value};

use super::mismatch::TypeMismatch;
use super::path::{MOST_NAMED, Path, Step};
use super::quantity;
use super::time::{self, Precision};
use crate::schema::{Field, Node, Presence, Shape, Struct};

/// As tolerant as Go's standard encoding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::RequireCanonical),
);

/// The only struct with fields that hold either a schema or another value.
const JSON_SCHEMA: &str = "apiextensions.v1.JSONSchemaProps";

/// Checks an object against its schema and rewrites it as Go would encode it. Removes fields that
/// the schema does not have, and returns their paths (`spec.ports[0].foo`), sorted;
/// [`super::strict_errors`] puts them into the order of the request body. `kind` and `apiVersion`
/// at the top level stay unchanged. At most a hundred paths are returned; all unknown fields are
/// removed.
///
/// # Errors
/// The first value that does not fit its type. The object is then only partly rewritten.
pub fn conform(node: Node<'_>, value: &mut Value) -> Result<Vec<String>, TypeMismatch> {
    let mut walk = Walk { unknown: Vec::new() };
    walk.value(node, value, &Path::ROOT)?;
    Ok(walk.unknown)
}

struct Walk {
    unknown: Vec<String>,
}

impl Walk {
    fn value(
        &mut self,
        node: Node<'_>,
        value: &mut Value,
        path: &Path<'_>,
    ) -> Result<(), TypeMismatch> {
        match (node.shape(), &mut *value) {
            (Shape::Any, _) => Ok(()),
            (_, Value::Null) => {
                *value = zero_object(node);
                Ok(())
            }
            (Shape::Struct(_), Value::Object(map)) => self.object(node, map, path),
            (Shape::List(_), Value::Array(items)) => match node.items() {
                Some(below) => self.list(below, items, path),
                None => Ok(()),
            },
            (Shape::Map(_), Value::Object(map)) => match node.child("") {
                Some(below) => self.map(below, map, path),
                None => Ok(()),
            },
            _ => scalar(node, value, path),
        }
    }

    fn list(
        &mut self,
        node: Node<'_>,
        items: &mut [Value],
        path: &Path<'_>,
    ) -> Result<(), TypeMismatch> {
        for (index, item) in items.iter_mut().enumerate() {
            self.value(node, item, &path.down(Step::Index(index)))?;
        }
        Ok(())
    }

    fn map(
        &mut self,
        node: Node<'_>,
        map: &mut Map<String, Value>,
        path: &Path<'_>,
    ) -> Result<(), TypeMismatch> {
        // Maps of strings, such as labels, have nothing below them to check.
        if *node.shape() == Shape::String && map.values().all(Value::is_string) {
            return Ok(());
        }
        for (key, value) in map.iter_mut() {
            self.value(node, value, &path.down(Step::Key(key)))?;
        }
        Ok(())
    }

    fn object(
        &mut self,
        node: Node<'_>,
        map: &mut Map<String, Value>,
        path: &Path<'_>,
    ) -> Result<(), TypeMismatch> {
        let Some(found) = node.as_struct() else { return Ok(()) };
        let mut failed = None;
        map.retain(|key, value| {
            if failed.is_some() {
                return true;
            }
            let Some(below) = node.child(key) else {
                let stays = found.preserve_unknown || is_type_meta(found, key, path);
                if !stays && self.unknown.len() < MOST_NAMED {
                    self.unknown.push(path.with_key(key));
                }
                return stays;
            };
            match self.field(node, found, below, value, path) {
                Ok(stays) => stays,
                Err(error) => {
                    failed = Some(error);
                    true
                }
            }
        });
        if let Some(error) = failed {
            return Err(error);
        }
        add_always_written(node, found, map);
        Ok(())
    }

    /// Returns whether the field stays after its value is rewritten.
    fn field(
        &mut self,
        owner: Node<'_>,
        found: &Struct,
        node: Node<'_>,
        value: &mut Value,
        path: &Path<'_>,
    ) -> Result<bool, TypeMismatch> {
        let Some(field) = node.declared() else { return Ok(true) };
        if value.is_null() {
            return Ok(false);
        }
        let path = path.down(Step::Field(&found.name, &field.name));
        if field.shape == Shape::Any && &*found.name == JSON_SCHEMA {
            self.schema_or(owner, &field.name, value, &path)?;
        } else {
            self.value(node, value, &path)?;
        }
        Ok(is_kept(found, field, value))
    }

    /// Checks `items`, `additionalProperties` and similar fields in the schema of a
    /// CustomResourceDefinition, which hold either a schema or another value. kube-apiserver
    /// decodes them separately and does not report their unknown fields.
    fn schema_or(
        &mut self,
        schema: Node<'_>,
        name: &str,
        value: &mut Value,
        path: &Path<'_>,
    ) -> Result<(), TypeMismatch> {
        let before = self.unknown.len();
        let done = match (name, &mut *value) {
            ("items" | "additionalProperties" | "additionalItems", Value::Object(_)) => {
                self.value(schema, value, path)
            }
            ("items", Value::Array(items)) => self.list(schema, items, path),
            ("additionalProperties" | "additionalItems", Value::Bool(_)) => Ok(()),
            ("additionalProperties" | "additionalItems", _) => {
                Err(TypeMismatch::new("boolean or JSON schema expected".to_owned()))
            }
            _ => Ok(()),
        };
        self.unknown.truncate(before);
        done
    }
}

/// Whether this is `kind` or `apiVersion` of the object itself; `metadata` has neither.
fn is_type_meta(found: &Struct, key: &str, path: &Path<'_>) -> bool {
    path.is_root() && matches!(key, "kind" | "apiVersion") && &*found.name != "meta.v1.ObjectMeta"
}

fn is_kept(owner: &Struct, field: &Field, value: &mut Value) -> bool {
    if field.pointer {
        return true;
    }
    let empty = match value {
        // The value was a zero time.
        Value::Null => return false,
        Value::Bool(value) => !*value,
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
    };
    match (field.presence, &field.shape) {
        (Presence::Always, Shape::List(_) | Shape::Map(_)) if empty && !stored_as_json(owner) => {
            *value = Value::Null;
            true
        }
        (Presence::Always, _) => true,
        (Presence::OmitZero, Shape::Struct(_)) => !empty,
        (_, shape) => !empty || shape.is_go_struct(),
    }
}

/// Objects of these groups are stored as JSON, which distinguishes an empty list from a missing
/// one.
fn stored_as_json(owner: &Struct) -> bool {
    owner.name.starts_with("apiextensions.") || owner.name.starts_with("apiregistration.")
}

fn add_always_written(node: Node<'_>, found: &Struct, map: &mut Map<String, Value>) {
    for field in &found.fields {
        if !field.is_always_written() || map.contains_key(&*field.name) {
            continue;
        }
        let value = match node.child(&field.name) {
            Some(below) if !field.pointer => zero_object(below),
            _ => Value::Null,
        };
        map.insert(field.name.to_string(), value);
    }
}

/// The encoding of a value that is not set; for a struct `{"metadata":{},"spec":{},…}`.
pub fn zero_object(node: Node<'_>) -> Value {
    match node.shape() {
        Shape::String => Value::from(""),
        Shape::Bool => Value::from(false),
        Shape::Int32 | Shape::Int64 | Shape::Float | Shape::IntOrString => Value::from(0),
        Shape::Duration => Value::from("0s"),
        Shape::Quantity => Value::from("0"),
        Shape::Struct(_) => {
            let mut map = Map::new();
            if let Some(found) = node.as_struct() {
                add_always_written(node, found, &mut map);
            }
            Value::Object(map)
        }
        Shape::Time | Shape::MicroTime | Shape::Bytes | Shape::Any => Value::Null,
        Shape::List(_) | Shape::Map(_) => Value::Null,
    }
}

fn scalar(node: Node<'_>, value: &mut Value, path: &Path<'_>) -> Result<(), TypeMismatch> {
    match (node.shape(), &mut *value) {
        (Shape::String | Shape::Duration | Shape::IntOrString, Value::String(_)) => Ok(()),
        (Shape::Bool, Value::Bool(_)) => Ok(()),
        (Shape::Int32 | Shape::IntOrString, Value::Number(number))
            if number.as_i64().is_some_and(|number| i32::try_from(number).is_ok()) =>
        {
            Ok(())
        }
        (Shape::Int64, Value::Number(number)) if number.is_i64() => Ok(()),
        (Shape::Float, Value::Number(number)) => {
            if let Some(whole) = number.as_f64().and_then(whole_number) {
                *value = Value::from(whole);
            }
            Ok(())
        }
        (Shape::Bytes, Value::String(text)) => bytes(text),
        (Shape::Time, Value::String(_)) => instant(value, Precision::Seconds),
        (Shape::MicroTime, Value::String(_)) => instant(value, Precision::Micros),
        (Shape::Quantity, _) => amount(value),
        _ => Err(TypeMismatch::wrong_type(node, value, path)),
    }
}

/// Go writes floating point numbers without a redundant `.0`.
pub(super) fn whole_number(number: f64) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    (number.fract() == 0.0 && number.abs() < EXACT).then_some(number as i64)
}

fn bytes(text: &mut String) -> Result<(), TypeMismatch> {
    if text.contains(['\r', '\n']) {
        text.retain(|c| !matches!(c, '\r' | '\n'));
    }
    let decoded = BASE64.decode(text.as_bytes()).map_err(|error| {
        use base64::DecodeError::{InvalidByte, InvalidLastSymbol};
        let at = match error {
            InvalidByte(at, _) | InvalidLastSymbol(at, _) => at,
            _ => text.len(),
        };
        TypeMismatch::new(format!("illegal base64 data at input byte {at}"))
    })?;
    // Only the unused bits of the last symbol can differ.
    if text.contains('=') {
        *text = BASE64.encode(decoded);
    }
    Ok(())
}

fn instant(value: &mut Value, precision: Precision) -> Result<(), TypeMismatch> {
    let Value::String(text) = &*value else { return Ok(()) };
    let written = match time::normalise(text, precision).map_err(TypeMismatch::new)? {
        Some(written) if written == *text => return Ok(()),
        Some(written) => Value::String(written.into_owned()),
        None => Value::Null,
    };
    *value = written;
    Ok(())
}

fn amount(value: &mut Value) -> Result<(), TypeMismatch> {
    let text = match &*value {
        Value::String(text) => text.trim().to_owned(),
        // Any other JSON value is parsed as its text.
        other => other.to_string(),
    };
    let written = quantity::canonical(&text).map_err(|e| TypeMismatch::new(e.to_string()))?;
    *value = Value::String(written.into_owned());
    Ok(())
}
