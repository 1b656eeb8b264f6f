//! Writes the statuses of Pods: the newest status of each Pod, in the order of arrival.
//!
//! While the API server is unavailable, only outdated statuses are dropped. A status that the
//! server rejects is dropped after several attempts. A deletion is retried for ever, because no
//! other component finishes it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions};
use nearhop_runtime::backoff::Backoff;
use nearhop_runtime::client::{ApiCall, ApiFailure, ApiSender};
use nearhop_runtime::queue::WorkQueue;
use nearhop_runtime::supervise;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::sleep_until;

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

    fn path(&self) -> String {
        format!("/api/v1/namespaces/{}/pods/{}", self.namespace, self.name)
    }

    /// For messages.
    pub(crate) fn what(&self) -> String {
        format!("pod {}/{}", self.namespace, self.name)
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
    pub(crate) fn start(api: ApiSender) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        supervise::spawn("status writer", write_all(api, receiver));
        Self(sender)
    }

    pub(crate) fn send(&self, pod: PodKey, update: StatusUpdate) {
        // The writer ends only with the process.
        let _ending = self.0.send((pod, update));
    }
}

/// Pending updates: the newest one of each Pod, in the order of arrival.
struct UpdateQueue {
    updates: BTreeMap<PodKey, PendingUpdate>,
    pods: WorkQueue<PodKey>,
}

/// An update and the number of its rejections.
#[derive(Debug)]
struct PendingUpdate {
    update: StatusUpdate,
    refusals: u32,
}

impl PendingUpdate {
    /// The next attempt after a rejection: finally no status, but still a deletion.
    fn refused(self, why: &ApiFailure) -> Option<Self> {
        let refusals = self.refusals.saturating_add(1);
        let update = match self.update {
            StatusUpdate::Delete => return Some(Self { update: StatusUpdate::Delete, refusals }),
            update if refusals < REFUSALS => return Some(Self { update, refusals }),
            StatusUpdate::Patch(_) => None,
            StatusUpdate::Last(_) => Some(StatusUpdate::Delete),
        };
        tracing::error!(refusals, error = %why, "pod status dropped");
        update.map(|update| Self { update, refusals: 0 })
    }
}

impl UpdateQueue {
    fn new() -> Self {
        Self { updates: BTreeMap::new(), pods: WorkQueue::new(1) }
    }

    fn put(&mut self, pod: PodKey, update: StatusUpdate, now: Instant) {
        self.pods.add(&pod, now);
        self.updates.insert(pod, PendingUpdate { update, refusals: 0 });
    }

    /// The next update; end it with [`end`](Self::end).
    fn take(&mut self, now: Instant) -> Option<(PodKey, PendingUpdate)> {
        let pod = self.pods.take(now)?;
        let pending = self.updates.remove(&pod).expect("a Pod in the queue has an update");
        Some((pod, pending))
    }

    /// Ends a write. What a failed write leaves waits for its next attempt.
    fn end(
        &mut self,
        pod: PodKey,
        pending: PendingUpdate,
        done: Result<(), ApiFailure>,
        now: Instant,
    ) {
        let Err(failure) = done else {
            self.pods.succeed(&pod);
            return self.pods.server_recovered(now);
        };
        tracing::warn!(pod = %pod.name, namespace = %pod.namespace, error = %failure, "pod status not written; will retry");
        let left = match &failure {
            // The server rejects the object itself, so a retry may never succeed.
            ApiFailure::Rejected { .. } => pending.refused(&failure),
            _ => Some(pending),
        };
        let Some(left) = left else { return self.pods.succeed(&pod) };
        let delay = |n| BACKOFF.delay(n, rand::random()).max(failure.retry_after());
        self.pods.fail(&pod, now, failure.cause(), delay);
        self.updates.insert(pod, left);
    }
}

async fn write_all(api: ApiSender, mut updates: mpsc::UnboundedReceiver<(PodKey, StatusUpdate)>) {
    let mut waiting = UpdateQueue::new();
    loop {
        let due = waiting.pods.next_due();
        tokio::select! {
            biased;
            update = updates.recv() => {
                let Some((pod, update)) = update else { return };
                waiting.put(pod, update, Instant::now());
                continue;
            }
            () = sleep_until(due.unwrap_or_else(Instant::now).into()), if due.is_some() => {}
        }
        let Some((pod, pending)) = waiting.take(Instant::now()) else { continue };
        let done = write(&api, &pod, &pending.update).await;
        waiting.end(pod, pending, done, Instant::now());
    }
}

/// Nothing to write if the Pod is gone or has been replaced.
async fn write(api: &ApiSender, pod: &PodKey, update: &StatusUpdate) -> Result<(), ApiFailure> {
    if let StatusUpdate::Patch(status) | StatusUpdate::Last(status) = update {
        let (path, patch) = (format!("{}/status", pod.path()), patch(&pod.uid, status));
        send_unless_gone(api, pod, ApiCall::strategic_patch(path, &patch, pod.what())).await?;
    }
    if let StatusUpdate::Last(_) | StatusUpdate::Delete = update {
        let preconditions = Preconditions { uid: Some(pod.uid.clone()), resource_version: None };
        let options = DeleteOptions {
            grace_period_seconds: Some(0),
            preconditions: Some(preconditions),
            ..DeleteOptions::default()
        };
        send_unless_gone(api, pod, ApiCall::delete_with(pod.path(), &options, pod.what())).await?;
    }
    Ok(())
}

/// A conflict means a replaced Pod or a concurrent write; the uid decides.
async fn send_unless_gone(api: &ApiSender, pod: &PodKey, call: ApiCall) -> Result<(), ApiFailure> {
    let conflict = match api.send(call).await {
        Err(ApiFailure::NotFound { .. }) => return Ok(()),
        Err(conflict @ ApiFailure::Conflict { .. }) => conflict,
        done => return done.map(drop),
    };
    match api.send_json::<Pod>(ApiCall::get(pod.path(), pod.what())).await {
        Ok(there) if there.metadata.uid.as_ref() == Some(&pod.uid) => Err(conflict),
        Ok(_) | Err(ApiFailure::NotFound { .. }) => Ok(()),
        Err(failure) => Err(failure),
    }
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
