//! A simulated kubelet for all nodes: bound Pods become ready, deleted Pods disappear. Pods with
//! the image `broken` never become ready; Pods of lost nodes do not change.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use kube::{Client, ResourceExt as _};
use nearhop_feed::watch::{self, Event, Options, Target};
use serde_json::json;

pub(crate) struct Kubelet {
    lost: Arc<Mutex<BTreeSet<String>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Kubelet {
    pub(crate) fn start(client: Client) -> Self {
        let lost = Arc::new(Mutex::new(BTreeSet::new()));
        let task = tokio::spawn(serve(client, Arc::clone(&lost)));
        Self { lost, task }
    }

    /// Stops the kubelet of this node.
    pub(crate) fn lose(&self, node: &str) {
        self.lost.lock().expect("not poisoned").insert(node.to_owned());
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(client: Client, lost: Arc<Mutex<BTreeSet<String>>>) {
    let mut events = watch::start::<Pod>(client.clone(), Target::of::<Pod>(), Options::default());
    while let Some(batch) = events.recv().await {
        for event in batch {
            let Event::Put(pod) = event else { continue };
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
            let node = node.unwrap_or_default();
            if node.is_empty() || lost.lock().expect("not poisoned").contains(&node) {
                continue;
            }
            tokio::spawn(tend(client.clone(), pod));
        }
    }
}

/// Errors are ignored: another write may have come first.
async fn tend(client: Client, pod: Pod) {
    let api: Api<Pod> = Api::namespaced(client, &pod.namespace().unwrap_or_default());
    let name = pod.name_any();
    if pod.metadata.deletion_timestamp.is_some() {
        let _gone = api.delete(&name, &DeleteParams::default().grace_period(0)).await;
        return;
    }
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let image = pod.spec.as_ref().and_then(|spec| spec.containers.first()?.image.as_deref());
    if phase == Some("Running") {
        return;
    }
    let is = |good: bool| if good { "True" } else { "False" };
    let now = jiff::Timestamp::now();
    let time = jiff::Timestamp::from_second(now.as_second()).unwrap_or(now).to_string();
    let ready = is(image != Some("broken"));
    let condition = |kind: &str, status: &str| json!({ "type": kind, "status": status, "lastTransitionTime": time });
    let status = json!({ "status": {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "podIPs": [{ "ip": "10.0.0.1" }],
        "conditions": [
            condition("PodScheduled", "True"),
            condition("Initialized", "True"),
            condition("ContainersReady", ready),
            condition("Ready", ready),
        ],
    } });
    let _done = api.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await;
}
