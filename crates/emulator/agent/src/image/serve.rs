//! Dual-stack sockets and an HTTP server for the built-in images.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Weak;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use nearhop_runtime::server::{Wildcard, accept, bind};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, UdpSocket};

/// Opens a socket on all addresses, dual-stack if the kernel has IPv6.
fn open<T>(port: u16, bind: impl Fn(SocketAddr) -> io::Result<T>) -> io::Result<T> {
    match bind((Ipv6Addr::UNSPECIFIED, port).into()) {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            bind((Ipv4Addr::UNSPECIFIED, port).into())
        }
        done => done,
    }
}

/// Listens on all addresses.
pub(super) fn listen(port: u16) -> Result<TcpListener, String> {
    let listener = open(port, |address| bind(address, Wildcard::BothFamilies));
    listener.map_err(|error| format!("cannot listen on TCP port {port}: {error}"))
}

/// Receives on all addresses.
pub(super) fn receive(port: u16) -> Result<UdpSocket, String> {
    let socket = open(port, |address| {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        if address.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        UdpSocket::from_std(socket.into())
    });
    socket.map_err(|error| format!("cannot listen on UDP port {port}: {error}"))
}

/// Sends a UDP packet and returns the response.
pub(super) async fn exchange(address: SocketAddr, request: &str) -> io::Result<String> {
    let any: SocketAddr =
        if address.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(address).await?;
    socket.send(request.as_bytes()).await?;
    let mut buffer = [0; 2048];
    let read = socket.recv(&mut buffer).await?;
    Ok(String::from_utf8_lossy(&buffer[..read]).into_owned())
}

/// Answers UDP packets for ever.
pub(super) async fn udp(socket: UdpSocket, answer: impl Fn(&str, SocketAddr) -> Option<String>) {
    let mut buffer = [0; 2048];
    loop {
        let Ok((read, peer)) = socket.recv_from(&mut buffer).await else { continue };
        let text = String::from_utf8_lossy(&buffer[..read]);
        let client = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        if let Some(answer) = answer(&text, client) {
            let _gone = socket.send_to(answer.as_bytes(), peer).await;
        }
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

/// Serves HTTP for ever. Each open connection holds a reference of `open`.
pub(super) async fn http<F>(
    listener: TcpListener,
    open: Weak<()>,
    answer: impl Fn(HttpRequest) -> F + Clone + Send + Sync + 'static,
) where
    F: Future<Output = HttpReply> + Send + 'static,
{
    loop {
        let (stream, client) = accept(&listener).await;
        let (held, answer) = (open.upgrade(), answer.clone());
        tokio::spawn(async move {
            let _open = held;
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

pub(super) fn hostname() -> String {
    nix::unistd::gethostname().map(|it| it.to_string_lossy().into_owned()).unwrap_or_default()
}
