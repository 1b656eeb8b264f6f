//! A stateless API server for tests with scripted responses.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::Client;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// The requests so far, as `GET /path`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests(Arc<Mutex<Vec<String>>>);

impl Requests {
    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn count(&self, line: &str) -> usize {
        self.all().iter().filter(|requests| *requests == line).count()
    }

    fn note(&self, line: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line.to_owned());
    }
}

/// Starts a server; `answer` receives the request line and how often it was seen before.
pub(crate) async fn start<F>(answer: F) -> (Client, Requests)
where
    F: Fn(&str, usize) -> (u16, Value) + Clone + Send + Sync + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut config = kube::Config::new(url.parse().unwrap());
    config.default_retry = false;
    let requests = Requests::default();
    tokio::spawn(serve(listener, answer, requests.clone()));
    (Client::try_from(config).unwrap(), requests)
}

async fn serve<F>(listener: TcpListener, answer: F, requests: Requests)
where
    F: Fn(&str, usize) -> (u16, Value) + Clone + Send + Sync + 'static,
{
    while let Ok((stream, _)) = listener.accept().await {
        let (answer, requests) = (answer.clone(), requests.clone());
        let service = service_fn(move |request: Request<Incoming>| {
            let line = format!("{} {}", request.method(), request.uri().path());
            let (code, body) = answer(&line, requests.count(&line));
            requests.note(&line);
            let mut reply = Response::new(Full::new(Bytes::from(body.to_string())));
            *reply.status_mut() = code.try_into().unwrap();
            async { Ok::<_, Infallible>(reply) }
        });
        let connection = hyper::server::conn::http1::Builder::new();
        tokio::spawn(connection.serve_connection(TokioIo::new(stream), service));
    }
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
