//! The Kubernetes objects that nearhop reads, reduced to the fields that it uses, and their
//! conversion to nearhop-core.
//!
//! `wire` defines the types, `convert` converts them. An unreadable field does not affect the
//! other fields: it is left out and reported as a `Problem`. The checks of the core find values
//! that can be parsed but are invalid (a port 0, a zone name that a hint cannot have).
//!
//! This crate contains no client and no sockets, and makes no decisions.

mod convert;
pub mod decode;
pub mod field;
pub mod locator;
pub mod meta;
pub mod rbac;
mod wire;
pub mod write;

pub use decode::{Changed, convert_json, decode_object};
pub use meta::{Meta, Version};
