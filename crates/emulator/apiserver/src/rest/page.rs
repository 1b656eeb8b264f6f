//! Continue tokens: the position of the next page of a list, and the version of the list.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use crate::status::ApiError;
use crate::store::Name;

/// A token. To clients it is opaque.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Token {
    v: String,
    /// The version of the list; negative for the newest at the time of use.
    rv: i64,
    /// The last object of the page before.
    namespace: String,
    name: String,
    /// The store that the version belongs to.
    life: String,
}

const FORMAT: &str = "meta.k8s.io/v1";

impl Token {
    pub(super) fn new(version: Option<u64>, last: &Name, life: &str) -> Self {
        Self {
            v: FORMAT.to_owned(),
            rv: version.and_then(|version| i64::try_from(version).ok()).unwrap_or(-1),
            namespace: last.namespace.to_string(),
            name: last.name.to_string(),
            life: life.to_owned(),
        }
    }

    pub(super) fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).expect("a token is written to memory"))
    }

    pub(super) fn decode(text: &str) -> Result<Self, ApiError> {
        let refuse = |why: String| {
            let message = format!("invalid continue token: continue key is not valid: {why}");
            ApiError::bad_request(message)
        };
        let bytes = URL_SAFE_NO_PAD
            .decode(text.trim_end_matches('='))
            .map_err(|error| refuse(error.to_string()))?;
        let token: Self =
            serde_json::from_slice(&bytes).map_err(|error| refuse(error.to_string()))?;
        if token.v != FORMAT {
            return Err(refuse("server does not recognize this encoded version".to_owned()));
        }
        Ok(token)
    }

    /// The version of the list; `None` for the newest.
    pub(super) fn version(&self) -> Option<u64> {
        u64::try_from(self.rv).ok()
    }

    pub(super) fn last(&self) -> Name {
        Name::new(&self.namespace, &self.name)
    }

    pub(super) fn is_of(&self, life: &str) -> bool {
        self.life == life
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_round_trip() {
        let token = Token::new(Some(7), &Name::new("a", "b"), "life");
        assert_eq!(Token::decode(&token.encode()).unwrap(), token);
        assert_eq!(Token::new(None, &Name::new("", "b"), "life").version(), None);
    }

    #[test]
    fn malformed_tokens_are_refused() {
        for bad in ["garbage", "", "e30", "%%%"] {
            assert_eq!(Token::decode(bad).unwrap_err().code, 400, "{bad}");
        }
    }
}
