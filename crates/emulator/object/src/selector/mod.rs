//! Which objects a list or a watch wants: label selectors and field selectors, from their query
//! text (`labelSelector=`, `fieldSelector=`) or from `metav1.LabelSelector`.
//!
//! Parsing follows kube-apiserver to the letter, error texts included, because clients show them.
//! Matching runs for every object of a list and every event of a watch, so it never allocates.
//!
//! Deliberately not here: which fields a kind supports in a field selector, and how they are read
//! from an object. [`FieldSelector::fields`] names them; the caller knows the kind.

mod field;
mod label;
mod parse;
mod syntax;

pub use field::{FieldOperator, FieldSelector, FieldTerm};
pub use label::{Condition, LabelSelector, Requirement};
pub use syntax::{label_key_problems, label_value_problems};

/// Why a text is no selector, in kube-apiserver's words. The answer is 400 with exactly this.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SelectorError(pub String);
