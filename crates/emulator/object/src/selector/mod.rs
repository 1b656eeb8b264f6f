//! The selectors of lists and watches: label selectors and field selectors, from their query
//! text (`labelSelector=`, `fieldSelector=`) or from `metav1.LabelSelector`.
//!
//! Parsing and error texts are those of kube-apiserver, because clients show them.
//! Matching runs for every object of a list and every event of a watch, so it never allocates.
//!
//! The caller knows which fields a kind supports and reads those that [`FieldSelector::fields`]
//! names.

mod field;
mod label;
mod parse;

pub use field::{FieldOperator, FieldSelector, FieldTerm};
pub use label::LabelSelector;

/// Why a text is no selector, in kube-apiserver's words. The answer is 400 with exactly this.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SelectorError(pub String);
