//! The three patch types without a field manager: JSON patch, JSON merge patch, strategic merge
//! patch. Each takes the object as clients see it and returns the patched object. This module does
//! not decode, default or validate, and does not change its input.
//!
//! Patches are parsed JSON. The decoder reports invalid bytes; this module reports a patch of the
//! wrong JSON type, with the messages of kube-apiserver.

mod go;
mod json;
mod list;
mod merge;
mod strategic;

use serde_json::Value;

pub use go::{GoValue, json_type};
pub(crate) use go::{go_float, go_type};
pub use json::json_patch;
pub use merge::merge_patch;
pub use strategic::strategic_merge_patch;

/// Why a patch was not applied; the text is the `message` of the reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// 400 `BadRequest`
    #[error("{0}")]
    BadRequest(String),
    /// 422 `Invalid` with empty details.
    #[error("{0}")]
    Unprocessable(String),
    /// 500 without a reason.
    #[error("{0}")]
    Internal(String),
    /// 413 `RequestEntityTooLarge`
    #[error("{0}")]
    TooLarge(String),
}

impl PatchError {
    /// The HTTP status of the reply.
    pub fn code(&self) -> u16 {
        match self {
            Self::BadRequest(_) => 400,
            Self::TooLarge(_) => 413,
            Self::Unprocessable(_) => 422,
            Self::Internal(_) => 500,
        }
    }

    /// The error for a well-formed patch that cannot be applied. The server gives no details.
    fn rejected() -> Self {
        let text = "the server rejected our request due to an error in our request";
        Self::Unprocessable(text.into())
    }
}

/// `json: cannot unmarshal array into Go value of type …`.
fn cannot_unmarshal(value: &Value, target: &str) -> String {
    format!("json: cannot unmarshal {} into Go {target}", json_type(value))
}

/// The Go type of a patch that is an object, for messages.
const OBJECT_TARGET: &str = "value of type map[string]interface {}";
