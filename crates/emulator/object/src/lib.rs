//! The language of Kubernetes objects: what shape a kind has, and what may be done to an object
//! knowing only its shape. JSON values in, JSON values out; no clock, no socket, no store.
//!
//! Deliberately not here: what a *particular* kind means (`nearhop-kinds`), and where objects live
//! (`nearhop-apiserver`).

pub mod apply;
pub mod builtin;
pub mod decode;
pub mod field_error;
pub mod names;
pub mod patch;
pub mod schema;
pub mod selector;
pub mod structural;

pub use field_error::{FieldError, FieldErrorKind};
pub use patch::PatchError;
pub use schema::{ListType, Node, Schema, Shape, Types};
pub use selector::{FieldSelector, LabelSelector, SelectorError};
