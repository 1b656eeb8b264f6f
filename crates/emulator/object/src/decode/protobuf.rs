//! Decodes Kubernetes' protobuf bodies. `kubectl create` sends many kinds only in this format.
//!
//! There is no encoder: replies are always JSON, which every client accepts. Messages are decoded
//! by the field numbers in the table that is also used for JSON. Not supported: the schemas inside
//! a CustomResourceDefinition, because no client sends them as protobuf.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use jiff::tz::Offset;
use serde_json::{Map, Number, Value};

use super::embedded::embedded_in;
use super::time::{self, Precision};
use super::wire::{Fields, Wire, varint};
use super::{DecodeError, conform, parse_json};
use crate::builtin;
use crate::schema::{Field, Node, Schema, Shape, Struct};

const MAGIC: &[u8] = b"k8s\0";
/// More levels than any built-in kind has.
const MAX_DEPTH: usize = 64;

/// Decodes a body. Returns its apiVersion, its kind, and the object as Go would encode it (with
/// `apiVersion` and `kind`).
///
/// # Errors
/// The bytes are not such a body, or the kind is not built in.
pub fn decode_protobuf(bytes: &[u8]) -> Result<(String, String, Value), DecodeError> {
    decode(bytes).map_err(DecodeError)
}

fn decode(bytes: &[u8]) -> Result<(String, String, Value), String> {
    if bytes.is_empty() {
        return Err("empty data".to_owned());
    }
    let body = bytes.strip_prefix(MAGIC).ok_or(
        "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]",
    )?;
    if body.is_empty() {
        return Err("empty body".to_owned());
    }
    let (api_version, kind, raw) = envelope(body)?;
    let schema = schema_of(&api_version, &kind)
        .ok_or_else(|| format!("no kind {kind:?} is registered for version {api_version:?}"))?;
    let mut map = Map::new();
    message(schema.node(), raw, &mut map, 0)?;
    map.insert("apiVersion".to_owned(), Value::String(api_version.clone()));
    map.insert("kind".to_owned(), Value::String(kind.clone()));
    let mut value = Value::Object(map);
    conform(schema.node(), &mut value).map_err(|mismatch| mismatch.to_string())?;
    Ok((api_version, kind, value))
}

/// Decodes `runtime.Unknown`: apiVersion, kind, and the bytes of the object.
fn envelope(bytes: &[u8]) -> Result<(String, String, &[u8]), String> {
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    for field in Fields::new(bytes) {
        match field? {
            (1, Wire::Bytes(type_meta)) => {
                for field in Fields::new(type_meta) {
                    match field? {
                        (1, Wire::Bytes(bytes)) => api_version = text(bytes),
                        (2, Wire::Bytes(bytes)) => kind = text(bytes),
                        _ => {}
                    }
                }
            }
            (2, Wire::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    Ok((api_version, kind, raw))
}

/// The options of requests exist in every group.
fn schema_of(api_version: &str, kind: &str) -> Option<Schema> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let of_all_groups = kind.ends_with("Options").then_some("meta.k8s.io");
    builtin::schema_of(group, version, kind)
        .or_else(|| builtin::schema_of(of_all_groups?, "v1", kind))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn message(
    node: Node<'_>,
    bytes: &[u8],
    into: &mut Map<String, Value>,
    depth: usize,
) -> Result<(), String> {
    if depth > MAX_DEPTH {
        return Err("proto: too deep".to_owned());
    }
    let Some(found) = node.as_struct() else { return Err("proto: no message".to_owned()) };
    let embedded = embedded_in(&found.name);
    for field in Fields::new(bytes) {
        let (number, wire) = field?;
        match (embedded, wire) {
            // The fields of an embedded struct belong to the outer struct.
            (Some((at, inner)), Wire::Bytes(bytes)) if at == number => {
                let inner = builtin::schema(inner).ok_or("proto: no such struct")?;
                message(inner.node(), bytes, into, depth + 1)?;
            }
            _ => {
                if let Some(field) = numbered(found, number)
                    && let Some(below) = node.child(&field.name)
                {
                    set(below, field, wire, into, depth)?;
                }
            }
        }
    }
    Ok(())
}

fn numbered(found: &Struct, number: u32) -> Option<&Field> {
    found.fields.iter().find(|field| field.number == number)
}

/// Sets a field, or adds to it if it is a list, a map or a message in several parts.
fn set(
    node: Node<'_>,
    field: &Field,
    wire: Wire<'_>,
    into: &mut Map<String, Value>,
    depth: usize,
) -> Result<(), String> {
    let slot = into.entry(&*field.name);
    match (&field.shape, wire) {
        (Shape::List(_), _) => {
            let Some(items) = node.items() else { return Ok(()) };
            if let Value::Array(list) = slot.or_insert_with(|| Value::Array(Vec::new())) {
                add_items(items, wire, list, depth)?;
            }
        }
        (Shape::Map(_), Wire::Bytes(entry)) => {
            let Some(values) = node.child("") else { return Ok(()) };
            if let Value::Object(map) = slot.or_insert_with(|| Value::Object(Map::new())) {
                add_entry(values, entry, map, depth)?;
            }
        }
        (Shape::Struct(_), Wire::Bytes(bytes)) => {
            if let Value::Object(map) = slot.or_insert_with(|| Value::Object(Map::new())) {
                message(node, bytes, map, depth + 1)?;
            }
        }
        _ => {
            let value = single(node, wire, depth)?;
            into.insert(field.name.to_string(), value);
        }
    }
    Ok(())
}

fn add_items(
    node: Node<'_>,
    wire: Wire<'_>,
    list: &mut Vec<Value>,
    depth: usize,
) -> Result<(), String> {
    match (node.shape(), wire) {
        // A packed list of numbers.
        (Shape::Bool | Shape::Int32 | Shape::Int64, Wire::Bytes(mut packed)) => {
            while !packed.is_empty() {
                list.push(single(node, Wire::Varint(varint(&mut packed)?), depth)?);
            }
        }
        _ => list.push(single(node, wire, depth)?),
    }
    Ok(())
}

/// Adds a map entry: a message with a key (1) and a value (2).
fn add_entry(
    node: Node<'_>,
    entry: &[u8],
    map: &mut Map<String, Value>,
    depth: usize,
) -> Result<(), String> {
    let mut key = String::new();
    let mut value = Value::Null;
    for field in Fields::new(entry) {
        match field? {
            (1, Wire::Bytes(bytes)) => key = text(bytes),
            (2, wire) => value = single(node, wire, depth)?,
            _ => {}
        }
    }
    map.insert(key, value);
    Ok(())
}

fn single(node: Node<'_>, wire: Wire<'_>, depth: usize) -> Result<Value, String> {
    match (node.shape(), wire) {
        (Shape::Bool, Wire::Varint(value)) => Ok(Value::Bool(value != 0)),
        // Negative numbers are encoded in 64 bits; Go uses the lower 32.
        (Shape::Int32, Wire::Varint(value)) => Ok(Value::from(value as i32)),
        (Shape::Int64, Wire::Varint(value)) => Ok(Value::from(value as i64)),
        (Shape::Float, Wire::Fixed64(bits)) => {
            Ok(Number::from_f64(f64::from_bits(bits)).map_or(Value::Null, Value::Number))
        }
        (_, Wire::Bytes(bytes)) => of_bytes(node, bytes, depth),
        (_, wire) => Err(format!("proto: wrong wireType for a field: {}", wire_type(wire))),
    }
}

fn wire_type(wire: Wire<'_>) -> u8 {
    match wire {
        Wire::Varint(_) => 0,
        Wire::Fixed64(_) => 1,
        Wire::Bytes(_) => 2,
        Wire::Fixed32(_) => 5,
    }
}

fn of_bytes(node: Node<'_>, bytes: &[u8], depth: usize) -> Result<Value, String> {
    match node.shape() {
        Shape::String => Ok(Value::String(text(bytes))),
        Shape::Bytes => Ok(Value::String(STANDARD.encode(bytes))),
        Shape::Time => instant(bytes, Precision::Seconds),
        Shape::MicroTime => instant(bytes, Precision::Micros),
        Shape::Quantity => Ok(match bytes_at(bytes, 1)? {
            Some(quantity) => Value::String(text(quantity)),
            None => Value::Null,
        }),
        Shape::IntOrString => int_or_string(bytes),
        Shape::Any => match bytes_at(bytes, 1)? {
            Some(raw) if !raw.is_empty() => {
                parse_json(raw).map(|parsed| parsed.value).map_err(|error| error.to_string())
            }
            _ => Ok(Value::Null),
        },
        Shape::Struct(_) => {
            let mut map = Map::new();
            message(node, bytes, &mut map, depth + 1)?;
            Ok(Value::Object(map))
        }
        // A list inside a map or a list is a message with one field.
        Shape::List(_) => {
            let mut list = Vec::new();
            if let Some(items) = node.items() {
                for field in Fields::new(bytes) {
                    if let (1, wire) = field? {
                        add_items(items, wire, &mut list, depth + 1)?;
                    }
                }
            }
            Ok(Value::Array(list))
        }
        Shape::Bool | Shape::Int32 | Shape::Int64 | Shape::Float | Shape::Duration => {
            Err("proto: wrong wireType for a field: 2".to_owned())
        }
        Shape::Map(_) => Err("proto: a map inside of a map".to_owned()),
    }
}

/// The last value of a bytes field.
fn bytes_at(bytes: &[u8], number: u32) -> Result<Option<&[u8]>, String> {
    let mut found = None;
    for field in Fields::new(bytes) {
        match field? {
            (at, Wire::Bytes(bytes)) if at == number => found = Some(bytes),
            _ => {}
        }
    }
    Ok(found)
}

/// Seconds (1) and nanoseconds (2) since 1970; an empty message means no time.
fn instant(bytes: &[u8], precision: Precision) -> Result<Value, String> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let (mut seconds, mut nanos) = (0_i64, 0_i32);
    for field in Fields::new(bytes) {
        match field? {
            (1, Wire::Varint(value)) => seconds = value as i64,
            (2, Wire::Varint(value)) => nanos = value as i32,
            _ => {}
        }
    }
    let nanos = if precision == Precision::Micros { nanos } else { 0 };
    let instant = Timestamp::new(seconds, nanos).map_err(|_| "proto: time out of range")?;
    let utc = Offset::UTC.to_datetime(instant);
    if utc.year() < 0 {
        return Err("proto: time out of range".to_owned());
    }
    Ok(Value::String(time::write(utc, precision)))
}

/// Type (1: 0 for a number, 1 for a string), number (2), string (3).
fn int_or_string(bytes: &[u8]) -> Result<Value, String> {
    let (mut is_text, mut number, mut words) = (false, 0_i32, String::new());
    for field in Fields::new(bytes) {
        match field? {
            (1, Wire::Varint(value)) => is_text = value == 1,
            (2, Wire::Varint(value)) => number = value as i32,
            (3, Wire::Bytes(bytes)) => words = text(bytes),
            _ => {}
        }
    }
    Ok(if is_text { Value::String(words) } else { Value::from(number) })
}
