//! The admin port: probes and metrics over plain HTTP.
//!
//! One request a connection, and a limit on a connection's whole life: that is cheap for a probe
//! and a scrape, and bounds those who send or read slowly alike. Deliberately without TLS, without
//! authentication and without a way to change anything.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use http::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use crate::RuntimeError;
use crate::health::{Health, Purpose};
use crate::metrics::{CONTENT_TYPE_TEXT, Metrics};

type Body = http_body_util::Full<hyper::body::Bytes>;

/// A client that takes longer for its headers is not served.
const HEADERS: Duration = Duration::from_secs(5);
/// Nor one that takes longer for all of it.
const LIFE: Duration = Duration::from_secs(30);
/// Connections beyond this wait until another ends.
const MOST_CONNECTIONS: usize = 256;

const PATHS: [&str; 4] = ["/healthz", "/livez", "/metrics", "/readyz"];
const PLAIN: &str = "text/plain; charset=utf-8";

/// A running admin port. It stops when this is dropped.
#[derive(Debug)]
pub struct Admin {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Admin {
    /// Where it listens: the port that was given, or the free one that was taken for port 0.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        // The task owns its connections, so they end with it.
        self.task.abort();
    }
}

/// Listens; when this returns, it answers.
///
/// # Errors
/// The address cannot be had.
pub async fn serve(
    address: SocketAddr,
    metrics: Metrics,
    health: Health,
) -> Result<Admin, RuntimeError> {
    let refused = |why| RuntimeError::Listen { address, why };
    let listener = TcpListener::bind(address).await.map_err(refused)?;
    let address = listener.local_addr().map_err(refused)?;
    let task = tokio::spawn(accept(listener, metrics, health));
    Ok(Admin { address, task })
}

async fn accept(listener: TcpListener, metrics: Metrics, health: Health) {
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        if connections.len() >= MOST_CONNECTIONS {
            connections.join_next().await;
        }
        let Ok((stream, _)) = listener.accept().await else {
            // Out of file descriptors, most likely: others must end first.
            sleep(Duration::from_millis(50)).await;
            continue;
        };
        connections.spawn(connection(stream, metrics.clone(), health.clone()));
    }
}

async fn connection(stream: TcpStream, metrics: Metrics, health: Health) {
    let service = service_fn(|request: Request<Incoming>| {
        let answer = answer(request.method(), request.uri(), &metrics, &health);
        async move { Ok::<_, Infallible>(answer) }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    // A client that broke off, or was too slow, is its own problem.
    let _ = timeout(LIFE, serving).await;
}

fn answer(method: &Method, uri: &http::Uri, metrics: &Metrics, health: &Health) -> Response<Body> {
    let path = uri.path();
    if !PATHS.contains(&path) {
        let text = format!("there is no {path:?} here, but:\n{}\n", PATHS.join("\n"));
        return reply(StatusCode::NOT_FOUND, PLAIN, text);
    }
    // hyper leaves the body out of an answer to HEAD.
    if method != Method::GET && method != Method::HEAD {
        let text = "only GET and HEAD are allowed here\n".to_owned();
        let mut refusal = reply(StatusCode::METHOD_NOT_ALLOWED, PLAIN, text);
        refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refusal;
    }
    match path {
        "/metrics" => reply(StatusCode::OK, CONTENT_TYPE_TEXT, metrics.encode()),
        "/readyz" => probe(health, Purpose::Ready, uri),
        _ => probe(health, Purpose::Live, uri),
    }
}

/// `ok`, or the list of checks: on failure, and for whoever asks with `?verbose`.
fn probe(health: &Health, purpose: Purpose, uri: &http::Uri) -> Response<Body> {
    let report = health.report(purpose);
    let code = if report.is_ok() { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
    let mut parameters = uri.query().unwrap_or_default().split('&');
    let verbose = parameters.any(|text| text.split('=').next() == Some("verbose"));
    let text = if report.is_ok() && !verbose {
        "ok".to_owned()
    } else {
        report.list(uri.path().trim_start_matches('/'))
    };
    reply(code, PLAIN, text)
}

fn reply(code: StatusCode, content_type: &'static str, text: String) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
