//! Sends one recording to a new server and collects the differences.
//!
//! Exchanges are sent in order. A watch stays open as long as in the recording, so that it receives the events of other
//! exchanges.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use http::HeaderMap;
use nearhop_apiserver::Controllers;
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::Difference;
use super::compare::compare;
use super::names::Names;
use super::prepare::{Plan, Preparer};
use super::transcript::{Exchange, Library, RecordedResponse, Transcript};
use crate::http::{Answer, Line, Open, Request, Target, clip};
use crate::server::{Options, Server, start};

/// Time limit for an event of a watch after its cause.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long to wait for unexpected events.
const SETTLE: Duration = Duration::from_millis(150);

/// Replays one transcript on a new server.
pub async fn replay(
    library: &Library,
    plans: &BTreeMap<String, Plan>,
    name: &str,
) -> Result<Vec<Difference>> {
    let Some(transcript) = library.transcripts.get(name) else {
        anyhow::bail!("no transcript {name}")
    };
    let nothing = Plan::default();
    let plan = plans.get(name).unwrap_or(&nothing);
    // Most recordings are of a bare API server, without controllers.
    let controllers = if plan.controllers { Controllers::All } else { Controllers::Bare };
    let server = start(&Options { controllers, ..Options::default() }).await?;
    let mut session = Session {
        library,
        transcript,
        plan,
        server: &server,
        names: Names::default(),
        open: Vec::new(),
        found: Vec::new(),
    };
    session.run().await;
    Ok(session.found)
}

struct Session<'a> {
    library: &'a Library,
    transcript: &'a Transcript,
    plan: &'a Plan,
    server: &'a Server,
    names: Names,
    open: Vec<Watching<'a>>,
    found: Vec<Difference>,
}

/// A watch that is open.
struct Watching<'a> {
    exchange: &'a Exchange,
    events: Arc<Mutex<Vec<Value>>>,
    reader: JoinHandle<()>,
}

impl<'a> Session<'a> {
    async fn run(&mut self) {
        let transcript = self.transcript;
        for (at, exchange) in transcript.exchanges.iter().enumerate() {
            self.finish_watches(exchange.t).await;
            self.steps(exchange, |s| s.before).await;
            if at == 0 {
                self.names.begin();
            }
            if let Err(error) = self.exchange(exchange).await {
                self.report(exchange, "exchange", format!("{error:#}"));
            }
            let next = transcript.exchanges.get(at + 1).map_or(f64::INFINITY, |e| e.t);
            self.finish_watches(next).await;
        }
    }

    fn report(&mut self, exchange: &Exchange, path: &str, text: String) {
        let request = format!("{} {}", exchange.request.method, exchange.request.path);
        let file = self.transcript.name.clone();
        let difference = Difference { file, seq: exchange.seq, request, path: path.into(), text };
        self.found.push(difference);
    }

    async fn steps(&mut self, exchange: &Exchange, when: fn(&super::prepare::Step) -> Option<u64>) {
        let preparer = Preparer { server: self.server, library: self.library };
        let plan = self.plan;
        for step in plan.steps.iter().filter(|s| when(s) == Some(exchange.seq)) {
            if let Err(error) = preparer.run(step, &mut self.names).await {
                self.report(exchange, "preparation", format!("{error:#}"));
            }
        }
    }

    /// Client with the credentials of the recorded user; `None` if this server has no such user.
    fn sender(&self, exchange: &Exchange) -> Option<Target> {
        let admin = &self.server.admin;
        let given = self.plan.exchanges.get(&exchange.seq).and_then(|o| o.user.as_deref());
        match given.or(exchange.request.authenticated_as.as_deref()) {
            None | Some("admin") => Some(admin.clone()),
            Some("an unknown token") => Some(admin.with_token(Some("unknown"))),
            Some("nobody (no token)") => Some(admin.with_token(None)),
            Some(_) => None,
        }
    }

    fn request(&self, exchange: &Exchange) -> Result<Request> {
        let recorded = &exchange.request;
        let other = self.plan.exchanges.get(&exchange.seq);
        let path = match other.and_then(|o| o.path.clone()) {
            Some(literal) => literal,
            None => self.names.path(&recorded.path),
        };
        let body: Bytes = match (other, &recorded.body) {
            (Some(o), _) if o.text.is_some() => o.text.clone().unwrap_or_default().into(),
            (Some(o), _) if o.repeat.is_some() => {
                o.repeat.as_ref().map(super::prepare::Repeat::body).unwrap_or_default().into()
            }
            (_, Some(body)) => self.names.document(body).to_string().into(),
            _ => recorded.bytes()?,
        };
        let headers =
            recorded.headers.iter().map(|(k, v)| (k.clone(), self.names.text(v))).collect();
        Ok(Request { method: recorded.method.clone(), path, headers, body })
    }

    async fn exchange(&mut self, exchange: &'a Exchange) -> Result<()> {
        let Some(target) = self.sender(exchange) else {
            let user = exchange.request.authenticated_as.clone().unwrap_or_default();
            self.report(exchange, "authenticatedAs", format!("no such user here: {user}"));
            return Ok(());
        };
        let request = self.request(exchange)?;
        if exchange.is_watch() {
            let open = target.open(request).await?;
            self.head(exchange, open.status, &open.headers);
            self.open.push(read_along(exchange, open));
            self.steps(exchange, |s| s.during).await;
            return Ok(());
        }
        let answer = target.send(request).await?;
        self.head(exchange, answer.status, &answer.headers);
        self.body(exchange, &answer)
    }

    /// Compares status and headers.
    fn head(&mut self, exchange: &Exchange, status: u16, headers: &HeaderMap) {
        let recorded = &exchange.response;
        if status != recorded.status {
            self.report(exchange, "status", format!("expected {}, got {status}", recorded.status));
        }
        let binary = recorded.binary;
        for name in ["content-type", "warning", "retry-after"] {
            let expected = recorded_header(recorded, name);
            let actual: Vec<String> = headers
                .get_all(name)
                .iter()
                .map(|v| String::from_utf8_lossy(v.as_bytes()).into_owned())
                .collect();
            // If the recorded answer was protobuf, JSON is accepted too.
            let same = expected == actual
                || (binary
                    && name == "content-type"
                    && actual.iter().all(|a| a == "application/json"));
            if !same {
                let path = format!("headers.{name}");
                self.report(exchange, &path, format!("expected {expected:?}, got {actual:?}"));
            }
        }
        let etag = headers.get("etag").and_then(|v| v.to_str().ok());
        if let (Some(Value::String(from)), Some(to)) = (recorded.headers.get("etag"), etag) {
            self.names.set(from, to);
        }
    }

    fn body(&mut self, exchange: &Exchange, answer: &Answer) -> Result<()> {
        let recorded = &exchange.response;
        if recorded.binary {
            self.names.observe(&answer.json());
            return Ok(());
        }
        if let Some(expected) = self.library.body(recorded)? {
            let actual = answer.json();
            if actual.is_null() {
                self.report(exchange, "body", format!("not JSON: {:?}", clip(&answer.text())));
                return Ok(());
            }
            self.documents(exchange, "body", expected, &actual);
        } else if let Some(expected) = &recorded.text {
            self.text(exchange, expected, &answer.text());
        } else if !answer.body.is_empty() {
            self.report(exchange, "body", format!("expected none, got {:?}", clip(&answer.text())));
        }
        Ok(())
    }

    fn documents(&mut self, exchange: &Exchange, name: &str, recorded: &Value, actual: &Value) {
        for path in self.names.learn(recorded, actual) {
            let text = "the version has changed, but in the recording nothing was written";
            self.report(exchange, &format!("{name}{path}"), text.into());
        }
        let expected = self.names.document(recorded);
        for found in compare(name, &expected, actual, &exchange.volatile) {
            self.report(exchange, &found.path, found.text);
        }
    }

    fn text(&mut self, exchange: &Exchange, recorded: &str, actual: &str) {
        let yaml = |t: &str| serde_saphyr::from_str::<Value>(t).ok().filter(Value::is_object);
        if let (Some(expected), Some(actual)) = (yaml(recorded), yaml(actual)) {
            return self.documents(exchange, "text", &expected, &actual);
        }
        let expected = self.names.text(recorded);
        if expected != actual {
            self.report(exchange, "text", format!("expected {expected:?}, got {:?}", clip(actual)));
        }
    }

    /// Compares and closes the watches that were closed by this time in the recording.
    async fn finish_watches(&mut self, now: f64) {
        let due = |w: &Watching<'_>| w.exchange.watched_until() <= now;
        let (done, open) = std::mem::take(&mut self.open).into_iter().partition(due);
        self.open = open;
        for watching in done {
            self.finish(watching).await;
        }
    }

    async fn finish(&mut self, watching: Watching<'_>) {
        let exchange = watching.exchange;
        let expected: Vec<&Value> =
            exchange.response.frames.iter().flatten().map(|f| &f.frame).collect();
        let mut actual = wait_for(&watching, expected.len()).await;
        let mut expected: Vec<Value> = expected.into_iter().cloned().collect();
        if exchange.response.binary {
            return;
        }
        if self.plan.bookmarks.contains(&exchange.seq) {
            expected.retain(|event| !is_plain_bookmark(event));
            actual.retain(|event| !is_plain_bookmark(event));
        }
        if self.plan.unordered.contains(&exchange.seq) {
            expected.sort_by_key(place_of);
            actual.sort_by_key(place_of);
        }
        for (at, event) in expected.iter().enumerate() {
            let name = format!("frames[{at}]");
            match actual.get(at) {
                Some(got) => self.frame(exchange, at, event, got),
                None => {
                    let text = format!("missing {}", clip(&event.to_string()));
                    self.report(exchange, &name, text);
                }
            }
        }
        for (at, event) in actual.iter().enumerate().skip(expected.len()) {
            let text = format!("unexpected {}", clip(&event.to_string()));
            self.report(exchange, &format!("frames[{at}]"), text);
        }
    }

    fn frame(&mut self, exchange: &Exchange, at: usize, recorded: &Value, actual: &Value) {
        let name = format!("frames[{at}]");
        for path in self.names.learn(recorded, actual) {
            self.report(exchange, &format!("{name}{path}"), "the version has changed".into());
        }
        let expected = self.names.document(recorded);
        // The recording's paths have frames[*].frame; here each frame is compared separately.
        let volatile: Vec<String> = exchange
            .volatile
            .iter()
            .map(|v| v.replace("response.frames[*].frame", &format!("response.{name}")))
            .collect();
        for found in compare(&name, &expected, actual, &volatile) {
            self.report(exchange, &found.path, found.text);
        }
    }
}

fn recorded_header(recorded: &RecordedResponse, name: &str) -> Vec<String> {
    match recorded.headers.get(name) {
        Some(Value::String(one)) => vec![one.clone()],
        Some(Value::Array(list)) => {
            list.iter().filter_map(|v| v.as_str().map(str::to_owned)).collect()
        }
        _ => Vec::new(),
    }
}

/// Whether an event is a bookmark without annotations.
fn is_plain_bookmark(event: &Value) -> bool {
    event["type"] == "BOOKMARK" && event["object"]["metadata"]["annotations"].is_null()
}

/// Type and name of an event, to sort by.
fn place_of(event: &Value) -> (String, String) {
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    (text(&event["type"]), text(&event["object"]["metadata"]["name"]))
}

fn read_along(exchange: &Exchange, mut open: Open) -> Watching<'_> {
    let events = Arc::new(Mutex::new(Vec::new()));
    let sink = events.clone();
    let reader = tokio::spawn(async move {
        while let Line::Text(text) = open.line(Duration::from_secs(60)).await {
            let event = serde_json::from_str(&text).unwrap_or(Value::String(text));
            sink.lock().expect("no holder of this lock panics").push(event);
        }
    });
    Watching { exchange, events, reader }
}

/// Waits until a watch has received the expected events or ended, then a little longer for unexpected events.
async fn wait_for(watching: &Watching<'_>, expected: usize) -> Vec<Value> {
    let count = || watching.events.lock().expect("no holder of this lock panics").len();
    let mut deadline = Instant::now() + TIMEOUT;
    while Instant::now() < deadline && count() < expected && !watching.reader.is_finished() {
        sleep(Duration::from_millis(5)).await;
    }
    // A watch with a short timeout must end by itself.
    let by_server = watching.exchange.response.closed_by.as_deref() == Some("server");
    let end = ends_within(&watching.exchange.request.path).filter(|_| by_server);
    deadline = Instant::now() + end.unwrap_or(SETTLE);
    while Instant::now() < deadline && !watching.reader.is_finished() {
        sleep(Duration::from_millis(5)).await;
    }
    watching.reader.abort();
    watching.events.lock().expect("no holder of this lock panics").clone()
}

/// Time limit for the end of a watch by its `timeoutSeconds`, if that is at most 5.
fn ends_within(path: &str) -> Option<Duration> {
    let (_, rest) = path.split_once("timeoutSeconds=")?;
    let seconds: u64 = rest.split('&').next()?.parse().ok()?;
    (seconds <= 5).then(|| Duration::from_secs(seconds + 1))
}
