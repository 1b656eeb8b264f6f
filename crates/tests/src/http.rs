//! A plain HTTP/1.1 client over TLS, for tests that must see exactly what a server answers.
//!
//! Client libraries hide what these tests check: headers, status codes, the bytes of a watch. So this client builds
//! requests itself and returns answers unchanged. It deliberately has no connection pool, no retries and no
//! decompression.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, Request as HttpRequest};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use nearhop_runtime::pki::Pair;
use nearhop_runtime::tls::{Trust, client_config};
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Time limit for one answer; the slowest recorded answer waits three seconds on purpose.
const ANSWER: Duration = Duration::from_secs(30);

/// A server, and the credentials for its requests.
#[derive(Clone)]
pub struct Target {
    /// `host:port`.
    pub address: String,
    /// The authority's name, for SNI and the Host header.
    pub host: String,
    tls: Arc<rustls::ClientConfig>,
    /// Bearer token; none means anonymous.
    pub token: Option<String>,
}

/// One request.
#[derive(Clone, Debug)]
pub struct Request {
    /// `GET`, `POST` and so on.
    pub method: String,
    /// Path with query, as it goes over the wire.
    pub path: String,
    /// Headers besides Host and Authorization.
    pub headers: Vec<(String, String)>,
    /// Body, empty for none.
    pub body: Bytes,
}

impl Request {
    /// A request without a body.
    pub fn new(method: &str, path: &str) -> Self {
        let accept = ("accept".to_owned(), "application/json".to_owned());
        Self { method: method.into(), path: path.into(), headers: vec![accept], body: Bytes::new() }
    }

    /// The same with a JSON body.
    pub fn json(self, body: &Value) -> Self {
        self.bytes("application/json", body.to_string())
    }

    /// The same with a body of the given content type.
    pub fn bytes(mut self, content_type: &str, body: impl Into<Bytes>) -> Self {
        self.headers.push(("content-type".into(), content_type.into()));
        self.body = body.into();
        self
    }

    /// The same with one more header.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(n, _)| n != name);
        self.headers.push((name.into(), value.into()));
        self
    }
}

/// A complete answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// HTTP status code.
    pub status: u16,
    /// All headers.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
}

impl Answer {
    /// The body as JSON; `null` if it is not JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// `reason` of a Status answer.
    pub fn reason(&self) -> String {
        self.json()["reason"].as_str().unwrap_or_default().to_owned()
    }

    /// Fails with the body unless the status is the expected one.
    pub fn expect(self, status: u16) -> Result<Self> {
        if self.status != status {
            bail!("expected {status}, got {}: {}", self.status, clip(&self.text()));
        }
        Ok(self)
    }

    /// Fails with the body unless the status is a success.
    pub fn ok(self) -> Result<Self> {
        if !(200..300).contains(&self.status) {
            bail!("{}: {}", self.status, clip(&self.text()));
        }
        Ok(self)
    }
}

/// The start of a text, so that a failure stays readable.
pub fn clip(text: &str) -> String {
    text.chars().take(600).collect()
}

impl Target {
    /// A server at `https://host:port`.
    pub fn new(
        url: &str,
        trust: &Trust,
        identity: Option<&Pair>,
        token: Option<String>,
    ) -> Result<Self> {
        let address = url.trim_start_matches("https://").trim_end_matches('/').to_owned();
        let host = address.rsplit_once(':').map_or(address.as_str(), |(h, _)| h).to_owned();
        let tls = client_config(identity, trust)?;
        Ok(Self { address, host, tls: Arc::new(tls), token })
    }

    /// The same server with other credentials.
    pub fn with_token(&self, token: Option<&str>) -> Self {
        Self { token: token.map(str::to_owned), ..self.clone() }
    }

    /// Opens a TLS stream, for tests that send raw bytes.
    pub async fn stream(&self) -> Result<TlsStream<TcpStream>> {
        let tcp = TcpStream::connect(&self.address).await.context("connect")?;
        tcp.set_nodelay(true)?;
        let name = ServerName::try_from(self.host.trim_matches(['[', ']']).to_owned())?;
        TlsConnector::from(self.tls.clone()).connect(name, tcp).await.context("TLS")
    }

    /// Opens a connection for several requests.
    pub async fn connect(&self) -> Result<Connection> {
        let (sender, connection) = handshake(TokioIo::new(self.stream().await?)).await?;
        tokio::spawn(async move {
            // The sender reports the same error together with the request.
            let _ = connection.await;
        });
        Ok(Connection { sender, target: self.clone() })
    }

    /// Sends one request on a new connection and reads the whole answer.
    pub async fn send(&self, request: Request) -> Result<Answer> {
        self.connect().await?.send(request).await
    }

    /// `GET path` as JSON.
    pub async fn get(&self, path: &str) -> Result<Answer> {
        self.send(Request::new("GET", path)).await
    }

    /// `POST path` with a JSON body.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Answer> {
        self.send(Request::new("POST", path).json(body)).await
    }

    /// `PUT path` with a JSON body.
    pub async fn put(&self, path: &str, body: &Value) -> Result<Answer> {
        self.send(Request::new("PUT", path).json(body)).await
    }

    /// `DELETE path` without options.
    pub async fn delete(&self, path: &str) -> Result<Answer> {
        self.send(Request::new("DELETE", path)).await
    }

    /// `PATCH path` as a JSON merge patch.
    pub async fn merge(&self, path: &str, body: &Value) -> Result<Answer> {
        self.patch(path, "application/merge-patch+json", body).await
    }

    /// `PATCH path` of the given type.
    pub async fn patch(&self, path: &str, content_type: &str, body: &Value) -> Result<Answer> {
        self.send(Request::new("PATCH", path).bytes(content_type, body.to_string())).await
    }

    /// Sends a request and leaves the body open, for watches.
    pub async fn open(&self, request: Request) -> Result<Open> {
        let mut connection = self.connect().await?;
        let response = tokio::time::timeout(ANSWER, connection.start(request)).await??;
        let (parts, body) = response.into_parts();
        Ok(Open {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body,
            pending: BytesMut::new(),
            _connection: connection,
        })
    }
}

/// A connection kept open for several requests, one after the other.
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    target: Target,
}

impl Connection {
    async fn start(&mut self, request: Request) -> Result<http::Response<Incoming>> {
        let mut builder = HttpRequest::builder()
            .method(Method::from_bytes(request.method.as_bytes())?)
            .uri(&request.path)
            .header("host", &self.target.address);
        if let Some(token) = &self.target.token {
            builder = builder.header("authorization", format!("Bearer {token}"));
        }
        for (name, value) in &request.headers {
            builder = builder.header(name, value);
        }
        let ready = builder.body(Full::new(request.body)).context("request")?;
        self.sender.ready().await?;
        Ok(self.sender.send_request(ready).await?)
    }

    /// Sends one request and reads the whole answer.
    pub async fn send(&mut self, request: Request) -> Result<Answer> {
        let what = format!("{} {}", request.method, request.path);
        let exchange = async {
            let (parts, body) = self.start(request).await?.into_parts();
            let body = body.collect().await?.to_bytes();
            anyhow::Ok(Answer { status: parts.status.as_u16(), headers: parts.headers, body })
        };
        let answer = tokio::time::timeout(ANSWER, exchange).await;
        answer.with_context(|| format!("{what}: no answer in time"))?.context(what)
    }
}

/// An answer whose body is still open: a watch.
pub struct Open {
    /// HTTP status code.
    pub status: u16,
    /// All headers.
    pub headers: HeaderMap,
    body: Incoming,
    pending: BytesMut,
    _connection: Connection,
}

/// Result of a wait for the next line of a watch.
#[derive(Debug, PartialEq)]
pub enum Line {
    /// One whole line.
    Text(String),
    /// The server ended the stream.
    End,
    /// No line arrived within the time limit.
    Silence,
}

impl Open {
    /// Waits for the next line, at most for `limit`.
    pub async fn line(&mut self, limit: Duration) -> Line {
        let deadline = tokio::time::Instant::now() + limit;
        loop {
            if let Some(at) = self.pending.iter().position(|b| *b == b'\n') {
                let line = self.pending.split_to(at + 1);
                return Line::Text(String::from_utf8_lossy(line.trim_ascii_end()).into_owned());
            }
            match tokio::time::timeout_at(deadline, self.body.frame()).await {
                Err(_) => return Line::Silence,
                Ok(None | Some(Err(_))) if self.pending.is_empty() => return Line::End,
                Ok(None | Some(Err(_))) => {
                    let rest = self.pending.split();
                    return Line::Text(String::from_utf8_lossy(&rest).into_owned());
                }
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        self.pending.extend_from_slice(&data);
                    }
                }
            }
        }
    }

    /// The next line as JSON; `None` if the stream ended or no line arrived within `limit`.
    pub async fn event(&mut self, limit: Duration) -> Option<Value> {
        match self.line(limit).await {
            Line::Text(text) => Some(serde_json::from_str(&text).unwrap_or(Value::String(text))),
            Line::End | Line::Silence => None,
        }
    }
}

/// Sends a GET request without TLS, for example to the admin port of a daemon; returns status and body.
pub async fn get_plain(server: std::net::SocketAddr, path: &str) -> Result<(u16, String)> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = TcpStream::connect(server).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.context("not an HTTP answer")?, body.to_owned()))
}

/// Sends many requests from eight clients at a time; all must succeed.
pub async fn send_all(target: &Target, requests: Vec<Request>) -> Result<()> {
    const CLIENTS: usize = 8;
    let mut lots: Vec<Vec<Request>> = (0..CLIENTS).map(|_| Vec::new()).collect();
    for (i, request) in requests.into_iter().enumerate() {
        lots[i % CLIENTS].push(request);
    }
    let mut clients = tokio::task::JoinSet::new();
    for lot in lots {
        let mut connection = target.connect().await?;
        clients.spawn(async move {
            for request in lot {
                connection.send(request).await?.ok()?;
            }
            anyhow::Ok(())
        });
    }
    clients.join_all().await.into_iter().collect()
}
