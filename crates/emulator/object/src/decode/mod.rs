//! From the bytes of a request to an object as Kubernetes would write it back.
//!
//! Two steps: the text becomes a JSON value (`json`, `yaml`, `protobuf`), then [`conform`] checks
//! the value against its shape and writes it the way Go's structs do. Clients compare what they get
//! back with what they sent, so "the way Go does" is the contract. Defaults are not set here.

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
    /// Its value. Of keys that come twice the last one counts.
    pub value: Value,
    /// Where keys come twice: `spec.type`, `spec.ports[0].port`; in the order of the text.
    pub duplicates: Vec<String>,
}

/// Bytes that are not an object. The message is the one that clients see.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Not JSON; in Go's words (`invalid character 'n' looking for …`).
    #[error("{0}")]
    Json(String),
    /// Not YAML, or one that grows too large.
    #[error("{0}")]
    Yaml(String),
    /// Not a Kubernetes protobuf message.
    #[error("{0}")]
    Protobuf(String),
}
