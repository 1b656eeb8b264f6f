//! What happened to pods, for people: Events, counted where they repeat.
//!
//! Nobody waits for them, and none is worth more than the pod it is about: when the API server is
//! away for long, they are dropped.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use nearhop_runtime::supervise;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

const PATIENCE: Duration = Duration::from_secs(5);
/// How often one is tried.
const TRIES: u32 = 3;
/// Between tries, at first.
const PAUSE: Duration = Duration::from_millis(200);
/// How many may wait.
const QUEUE: usize = 1000;
/// How many are remembered, to be counted.
const REMEMBERED: usize = 2000;

/// Whether somebody should look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Severity {
    Normal,
    Warning,
}

#[derive(Debug)]
struct Notice {
    about: ObjectReference,
    severity: Severity,
    reason: &'static str,
    message: String,
    at: Timestamp,
}

/// Takes notices. Clones speak to the same writer.
#[derive(Clone, Debug)]
pub(crate) struct Recorder(mpsc::Sender<Notice>);

impl Recorder {
    pub(crate) fn start(client: Client, node: &str) -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE);
        supervise::spawn("event writer", write_all(client, node.to_owned(), receiver));
        Self(sender)
    }

    /// About a pod, or about one of its containers.
    pub(crate) fn emit_event(
        &self,
        pod: &Pod,
        container: Option<&str>,
        severity: Severity,
        reason: &'static str,
        message: String,
    ) {
        let meta = &pod.metadata;
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
            uid: meta.uid.clone(),
            resource_version: meta.resource_version.clone(),
            field_path: container.map(|name| format!("spec.containers{{{name}}}")),
        };
        let notice = Notice { about, severity, reason, message, at: Timestamp::now() };
        // A full queue means that nobody can read them anyway.
        let _dropped = self.0.try_send(notice);
    }
}

/// What makes two notices one.
type Key = (String, String, &'static str, String);

async fn write_all(client: Client, node: String, mut notices: mpsc::Receiver<Notice>) {
    let mut known: BTreeMap<Key, (String, i32)> = BTreeMap::new();
    while let Some(notice) = notices.recv().await {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let about = &notice.about;
        let key =
            (text(&about.uid), text(&about.field_path), notice.reason, notice.message.clone());
        if known.len() >= REMEMBERED {
            known.clear();
        }
        let (name, count) = known.entry(key).or_insert_with(|| {
            (format!("{}.{:016x}", text(&about.name), rand::random::<u64>()), 0)
        });
        *count += 1;
        *count = deliver(&client, &node, &notice, name, *count).await;
    }
}

/// Writes a notice that came for the `count`th time; says how often it is known to have come.
async fn deliver(client: &Client, node: &str, notice: &Notice, name: &str, count: i32) -> i32 {
    let mut count = count;
    for attempt in 0..TRIES {
        let done = timeout(PATIENCE, write(client, node, notice, name, count)).await;
        let code = match done {
            Ok(Ok(())) => return count,
            Ok(Err(kube::Error::Api(refused))) => refused.code,
            Ok(Err(_)) | Err(_) => 500,
        };
        match code {
            // An earlier try was taken though nobody said so.
            409 if count == 1 => return count,
            // Events do not live long: it begins again.
            404 if count > 1 => count = 1,
            409 | 429 | 500.. => sleep(PAUSE * (attempt + 1)).await,
            // The namespace is going.
            _ => {
                tracing::debug!("event {name}: refused with {code}");
                return 0;
            }
        }
    }
    count
}

async fn write(
    client: &Client,
    node: &str,
    notice: &Notice,
    name: &str,
    count: i32,
) -> Result<(), kube::Error> {
    let namespace = notice.about.namespace.clone().unwrap_or_default();
    let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
    if count > 1 {
        let patch = json!({ "count": count, "lastTimestamp": Time(notice.at) });
        return api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop);
    }
    let event = Event {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace),
            ..ObjectMeta::default()
        },
        involved_object: notice.about.clone(),
        reason: Some(notice.reason.to_owned()),
        message: Some(notice.message.clone()),
        type_: Some(format!("{:?}", notice.severity)),
        source: Some(EventSource {
            component: Some("kubelet".to_owned()),
            host: Some(node.to_owned()),
        }),
        reporting_component: Some("kubelet".to_owned()),
        reporting_instance: Some(node.to_owned()),
        first_timestamp: Some(Time(notice.at)),
        last_timestamp: Some(Time(notice.at)),
        count: Some(1),
        ..Event::default()
    };
    api.create(&PostParams::default(), &event).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_api::{refusal, start};

    const ALL: &str = "/api/v1/namespaces/n/events";

    fn notice() -> Notice {
        let about =
            ObjectReference { namespace: Some("n".to_owned()), ..ObjectReference::default() };
        let (severity, message) = (Severity::Normal, String::new());
        Notice { about, severity, reason: "Test", message, at: Timestamp::UNIX_EPOCH }
    }

    #[tokio::test]
    async fn an_event_that_is_there_is_counted_and_one_that_is_gone_begins_again() {
        let taken = || (200, json!({ "metadata": {}, "involvedObject": {} }));
        let (client, asked) = start(move |line, before| match (line.split(' ').next(), before) {
            (Some("POST"), 0) => refusal(500),
            (Some("POST"), 1) => refusal(409),
            (Some("PATCH"), 0) => refusal(409),
            (Some("PATCH"), 2) => refusal(404),
            _ => taken(),
        })
        .await;
        assert_eq!(deliver(&client, "node", &notice(), "e", 1).await, 1, "it was taken after all");
        assert_eq!(deliver(&client, "node", &notice(), "e", 2).await, 2, "a conflict passes");
        assert_eq!(deliver(&client, "node", &notice(), "e", 3).await, 1, "it was forgotten");
        let (post, patch) = (format!("POST {ALL}"), format!("PATCH {ALL}/e"));
        let expected = [&post, &post, &patch, &patch, &patch, &post];
        assert_eq!(asked.all().iter().collect::<Vec<_>>(), expected);
    }
}
