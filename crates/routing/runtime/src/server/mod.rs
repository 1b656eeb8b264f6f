//! A small HTTP server, for what others ask a daemon: probes, metrics, how it is set up.
//!
//! One request a connection, and a limit on a connection's whole life: that is cheap for a probe
//! and a scrape, and bounds those who send or read slowly alike. Deliberately without TLS and
//! without authentication: a route gets the bearer token and decides for itself.

mod route;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;
use std::{fmt, io};

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use crate::RuntimeError;
use crate::server::route::Routes;
pub use crate::server::route::{Answer, Ask, Route};
use crate::supervise;

/// Connections that nobody has accepted yet; the kernel refuses more.
const BACKLOG: i32 = 1024;

/// What happens where the address cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindFailure {
    /// It is an error.
    Fatal,
    /// It is tried again after this time, for as long as it takes.
    Retry(Duration),
}

/// Who reaches an IPv6 address that stands for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wildcard {
    /// `[::]` takes IPv4 as well.
    BothFamilies,
    /// `[::]` takes IPv6 only, so that somebody else can have `0.0.0.0`.
    OwnFamily,
}

/// How much clients may take of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time. One more takes the place of the oldest, so that those who are slow,
    /// on purpose or not, cannot keep the others waiting.
    pub connections: usize,
    /// How long a client may take for its headers.
    pub headers: Duration,
    /// How long a connection may last, all in all.
    pub life: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let (headers, life) = (Duration::from_secs(5), Duration::from_secs(30));
        Self { connections: 256, headers, life }
    }
}

/// Where to listen, and how.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Where.
    pub address: SocketAddr,
    /// What the log calls it.
    pub name: String,
    /// Whether `[::]` is for IPv4, too.
    pub wildcard: Wildcard,
    /// What if the address cannot be had.
    pub on_failure: BindFailure,
    /// How much clients may take.
    pub limits: Limits,
}

impl Setup {
    /// At that address, with the usual limits; not getting it is an error.
    #[must_use]
    pub fn new(name: impl Into<String>, address: SocketAddr) -> Self {
        Self {
            address,
            name: name.into(),
            wildcard: Wildcard::BothFamilies,
            on_failure: BindFailure::Fatal,
            limits: Limits::default(),
        }
    }
}

/// A running server. It stops when this is dropped.
pub struct Server {
    bound: watch::Receiver<Option<SocketAddr>>,
    task: JoinHandle<()>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({:?})", self.address())
    }
}

impl Server {
    /// Where it listens: the port that was given, or the free one that was taken for port 0. None
    /// while it still tries.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        *self.bound.borrow()
    }

    /// Waits until it listens.
    pub async fn bound(&self) -> SocketAddr {
        let mut bound = self.bound.clone();
        let address = bound.wait_for(Option::is_some).await.map(|address| *address);
        // The task holds the other end for as long as this server is not dropped.
        address.ok().flatten().expect("a server's task lives as long as it")
    }

    /// Stops it; when this returns, the address is free.
    pub async fn stop(mut self) {
        self.task.abort();
        // An error says that it was aborted.
        let _ = (&mut self.task).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The task owns its connections, so they end with it.
        self.task.abort();
    }
}

/// Listens. When this returns it answers, unless the address is taken and tried again later.
///
/// # Errors
/// The address cannot be had, and that is fatal.
///
/// # Panics
/// Outside of a tokio runtime.
pub fn serve(setup: Setup, routes: Vec<Route>) -> Result<Server, RuntimeError> {
    let (tell, bound) = watch::channel(None);
    let routes = Routes::new(routes);
    let task = match setup.on_failure {
        BindFailure::Fatal => {
            let listener = listen(&setup, &tell)?;
            supervise::spawn(format!("{} server", setup.name), async move {
                accept(listener, &routes, setup.limits).await;
                drop(tell);
            })
        }
        BindFailure::Retry(pause) => {
            // Tried here once, so that where it listens is known at once where nothing is wrong.
            let first = listen(&setup, &tell);
            supervise::spawn(format!("{} server", setup.name), async move {
                let listener = match first {
                    Ok(listener) => listener,
                    Err(error) => listen_at_last(&setup, &tell, pause, error).await,
                };
                accept(listener, &routes, setup.limits).await;
            })
        }
    };
    Ok(Server { bound, task })
}

/// Says in the log what is in the way, once, until that changes.
async fn listen_at_last(
    setup: &Setup,
    tell: &watch::Sender<Option<SocketAddr>>,
    pause: Duration,
    mut error: RuntimeError,
) -> TcpListener {
    let mut said = None;
    loop {
        let text = error.to_string();
        if said.as_ref() != Some(&text) {
            let every = pause.as_secs_f32();
            tracing::warn!(server = setup.name, "{text}; it is tried again every {every} s");
            said = Some(text);
        }
        sleep(pause).await;
        match listen(setup, tell) {
            Ok(listener) => {
                tracing::info!(server = setup.name, address = %setup.address, "it listens now");
                return listener;
            }
            Err(again) => error = again,
        }
    }
}

fn listen(
    setup: &Setup,
    tell: &watch::Sender<Option<SocketAddr>>,
) -> Result<TcpListener, RuntimeError> {
    let bind = || {
        let listener = bind(setup.address, setup.wildcard)?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    };
    let refused = |why| RuntimeError::Listen { address: setup.address, why };
    let (listener, address) = bind().map_err(refused)?;
    tell.send_replace(Some(address));
    Ok(listener)
}

/// By hand, because std has no way to say which families `[::]` takes.
fn bind(address: SocketAddr, wildcard: Wildcard) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(wildcard == Wildcard::OwnFamily)?;
    }
    // Connections of a process before this one do not keep the port.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    TcpListener::from_std(socket.into())
}

async fn accept(listener: TcpListener, routes: &Routes, limits: Limits) {
    let mut connections = JoinSet::new();
    let mut by_age: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of file descriptors, most likely: others must end first.
            sleep(Duration::from_millis(50)).await;
            continue;
        };
        while connections.try_join_next().is_some() {}
        by_age.retain(|connection| !connection.is_finished());
        if by_age.len() >= limits.connections {
            by_age.pop_front().inspect(AbortHandle::abort);
        }
        by_age.push_back(connections.spawn(connection(stream, routes.clone(), limits)));
    }
}

async fn connection(stream: TcpStream, routes: Routes, limits: Limits) {
    let peer = stream.peer_addr().ok();
    let service = service_fn(|request| {
        let routes = &routes;
        async move { Ok::<_, Infallible>(routes.answer(&request, peer).await) }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.headers)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    // A client that broke off, or was too slow, is its own problem.
    let _ = timeout(limits.life, serving).await;
}
