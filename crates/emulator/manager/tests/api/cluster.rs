//! An embedded API server with a manager and a simulated kubelet.

use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use nearhop_apiserver::{ApiServer, Faults, Options as ApiOptions};
use nearhop_manager::{Options, run};
use nearhop_runtime::client::{ClientOptions, connect};
use nearhop_runtime::shutdown::{Shutdown, Trigger};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::kubelet::Kubelet;

/// A generous deadline, reached only on failure.
const PATIENCE: Duration = Duration::from_secs(30);

/// Names and zones of nodes.
pub(crate) const SIX: [(&str, &str); 6] =
    [("n1", "a"), ("n2", "a"), ("n3", "b"), ("n4", "b"), ("n5", "c"), ("n6", "c")];

pub(crate) struct Cluster {
    _server: ApiServer,
    pub(crate) client: Client,
    pub(crate) kubelet: Kubelet,
    pub(crate) directory: TempDir,
    options: Options,
    manager: Option<(Trigger, JoinHandle<()>)>,
}

impl Cluster {
    /// No test renews Leases here, so the grace period is long.
    pub(crate) async fn start() -> Self {
        let options =
            Options { node_monitor_grace_period: Duration::from_secs(3600), ..Options::default() };
        Self::start_with(options).await
    }

    pub(crate) async fn start_with(options: Options) -> Self {
        let api = ApiOptions { faults: Faults::OnDemand, ..ApiOptions::default() };
        let server = ApiServer::start(api).await.expect("the API starts");
        let directory = tempfile::tempdir().expect("a temporary directory");
        server.write_kubeconfig(&directory.path().join("kubeconfig")).expect("a kubeconfig");
        let client = client(&directory, "nearhop-test/1").await;
        let kubelet = Kubelet::start(client.clone());
        let mut cluster =
            Self { _server: server, client, kubelet, directory, options, manager: None };
        cluster.start_manager().await;
        cluster
    }

    pub(crate) async fn start_manager(&mut self) {
        let (trigger, shutdown) = Shutdown::manual();
        let client = client(&self.directory, "nearhop-manager/1").await;
        let task = tokio::spawn(run(self.options.clone(), client, shutdown));
        self.manager = Some((trigger, task));
    }

    /// A second manager beside the first, until the returned value is dropped.
    pub(crate) async fn second_manager(&self) -> Trigger {
        let (trigger, shutdown) = Shutdown::manual();
        let client = client(&self.directory, "nearhop-manager/2").await;
        tokio::spawn(run(self.options.clone(), client, shutdown));
        trigger
    }

    /// Aborts the manager at any point. Requests in flight still arrive, beside those of the next
    /// manager.
    pub(crate) fn kill_manager(&mut self) {
        if let Some((_, task)) = self.manager.take() {
            task.abort();
        }
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    pub(crate) fn deployments(&self) -> Api<Deployment> {
        Api::namespaced(self.client.clone(), "default")
    }

    pub(crate) fn replica_sets(&self) -> Api<ReplicaSet> {
        Api::namespaced(self.client.clone(), "default")
    }

    pub(crate) fn daemon_sets(&self) -> Api<DaemonSet> {
        Api::namespaced(self.client.clone(), "default")
    }

    pub(crate) fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    /// Creates ready nodes with their zones.
    pub(crate) async fn add_nodes(&self, nodes: &[(&str, &str)]) {
        for (name, zone) in nodes {
            let node = json!({
                "metadata": { "name": name, "labels": {
                    "kubernetes.io/hostname": name,
                    "topology.kubernetes.io/zone": zone,
                } },
                "status": {
                    "allocatable": { "cpu": "4", "memory": "8Gi", "pods": "110" },
                    "capacity": { "cpu": "4", "memory": "8Gi", "pods": "110" },
                    "conditions": [{ "type": "Ready", "status": "True", "reason": "KubeletReady" }],
                },
            });
            let node: Node = read(node);
            self.nodes().create(&PostParams::default(), &node).await.expect("a node");
            let status = serde_json::to_value(&node.status).expect("JSON");
            let patch = Patch::Merge(json!({ "status": status }));
            let done = self.nodes().patch_status(name, &PatchParams::default(), &patch).await;
            done.expect("a status");
        }
    }

    pub(crate) async fn create<T>(&self, api: &Api<T>, object: Value) -> T
    where
        T: Resource + Clone + DeserializeOwned + Serialize + Debug,
    {
        api.create(&PostParams::default(), &read(object)).await.expect("a successful create")
    }

    pub(crate) async fn patch<T>(&self, api: &Api<T>, name: &str, patch: Value)
    where
        T: Resource + Clone + DeserializeOwned + Debug,
    {
        let patch = Patch::Merge(patch);
        api.patch(name, &PatchParams::default(), &patch).await.expect("a successful patch");
    }

    pub(crate) async fn delete<T>(&self, api: &Api<T>, name: &str)
    where
        T: Resource + Clone + DeserializeOwned + Debug,
    {
        api.delete(name, &DeleteParams::default()).await.expect("a successful delete");
    }

    /// All Pods without deletion timestamp.
    pub(crate) async fn active_pods(&self) -> Vec<Pod> {
        let mut pods = list(&self.pods()).await;
        pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
        pods
    }

    /// Waits until the rollout is complete, as `kubectl rollout status` does.
    pub(crate) async fn rolled_out(&self, name: &str) -> Deployment {
        wait_for(&format!("rollout of {name}"), || async {
            let found = self.deployments().get(name).await.expect("the Deployment exists");
            let wanted = found.spec.as_ref().and_then(|spec| spec.replicas);
            let status = found.status.clone().unwrap_or_default();
            let count = |count: Option<i32>| Some(count.unwrap_or(0));
            let seen = status.observed_generation >= found.metadata.generation;
            let done = seen
                && count(status.updated_replicas) == wanted
                && count(status.replicas) == wanted
                && count(status.available_replicas) == wanted;
            if done { Ok(found) } else { Err(format!("{status:?}")) }
        })
        .await
    }

    /// Reasons and messages of the events about an object.
    pub(crate) async fn events(&self, about: &str) -> Vec<(String, String)> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), "default");
        let mine = list(&events).await.into_iter();
        let mine = mine.filter(|event| event.involved_object.name.as_deref() == Some(about));
        mine.map(|event| (event.reason.unwrap_or_default(), event.message.unwrap_or_default()))
            .collect()
    }
}

async fn client(directory: &TempDir, agent: &str) -> Client {
    let options = ClientOptions {
        kubeconfig: Some(directory.path().join("kubeconfig")),
        context: None,
        user_agent: agent.to_owned(),
    };
    connect(&options, None).await.expect("a client")
}

pub(crate) fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("a valid object")
}

pub(crate) async fn list<T>(api: &Api<T>) -> Vec<T>
where
    T: Resource + Clone + DeserializeOwned + Debug,
{
    api.list(&ListParams::default()).await.expect("a list").items
}

/// A Deployment with this image.
pub(crate) fn deployment(name: &str, replicas: i32, image: &str) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": { "app": name } },
            "template": template(name, image),
        },
    })
}

pub(crate) fn template(app: &str, image: &str) -> Value {
    json!({
        "metadata": { "labels": { "app": app } },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{ "name": "c", "image": image }],
        },
    })
}

pub(crate) fn image(pod: &Pod) -> &str {
    let container = pod.spec.as_ref().and_then(|spec| spec.containers.first());
    container.and_then(|container| container.image.as_deref()).unwrap_or_default()
}

pub(crate) fn node_of(pod: &Pod) -> String {
    pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default()
}

/// Retries until the result is `Ok`; an error describes what is missing.
pub(crate) async fn wait_for<T, F>(what: &str, mut ask: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, String>>,
{
    let end = tokio::time::Instant::now() + PATIENCE;
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(missing) if tokio::time::Instant::now() > end => panic!("{what}: {missing}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

/// A result for [`wait_for`].
pub(crate) fn check(good: bool, otherwise: impl Debug) -> Result<(), String> {
    if good { Ok(()) } else { Err(format!("{otherwise:?}")) }
}
