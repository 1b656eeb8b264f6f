//! A stateless API server for tests with scripted responses.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use nearhop_runtime::client::ApiSender;
use nearhop_runtime::lock;
use serde_json::{Value, json};

/// The requests so far, as `GET /path`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests(Arc<Mutex<Vec<String>>>);

impl Requests {
    pub(crate) fn all(&self) -> Vec<String> {
        lock(&self.0).clone()
    }

    pub(crate) fn count(&self, line: &str) -> usize {
        lock(&self.0).iter().filter(|requests| *requests == line).count()
    }
}

/// Starts a server; `answer` receives the request line and how often it was seen before.
pub(crate) fn start<F>(answer: F) -> (ApiSender, Requests)
where
    F: Fn(&str, usize) -> (u16, Value) + Send + 'static,
{
    let requests = Requests::default();
    let seen = requests.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let line = format!("{} {}", request.method(), request.uri().path());
        let (code, body) = answer(&line, seen.count(&line));
        lock(&seen.0).push(line);
        let reply =
            Response::builder().status(code).body(Body::from(body.to_string().into_bytes()));
        async { Ok::<_, Infallible>(reply.unwrap()) }
    });
    (ApiSender::new(Client::new(service, "default"), "test"), requests)
}

/// An error as the API server returns it.
pub(crate) fn refusal(code: u16) -> (u16, Value) {
    let reason = if code == 404 { "NotFound" } else { "Test" };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": format!("no: {code}"), "reason": reason, "code": code,
    });
    (code, status)
}
