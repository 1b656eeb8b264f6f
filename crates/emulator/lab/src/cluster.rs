//! A client of the lab's API for objects as JSON, by path.

use std::path::Path;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions;
use kube::client::Body;
use kube::core::Status;
use nearhop_runtime::client::{
    ApiCall, ApiFailure, ApiSender, Client, ClientOptions, Way, connect_by,
};
use nearhop_runtime::root_cause;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout_at};

use crate::LabError;
use crate::apply::Outcome;

/// How long something may take to become ready.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Pause between two checks.
const POLL: Duration = Duration::from_millis(25);

/// How long a check may take at least, even if its time limit is shorter.
const LEAST: Duration = Duration::from_secs(1);

/// Why a check did not end.
const SILENT: &str =
    "no answer from the lab or its API server. Cure: `nearhop lab status` shows what runs";

/// The beginning of the User-Agent of the lab's own requests.
pub(crate) const USER_AGENT: &str = "nearhop-lab/";

/// The field manager of the lab's writes.
const MANAGER: &str = "nearhop-lab";

/// A client of the lab's API with all rights.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    sender: ApiSender,
}

impl Cluster {
    /// Reads a kubeconfig. Does not send a request yet.
    pub async fn connect(kubeconfig: &Path) -> Result<Self, LabError> {
        let options = ClientOptions {
            kubeconfig: Some(kubeconfig.to_owned()),
            context: None,
            user_agent: format!("{USER_AGENT}{}", env!("CARGO_PKG_VERSION")),
        };
        // The lab is on this machine, so an HTTP proxy cannot reach it.
        let client = connect_by(Way::Direct, &options, None).await;
        let unusable = |error: nearhop_runtime::RuntimeError| LabError::Kubeconfig {
            path: kubeconfig.to_owned(),
            why: error.to_string(),
        };
        Ok(Self::new(client.map_err(unusable)?))
    }

    pub(crate) fn new(client: Client) -> Self {
        Self { sender: ApiSender::new(client.clone(), MANAGER), client }
    }

    /// The client, for requests that are not plain JSON.
    pub fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Value, LabError> {
        Ok(self.sender.send_json(ApiCall::get(path, path)).await?)
    }

    /// The items of a list.
    pub(crate) async fn list(&self, path: &str) -> Result<Vec<Value>, LabError> {
        match self.get(path).await?["items"].take() {
            Value::Array(items) => Ok(items),
            _ => Ok(Vec::new()),
        }
    }

    /// Creates an object at the path of its collection.
    pub async fn create(&self, path: &str, object: &Value) -> Result<Value, LabError> {
        let body = object.to_string().into_bytes();
        Ok(self.sender.send_json(ApiCall::create(path, body, path)).await?)
    }

    /// Applies an object; fields that other clients own are not changed.
    pub(crate) async fn apply(&self, path: &str, object: &Value) -> Result<Outcome, LabError> {
        let request = http::Request::patch(format!("{path}?fieldManager={MANAGER}"))
            .header(http::header::CONTENT_TYPE, "application/apply-patch+yaml")
            .body(object.to_string().into_bytes());
        let request = request.expect("a path and two headers");
        let unreachable = |error: &(dyn std::error::Error + 'static)| {
            let (what, message) = (path.to_owned(), root_cause(error));
            LabError::from(ApiFailure::Unreachable { what, message })
        };
        let request = request.map(Body::from);
        let reply = self.client.send(request).await.map_err(|error| unreachable(&error))?;
        let (head, body) = reply.into_parts();
        if head.status.is_success() {
            return Ok(Outcome::Applied(read_warnings(&head.headers)));
        }
        let body = body.collect_bytes().await.map_err(|error| unreachable(&error))?;
        let status: Status = serde_json::from_slice(&body).unwrap_or_default();
        if head.status == http::StatusCode::CONFLICT {
            let causes = status.details.map(|details| details.causes).unwrap_or_default();
            return Ok(Outcome::Conflicts(causes));
        }
        let message = match status.message {
            message if message.is_empty() => head.status.to_string(),
            message => message,
        };
        let (what, code) = (path.to_owned(), head.status.as_u16());
        Err(ApiFailure::Rejected { what, code, message }.into())
    }

    /// Applies an object that belongs to the lab alone.
    pub(crate) async fn apply_by_force(&self, path: &str, object: &Value) -> Result<(), LabError> {
        let body = object.to_string().into_bytes();
        let target = format!("{path}?force=true");
        let kind = "application/apply-patch+yaml";
        let call = ApiCall::new(http::Method::PATCH, target, kind, body, path);
        self.sender.send(call).await?;
        Ok(())
    }

    /// Changes an object by a merge patch.
    pub(crate) async fn patch(&self, path: &str, patch: &Value) -> Result<Value, LabError> {
        Ok(self.sender.send_json(ApiCall::merge_patch(path, patch, path)).await?)
    }

    /// Deletes an object without a grace period.
    pub(crate) async fn delete_now(&self, path: &str) -> Result<Value, LabError> {
        let options = DeleteOptions { grace_period_seconds: Some(0), ..DeleteOptions::default() };
        Ok(self.sender.send_json(ApiCall::delete_with(path, &options, path)).await?)
    }
}

/// The texts of the headers `Warning: 299 - "text"`.
fn read_warnings(headers: &http::HeaderMap) -> Vec<String> {
    let all = headers.get_all(http::header::WARNING).iter();
    let text = |value: &http::HeaderValue| {
        let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
        let quoted = value.split_once('"').and_then(|(_, rest)| rest.strip_suffix('"'));
        quoted.unwrap_or(&value).replace("\\\"", "\"").replace("\\\\", "\\")
    };
    all.map(text).collect()
}

/// The message of the API server, or why there is none.
pub fn describe(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => format!(
            "the API server does not answer ({}). Cure: `nearhop lab status` shows whether it runs",
            root_cause(other)
        ),
    }
}

/// The awaited value, or the names of what is missing.
pub(crate) type Awaited<T> = Result<T, Vec<String>>;

pub(crate) fn none_missing(missing: Vec<String>) -> Awaited<()> {
    if missing.is_empty() { Ok(()) } else { Err(missing) }
}

/// How long to wait, and how often to look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) limit: Duration,
    /// Pause between two looks.
    pub(crate) poll: Duration,
}

/// Checks until nothing is missing. A failed check counts as missing.
/// Fails if something is missing for a minute.
pub(crate) async fn wait_for<T, F>(what: &str, look: impl FnMut() -> F) -> Result<T, LabError>
where
    F: Future<Output = Result<Awaited<T>, LabError>>,
{
    wait_for_at(Pace { limit: TIMEOUT, poll: POLL }, what, look).await
}

/// The same at another pace.
pub(crate) async fn wait_for_at<T, F>(
    pace: Pace,
    what: &str,
    mut look: impl FnMut() -> F,
) -> Result<T, LabError>
where
    F: Future<Output = Result<Awaited<T>, LabError>>,
{
    let deadline = Instant::now() + pace.limit;
    loop {
        // A limit of zero looks once.
        let until = deadline.max(Instant::now() + LEAST);
        let still = match timeout_at(until, look()).await {
            Ok(Ok(Ok(there))) => return Ok(there),
            Ok(Ok(Err(missing))) => missing.join(", "),
            Ok(Err(error)) => error.to_string(),
            Err(_) => SILENT.to_owned(),
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let seconds = (pace.limit.as_secs_f64() * 10.0).round() / 10.0;
            return Err(LabError::NotReady(format!("{what} not ready after {seconds} s: {still}")));
        }
        sleep(pace.poll.min(left)).await;
    }
}

/// Whether a Node or a Pod has the condition Ready.
pub(crate) fn is_ready(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.is_some_and(|conditions| {
        conditions.iter().any(|one| one["type"] == "Ready" && one["status"] == "True")
    })
}

/// `metadata.name`.
pub(crate) fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: Pace = Pace { limit: Duration::from_secs(3), poll: Duration::from_millis(250) };

    #[tokio::test(start_paused = true)]
    async fn a_check_that_does_not_end_is_limited() {
        let begun = Instant::now();
        let look = || std::future::pending::<Result<Awaited<()>, LabError>>();
        let said = wait_for_at(PACE, "it is", look).await.expect_err("never").to_string();
        assert_eq!(begun.elapsed().as_secs(), 3);
        assert!(said.starts_with("it is not ready after 3 s: no answer"), "{said}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_missing_at_the_end_is_named() {
        let mut looks = 0;
        let limit = Duration::from_nanos(999_890_387);
        let said = wait_for_at(Pace { limit, ..PACE }, "it is", || {
            looks += 1;
            async { Ok(none_missing(vec!["node n1".to_owned()])) }
        });
        let said = said.await.expect_err("never").to_string();
        assert_eq!(said, "it is not ready after 1 s: node n1");
        assert_eq!(looks, 5, "one look per 250 ms");
        let at_once = Pace { limit: Duration::ZERO, ..PACE };
        let done = wait_for_at(at_once, "it is", || async {
            sleep(Duration::from_millis(100)).await;
            Ok(Ok(7))
        });
        assert_eq!(done.await.expect("it looks once"), 7);
    }
}
