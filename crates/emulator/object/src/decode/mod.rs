//! Decodes the body of a request into an object as Kubernetes would encode it.
//!
//! There are two steps: the body is parsed into a JSON value (`json`, `yaml`, `protobuf`), then
//! [`conform`] checks the value against its schema and rewrites it as Go's structs would encode it.
//! Clients compare the reply with their request, so the result must match Go exactly. Defaults are
//! not set here.

mod conform;
mod embedded;
mod json;
mod mismatch;
mod path;
mod protobuf;
mod quantity;
mod strict;
mod syntax;
mod time;
mod wire;
mod yaml;

use serde_json::Value;

pub use conform::{conform, zero_object};
pub use json::parse_json;
pub use mismatch::TypeMismatch;
pub use protobuf::decode_protobuf;
pub use strict::strict_errors;
pub use yaml::parse_yaml;

/// A parsed text.
#[derive(Clone, Debug, PartialEq)]
pub struct Parsed {
    /// The value. Of duplicate keys the last one counts.
    pub value: Value,
    /// The paths of duplicate keys, such as `spec.type`, `spec.ports[0].port`, in the order of the
    /// text.
    pub duplicates: Vec<String>,
}

/// The body is not JSON (with Go's message), YAML within the limits, or a Kubernetes protobuf
/// message. Clients see the message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DecodeError(String);
