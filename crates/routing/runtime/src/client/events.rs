//! Records Kubernetes Events (`v1`). An Event that repeats is counted, not written again.
//!
//! ```no_run
//! # use nearhop_runtime::client::{ApiSender, Client, Event, EventRecorder, EventType, EventWriter};
//! # async fn example(client: Client, pod: k8s_openapi::api::core::v1::ObjectReference) {
//! let sender = ApiSender::new(client, "kubelet");
//! let recorder = EventRecorder::start(EventWriter::new(sender, "kubelet", "node-1"));
//! recorder.emit(Event::new(pod, EventType::Normal, "Started", "Started container web"));
//! # }
//! ```
//!
//! Why not `kube::runtime::events::Recorder`: it has no deadline and ignores the lease's
//! [`Fence`](super::Fence); it counts Events with different messages as repeats and keeps the first
//! message; a retry after a lost reply creates a second Event; and it neither waits for a server
//! that is down nor drops Events that it cannot send.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::{ApiCall, ApiFailure, ApiSender};
use crate::backoff::Backoff;
use crate::{lock, supervise};

/// The most Events that wait to be written; the recorder drops further ones.
const QUEUE: usize = 1000;
/// How often the recorder tries to write an Event.
const ATTEMPTS: u32 = 4;
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(8));
/// How many Events the writer remembers to count repeats.
const REMEMBERED: usize = 2000;
/// The API server accepts at most 1024 bytes.
const LONGEST_MESSAGE: usize = 1000;
/// A name has at most 253 characters; the writer adds a dot and 16 digits.
const LONGEST_STEM: usize = 230;

/// `type` of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventType {
    /// For information.
    Normal,
    /// A problem.
    Warning,
}

/// An Event to record.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The object. `kubectl describe` finds Events by its `uid`.
    pub involved_object: ObjectReference,
    /// `type`.
    pub event_type: EventType,
    /// `reason`: a word in CamelCase for programs.
    pub reason: &'static str,
    /// `action`: what the component did.
    pub action: Option<&'static str>,
    /// `message`: a sentence for people.
    pub message: String,
}

impl Event {
    /// An Event without an action.
    pub fn new(
        involved_object: ObjectReference,
        event_type: EventType,
        reason: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self { involved_object, event_type, reason, action: None, message: message.into() }
    }

    /// The key that identifies repeats.
    fn key(&self, component: &str) -> Vec<String> {
        let object = &self.involved_object;
        let texts =
            [&object.uid, &object.namespace, &object.kind, &object.name, &object.field_path];
        let texts = texts.into_iter().map(|text| text.clone().unwrap_or_default());
        texts.chain([component, self.reason, &self.message].map(str::to_owned)).collect()
    }

    fn namespace(&self) -> &str {
        self.involved_object.namespace.as_deref().unwrap_or("default")
    }

    /// The JSON body of the Event.
    fn body(&self, name: &str, reporter: &EventWriter, now: Timestamp) -> Vec<u8> {
        let time = Time(now);
        let mut body = json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": self.namespace()},
            "involvedObject": self.involved_object,
            "type": format!("{:?}", self.event_type),
            "reason": self.reason,
            "message": cut(&self.message, LONGEST_MESSAGE),
            "source": {"component": reporter.component},
            "reportingComponent": reporter.component,
            "reportingInstance": cut(&reporter.instance, 128),
            "firstTimestamp": time,
            "lastTimestamp": time,
            "count": 1,
        });
        if let Some(action) = self.action {
            body["action"] = action.into();
        }
        if let Some(host) = &reporter.host {
            body["source"]["host"] = host.as_str().into();
        }
        body.to_string().into_bytes()
    }
}

/// The longest prefix of a text that fits into this many bytes.
fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

/// An Event that was written, or is being written.
#[derive(Clone, Debug)]
struct Known {
    name: String,
    count: u32,
}

/// Writes Events, one request each. Clones share the Events that they remember.
#[derive(Clone)]
pub struct EventWriter {
    sender: ApiSender,
    component: &'static str,
    instance: String,
    host: Option<String>,
    known: Arc<Mutex<BTreeMap<Vec<String>, Known>>>,
}

impl EventWriter {
    /// Writes as that component and instance.
    pub fn new(sender: ApiSender, component: &'static str, instance: impl Into<String>) -> Self {
        let (instance, known) = (instance.into(), Arc::default());
        Self { sender, component, instance, host: None, known }
    }

    /// The same with `source.host`, the name of the node.
    #[must_use]
    pub fn with_host(self, host: impl Into<String>) -> Self {
        Self { host: Some(host.into()), ..self }
    }

    /// The same as another component of this process.
    #[must_use]
    pub fn with_component(&self, component: &'static str) -> Self {
        Self { component, ..self.clone() }
    }

    /// Writes an Event, or counts a repeat. After a failure call it again with the same Event: it
    /// is written at most once.
    pub async fn write(&self, event: &Event) -> Result<(), ApiFailure> {
        let now = Timestamp::now();
        let key = event.key(self.component);
        let known = self.remember(&key, || {
            let name = event.involved_object.name.as_deref().unwrap_or_default();
            format!("{}.{:016x}", cut(name, LONGEST_STEM), now.as_nanosecond())
        });
        let collection = format!("/api/v1/namespaces/{}/events", event.namespace());
        let what = format!("event {} of {}", event.reason, name_of(&event.involved_object));
        let mut count = known.count + 1;
        let mut done = Ok(());
        if count > 1 {
            let patch = json!({"count": count, "lastTimestamp": Time(now)});
            let path = format!("{collection}/{}", known.name);
            done =
                self.sender.send(ApiCall::merge_patch(path, &patch, what.clone())).await.map(drop);
        }
        // The API server deletes Events after about an hour: a repeat is then a new Event.
        if count == 1 || matches!(done, Err(ApiFailure::NotFound { .. })) {
            count = 1;
            let call = ApiCall::create(collection, event.body(&known.name, self, now), what);
            done = match self.sender.send(call).await {
                // The reply to an earlier attempt was lost.
                Ok(_) | Err(ApiFailure::AlreadyExists { .. }) => Ok(()),
                Err(failure) => Err(failure),
            };
        }
        if done.is_ok()
            && let Some(known) = lock(&self.known).get_mut(&key)
        {
            known.count = count;
        }
        done
    }

    fn remember(&self, key: &[String], name: impl FnOnce() -> String) -> Known {
        let mut known = lock(&self.known);
        if known.len() >= REMEMBERED && !known.contains_key(key) {
            known.clear();
        }
        known.entry(key.to_vec()).or_insert_with(|| Known { name: name(), count: 0 }).clone()
    }
}

fn name_of(object: &ObjectReference) -> String {
    let [kind, namespace, name] = [&object.kind, &object.namespace, &object.name]
        .map(|text| text.as_deref().unwrap_or_default());
    let slash = if namespace.is_empty() { "" } else { "/" };
    format!("{kind} {namespace}{slash}{name}")
}

/// Writes Events in the background, in order. The caller never waits. An Event that cannot be
/// written is lost, and the log says so.
#[derive(Clone)]
pub struct EventRecorder {
    queue: mpsc::Sender<Event>,
    task: Arc<JoinHandle<()>>,
}

impl EventRecorder {
    /// Starts the background task.
    pub fn start(writer: EventWriter) -> Self {
        let (queue, mut events) = mpsc::channel(QUEUE);
        let task = supervise::spawn("event recorder", async move {
            while let Some(event) = events.recv().await {
                if let Err(failure) = write_with_retries(&writer, &event).await {
                    tracing::warn!(error = %failure, "event lost");
                }
            }
        });
        Self { queue, task: Arc::new(task) }
    }

    /// Records an Event. Returns at once.
    pub fn emit(&self, event: Event) {
        let (event, error) = match self.queue.try_send(event) {
            Ok(()) => return,
            Err(TrySendError::Full(event)) => (event, "too many events wait for the API server"),
            Err(TrySendError::Closed(event)) => (event, "the event recorder has stopped"),
        };
        let object = name_of(&event.involved_object);
        tracing::warn!(reason = event.reason, object, error, "event lost");
    }

    /// Waits until every Event is written, but at most this long. Call it on the last clone.
    pub async fn finish(self, limit: Duration) {
        let Self { queue, task } = self;
        drop(queue);
        let Some(mut task) = Arc::into_inner(task) else { return };
        if timeout(limit, &mut task).await.is_err() {
            task.abort();
        }
    }
}

/// Retries, because the server may not be reachable yet: the proxy, for example, makes it
/// reachable.
async fn write_with_retries(writer: &EventWriter, event: &Event) -> Result<(), ApiFailure> {
    let mut attempt = 0;
    loop {
        match writer.write(event).await {
            Err(ApiFailure::Unavailable { .. } | ApiFailure::Unreachable { .. })
                if attempt + 1 < ATTEMPTS => {}
            done => return done,
        }
        sleep(BACKOFF.delay(attempt, rand::random())).await;
        attempt += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::convert::Infallible;
    use std::future::ready;

    use http::{Request, Response};
    use http_body_util::BodyExt as _;
    use kube::Client;
    use kube::client::Body;
    use serde_json::Value;

    use super::*;

    type Sent = Arc<Mutex<Vec<(String, Value)>>>;

    /// A writer whose requests get these status codes, then 201, and the requests it sent.
    fn writer(codes: &[u16]) -> (EventWriter, Sent) {
        let codes = Arc::new(Mutex::new(codes.iter().copied().collect::<VecDeque<u16>>()));
        let sent = Sent::default();
        let log = sent.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let code = codes.lock().unwrap().pop_front().unwrap_or(201);
            let log = log.clone();
            async move {
                let line = format!("{} {}", request.method(), request.uri().path());
                let body = request.into_body().collect().await.unwrap().to_bytes();
                log.lock().unwrap().push((line, serde_json::from_slice(&body).unwrap()));
                let reason = if code == 409 { "AlreadyExists" } else { "" };
                let body = json!({"reason": reason}).to_string().into_bytes();
                let reply = Response::builder().status(code).body(Body::from(body)).unwrap();
                ready(Ok::<_, Infallible>(reply)).await
            }
        });
        let sender = ApiSender::new(Client::new(service, "default"), "test");
        (EventWriter::new(sender, "test", "instance"), sent)
    }

    fn event(message: &str) -> Event {
        let object = ObjectReference {
            kind: Some("Pod".to_owned()),
            namespace: Some("n".to_owned()),
            name: Some("p".to_owned()),
            uid: Some("u".to_owned()),
            ..ObjectReference::default()
        };
        Event::new(object, EventType::Warning, "Failed", message)
    }

    fn lines(sent: &Sent) -> Vec<&'static str> {
        let sent = sent.lock().unwrap();
        sent.iter()
            .map(|(line, _)| if line.starts_with("POST") { "POST" } else { "PATCH" })
            .collect()
    }

    #[tokio::test]
    async fn repeats_increase_the_count_and_new_messages_create_events() {
        let (writer, sent) = writer(&[]);
        for message in ["a", "a", "b", "a"] {
            writer.write(&event(message)).await.unwrap();
        }
        assert_eq!(lines(&sent), ["POST", "PATCH", "POST", "PATCH"]);
        let sent = sent.lock().unwrap();
        let first = &sent[0].1;
        assert_eq!((&first["count"], &first["type"]), (&1.into(), &"Warning".into()));
        assert_eq!(first["involvedObject"]["uid"], "u");
        assert_eq!(first["reportingComponent"], "test");
        let name = first["metadata"]["name"].as_str().unwrap();
        assert_eq!(sent[3].0, format!("PATCH /api/v1/namespaces/n/events/{name}"));
        assert_eq!(sent[3].1["count"], 3);
    }

    #[tokio::test]
    async fn a_retry_after_a_lost_reply_writes_no_second_event() {
        let (writer, sent) = writer(&[500, 409]);
        assert!(writer.write(&event("a")).await.is_err());
        writer.write(&event("a")).await.unwrap();
        writer.write(&event("a")).await.unwrap();
        assert_eq!(lines(&sent), ["POST", "POST", "PATCH"]);
        let sent = sent.lock().unwrap();
        assert_eq!(sent[0].1["metadata"]["name"], sent[1].1["metadata"]["name"]);
        assert_eq!(sent[2].1["count"], 2);
    }

    #[tokio::test]
    async fn a_repeat_of_an_expired_event_is_a_new_event() {
        let (writer, sent) = writer(&[201, 404, 201]);
        for _ in 0..3 {
            writer.write(&event("a")).await.unwrap();
        }
        assert_eq!(lines(&sent), ["POST", "PATCH", "POST", "PATCH"]);
        assert_eq!(sent.lock().unwrap()[3].1["count"], 2);
    }

    #[tokio::test]
    async fn long_names_and_messages_are_cut() {
        let (writer, sent) = writer(&[]);
        let mut event = event(&"ä".repeat(600));
        event.involved_object.name = Some("c".repeat(253));
        writer.write(&event).await.unwrap();
        let sent = sent.lock().unwrap();
        assert!(sent[0].1["metadata"]["name"].as_str().unwrap().len() <= 253);
        assert!(sent[0].1["message"].as_str().unwrap().len() <= 1024);
    }

    #[tokio::test(start_paused = true)]
    async fn the_recorder_retries_while_the_server_is_unavailable() {
        let (writer, sent) = writer(&[503, 500]);
        let recorder = EventRecorder::start(writer);
        recorder.emit(event("a"));
        recorder.finish(Duration::from_secs(60)).await;
        assert_eq!(lines(&sent), ["POST", "POST", "POST"]);
    }
}
