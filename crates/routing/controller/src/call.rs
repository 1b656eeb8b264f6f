//! One request to the API, with its deadline and its failure as a value that says cause and cure.
//!
//! Nothing is sent without a valid lease, and no request outlives it: see [`Fence`].

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use kube::client::Body;
use nearhop_runtime::lease::Leadership;
use serde::Deserialize;
use tokio::sync::watch;

/// A request that takes longer has failed.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// No server is left alone for longer, whatever it asks for: an object would otherwise stay as it is
/// for as long as a wrong `Retry-After` says.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(60);

/// Field manager of everything the controller writes.
pub(crate) const FIELD_MANAGER: &str = "nearhop-controller";

/// Whether this process may act.
#[derive(Clone, Debug)]
pub(crate) enum Fence {
    /// Without leader election: always.
    Open,
    /// As long as the lease is held; and how long after losing it a request may still be under
    /// way, because nobody else can have taken it yet.
    Lease { leadership: watch::Receiver<Leadership>, grace: Duration },
}

impl Fence {
    /// How long a request may take that starts now; none if it may not start.
    fn allowance(&self, now: Instant) -> Option<Duration> {
        let Self::Lease { leadership, grace } = self else { return Some(REQUEST_TIMEOUT) };
        match *leadership.borrow() {
            Leadership::Leading { until } if now < until => {
                Some(REQUEST_TIMEOUT.min(until - now + *grace))
            }
            _ => None,
        }
    }
}

/// Why a request did not do what it was to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    /// The lease is not ours (any more).
    #[error("the lease was lost before the write")]
    Fenced,
    /// Somebody else wrote the object after we read it.
    #[error("{what}: somebody else wrote it meanwhile; it is read again")]
    Conflict { what: String },
    /// The object is not there.
    #[error("{what}: not there (any more)")]
    NotFound { what: String },
    /// Everything in this namespace is going.
    #[error("{what}: the namespace is being deleted")]
    NamespaceTerminating { what: String },
    /// Not allowed.
    #[error("{what}: {message}; grant what `nearhop manifests` prints")]
    Forbidden { what: String, message: String },
    /// The server does not want it like this.
    #[error("{what}: {message} (HTTP {code})")]
    Refused { what: String, code: u16, message: String },
    /// The server has too much to do, or is in trouble.
    #[error("{what}: {message} (HTTP {code}); it is tried again")]
    Trouble { what: String, code: u16, message: String, retry_after: Option<Duration> },
    /// No answer.
    #[error("{what}: no answer: {message}; it is tried again")]
    Unreachable { what: String, message: String },
    /// nearhop is wrong.
    #[error("{what}: a defect of nearhop: it panicked; please report it with the log")]
    Defect { what: String },
}

impl Failure {
    /// What stands in the way, without what changes from one attempt to the next.
    pub(crate) fn culprit(&self) -> String {
        match self {
            Self::Fenced => "the lease".to_owned(),
            Self::Conflict { .. } => "another writer of the EndpointSlices".to_owned(),
            Self::NotFound { .. } | Self::NamespaceTerminating { .. } => "the namespace".to_owned(),
            Self::Forbidden { .. } => "RBAC".to_owned(),
            Self::Refused { code, .. } => format!("the API server (HTTP {code})"),
            Self::Trouble { .. } | Self::Unreachable { .. } => "the API server".to_owned(),
            Self::Defect { .. } => "nearhop".to_owned(),
        }
    }

    /// Whether it mends itself. A lease that was late is renewed, or somebody else leads and
    /// nothing waits here.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::Fenced | Self::Conflict { .. } | Self::NotFound { .. } | Self::Trouble { .. }
        )
    }

    /// The least time to wait, where the server says it.
    pub(crate) fn retry_after(&self) -> Duration {
        match self {
            Self::Trouble { retry_after, .. } => retry_after.unwrap_or_default(),
            _ => Duration::ZERO,
        }
    }
}

/// What is to be sent.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) content_type: &'static str,
    pub(crate) body: Vec<u8>,
    /// The object, for messages.
    pub(crate) what: String,
}

impl Call {
    /// A read of one object.
    pub(crate) fn get(path: String, what: String) -> Self {
        Self { method: Method::GET, path, content_type: "", body: Vec::new(), what }
    }
}

/// Sends requests as long as the fence allows it.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) client: kube::Client,
    pub(crate) fence: Fence,
}

impl Caller {
    /// Sends a request and reads the whole answer.
    pub(crate) async fn send(&self, call: Call) -> Result<Bytes, Failure> {
        self.send_accepting(call, "application/json").await
    }

    /// The same, for an answer in this form.
    pub(crate) async fn send_accepting(
        &self,
        call: Call,
        accept: &'static str,
    ) -> Result<Bytes, Failure> {
        let Call { method, path, content_type, body, what } = call;
        let allowance = self.fence.allowance(Instant::now()).ok_or(Failure::Fenced)?;
        let mut request = Request::builder().method(method).uri(path);
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, content_type);
        }
        let request = request.header(header::ACCEPT, accept).body(Body::from(body));
        let request = request.expect("paths are made of checked names");
        let unreachable = |message: String| Failure::Unreachable { what: what.clone(), message };
        let exchange = async {
            let answer = self.client.send(request).await.map_err(|e| e.to_string())?;
            let (status, retry_after) = (answer.status(), retry_after(answer.headers()));
            let body = answer.into_body().collect().await.map_err(|e| e.to_string())?;
            Ok((status, retry_after, body.to_bytes()))
        };
        let answer = tokio::time::timeout(allowance, exchange).await;
        let (status, retry_after, body) = answer
            .map_err(|_| unreachable(format!("none within {} s", allowance.as_secs_f32())))?
            .map_err(unreachable)?;
        if status.is_success() {
            return Ok(body);
        }
        Err(read_failure(what, status, retry_after, &body))
    }
}

fn retry_after(headers: &http::HeaderMap) -> Option<Duration> {
    // A float takes any number of digits.
    let seconds: f64 = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    let bounded = seconds.clamp(0.0, LONGEST_RETRY_AFTER.as_secs_f64());
    Duration::try_from_secs_f64(bounded).ok()
}

/// The part of a Status that tells failures apart.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    message: String,
    reason: String,
    details: Details,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Details {
    causes: Vec<Cause>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Cause {
    reason: String,
}

fn read_failure(
    what: String,
    status: StatusCode,
    retry_after: Option<Duration>,
    body: &[u8],
) -> Failure {
    let said: Status = serde_json::from_slice(body).unwrap_or_default();
    let code = status.as_u16();
    let message = if said.message.is_empty() { status.to_string() } else { said.message };
    let terminating =
        said.details.causes.iter().any(|cause| cause.reason == "NamespaceTerminating");
    match code {
        403 if terminating => Failure::NamespaceTerminating { what },
        401 | 403 => Failure::Forbidden { what, message },
        404 => Failure::NotFound { what },
        409 if said.reason != "AlreadyExists" => Failure::Conflict { what },
        409 | 429 | 500.. => Failure::Trouble { what, code, message, retry_after },
        _ => Failure::Refused { what, code, message },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(code: u16, body: &str) -> Failure {
        let status = StatusCode::from_u16(code).unwrap();
        read_failure("EndpointSlice a/b".into(), status, None, body.as_bytes())
    }

    #[test]
    fn failures_are_told_apart() {
        let terminating = r#"{"reason":"Forbidden","message":"no","details":{"causes":[{"reason":"NamespaceTerminating"}]}}"#;
        assert!(matches!(failure(403, terminating), Failure::NamespaceTerminating { .. }));
        assert!(matches!(failure(403, "{}"), Failure::Forbidden { .. }));
        assert!(matches!(failure(404, "not json"), Failure::NotFound { .. }));
        assert!(matches!(failure(409, r#"{"reason":"Conflict"}"#), Failure::Conflict { .. }));
        assert!(matches!(failure(409, r#"{"reason":"AlreadyExists"}"#), Failure::Trouble { .. }));
        assert!(matches!(failure(422, r#"{"message":"bad"}"#), Failure::Refused { code: 422, .. }));
        assert!(matches!(failure(503, ""), Failure::Trouble { code: 503, .. }));
    }

    #[test]
    fn nothing_is_sent_without_the_lease() {
        let now = Instant::now();
        let (sender, leadership) = watch::channel(Leadership::Standby);
        let fence = Fence::Lease { leadership, grace: Duration::from_secs(2) };
        assert_eq!(fence.allowance(now), None);
        sender.send_replace(Leadership::Leading { until: now + Duration::from_secs(3) });
        assert_eq!(fence.allowance(now), Some(Duration::from_secs(5)));
        assert_eq!(fence.allowance(now + Duration::from_secs(3)), None, "it was not renewed");
    }

    #[test]
    fn a_server_is_left_alone_for_a_minute_at_most() {
        let asked = |value: &str| {
            let mut headers = http::HeaderMap::new();
            headers.insert(header::RETRY_AFTER, value.parse().unwrap());
            retry_after(&headers)
        };
        assert_eq!(asked("3"), Some(Duration::from_secs(3)));
        for absurd in ["61", "9223372036854775808", "99999999999999999999"] {
            assert_eq!(asked(absurd), Some(LONGEST_RETRY_AFTER), "{absurd}");
        }
        assert_eq!(asked("-1"), Some(Duration::ZERO));
        assert_eq!(asked("Wed, 21 Oct 2026 07:28:00 GMT"), None);
    }
}
