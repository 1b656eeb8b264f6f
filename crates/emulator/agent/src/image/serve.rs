//! Dual-stack sockets and an HTTP server for the built-in images.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

/// The listen backlog.
const BACKLOG: i32 = 4096;

/// A socket on all addresses, dual-stack if the kernel has IPv6.
fn socket(kind: Type, protocol: Protocol, port: u16) -> io::Result<Socket> {
    let open = |domain, address: SocketAddr| -> io::Result<Socket> {
        let socket = Socket::new(domain, kind, Some(protocol))?;
        if domain == Domain::IPV6 {
            socket.set_only_v6(false)?;
        }
        if kind == Type::STREAM {
            socket.set_reuse_address(true)?;
        }
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        Ok(socket)
    };
    let both = open(Domain::IPV6, (Ipv6Addr::UNSPECIFIED, port).into());
    match both {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            open(Domain::IPV4, (Ipv4Addr::UNSPECIFIED, port).into())
        }
        done => done,
    }
}

/// Listens on all addresses.
pub(super) fn listen(port: u16) -> Result<TcpListener, String> {
    let failed = |error: io::Error| format!("cannot listen on TCP port {port}: {error}");
    let socket = socket(Type::STREAM, Protocol::TCP, port).map_err(failed)?;
    socket.listen(BACKLOG).map_err(failed)?;
    TcpListener::from_std(socket.into()).map_err(failed)
}

/// Receives on all addresses.
pub(super) fn receive(port: u16) -> Result<UdpSocket, String> {
    let failed = |error: io::Error| format!("cannot listen on UDP port {port}: {error}");
    let socket = socket(Type::DGRAM, Protocol::UDP, port).map_err(failed)?;
    UdpSocket::from_std(socket.into()).map_err(failed)
}

/// Converts an IPv4-mapped address.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The number of open connections.
#[derive(Clone, Debug, Default)]
pub(super) struct OpenConnections(Arc<AtomicUsize>);

pub(super) struct ConnectionGuard(OpenConnections);

impl OpenConnections {
    pub(super) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn one(&self) -> ConnectionGuard {
        self.0.fetch_add(1, Ordering::Relaxed);
        ConnectionGuard(self.clone())
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Clone, Debug)]
pub(super) struct HttpRequest {
    pub(super) path: String,
    pub(super) query: Vec<(String, String)>,
    pub(super) headers: HeaderMap,
    pub(super) client: SocketAddr,
}

impl HttpRequest {
    pub(super) fn new(target: &str, headers: HeaderMap, client: SocketAddr) -> Self {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let query = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        Self { path: path.to_owned(), query, headers, client }
    }

    /// A query parameter; empty if it is missing.
    pub(super) fn get(&self, name: &str) -> &str {
        let found = self.query.iter().find(|(key, _)| key == name);
        found.map_or("", |(_, value)| value.as_str())
    }
}

#[derive(Clone, Debug)]
pub(super) struct HttpReply {
    pub(super) code: u16,
    pub(super) body: String,
    pub(super) headers: Vec<(&'static str, String)>,
}

impl HttpReply {
    pub(super) fn ok(body: impl Into<String>) -> Self {
        Self::new(200, body)
    }

    pub(super) fn new(code: u16, body: impl Into<String>) -> Self {
        Self { code, body: body.into(), headers: Vec::new() }
    }

    fn response(self) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::new(Bytes::from(self.body)));
        let code = StatusCode::from_u16(self.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        *response.status_mut() = code;
        let usual = ("content-type", "text/canonical; charset=utf-8".to_owned());
        for (name, value) in [usual].into_iter().chain(self.headers) {
            if let Ok(value) = value.parse() {
                response.headers_mut().insert(name, value);
            }
        }
        response
    }
}

/// Serves HTTP for ever.
pub(super) async fn http<F>(
    listener: TcpListener,
    open: OpenConnections,
    answer: impl Fn(HttpRequest) -> F + Clone + Send + Sync + 'static,
) where
    F: Future<Output = HttpReply> + Send + 'static,
{
    loop {
        let Some((stream, client)) = accept(&listener).await else { continue };
        let (counted, answer) = (open.one(), answer.clone());
        tokio::spawn(async move {
            let _open = counted;
            let service = service_fn(move |request: Request<Incoming>| {
                let (parts, _) = request.into_parts();
                let target = parts.uri.path_and_query().map_or("/", |it| it.as_str());
                let answered = answer(HttpRequest::new(target, parts.headers, client));
                async move { Ok::<_, Infallible>(answered.await.response()) }
            });
            // The client may disconnect at any time.
            let _gone = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

/// The next connection; `None` after an error.
pub(super) async fn accept(listener: &TcpListener) -> Option<(TcpStream, SocketAddr)> {
    match listener.accept().await {
        Ok((stream, client)) => {
            let _slower = stream.set_nodelay(true);
            Some((stream, canonical(client)))
        }
        Err(_) => {
            // For example too many open files.
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            None
        }
    }
}

pub(super) fn hostname() -> String {
    nix::unistd::gethostname().map(|it| it.to_string_lossy().into_owned()).unwrap_or_default()
}
