//! The cluster that a test battery runs against, with a separate namespace for each test.
//!
//! The default is an embedded server. `NEARHOP_TEST_KUBECONFIG` names another cluster for the same tests with the same
//! expectations; tests that disturb the server use [`Cluster::embedded`] and never touch that cluster.

use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::http::{Answer, Target};
use crate::server::{Options, Origin, Server, given, start};

/// A namespace in a running cluster.
pub struct Cluster {
    /// The server.
    pub server: Arc<Server>,
    /// Client with the administrator's credentials.
    pub admin: Target,
    /// The test's own namespace.
    pub namespace: String,
}

/// The server that most tests share. It has its own runtime, because the runtime of a test ends with the test.
fn shared() -> Result<Arc<Server>> {
    static SHARED: OnceLock<Result<(tokio::runtime::Runtime, Arc<Server>), String>> =
        OnceLock::new();
    let started = SHARED.get_or_init(|| {
        let start = || -> Result<_> {
            if let Some(server) = given()? {
                return Ok((tokio::runtime::Runtime::new()?, Arc::new(server)));
            }
            std::thread::spawn(|| -> Result<_> {
                let runtime = tokio::runtime::Runtime::new()?;
                let server = runtime.block_on(start(&Options::default()))?;
                Ok((runtime, Arc::new(server)))
            })
            .join()
            .unwrap_or_else(|_| anyhow::bail!("starting the server panicked"))
        };
        start().map_err(|e| format!("{e:#}"))
    });
    match started {
        Ok((_, server)) => Ok(server.clone()),
        Err(error) => anyhow::bail!("{error}"),
    }
}

impl Cluster {
    /// A new namespace in the shared cluster.
    pub async fn shared() -> Result<Self> {
        Self::on(shared()?).await
    }

    /// A new namespace in a new embedded server, for tests that disturb the server. `NEARHOP_TEST_KUBECONFIG`
    /// has no effect here.
    pub async fn embedded() -> Result<Self> {
        Self::on(Arc::new(start(&Options::default()).await?)).await
    }

    async fn on(server: Arc<Server>) -> Result<Self> {
        let id = Uuid::new_v4().simple().to_string();
        let namespace = format!("t-{}", id.get(..12).unwrap_or_default());
        let admin = server.admin.clone();
        let body =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        admin.post("/api/v1/namespaces", &body).await?.expect(201)?;
        Ok(Self { server, admin, namespace })
    }

    /// Whether the server is the embedded one.
    pub fn is_embedded(&self) -> bool {
        self.server.origin == Origin::Embedded
    }

    /// Path of a core collection or object in the test's namespace.
    pub fn core(&self, rest: &str) -> String {
        format!("/api/v1/namespaces/{}/{rest}", self.namespace)
    }

    /// Path of a collection or object of a group in the test's namespace.
    pub fn group(&self, group: &str, rest: &str) -> String {
        format!("/apis/{group}/namespaces/{}/{rest}", self.namespace)
    }

    /// Creates an object in a core collection.
    pub async fn create(&self, collection: &str, body: &Value) -> Result<Value> {
        let answer = self.admin.post(&self.core(collection), body).await?;
        Ok(answer.expect(201).with_context(|| format!("create {collection}"))?.json())
    }

    /// Creates a ConfigMap with one value.
    pub async fn config_map(&self, name: &str, value: &str) -> Result<Value> {
        self.create("configmaps", &json!({"metadata": {"name": name}, "data": {"v": value}})).await
    }

    /// Reads an object or list of the core group.
    pub async fn read(&self, rest: &str) -> Result<Answer> {
        self.admin.get(&self.core(rest)).await
    }

    /// A client of the kube library.
    pub async fn client(&self) -> Result<kube::Client> {
        let kubeconfig = kube::config::Kubeconfig::read_from(&self.server.kubeconfig)?;
        let options = kube::config::KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await?;
        Ok(kube::Client::try_from(config)?)
    }

    /// Removes the test's namespace. A failed test leaves it for inspection.
    pub async fn finish(self) -> Result<()> {
        self.admin.delete(&format!("/api/v1/namespaces/{}", self.namespace)).await?.ok()?;
        Ok(())
    }
}

/// `metadata.resourceVersion` of an object or list.
pub fn version(object: &Value) -> String {
    object["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned()
}

/// `metadata.resourceVersion` as a number.
pub fn version_number(object: &Value) -> u64 {
    version(object).parse().unwrap_or_default()
}

/// Names of the items of a list.
pub fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().filter_map(|i| i["metadata"]["name"].as_str().map(str::to_owned)).collect()
}
