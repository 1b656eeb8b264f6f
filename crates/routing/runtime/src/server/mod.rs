//! A small HTTP server, for what others ask a daemon: probes, metrics, how it is set up.
//!
//! One request a connection, and a limit on a connection's whole life: that is cheap for a probe
//! and a scrape, and bounds those who send or read slowly alike. Deliberately without TLS and
//! without authentication: a route gets the bearer token and decides for itself.

mod listener;
mod route;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio::time::timeout;

use crate::RuntimeError;
pub use crate::server::listener::{
    Connection, Slot, Wildcard, accept, accept_loop, bind, bind_with_retries,
};
use crate::server::route::Routes;
pub use crate::server::route::{Answer, Ask, Route};
use crate::supervise;

/// What happens where the address cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindFailure {
    /// It is an error.
    Fatal,
    /// It is tried again after this time, for as long as it takes.
    Retry(Duration),
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

/// Listens. When this returns it answers, unless the address is in use and tried again later.
///
/// # Errors
/// The address cannot be used, and that is fatal.
///
/// # Panics
/// Outside of a tokio runtime.
pub fn serve(setup: Setup, routes: Vec<Route>) -> Result<Server, RuntimeError> {
    let (report, bound) = watch::channel(None);
    let routes = Routes::new(routes);
    let Setup { address, name, wildcard, on_failure, limits } = setup;
    // Tried once here, so that the address is known at once where nothing is wrong.
    let first = match (bind(address, wildcard), on_failure) {
        (Ok(listener), _) => {
            report.send_replace(listener.local_addr().ok());
            Ok(listener)
        }
        (Err(why), BindFailure::Fatal) => return Err(RuntimeError::Listen { address, why }),
        (Err(_), BindFailure::Retry(pause)) => Err(pause),
    };
    let task = supervise::spawn(format!("{name} server"), async move {
        let listener = match first {
            Ok(listener) => listener,
            Err(pause) => bind_with_retries(&name, address, wildcard, pause).await,
        };
        report.send_replace(listener.local_addr().ok());
        serve_routes(&listener, &routes, limits).await;
    });
    Ok(Server { bound, task })
}

async fn serve_routes(listener: &TcpListener, routes: &Routes, limits: Limits) {
    let mut connections = JoinSet::new();
    let mut by_age: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let (stream, peer) = accept(listener).await;
        while connections.try_join_next().is_some() {}
        by_age.retain(|connection| !connection.is_finished());
        if by_age.len() >= limits.connections {
            by_age.pop_front().inspect(AbortHandle::abort);
        }
        by_age.push_back(connections.spawn(serve_connection(stream, peer, routes.clone(), limits)));
    }
}

async fn serve_connection(stream: TcpStream, peer: SocketAddr, routes: Routes, limits: Limits) {
    let service = service_fn(|request| {
        let routes = &routes;
        async move { Ok::<_, Infallible>(routes.answer(&request, Some(peer)).await) }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.headers)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    // A client that broke off, or was too slow, is its own problem.
    let _ = timeout(limits.life, serving).await;
}
