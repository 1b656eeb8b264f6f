//! The selectors of lists and watches: label selectors and field selectors, from their query form
//! (`labelSelector=`, `fieldSelector=`) or from `metav1.LabelSelector`.
//!
//! Parsing and error messages are those of kube-apiserver, because clients print the messages.
//! Matching runs for every object of a list and every event of a watch, so it never allocates.
//!
//! The caller knows which fields a kind supports, and looks up those that [`FieldSelector::fields`]
//! returns.

mod field;
mod label;
mod parse;

pub use field::{FieldOperator, FieldSelector, FieldTerm};
pub use label::LabelSelector;

/// Why a text is not a selector. The reply is 400 with exactly this message of kube-apiserver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SelectorError(pub String);
