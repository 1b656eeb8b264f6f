//! The lab's API as its supervisor and `lab drive` use it: objects as JSON, by path.

use std::path::Path;
use std::time::{Duration, Instant};

use http::{Method, Request};
use nearhop_runtime::client::{Client, ClientOptions, Way, connect_by};
use serde_json::Value;

use crate::LabError;

/// How long something may take to become ready.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often somebody is asked who does not tell.
const POLL: Duration = Duration::from_millis(25);

/// An API, and the right to everything in it.
#[derive(Clone)]
pub struct Cluster(Client);

impl Cluster {
    /// By a kubeconfig. This does not talk to the server yet.
    ///
    /// # Errors
    ///
    /// The kubeconfig cannot be used.
    pub async fn connect(kubeconfig: &Path) -> Result<Self, LabError> {
        let options = ClientOptions {
            kubeconfig: Some(kubeconfig.to_owned()),
            context: None,
            user_agent: concat!("nearhop-lab/", env!("CARGO_PKG_VERSION")).to_owned(),
        };
        // A lab is on this machine, or is dialled from it: no proxy knows the way.
        let client = connect_by(Way::Direct, &options, None).await;
        let unusable = |error: nearhop_runtime::RuntimeError| LabError::Kubeconfig {
            path: kubeconfig.to_owned(),
            why: error.to_string(),
        };
        Ok(Self(client.map_err(unusable)?))
    }

    /// The client below.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.0
    }

    /// What is at a path.
    ///
    /// # Errors
    ///
    /// There is nothing, or the server does not answer.
    pub async fn get(&self, path: &str) -> Result<Value, LabError> {
        self.ask(Method::GET, path, "", None).await
    }

    /// The objects at a path.
    ///
    /// # Errors
    ///
    /// The server refuses, or does not answer.
    pub async fn list(&self, path: &str) -> Result<Vec<Value>, LabError> {
        match self.get(path).await?["items"].take() {
            Value::Array(items) => Ok(items),
            _ => Ok(Vec::new()),
        }
    }

    /// Creates an object, by the collection's path.
    ///
    /// # Errors
    ///
    /// The server refuses it, or does not answer.
    pub async fn create(&self, path: &str, object: &Value) -> Result<Value, LabError> {
        self.ask(Method::POST, path, "application/json", Some(object)).await
    }

    /// Changes an object by a merge patch.
    ///
    /// # Errors
    ///
    /// The server refuses it, or does not answer.
    pub async fn patch(&self, path: &str, patch: &Value) -> Result<Value, LabError> {
        self.ask(Method::PATCH, path, "application/merge-patch+json", Some(patch)).await
    }

    /// Deletes an object.
    ///
    /// # Errors
    ///
    /// The server refuses, or does not answer.
    pub async fn delete(&self, path: &str) -> Result<Value, LabError> {
        self.ask(Method::DELETE, path, "application/json", None).await
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        kind: &str,
        body: Option<&Value>,
    ) -> Result<Value, LabError> {
        let failed = |why: String| LabError::Api { what: format!("{method} {path}"), why };
        let body = body.map_or_else(Vec::new, |value| value.to_string().into_bytes());
        let request = Request::builder()
            .method(method.clone())
            .uri(path)
            .header(http::header::CONTENT_TYPE, kind)
            .body(body)
            .map_err(|error| failed(error.to_string()))?;
        self.0.request(request).await.map_err(|error| failed(describe(&error)))
    }
}

/// What the API said, or why it said nothing.
#[must_use]
pub fn describe(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => {
            let mut text = "the API server does not answer".to_owned();
            let mut cause: Option<&dyn std::error::Error> = Some(other);
            while let Some(error) = cause {
                if error.source().is_none() {
                    text += &format!(" ({error})");
                }
                cause = error.source();
            }
            text + ". Cure: `nearhop lab status` shows whether it runs"
        }
    }
}

/// What somebody waits for, or the names of those who keep it waiting.
pub type Awaited<T> = Result<T, Vec<String>>;

/// Nothing but the end of the waiting, or those who are missing.
///
/// # Errors
///
/// Somebody is missing.
pub fn none_missing(missing: Vec<String>) -> Awaited<()> {
    if missing.is_empty() { Ok(()) } else { Err(missing) }
}

/// Asks until it is there. What is asked may fail in between: it counts as missing.
///
/// # Errors
///
/// Something is missing for a minute; it is named.
pub async fn wait_for<T, F>(what: &str, mut look: impl FnMut() -> F) -> Result<T, LabError>
where
    F: Future<Output = Result<Awaited<T>, LabError>>,
{
    let deadline = Instant::now() + PATIENCE;
    loop {
        let still = match look().await {
            Ok(Ok(there)) => return Ok(there),
            Ok(Err(missing)) => missing.join(", "),
            Err(error) => error.to_string(),
        };
        if Instant::now() > deadline {
            let seconds = PATIENCE.as_secs();
            return Err(LabError::NotReady(format!("{what} not ready after {seconds} s: {still}")));
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Whether a Node or a Pod says that it is ready.
#[must_use]
pub fn is_ready(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.is_some_and(|conditions| {
        conditions.iter().any(|one| one["type"] == "Ready" && one["status"] == "True")
    })
}

/// `metadata.name`.
#[must_use]
pub fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}
