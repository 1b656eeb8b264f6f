//! Errors of lists and watches. They leave the crate only as text in log lines and statuses.

use std::time::Duration;

use nearhop_api::Version;
use nearhop_runtime::client::{Refusal, describe_failure};

use super::Target;

/// Why a list or a watch failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The API server is unreachable.
    #[error("{}", describe_failure(.0))]
    Unreachable(#[source] kube::Error),
    /// The connection ended within a response, as when the API server restarts. The causes below
    /// it differ by TLS and HTTP version and tell an operator no more; the debug log has them.
    #[error("API server closed the watch")]
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
            Self::Refused(refusal) => refusal.retry_after(),
            _ => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_ends_is_described_without_the_layers_below() {
        let ended = || {
            let why = "peer closed connection without sending TLS close_notify";
            kube::Error::Service(Box::new(std::io::Error::other(why)))
        };
        assert_eq!(Error::Broken(ended()).to_string(), "API server closed the watch");
        let refused = kube::Error::Service(Box::new(std::io::Error::other("connection refused")));
        let unreachable = Error::Unreachable(refused).to_string();
        assert_eq!(unreachable, "cannot reach the API server: connection refused");
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
}
