//! Sends one request to the API, with a deadline, and returns a failure as a value that names its
//! cause and its fix.
//!
//! ```no_run
//! # use nearhop_runtime::client::{ApiCall, ApiFailure, ApiSender, Client};
//! # async fn example(client: Client) -> Result<(), ApiFailure> {
//! let sender = ApiSender::new(client, "my-field-manager");
//! let service = ApiCall::get("/api/v1/namespaces/shop/services/web", "Service shop/web");
//! let service: serde_json::Value = match sender.send_json(service).await {
//!     Err(ApiFailure::NotFound { .. }) => return Ok(()),
//!     reply => reply?,
//! };
//! let patch = serde_json::json!({"metadata": {"labels": {"checked": "true"}}});
//! let call = ApiCall::merge_patch("/api/v1/namespaces/shop/services/web", &patch, "Service shop/web");
//! sender.send(call).await?;
//! # Ok(())
//! # }
//! ```
//!
//! The caller decides whether and when to retry: [`ApiFailure::cause`] and
//! [`ApiFailure::retry_after`] fit the [work queue](crate::queue).

use std::time::{Duration, Instant};

use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::body::Bytes;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions};
use kube::Client;
use kube::client::Body;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::watch;

use super::refusal::{Refusal, retry_after};
use crate::lease::Leadership;
use crate::queue::Cause;
use crate::root_cause;

/// The deadline of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

const JSON: &str = "application/json";

/// Whether this process may send requests.
#[derive(Clone, Debug)]
pub enum Fence {
    /// Always: there is no leader election.
    Open,
    /// Only while this process holds the lease.
    Lease {
        /// Whether it holds the lease.
        leadership: watch::Receiver<Leadership>,
        /// How long a request may go on after the lease is lost, because no other process can hold
        /// it yet.
        grace: Duration,
    },
}

impl Fence {
    /// How long a request that starts now may take; `None` if it may not start.
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

/// Why a request failed. `what` names the object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are the same in all variants")]
pub enum ApiFailure {
    /// This process does not hold the lease (any more), and sent nothing.
    #[error("the lease was lost before the write")]
    Fenced,
    /// Another client wrote the object after this process read it.
    #[error("{what}: another client changed it in the meantime")]
    Conflict { what: String },
    /// An object of this name exists.
    #[error("{what}: it already exists")]
    AlreadyExists { what: String },
    /// The object does not exist (any more).
    #[error("{what}: not found")]
    NotFound { what: String },
    /// The namespace is being deleted, and takes no new objects.
    #[error("{what}: the namespace is being deleted")]
    NamespaceTerminating { what: String },
    /// RBAC does not allow the request.
    #[error(
        "{what}: {message}; grant the permission (`nearhop manifests` prints what nearhop needs)"
    )]
    Forbidden { what: String, message: String },
    /// The server rejects the request as it is.
    #[error("{what}: {message} (HTTP {code})")]
    Rejected { what: String, code: u16, message: String },
    /// The server is overloaded or has an internal error.
    #[error("{what}: {message} (HTTP {code}); will retry")]
    Unavailable { what: String, code: u16, message: String, retry_after: Option<Duration> },
    /// The server sent no complete reply.
    #[error("{what}: no reply: {message}; will retry")]
    Unreachable { what: String, message: String },
    /// nearhop panicked while it handled the request.
    #[error("{what}: nearhop panicked; please report this defect with the log")]
    Panicked { what: String },
}

impl ApiFailure {
    /// What fails, in a text that stays the same from one attempt to the next.
    pub fn responsible(&self) -> String {
        match self {
            Self::Fenced => "the lease".to_owned(),
            Self::Conflict { .. } => "another writer of the object".to_owned(),
            Self::NotFound { .. } | Self::NamespaceTerminating { .. } => "the namespace".to_owned(),
            Self::Forbidden { .. } => "RBAC".to_owned(),
            Self::Rejected { code, .. } => format!("the API server (HTTP {code})"),
            Self::AlreadyExists { .. } | Self::Unavailable { .. } | Self::Unreachable { .. } => {
                "the API server".to_owned()
            }
            Self::Panicked { .. } => "nearhop".to_owned(),
        }
    }

    /// Whether a retry probably succeeds without a change by the user.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Fenced
                | Self::Conflict { .. }
                | Self::AlreadyExists { .. }
                | Self::NotFound { .. }
                | Self::Unavailable { .. }
        )
    }

    /// Whether the object or the server is the cause.
    pub fn cause(&self) -> Cause {
        match self {
            Self::Unavailable { .. } | Self::Unreachable { .. } => Cause::Server,
            _ => Cause::Object,
        }
    }

    /// The minimum wait that the server requests.
    pub fn retry_after(&self) -> Duration {
        match self {
            Self::Unavailable { retry_after, .. } => retry_after.unwrap_or_default(),
            _ => Duration::ZERO,
        }
    }
}

/// A request to send.
#[derive(Debug)]
pub struct ApiCall {
    /// The HTTP method.
    pub method: Method,
    /// Path and query.
    pub path: String,
    /// `Content-Type` of the body.
    pub content_type: &'static str,
    /// `Accept`.
    pub accept: &'static str,
    /// The body, empty for none.
    pub body: Vec<u8>,
    /// The object, for messages.
    pub what: String,
}

impl ApiCall {
    /// A request with any method, and a body of this content type.
    pub fn new(
        method: Method,
        path: impl Into<String>,
        content_type: &'static str,
        body: Vec<u8>,
        what: impl Into<String>,
    ) -> Self {
        let (path, what) = (path.into(), what.into());
        Self { method, path, content_type, accept: JSON, body, what }
    }

    /// Reads an object, or a list.
    pub fn get(path: impl Into<String>, what: impl Into<String>) -> Self {
        Self::new(Method::GET, path, "", Vec::new(), what)
    }

    /// Creates an object at the path of its collection.
    pub fn create(path: impl Into<String>, body: Vec<u8>, what: impl Into<String>) -> Self {
        Self::new(Method::POST, path, JSON, body, what)
    }

    /// Changes an object by a JSON merge patch.
    pub fn merge_patch(path: impl Into<String>, patch: &Value, what: impl Into<String>) -> Self {
        let body = patch.to_string().into_bytes();
        Self::new(Method::PATCH, path, "application/merge-patch+json", body, what)
    }

    /// Changes an object by a strategic merge patch.
    pub fn strategic_patch(
        path: impl Into<String>,
        patch: &Value,
        what: impl Into<String>,
    ) -> Self {
        let body = patch.to_string().into_bytes();
        Self::new(Method::PATCH, path, "application/strategic-merge-patch+json", body, what)
    }

    /// Deletes an object if it has this UID and, where one is given, this resourceVersion.
    pub fn delete(
        path: impl Into<String>,
        uid: &str,
        version: Option<&str>,
        what: impl Into<String>,
    ) -> Self {
        let (uid, resource_version) = (Some(uid.to_owned()), version.map(ToOwned::to_owned));
        let preconditions = Some(Preconditions { uid, resource_version });
        let options = DeleteOptions { preconditions, ..DeleteOptions::default() };
        Self::delete_with(path, &options, what)
    }

    /// Deletes an object with these options.
    pub fn delete_with(
        path: impl Into<String>,
        options: &DeleteOptions,
        what: impl Into<String>,
    ) -> Self {
        let body = serde_json::to_vec(options).expect("options are JSON");
        Self::new(Method::DELETE, path, JSON, body, what)
    }
}

/// Sends requests to the API while its [`Fence`] allows it. Clones are cheap.
#[derive(Clone)]
pub struct ApiSender {
    client: Client,
    fence: Fence,
    /// Of POST, PUT and PATCH requests whose path names none.
    field_manager: &'static str,
}

impl ApiSender {
    /// A sender that is always allowed to send, and writes as this field manager.
    pub fn new(client: Client, field_manager: &'static str) -> Self {
        Self { client, fence: Fence::Open, field_manager }
    }

    /// The same sender with a fence.
    #[must_use]
    pub fn with_fence(self, fence: Fence) -> Self {
        Self { fence, ..self }
    }

    /// Sends a request and reads the reply as JSON.
    pub async fn send_json<T: DeserializeOwned>(&self, call: ApiCall) -> Result<T, ApiFailure> {
        let what = call.what.clone();
        let body = self.send(call).await?;
        let unreadable = |error: serde_json::Error| format!("the reply cannot be read: {error}");
        serde_json::from_slice(&body)
            .map_err(|error| ApiFailure::Unreachable { what, message: unreadable(error) })
    }

    /// Sends a request and reads the whole reply.
    pub async fn send(&self, call: ApiCall) -> Result<Bytes, ApiFailure> {
        let ApiCall { method, mut path, content_type, accept, body, what } = call;
        let allowance = self.fence.allowance(Instant::now()).ok_or(ApiFailure::Fenced)?;
        let writes = matches!(method, Method::POST | Method::PUT | Method::PATCH);
        if writes && !path.contains("fieldManager=") {
            path.push(if path.contains('?') { '&' } else { '?' });
            path += "fieldManager=";
            path += self.field_manager;
        }
        let mut request =
            Request::builder().method(method).uri(path).header(header::ACCEPT, accept);
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, content_type);
        }
        let request = match request.body(Body::from(body)) {
            Ok(request) => request,
            Err(error) => {
                return Err(ApiFailure::Rejected { what, code: 400, message: error.to_string() });
            }
        };
        let exchange = async {
            let reply = self.client.send(request).await.map_err(|error| root_cause(&error))?;
            let (status, retry_after) = (reply.status(), retry_after(reply.headers()));
            let body = reply.into_body().collect().await.map_err(|error| root_cause(&error))?;
            Ok((status, retry_after, body.to_bytes()))
        };
        let reply = tokio::time::timeout(allowance, exchange).await;
        let late = |_| Err(format!("none within {} s", allowance.as_secs_f32()));
        match reply.unwrap_or_else(late) {
            Ok((status, _, body)) if status.is_success() => Ok(body),
            Ok((status, retry_after, body)) => Err(read_failure(what, status, retry_after, &body)),
            Err(message) => Err(ApiFailure::Unreachable { what, message }),
        }
    }
}

fn read_failure(
    what: String,
    code: StatusCode,
    retry_after: Option<Duration>,
    body: &[u8],
) -> ApiFailure {
    let status: Refusal = serde_json::from_slice(body).unwrap_or_default();
    let terminating = status.has_cause("NamespaceTerminating");
    let message = if status.message.is_empty() { code.to_string() } else { status.message };
    match code.as_u16() {
        403 if terminating => ApiFailure::NamespaceTerminating { what },
        401 | 403 => ApiFailure::Forbidden { what, message },
        404 => ApiFailure::NotFound { what },
        409 if status.reason == "AlreadyExists" => ApiFailure::AlreadyExists { what },
        409 => ApiFailure::Conflict { what },
        code @ (429 | 500..) => ApiFailure::Unavailable { what, code, message, retry_after },
        code => ApiFailure::Rejected { what, code, message },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(code: u16, body: &str) -> ApiFailure {
        let status = StatusCode::from_u16(code).unwrap();
        read_failure("EndpointSlice a/b".into(), status, None, body.as_bytes())
    }

    #[test]
    fn replies_map_to_failures() {
        let terminating = r#"{"reason":"Forbidden","message":"no","details":{"causes":[{"reason":"NamespaceTerminating"}]}}"#;
        let exists = r#"{"reason":"AlreadyExists"}"#;
        use ApiFailure as F;
        assert!(matches!(failure(403, terminating), F::NamespaceTerminating { .. }));
        assert!(matches!(failure(403, r#"{"message":"no"}"#), F::Forbidden { .. }));
        assert!(matches!(failure(404, "not json"), F::NotFound { .. }));
        assert!(matches!(failure(409, r#"{"reason":"Conflict"}"#), F::Conflict { .. }));
        assert!(matches!(failure(409, exists), F::AlreadyExists { .. }));
        assert!(matches!(failure(422, r#"{"message":"bad"}"#), F::Rejected { code: 422, .. }));
        assert!(matches!(failure(503, ""), F::Unavailable { code: 503, .. }));
    }

    #[test]
    fn requests_need_a_valid_lease() {
        let now = Instant::now();
        let (sender, leadership) = watch::channel(Leadership::Standby);
        let fence = Fence::Lease { leadership, grace: Duration::from_secs(2) };
        assert_eq!(fence.allowance(now), None);
        sender.send_replace(Leadership::Leading { until: now + Duration::from_secs(3) });
        assert_eq!(fence.allowance(now), Some(Duration::from_secs(5)));
        assert_eq!(
            fence.allowance(now + Duration::from_secs(3)),
            None,
            "the lease was not renewed"
        );
    }
}
