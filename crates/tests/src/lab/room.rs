//! A namespace for one test, and the requests of a test in it. It uses only the API, so it works
//! in any cluster.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, AttachParams};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::time::timeout;
use uuid::Uuid;

use super::TIMEOUT;
use crate::http::Target;
use crate::rest;
use crate::server::read_kubeconfig;

/// Server image of Kubernetes' end-to-end tests.
pub const AGNHOST: &str = "registry.k8s.io/e2e-test-images/agnhost:2.53";
/// Image of the lab's echo server.
pub const ECHO: &str = "nearhop/echo";

/// A check that takes this much longer than the time limit is stuck.
const STUCK: Duration = Duration::from_secs(20);

/// A new namespace for one test.
pub struct Room {
    /// Client with the administrator's credentials.
    pub admin: Target,
    client: kube::Client,
    /// Name of the namespace.
    pub namespace: String,
}

/// One connection of a client loop, as `lab-drive --lines` prints it.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Milliseconds since the loop began.
    pub at: f64,
    /// Name of the Pod that answered, or `!` and the error.
    pub result: String,
}

impl Room {
    /// Creates the namespace.
    pub async fn new(kubeconfig: &Path) -> Result<Self> {
        let (admin, _) = read_kubeconfig(kubeconfig)?;
        let options = nearhop_runtime::client::ClientOptions {
            kubeconfig: Some(kubeconfig.to_owned()),
            context: None,
            user_agent: "nearhop-tests".to_owned(),
        };
        let client = nearhop_runtime::client::connect(&options, None).await?;
        let id = Uuid::new_v4().simple().to_string();
        let namespace = format!("t-{}", id.get(..8).unwrap_or_default());
        let body =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        admin.post("/api/v1/namespaces", &body).await?.expect(201)?;
        Ok(Self { admin, client, namespace })
    }

    /// Creates an object of any kind.
    pub async fn create(&self, object: &Value) -> Result<Value> {
        let path = rest::collection(object, &self.namespace);
        let answer = self.admin.post(&path, object).await?;
        Ok(answer.expect(201).with_context(|| format!("create {object}"))?.json())
    }

    /// Reads an object or a list of the core group.
    pub async fn get(&self, rest: &str) -> Result<Value> {
        let path = format!("/api/v1/namespaces/{}/{rest}", self.namespace);
        Ok(self.admin.get(&path).await?.ok()?.json())
    }

    /// Changes an object by a merge patch.
    pub async fn patch(&self, path: &str, patch: &Value) -> Result<()> {
        let path = format!("{}/{path}", self.root(path));
        self.admin.merge(&path, patch).await?.ok().with_context(|| format!("patch {path}"))?;
        Ok(())
    }

    /// Path of the namespace in the API group of a resource: Deployments and DaemonSets are in `apps`.
    fn root(&self, path: &str) -> String {
        let group = if path.starts_with("deployments") || path.starts_with("daemonsets") {
            "/apis/apps/v1"
        } else {
            "/api/v1"
        };
        format!("{group}/namespaces/{}", self.namespace)
    }

    /// Deletes a Pod with its grace period.
    pub async fn delete_pod(&self, name: &str) -> Result<()> {
        let path = format!("/api/v1/namespaces/{}/pods/{name}", self.namespace);
        self.admin.delete(&path).await?.ok()?;
        Ok(())
    }

    /// Deletes a Pod without a grace period.
    pub async fn kill_pod(&self, name: &str) -> Result<()> {
        self.delete_pod(&format!("{name}?gracePeriodSeconds=0")).await
    }

    /// Creates an agnhost Pod on a node.
    pub async fn server(&self, name: &str, node: &str, app: &str, args: &[&str]) -> Result<()> {
        let container = json!({"name": "server", "image": AGNHOST, "args": args});
        self.pod(name, node, &json!({"app": app}), container).await
    }

    /// Creates a Pod with one container on a node.
    pub async fn pod(
        &self,
        name: &str,
        node: &str,
        labels: &Value,
        container: Value,
    ) -> Result<()> {
        self.create(&json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": labels},
            "spec": {
                "nodeName": node,
                "terminationGracePeriodSeconds": 2,
                "containers": [container],
            },
        }))
        .await?;
        Ok(())
    }

    /// Creates a Pod that runs a client loop: it connects to the targets of `job` at a fixed rate,
    /// and logs one line for each connection.
    pub async fn client_loop(&self, name: &str, node: &str, job: &Value) -> Result<()> {
        let command = ["/.nearhop", "lab-drive", "--lines", "--job", &job.to_string()];
        let container = json!({"name": "client", "image": ECHO, "command": command});
        self.pod(name, node, &json!({}), container).await?;
        self.until_ready(&[name]).await
    }

    /// The lines that a client loop has printed so far.
    pub async fn lines(&self, pod: &str) -> Result<Vec<Line>> {
        let log = self.log(pod, "").await?;
        log.lines().map(|line| parse_line(line).with_context(|| line.to_owned())).collect()
    }

    /// Creates a Service.
    pub async fn service(&self, name: &str, spec: Value) -> Result<Value> {
        let object = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name},
            "spec": spec,
        });
        self.create(&object).await
    }

    /// The Pods with this label `app`.
    pub async fn pods_of(&self, app: &str) -> Result<Vec<Value>> {
        let list = self.get(&format!("pods?labelSelector=app%3D{app}")).await?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    /// Waits until these Pods are ready.
    pub async fn until_ready(&self, names: &[&str]) -> Result<()> {
        self.until(&format!("{names:?} ready"), TIMEOUT, || async {
            let list = self.get("pods").await?;
            let pods = list["items"].as_array().cloned().unwrap_or_default();
            let ready = |name: &str| {
                pods.iter().any(|pod| pod["metadata"]["name"] == name && is_ready(pod))
            };
            let missing: Vec<&&str> = names.iter().filter(|name| !ready(name)).collect();
            Ok(if missing.is_empty() { Ok(()) } else { Err(format!("not {missing:?}")) })
        })
        .await
    }

    /// A Pod's log; `query` such as `tailLines=20`.
    pub async fn log(&self, pod: &str, query: &str) -> Result<String> {
        let path = format!("/api/v1/namespaces/{}/pods/{pod}/log?{query}", self.namespace);
        Ok(self.admin.get(&path).await?.ok()?.text())
    }

    /// Runs a command in a Pod; returns its output, and whether it succeeded.
    pub async fn exec(&self, pod: &str, command: &[&str]) -> Result<(String, bool)> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let params = AttachParams::default().stdin(false).stderr(false);
        let mut process = pods.exec(pod, command.to_vec(), &params).await?;
        let status = process.take_status().context("exec without a status channel")?;
        let mut output = String::new();
        let mut stdout = process.stdout().context("exec without stdout")?;
        stdout.read_to_string(&mut output).await?;
        let status = status.await.context("exec ended without a status")?;
        Ok((output, status.status.as_deref() == Some("Success")))
    }

    /// The endpoints of a Service, from all its IPv4 slices.
    pub async fn endpoints(&self, service: &str) -> Result<Vec<Value>> {
        let path = format!(
            "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices?labelSelector={}%3D{service}",
            self.namespace, "kubernetes.io%2Fservice-name"
        );
        let list = self.admin.get(&path).await?.ok()?.json();
        let slices = list["items"].as_array().cloned().unwrap_or_default();
        let v4 = slices.iter().filter(|slice| slice["addressType"] == "IPv4");
        Ok(v4
            .flat_map(|slice| slice["endpoints"].as_array().cloned().unwrap_or_default())
            .collect())
    }

    /// Waits until a Service's slices list `count` addresses.
    pub async fn until_endpoints(&self, service: &str, count: usize) -> Result<()> {
        self.until(&format!("{count} endpoints of {service}"), TIMEOUT, || async {
            let endpoints = self.endpoints(service).await?;
            let addresses: BTreeSet<String> =
                endpoints.iter().map(|one| one["addresses"][0].to_string()).collect();
            let found = addresses.len();
            Ok(if found == count { Ok(()) } else { Err(format!("there are {found}")) })
        })
        .await
    }

    /// Waits for a condition; the error at the deadline has the reason of the last check.
    pub async fn until<T, F>(&self, what: &str, limit: Duration, look: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<Result<T, String>>>,
    {
        let deadline = Instant::now() + limit;
        loop {
            let why = match timeout(limit + STUCK, look()).await {
                Ok(Ok(Ok(there))) => return Ok(there),
                Ok(Ok(Err(why))) => why,
                Ok(Err(error)) => format!("{error:#}"),
                Err(_) => "the check does not return".to_owned(),
            };
            if Instant::now() > deadline {
                bail!("waited for: {what}; but {why}");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Whether a Pod has the condition Ready.
fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.is_some_and(|conditions| {
        conditions.iter().any(|one| one["type"] == "Ready" && one["status"] == "True")
    })
}

fn parse_line(line: &str) -> Option<Line> {
    let mut words = line.split(' ');
    let at = words.next()?.parse().ok()?;
    let result = words.nth(1)?.to_owned();
    Some(Line { at, result })
}
