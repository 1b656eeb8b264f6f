//! The Kubernetes objects that nearhop reads, reduced to the fields that it uses, and their
//! conversion to nearhop-core.
//!
//! [`wire`] holds the shapes, [`convert`] gives them meaning. A field that cannot be read costs
//! only itself: it is left out and named by a `Problem`. What can be represented and is still
//! wrong (a port 0, a zone name that no hint can have) is found by the core's own checks.
//!
//! Deliberately absent: a client, a socket, a decision.

pub mod convert;
pub mod decode;
pub mod field;
pub mod locator;
pub mod meta;
pub mod rbac;
pub mod wire;
pub mod write;

pub use convert::Converted;
pub use decode::{Changed, convert_json, decode_object};
pub use meta::{Meta, Version};
