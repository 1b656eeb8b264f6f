//! A namespace of a cluster, and what a test does there: only through the API.

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

use super::PATIENCE;
use crate::http::Target;
use crate::rest;
use crate::server::read_kubeconfig;

/// The image of Kubernetes' own tests.
pub const AGNHOST: &str = "registry.k8s.io/e2e-test-images/agnhost:2.53";
/// The lab's own server.
pub const ECHO: &str = "nearhop/echo";

/// A request that takes so much longer than what it asks for is stuck.
const STUCK: Duration = Duration::from_secs(20);

/// A namespace of one's own.
pub struct Room {
    /// As the administrator.
    pub admin: Target,
    client: kube::Client,
    /// Its name.
    pub namespace: String,
}

/// One connection of a client loop, as `lab-drive --lines` tells it.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Milliseconds since the loop began.
    pub at: f64,
    /// The Pod that answered, or `!` and what went wrong.
    pub who: String,
}

impl Room {
    /// Makes a namespace.
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

    /// Deployments and DaemonSets have a group of their own.
    fn root(&self, path: &str) -> String {
        let group = if path.starts_with("deployments") || path.starts_with("daemonsets") {
            "/apis/apps/v1"
        } else {
            "/api/v1"
        };
        format!("{group}/namespaces/{}", self.namespace)
    }

    /// Deletes a Pod, with its usual grace.
    pub async fn delete_pod(&self, name: &str) -> Result<()> {
        let path = format!("/api/v1/namespaces/{}/pods/{name}", self.namespace);
        self.admin.delete(&path).await?.ok()?;
        Ok(())
    }

    /// Ends a Pod without any grace.
    pub async fn kill_pod(&self, name: &str) -> Result<()> {
        self.delete_pod(&format!("{name}?gracePeriodSeconds=0")).await
    }

    /// A Pod of agnhost or echo on a node.
    pub async fn server(&self, name: &str, node: &str, app: &str, args: &[&str]) -> Result<()> {
        let container = json!({"name": "server", "image": AGNHOST, "args": args});
        self.pod(name, node, &json!({"app": app}), container).await
    }

    /// A Pod of one container on a node.
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

    /// A client loop in a Pod: it asks `target` so often a second, and its log tells of each.
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

    /// A Service.
    pub async fn service(&self, name: &str, spec: Value) -> Result<Value> {
        let object = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name},
            "spec": spec,
        });
        self.create(&object).await
    }

    /// The names of Pods with a label `app`.
    pub async fn pods_of(&self, app: &str) -> Result<Vec<Value>> {
        let list = self.get(&format!("pods?labelSelector=app%3D{app}")).await?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    /// Waits until these Pods are ready.
    pub async fn until_ready(&self, names: &[&str]) -> Result<()> {
        self.until(&format!("{names:?} ready"), PATIENCE, || async {
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

    /// Runs a command in a Pod: its output, and whether it ended well.
    pub async fn exec(&self, pod: &str, command: &[&str]) -> Result<(String, bool)> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let params = AttachParams::default().stdin(false).stderr(false);
        let mut process = pods.exec(pod, command.to_vec(), &params).await?;
        let status = process.take_status().context("exec has a status")?;
        let mut output = String::new();
        let mut stdout = process.stdout().context("stdout was asked for")?;
        stdout.read_to_string(&mut output).await?;
        let status = status.await.context("exec ends with a status")?;
        Ok((output, status.status.as_deref() == Some("Success")))
    }

    /// The endpoints of a Service, from all its slices of IPv4.
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

    /// Waits until a Service's slices list so many addresses.
    pub async fn until_endpoints(&self, service: &str, count: usize) -> Result<()> {
        self.until(&format!("{count} endpoints of {service}"), PATIENCE, || async {
            let endpoints = self.endpoints(service).await?;
            let addresses: BTreeSet<String> =
                endpoints.iter().map(|one| one["addresses"][0].to_string()).collect();
            let found = addresses.len();
            Ok(if found == count { Ok(()) } else { Err(format!("there are {found}")) })
        })
        .await
    }

    /// Waits for a condition; the error after the deadline has what the last look saw.
    pub async fn until<T, F>(
        &self,
        what: &str,
        patience: Duration,
        look: impl Fn() -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<Result<T, String>>>,
    {
        let deadline = Instant::now() + patience;
        loop {
            let why = match timeout(patience + STUCK, look()).await {
                Ok(Ok(Ok(there))) => return Ok(there),
                Ok(Ok(Err(why))) => why,
                Ok(Err(error)) => format!("{error:#}"),
                Err(_) => "a look at it has no end".to_owned(),
            };
            if Instant::now() > deadline {
                bail!("waited for: {what}; but {why}");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Whether a Pod says that it is ready.
fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.is_some_and(|conditions| {
        conditions.iter().any(|one| one["type"] == "Ready" && one["status"] == "True")
    })
}

fn parse_line(line: &str) -> Option<Line> {
    let mut words = line.split(' ');
    let at = words.next()?.parse().ok()?;
    let who = words.nth(1)?.to_owned();
    Some(Line { at, who })
}
