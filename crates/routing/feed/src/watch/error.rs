//! Errors of lists and watches. They leave the crate only as text in log lines and statuses.

use std::fmt;
use std::time::Duration;

use nearhop_api::Version;
use serde::{Deserialize, Deserializer};

use super::Target;

/// The longest `Retry-After` that is followed: a wrong value must not stop a watch for hours.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(60);

/// Why a list or a watch failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The API server is unreachable.
    #[error("the API server is unreachable: {}", chain(.0))]
    Unreachable(#[source] kube::Error),
    /// The response ended early.
    #[error("the response ended early: {}", chain(.0))]
    Broken(#[source] kube::Error),
    /// The API server rejected the request.
    #[error("{0}")]
    Refused(Refusal),
    /// The API server sent nothing.
    #[error("no data for {0:?}")]
    Silent(Duration),
    /// The list is not JSON.
    #[error("the list cannot be read: {0}")]
    Unreadable(#[from] serde_json::Error),
    /// A list without a version cannot be followed by a watch.
    #[error("the list has no resourceVersion")]
    Versionless,
    /// A streaming list ended, or was silent for too long, before it was complete.
    #[error("the streaming list ended before it was complete; using paged lists")]
    Incomplete,
    /// The API server lost versions that it had sent: its store was restored from a backup.
    #[error("resourceVersion decreased from {} to {}; listing again", .from.as_str(), .to.as_str())]
    WentBack {
        /// The version seen before.
        from: Version,
        /// The version that it sent now.
        to: Version,
    },
    /// The receiver of events was dropped.
    #[error("the receiver of events was dropped")]
    NoReceiver,
}

impl Error {
    /// The message for logs and statuses: with what to do, where an operator can do something.
    pub(crate) fn describe(&self, target: &Target) -> String {
        match (self.code(), target.tolerates(self)) {
            (Some(code), Some(tolerated)) => (tolerated.describe)(&self.to_string(), code),
            (Some(401), _) => format!("{self}; give credentials that the API server accepts"),
            (Some(403), _) => format!("{self}; grant list and watch on {}", target.resource),
            _ => self.to_string(),
        }
    }

    /// The HTTP status code of a rejection.
    pub(crate) fn code(&self) -> Option<u16> {
        match self {
            Self::Refused(refusal) => Some(refusal.code),
            _ => None,
        }
    }

    /// How long the API server asks to wait, a minute at most.
    pub(crate) fn retry_after(&self) -> Duration {
        match self {
            Self::Refused(refusal) => refusal.details.retry_after,
            _ => Duration::ZERO,
        }
    }
}

/// An error with its causes: the text of kube's errors names only the layer.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        // Some repeat their cause in their own text.
        if !text.contains(&more) {
            text += ": ";
            text += &more;
        }
        cause = error.source();
    }
    text
}

/// A `Status` that rejects a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Refusal {
    pub(crate) code: u16,
    reason: String,
    message: String,
    details: Details,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Details {
    #[serde(rename = "retryAfterSeconds", deserialize_with = "read_seconds")]
    retry_after: Duration,
}

/// Any number, even one that no integer type holds: the `Status` must stay readable.
fn read_seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let seconds = Option::<f64>::deserialize(deserializer)?.unwrap_or_default();
    Ok(bounded(seconds))
}

/// The value of a `Retry-After` header in seconds; a date is not read.
pub(crate) fn parse_retry_after(text: &str) -> Option<Duration> {
    text.trim().parse().ok().map(bounded)
}

fn bounded(seconds: f64) -> Duration {
    let most = LONGEST_RETRY_AFTER.as_secs_f64();
    Duration::try_from_secs_f64(seconds.clamp(0.0, most)).unwrap_or_default()
}

impl Refusal {
    /// From an answer: the code and `Retry-After` of its head, and a body that need not be a
    /// `Status` (a server that is too busy sends plain text).
    pub(crate) fn read(code: u16, retry_after: Option<Duration>, body: &[u8]) -> Self {
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

    /// Whether the requested version is too old for the API server.
    pub(crate) fn is_expired(&self) -> bool {
        self.code == 410 || self.reason == "Expired" || self.reason == "Gone"
    }

    /// Whether the request itself is at fault, not its sender or its time.
    pub(crate) fn is_about_the_request(&self) -> bool {
        (400..500).contains(&self.code) && !matches!(self.code, 401 | 403 | 404 | 408 | 410 | 429)
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
        assert_eq!(Error::Refused(refusal).retry_after(), Duration::from_secs(3));
        let busy = Refusal::read(429, second, b"Too many requests\n");
        assert_eq!(busy.to_string(), "429: Too many requests");
        assert_eq!(Error::Refused(busy).retry_after(), Duration::from_secs(1));
    }

    #[test]
    fn rejections_describe_the_fix() {
        let describe = |code, target: &Target| {
            Error::Refused(Refusal::read(code, None, b"no")).describe(target)
        };
        let pods = Target::new("pods", "/api/v1/pods".to_owned());
        assert_eq!(describe(403, &pods), "403: no; grant list and watch on pods");
        assert_eq!(describe(404, &pods), "404: no");
        let describe_tolerated = |error: &str, _| format!("{error} is fine");
        let tolerated = super::super::Tolerated {
            codes: &[404],
            longest_pause: Duration::MAX,
            describe: describe_tolerated,
        };
        let optional = Target { tolerated: Some(tolerated), ..pods };
        assert_eq!(describe(404, &optional), "404: no is fine");
    }

    #[test]
    fn retry_after_is_at_most_a_minute() {
        let minute = Duration::from_secs(60);
        for absurd in ["61", "9223372036854775808", "99999999999999999999", "1e400"] {
            assert_eq!(parse_retry_after(absurd), Some(minute), "{absurd}");
        }
        for absurd in ["61", "9223372036854775808", "99999999999999999999"] {
            let body = format!(r#"{{"reason":"Busy","details":{{"retryAfterSeconds":{absurd}}}}}"#);
            let refusal = Refusal::read(429, None, body.as_bytes());
            assert_eq!(refusal.to_string(), "429 Busy: ", "the body is still parsed as a Status");
            assert_eq!(Error::Refused(refusal).retry_after(), minute, "{absurd}");
        }
        assert_eq!(parse_retry_after("-5"), Some(Duration::ZERO));
        assert_eq!(parse_retry_after("NaN"), Some(Duration::ZERO));
        assert_eq!(parse_retry_after("Wed, 21 Oct 2026 07:28:00 GMT"), None);
    }
}
