//! Reads how the API server rejects a request: a `Status`, and the header `Retry-After`. Pure.

use std::fmt;
use std::time::Duration;

use http::header::{HeaderMap, RETRY_AFTER};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// The longest wait that a client accepts: a wrong value must not stop writes or a watch for hours.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(60);

/// A `Status` that rejects a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Refusal {
    /// The HTTP status code.
    pub code: u16,
    pub(super) reason: String,
    pub(super) message: String,
    details: Details,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Details {
    #[serde(rename = "retryAfterSeconds", deserialize_with = "read_seconds")]
    retry_after: Duration,
    causes: Value,
}

/// Any number, even one that no integer type holds: the `Status` must stay readable.
fn read_seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let seconds = Option::<f64>::deserialize(deserializer)?.unwrap_or_default();
    Ok(bounded(seconds))
}

/// The header `Retry-After` in seconds, a minute at most; a date is not read.
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    // A float accepts any number of digits.
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(bounded)
}

fn bounded(seconds: f64) -> Duration {
    let most = LONGEST_RETRY_AFTER.as_secs_f64();
    Duration::try_from_secs_f64(seconds.clamp(0.0, most)).unwrap_or_default()
}

impl Refusal {
    /// From an answer: the code and `Retry-After` of its head, and a body that need not be a
    /// `Status` (a server that is too busy sends plain text).
    pub fn read(code: u16, retry_after: Option<Duration>, body: &[u8]) -> Self {
        let text = || Self {
            message: String::from_utf8_lossy(body).trim().chars().take(200).collect(),
            ..Self::default()
        };
        let mut refusal = serde_json::from_slice(body).unwrap_or_else(|_| text());
        refusal.code = code;
        let details = &mut refusal.details;
        details.retry_after = details.retry_after.max(retry_after.unwrap_or_default());
        refusal
    }

    /// How long the API server asks to wait, a minute at most.
    pub fn retry_after(&self) -> Duration {
        self.details.retry_after
    }

    /// Whether the requested version is too old for the API server.
    pub fn is_expired(&self) -> bool {
        self.code == 410 || self.reason == "Expired" || self.reason == "Gone"
    }

    /// Whether the request itself is at fault, not its sender or its time.
    pub fn is_about_the_request(&self) -> bool {
        (400..500).contains(&self.code) && !matches!(self.code, 401 | 403 | 404 | 408 | 410 | 429)
    }

    /// Whether one of the causes has this reason.
    pub(super) fn has_cause(&self, reason: &str) -> bool {
        let causes = self.details.causes.as_array();
        causes.is_some_and(|causes| causes.iter().any(|cause| cause["reason"] == reason))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.code)?;
        if !self.reason.is_empty() {
            write!(f, " {}", self.reason)?;
        }
        write!(f, ": {}", self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_parsed_from_status_or_text() {
        let body = br#"{"kind":"Status","message":"m","reason":"TooManyRequests","details":{"retryAfterSeconds":3},"code":429}"#;
        let second = Some(Duration::from_secs(1));
        let refusal = Refusal::read(429, second, body);
        assert_eq!(refusal.to_string(), "429 TooManyRequests: m");
        assert_eq!(refusal.retry_after(), Duration::from_secs(3));
        let busy = Refusal::read(429, second, b"Too many requests\n");
        assert_eq!(busy.to_string(), "429: Too many requests");
        assert_eq!(busy.retry_after(), Duration::from_secs(1));
    }

    #[test]
    fn retry_after_is_at_most_a_minute() {
        let asked = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, value.parse().unwrap());
            retry_after(&headers)
        };
        assert_eq!(asked("3"), Some(Duration::from_secs(3)));
        for absurd in ["61", "9223372036854775808", "99999999999999999999", "1e400"] {
            assert_eq!(asked(absurd), Some(LONGEST_RETRY_AFTER), "{absurd}");
        }
        for absurd in ["61", "9223372036854775808", "99999999999999999999"] {
            let body = format!(r#"{{"reason":"Busy","details":{{"retryAfterSeconds":{absurd}}}}}"#);
            let refusal = Refusal::read(429, None, body.as_bytes());
            assert_eq!(refusal.to_string(), "429 Busy: ", "the body is still parsed as a Status");
            assert_eq!(refusal.retry_after(), LONGEST_RETRY_AFTER, "{absurd}");
        }
        assert_eq!(asked("-5"), Some(Duration::ZERO));
        assert_eq!(asked("NaN"), Some(Duration::ZERO));
        assert_eq!(asked("Wed, 21 Oct 2026 07:28:00 GMT"), None);
    }
}
