//! The one writer of pods' statuses: newest only, patiently, in the order in which pods spoke.
//!
//! While the API server is away nothing is lost but what was overtaken.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client};
use nearhop_runtime::backoff::Backoff;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

/// A request that takes longer is tried again.
const PATIENCE: Duration = Duration::from_secs(10);
/// Short, because what waits here keeps traffic going to pods that are gone.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));

/// Which pod: two pods of one name differ by their uid.
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

/// What is to be written about a pod.
#[derive(Debug)]
pub(crate) enum Word {
    Status(Box<PodStatus>),
    /// Its last status; then the object goes.
    Last(Box<PodStatus>),
}

/// Takes what pods say. Clones speak to the same writer.
#[derive(Clone, Debug)]
pub(crate) struct StatusWriter(mpsc::UnboundedSender<(PodKey, Word)>);

impl StatusWriter {
    pub(crate) fn start(client: Client) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        tokio::spawn(write_all(client, receiver));
        Self(sender)
    }

    pub(crate) fn say(&self, pod: PodKey, word: Word) {
        // Only at the end of the process is nobody there to write.
        let _ending = self.0.send((pod, word));
    }
}

/// What waits to be written: the newest word of each pod, in the order in which pods spoke.
#[derive(Debug, Default)]
struct Waiting {
    words: BTreeMap<PodKey, Word>,
    order: VecDeque<PodKey>,
}

impl Waiting {
    fn put(&mut self, pod: PodKey, word: Word) {
        if self.words.insert(pod.clone(), word).is_none() {
            self.order.push_back(pod);
        }
    }

    fn take(&mut self) -> Option<(PodKey, Word)> {
        let pod = self.order.pop_front()?;
        let word = self.words.remove(&pod)?;
        Some((pod, word))
    }

    /// Behind the others, so that one that cannot be written does not stop them; unless the pod has
    /// spoken again.
    fn put_back(&mut self, pod: PodKey, word: Word) {
        if !self.words.contains_key(&pod) {
            self.put(pod, word);
        }
    }
}

async fn write_all(client: Client, mut words: mpsc::UnboundedReceiver<(PodKey, Word)>) {
    let mut waiting = Waiting::default();
    let mut failures = 0;
    loop {
        if waiting.order.is_empty() {
            let Some((pod, word)) = words.recv().await else { return };
            waiting.put(pod, word);
        }
        while let Ok((pod, word)) = words.try_recv() {
            waiting.put(pod, word);
        }
        let Some((pod, word)) = waiting.take() else { continue };
        let why = match timeout(PATIENCE, write(&client, &pod, &word)).await {
            Ok(Ok(())) => {
                failures = 0;
                continue;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer".to_owned(),
        };
        tracing::warn!(pod = %pod.name, namespace = %pod.namespace, "status not written: {why}");
        while let Ok((pod, word)) = words.try_recv() {
            waiting.put(pod, word);
        }
        waiting.put_back(pod, word);
        sleep(BACKOFF.delay(failures, rand::random())).await;
        failures += 1;
    }
}

/// A pod that is gone, or another of the same name, needs no status any more.
async fn write(client: &Client, pod: &PodKey, word: &Word) -> Result<(), kube::Error> {
    let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
    let (Word::Status(status) | Word::Last(status)) = word;
    let patch = patch(&pod.uid, status);
    let done = api.patch_status(&pod.name, &PatchParams::default(), &Patch::Strategic(patch)).await;
    unless_gone(done.map(drop))?;
    if let Word::Last(_) = word {
        let preconditions = Preconditions { uid: Some(pod.uid.clone()), resource_version: None };
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(preconditions),
            ..DeleteParams::default()
        };
        unless_gone(api.delete(&pod.name, &params).await.map(drop))?;
    }
    Ok(())
}

fn unless_gone(done: Result<(), kube::Error>) -> Result<(), kube::Error> {
    match done {
        Err(kube::Error::Api(refused)) if matches!(refused.code, 404 | 409) => Ok(()),
        // Something about this very status: trying again would only stop the others.
        Err(kube::Error::Api(refused)) if matches!(refused.code, 400 | 422) => {
            tracing::error!("a pod's status was refused: {}", refused.message);
            Ok(())
        }
        done => done,
    }
}

/// A merge leaves out what it does not name, so what may have been there is named.
fn patch(uid: &str, status: &PodStatus) -> Value {
    let mut status = serde_json::to_value(status).expect("a status is JSON");
    for condition in status["conditions"].as_array_mut().into_iter().flatten() {
        for field in ["reason", "message"] {
            if condition.get(field).is_none() {
                condition[field] = Value::Null;
            }
        }
    }
    // Addresses of an earlier place would stay.
    if let Some(addresses) = status["podIPs"].as_array_mut() {
        addresses.push(json!({ "$patch": "replace" }));
    }
    json!({ "metadata": { "uid": uid }, "status": status })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{PodCondition, PodIP};

    use super::*;

    #[test]
    fn the_newest_word_counts_and_nobody_stops_the_others() {
        let key = |name: &str| PodKey {
            namespace: "n".to_owned(),
            name: name.to_owned(),
            uid: String::new(),
        };
        let word = |phase: &str| {
            let status = PodStatus { phase: Some(phase.to_owned()), ..PodStatus::default() };
            Word::Status(Box::new(status))
        };
        let mut waiting = Waiting::default();
        waiting.put(key("a"), word("1"));
        waiting.put(key("b"), word("1"));
        let (first, old) = waiting.take().unwrap();
        waiting.put(key("a"), word("2"));
        waiting.put_back(first, old);
        assert_eq!(waiting.take().unwrap().0, key("b"));
        let (last, Word::Status(status)) = waiting.take().unwrap() else { panic!("a status") };
        assert_eq!((last, status.phase.as_deref()), (key("a"), Some("2")));
        assert!(waiting.take().is_none());
    }

    #[test]
    fn what_a_merge_would_keep_is_named() {
        let ready = PodCondition {
            type_: "Ready".to_owned(),
            status: "True".to_owned(),
            ..PodCondition::default()
        };
        let status = PodStatus {
            conditions: Some(vec![ready]),
            pod_ips: Some(vec![PodIP { ip: "10.0.0.1".to_owned() }]),
            ..PodStatus::default()
        };
        let patch = patch("u", &status);
        assert_eq!(patch["metadata"]["uid"], "u");
        assert_eq!(patch["status"]["podIPs"][1]["$patch"], "replace");
        let condition = patch["status"]["conditions"][0].as_object().unwrap();
        assert_eq!((&condition["reason"], &condition["message"]), (&Value::Null, &Value::Null));
    }
}
