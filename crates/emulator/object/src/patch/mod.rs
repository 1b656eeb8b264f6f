//! The three patches that need no field manager: JSON patch, JSON merge patch, strategic merge
//! patch. All take the object as clients see it and give the patched one; nothing is decoded,
//! defaulted or validated here, and the object that was given is not touched.
//!
//! Patches come as parsed JSON. What is wrong with the bytes is the decoder's to say; what is wrong
//! with a patch of the wrong JSON type is said here, as kube-apiserver says it.

mod go;
mod json;
mod list;
mod merge;
mod strategic;

use serde_json::Value;

pub use go::GoValue;
pub use json::json_patch;
pub use merge::merge_patch;
pub use strategic::strategic_merge_patch;

/// Why a patch was not applied; the text is the `message` of the answer.
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
    /// The HTTP status of the answer.
    pub fn code(&self) -> u16 {
        match self {
            Self::BadRequest(_) => 400,
            Self::TooLarge(_) => 413,
            Self::Unprocessable(_) => 422,
            Self::Internal(_) => 500,
        }
    }

    /// A patch that is well-formed but cannot be applied. The server tells no more.
    fn rejected() -> Self {
        let text = "the server rejected our request due to an error in our request";
        Self::Unprocessable(text.into())
    }
}

/// `json: cannot unmarshal array into Go value of type …`.
fn cannot_unmarshal(value: &Value, target: &str) -> String {
    format!("json: cannot unmarshal {} into Go {target}", go::json_type(value))
}

/// What the server decodes a patch that is an object into.
const OBJECT_TARGET: &str = "value of type map[string]interface {}";
