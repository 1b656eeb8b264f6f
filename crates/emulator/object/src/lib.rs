//! Operations on Kubernetes objects that need only the schema of their kind: decoding, patches,
//! server-side apply, selectors, validation. Input and output are JSON values; there is no clock,
//! no socket and no storage.
//!
//! The behaviour of a *particular* kind (`nearhop-kinds`) and the storage of objects
//! (`nearhop-apiserver`) are not here.

pub mod apply;
pub mod builtin;
pub mod decode;
pub(crate) mod field_error;
pub mod names;
pub mod patch;
pub mod schema;
pub mod selector;
pub mod structural;

pub use field_error::{FieldError, FieldErrorKind};
pub use patch::PatchError;
pub use schema::{ListType, Node, Schema, Shape, Types};
pub use selector::{FieldSelector, LabelSelector, SelectorError};
