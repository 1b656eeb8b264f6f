//! Why a list or a watch came to nothing, and what that asks for: patience, a new list, another
//! kind of list. None of it leaves the crate but as text in a log and a status.

use std::fmt;
use std::time::Duration;

use nearhop_api::Version;
use nearhop_core::Kind;
use serde::{Deserialize, Deserializer};

/// No server is left alone for longer, whatever it asks for: a wrong `Retry-After` would otherwise
/// freeze a kind for as long as it says.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(60);

/// Why a list or a watch came to nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// No answer could be had.
    #[error("the API server cannot be reached: {}", chain(.0))]
    Unreachable(#[source] kube::Error),
    /// The answer broke off.
    #[error("the answer broke off: {}", chain(.0))]
    Broken(#[source] kube::Error),
    /// The server said no.
    #[error("{0}")]
    Refused(Refusal),
    /// The server said nothing.
    #[error("no answer for {0:?}")]
    Silent(Duration),
    /// A list is no JSON.
    #[error("the list cannot be read: {0}")]
    Unreadable(#[from] serde_json::Error),
    /// A list without a version cannot be followed by a watch.
    #[error("the list has no resourceVersion")]
    Versionless,
    /// A streaming list ended, or went quiet, without saying that it was complete.
    #[error("the streaming list was left incomplete; lists are paged from now on")]
    Incomplete,
    /// The server has forgotten what it has already sent: its store was put back.
    #[error("the server went back from version {} to {}; listing again", .from.as_str(), .to.as_str())]
    WentBack {
        /// What was seen.
        from: Version,
        /// What it says is newest.
        to: Version,
    },
    /// Nobody receives events any more.
    #[error("nobody receives events any more")]
    Unwanted,
}

impl Error {
    /// With what to do about it, where somebody can do something.
    pub(crate) fn describe(&self, kind: Kind) -> String {
        let resource = kind.resource();
        match self {
            Self::Refused(refusal) if refusal.code == 401 => {
                format!("{self}; give credentials that the API server accepts")
            }
            Self::Refused(refusal) if kind == Kind::ServiceCidr && self.is_undefined(kind) => {
                let cure = if refusal.code == 403 {
                    "grant list and watch on servicecidrs of networking.k8s.io"
                } else {
                    "use Kubernetes 1.33 or later"
                };
                format!(
                    "{self}; ServiceCIDRs are done without: {cure}, or name the ranges by a flag"
                )
            }
            Self::Refused(_) if self.is_undefined(kind) => format!(
                "the server does not know {resource}, so there are none; define them: \
                 nearhop manifests | kubectl apply -f -"
            ),
            Self::Refused(refusal) if refusal.code == 403 => {
                format!("{self}; grant list and watch on {resource}")
            }
            _ => self.to_string(),
        }
    }

    /// Whether the server does not know the kind, or does not show it, and need not.
    pub(crate) fn is_undefined(&self, kind: Kind) -> bool {
        let Self::Refused(Refusal { code, .. }) = self else { return false };
        match kind {
            Kind::Locator => *code == 404,
            Kind::ServiceCidr => matches!(code, 403 | 404),
            _ => false,
        }
    }

    /// How long the server wants to be left alone, a minute at most.
    pub(crate) fn retry_after(&self) -> Duration {
        match self {
            Self::Refused(refusal) => refusal.details.retry_after,
            _ => Duration::ZERO,
        }
    }
}

/// An error with its causes: kube's say only in which layer it happened.
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

/// A `Status` that says no.
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

/// Any number, be it too large for every integer: a `Status` is not unreadable because of it.
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

    /// Whether the version asked for is too old for the server.
    pub(crate) fn is_expired(&self) -> bool {
        self.code == 410 || self.reason == "Expired" || self.reason == "Gone"
    }

    /// Whether the request is at fault rather than who sends it, or when.
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
    fn a_refusal_is_read_from_a_status_or_from_text() {
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
    fn the_cure_is_told() {
        let error = Error::Refused(Refusal::read(403, None, b"no"));
        assert_eq!(error.describe(Kind::Pod), "403: no; grant list and watch on pods");
        let error = Error::Refused(Refusal::read(404, None, b"no"));
        assert_eq!(error.describe(Kind::Pod), "404: no", "every server knows Pods");
        assert!(error.describe(Kind::Locator).contains("nearhop manifests | kubectl apply"));
        assert!(error.describe(Kind::ServiceCidr).contains("Kubernetes 1.33"));
    }

    #[test]
    fn a_server_is_left_alone_for_a_minute_at_most() {
        let minute = Duration::from_secs(60);
        for absurd in ["61", "9223372036854775808", "99999999999999999999", "1e400"] {
            assert_eq!(parse_retry_after(absurd), Some(minute), "{absurd}");
        }
        for absurd in ["61", "9223372036854775808", "99999999999999999999"] {
            let body = format!(r#"{{"reason":"Busy","details":{{"retryAfterSeconds":{absurd}}}}}"#);
            let refusal = Refusal::read(429, None, body.as_bytes());
            assert_eq!(refusal.to_string(), "429 Busy: ", "it is a Status all the same");
            assert_eq!(Error::Refused(refusal).retry_after(), minute, "{absurd}");
        }
        assert_eq!(parse_retry_after("-5"), Some(Duration::ZERO));
        assert_eq!(parse_retry_after("NaN"), Some(Duration::ZERO));
        assert_eq!(parse_retry_after("Wed, 21 Oct 2026 07:28:00 GMT"), None);
    }
}
