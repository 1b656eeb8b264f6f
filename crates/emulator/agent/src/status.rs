//! Writes the statuses of Pods: the newest status of each Pod, in the order of arrival.
//!
//! While the API server is unavailable, only outdated statuses are dropped. A status that the
//! server rejects is dropped after several attempts. A deletion is retried for ever, because no
//! other component finishes it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client};
use nearhop_runtime::backoff::Backoff;
use nearhop_runtime::supervise;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

/// Timeout of a request.
const PATIENCE: Duration = Duration::from_secs(10);
/// Short, because a late status keeps traffic on Pods that are gone.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));

/// A status that was rejected this often is dropped.
const REFUSALS: u32 = 5;

/// Identifies a Pod; the uid distinguishes Pods of the same name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PodKey {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

impl PodKey {
    pub(crate) fn of(pod: &Pod) -> Self {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let meta = &pod.metadata;
        Self { namespace: text(&meta.namespace), name: text(&meta.name), uid: text(&meta.uid) }
    }
}

/// A write for a Pod.
#[derive(Debug)]
pub(crate) enum StatusUpdate {
    Patch(Box<PodStatus>),
    /// The final status, then the deletion of the object.
    Last(Box<PodStatus>),
    /// Only the deletion, after the final status was rejected.
    Delete,
}

/// A handle of the writer task.
#[derive(Clone, Debug)]
pub(crate) struct StatusWriter(mpsc::UnboundedSender<(PodKey, StatusUpdate)>);

impl StatusWriter {
    pub(crate) fn start(client: Client) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        supervise::spawn("status writer", write_all(client, receiver));
        Self(sender)
    }

    pub(crate) fn send(&self, pod: PodKey, update: StatusUpdate) {
        // The writer ends only with the process.
        let _ending = self.0.send((pod, update));
    }
}

/// Pending updates: the newest one of each Pod, in the order of arrival.
#[derive(Debug, Default)]
struct UpdateQueue {
    updates: BTreeMap<PodKey, PendingUpdate>,
    order: VecDeque<PodKey>,
}

/// An update and the number of its rejections.
#[derive(Debug)]
struct PendingUpdate {
    update: StatusUpdate,
    refusals: u32,
}

impl PendingUpdate {
    /// The next attempt after a rejection: finally no status, but still a deletion.
    fn refused(self, why: &str) -> Option<Self> {
        let refusals = self.refusals.saturating_add(1);
        let update = match self.update {
            StatusUpdate::Delete => return Some(Self { update: StatusUpdate::Delete, refusals }),
            update if refusals < REFUSALS => return Some(Self { update, refusals }),
            StatusUpdate::Patch(_) => None,
            StatusUpdate::Last(_) => Some(StatusUpdate::Delete),
        };
        tracing::error!(refusals, error = why, "pod status dropped");
        update.map(|update| Self { update, refusals: 0 })
    }
}

impl UpdateQueue {
    fn put(&mut self, pod: PodKey, update: StatusUpdate) {
        self.insert(pod, PendingUpdate { update, refusals: 0 });
    }

    fn insert(&mut self, pod: PodKey, pending: PendingUpdate) {
        if self.updates.insert(pod.clone(), pending).is_none() {
            self.order.push_back(pod);
        }
    }

    fn take(&mut self) -> Option<(PodKey, PendingUpdate)> {
        let pod = self.order.pop_front()?;
        let pending = self.updates.remove(&pod)?;
        Some((pod, pending))
    }

    /// Puts a failed update behind the others, unless a newer one has arrived.
    fn put_back(&mut self, pod: PodKey, pending: PendingUpdate) {
        if !self.updates.contains_key(&pod) {
            self.insert(pod, pending);
        }
    }
}

async fn write_all(client: Client, mut updates: mpsc::UnboundedReceiver<(PodKey, StatusUpdate)>) {
    let mut waiting = UpdateQueue::default();
    let mut failures = 0;
    loop {
        if waiting.order.is_empty() {
            let Some((pod, update)) = updates.recv().await else { return };
            waiting.put(pod, update);
        }
        while let Ok((pod, update)) = updates.try_recv() {
            waiting.put(pod, update);
        }
        let Some((pod, pending)) = waiting.take() else { continue };
        let (why, left) = match timeout(PATIENCE, write(&client, &pod, &pending.update)).await {
            Ok(Ok(())) => {
                failures = 0;
                continue;
            }
            Ok(Err(error)) if is_refusal(&error) => {
                let why = format!("pod {}/{}: {error}", pod.namespace, pod.name);
                let left = pending.refused(&why);
                (why, left)
            }
            Ok(Err(error)) => (error.to_string(), Some(pending)),
            Err(_) => ("no answer".to_owned(), Some(pending)),
        };
        tracing::warn!(pod = %pod.name, namespace = %pod.namespace, error = why, "pod status not written; will retry");
        while let Ok((pod, update)) = updates.try_recv() {
            waiting.put(pod, update);
        }
        if let Some(pending) = left {
            waiting.put_back(pod, pending);
        }
        sleep(BACKOFF.next_delay(&mut failures)).await;
    }
}

/// The server rejects the object itself, so a retry may never succeed.
fn is_refusal(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(refused) if matches!(refused.code, 400 | 422))
}

/// Nothing to write if the Pod is gone or has been replaced.
async fn write(client: &Client, pod: &PodKey, update: &StatusUpdate) -> Result<(), kube::Error> {
    let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
    if let StatusUpdate::Patch(status) | StatusUpdate::Last(status) = update {
        let patch = Patch::Strategic(patch(&pod.uid, status));
        let done = api.patch_status(&pod.name, &PatchParams::default(), &patch).await;
        unless_gone(&api, pod, done.map(drop)).await?;
    }
    if let StatusUpdate::Last(_) | StatusUpdate::Delete = update {
        let preconditions = Preconditions { uid: Some(pod.uid.clone()), resource_version: None };
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(preconditions),
            ..DeleteParams::default()
        };
        let done = api.delete(&pod.name, &params).await;
        unless_gone(&api, pod, done.map(drop)).await?;
    }
    Ok(())
}

/// A conflict means a replaced Pod or a concurrent write; the uid decides.
async fn unless_gone(
    api: &Api<Pod>,
    pod: &PodKey,
    done: Result<(), kube::Error>,
) -> Result<(), kube::Error> {
    let conflict = match done {
        Err(kube::Error::Api(refused)) if refused.code == 404 => return Ok(()),
        Err(kube::Error::Api(refused)) if refused.code == 409 => refused,
        done => return done,
    };
    let there = api.get_opt(&pod.name).await?;
    let same = there.is_some_and(|there| there.metadata.uid.as_ref() == Some(&pod.uid));
    if same { Err(kube::Error::Api(conflict)) } else { Ok(()) }
}

/// A merge patch keeps fields that it does not name, so it names empty ones too.
fn patch(uid: &str, status: &PodStatus) -> Value {
    let mut status = serde_json::to_value(status).expect("a status is JSON");
    for condition in status["conditions"].as_array_mut().into_iter().flatten() {
        for field in ["reason", "message"] {
            if condition.get(field).is_none() {
                condition[field] = Value::Null;
            }
        }
    }
    // Addresses of an earlier sandbox would remain.
    if let Some(addresses) = status["podIPs"].as_array_mut() {
        addresses.push(json!({ "$patch": "replace" }));
    }
    json!({ "metadata": { "uid": uid }, "status": status })
}

#[cfg(test)]
mod tests;
