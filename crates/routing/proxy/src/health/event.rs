//! Kubernetes Events that the proxy writes: about Services whose health check port cannot be
//! opened, and about its own start.
//!
//! Best effort: the caller never waits, and an event that cannot be written is logged and dropped.
//! Nothing depends on an event.

use std::time::Duration;

use http::{Request, header};
use jiff::Timestamp;
use kube::Client;
use nearhop_core::{Name, ServiceKey};
use nearhop_runtime::backoff::Backoff;
use nearhop_runtime::supervise;
use serde_json::{Value, json};
use tokio::sync::mpsc::{self, Receiver, Sender, error::TrySendError};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::health::services::ListenFailure;

/// The `reportingController` of the events.
const CONTROLLER: &str = "nearhop-proxy";
/// Maximum number of queued events; further events are dropped.
const QUEUE: usize = 64;
/// Timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How often writing an event is tried.
const ATTEMPTS: u32 = 4;
/// Maximum length of a note in bytes; the API server accepts 1 kB.
const NOTE_MAX: usize = 1000;

/// The object that an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Regarding {
    /// A Service, with its UID if known: `kubectl describe` searches by UID.
    Service(ServiceKey, Option<Name>),
    Node(Name),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Normal,
    Warning,
}

/// An event to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    regarding: Regarding,
    kind: Kind,
    reason: &'static str,
    action: &'static str,
    text: String,
}

impl Note {
    /// The `healthCheckNodePort` of a Service cannot be opened on this node.
    #[must_use]
    pub fn listen_failed(node: &str, failure: &ListenFailure, uid: Option<Name>) -> Self {
        Self {
            regarding: Regarding::Service(failure.service.clone(), uid),
            kind: Kind::Warning,
            reason: "FailedToStartServiceHealthcheck",
            action: "Listen",
            text: format!("node {node}: {failure}"),
        }
    }

    /// The proxy has started.
    #[must_use]
    pub fn starting(node: &Name) -> Self {
        Self {
            regarding: Regarding::Node(node.clone()),
            kind: Kind::Normal,
            reason: "Starting",
            action: "StartKubeProxy",
            text: String::new(),
        }
    }

    /// The Event object to create, and its namespace.
    fn body(&self, instance: &str, now: Timestamp) -> (&str, Value) {
        let (namespace, name, regarding) = match &self.regarding {
            Regarding::Service(ServiceKey { namespace, name }, uid) => {
                let mut object = json!({
                    "apiVersion": "v1", "kind": "Service",
                    "namespace": namespace.as_str(), "name": name.as_str(),
                });
                if let Some(uid) = uid {
                    object["uid"] = uid.as_str().into();
                }
                (namespace.as_str(), name, object)
            }
            Regarding::Node(name) => {
                // By convention the UID in events about a Node is its name; kubectl searches for
                // that.
                let uid = name.as_str();
                let object = json!({"apiVersion": "v1", "kind": "Node", "name": uid, "uid": uid});
                ("default", name, object)
            }
        };
        // A name has at most 253 characters, including the dot and 16 digits.
        let stem: String = name.chars().take(230).collect();
        let body = json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {
                "name": format!("{stem}.{:016x}", now.as_nanosecond()), "namespace": namespace,
            },
            "eventTime": format!("{now:.6}"),
            "type": match self.kind { Kind::Normal => "Normal", Kind::Warning => "Warning" },
            "reason": self.reason,
            "action": self.action,
            "regarding": regarding,
            "note": cut(&self.text, NOTE_MAX),
            "reportingController": CONTROLLER,
            "reportingInstance": cut(instance, 128),
        });
        (namespace, body)
    }
}

/// The longest prefix of a text that fits into `most` bytes.
fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

/// Writes events one after the other in a separate task.
#[derive(Debug)]
pub struct Events {
    queue: Sender<Note>,
    task: JoinHandle<()>,
}

impl Events {
    /// Starts the task; events name this node as their reporter.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn start(client: Client, node: &str) -> Self {
        let (queue, notes) = mpsc::channel(QUEUE);
        let instance = format!("{CONTROLLER}-{node}");
        Self { queue, task: supervise::spawn("event writer", write_all(client, instance, notes)) }
    }

    /// Queues an event. Never waits.
    pub fn tell(&self, note: Note) {
        let (note, why) = match self.queue.try_send(note) {
            Ok(()) => return,
            Err(TrySendError::Full(note)) => (note, "too many events wait for the API server"),
            Err(TrySendError::Closed(note)) => (note, "the task that writes events has ended"),
        };
        tracing::warn!(reason = note.reason, regarding = ?note.regarding, "an event is lost: {why}");
    }

    /// Waits until all queued events are written, at most for `limit`.
    pub async fn finish(self, limit: Duration) {
        let Self { queue, mut task } = self;
        drop(queue);
        if timeout(limit, &mut task).await.is_err() {
            task.abort();
        }
    }
}

async fn write_all(client: Client, instance: String, mut notes: Receiver<Note>) {
    while let Some(note) = notes.recv().await {
        if let Err(why) = write(&client, &instance, &note).await {
            let Note { reason, regarding, .. } = note;
            tracing::warn!(reason, ?regarding, "an event is lost: {why}");
        }
    }
}

/// Writes an event, with retries: the API server may be reachable only after this proxy has written
/// its rules.
async fn write(client: &Client, instance: &str, note: &Note) -> Result<(), String> {
    let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(8));
    let mut attempt = 0;
    loop {
        let why = match create(client, instance, note).await {
            Ok(()) => return Ok(()),
            Err(Refusal::Final(why)) => return Err(why),
            Err(Refusal::ForNow(why)) => why,
        };
        attempt += 1;
        if attempt == ATTEMPTS {
            return Err(why);
        }
        sleep(backoff.delay(attempt - 1, 0.0)).await;
    }
}

enum Refusal {
    /// The API server rejects the event.
    Final(String),
    /// The API server is unreachable or has an internal error.
    ForNow(String),
}

async fn create(client: &Client, instance: &str, note: &Note) -> Result<(), Refusal> {
    let (namespace, body) = note.body(instance, Timestamp::now());
    let request = Request::post(format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events"))
        .header(header::CONTENT_TYPE, "application/json")
        .body(body.to_string().into_bytes())
        .map_err(|why| Refusal::Final(why.to_string()))?;
    match timeout(REQUEST_TIMEOUT, client.request_text(request)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(kube::Error::Api(status))) => {
            let why = format!("{} (HTTP {})", status.message, status.code);
            let passes = status.code == 429 || status.code >= 500;
            Err(if passes { Refusal::ForNow(why) } else { Refusal::Final(why) })
        }
        Ok(Err(why)) => Err(Refusal::ForNow(why.to_string())),
        Err(_) => Err(Refusal::ForNow(format!("no answer within {REQUEST_TIMEOUT:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_and_texts_are_cut_to_what_the_server_takes() {
        let failure = ListenFailure {
            service: ServiceKey::new("shop", "c".repeat(253).as_str()),
            port: 31000,
            address: "10.0.0.1".parse().unwrap(),
            error: "ä".repeat(600),
        };
        let note = Note::listen_failed("worker-3", &failure, None);
        let (namespace, body) = note.body("i", Timestamp::UNIX_EPOCH);
        assert_eq!(namespace, "shop");
        assert!(body["metadata"]["name"].as_str().unwrap().len() <= 253);
        assert!(body["note"].as_str().unwrap().len() <= 1024);
        assert!(body["note"].as_str().unwrap().starts_with("node worker-3: Service shop/c"));
        assert_eq!(body["eventTime"], "1970-01-01T00:00:00.000000Z");
        assert_eq!(body["regarding"].get("uid"), None);
    }
}
