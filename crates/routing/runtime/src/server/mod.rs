//! A small HTTP server for the ports of a daemon: probes, metrics, configuration.
//!
//! It serves one request per connection and limits the total time of a connection. That is enough
//! for probes and scrapes, and limits slow clients. It has no TLS and no authentication: a route
//! gets the bearer token and decides.

mod listener;
mod route;

use std::collections::VecDeque;
use std::convert::Infallible;
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

/// What to do if the address cannot be bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindFailure {
    /// Return an error.
    Fatal,
    /// Retry after this time, until it succeeds.
    Retry(Duration),
}

/// The limits on clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most open connections. A further connection replaces the oldest one, so that slow
    /// clients cannot block the others.
    pub connections: usize,
    /// How long a client may take to send its headers.
    pub headers: Duration,
    /// How long a connection may last in total.
    pub life: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let (headers, life) = (Duration::from_secs(5), Duration::from_secs(30));
        Self { connections: 256, headers, life }
    }
}

/// The configuration of a server.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The address to listen on.
    pub address: SocketAddr,
    /// The name of the server in the log.
    pub name: String,
    /// Whether `[::]` also accepts IPv4.
    pub wildcard: Wildcard,
    /// What to do if the address cannot be bound.
    pub on_failure: BindFailure,
    /// The limits on clients.
    pub limits: Limits,
}

impl Setup {
    /// A server at this address with the default limits; a failure to bind is an error.
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

/// A running server. It stops when this value is dropped.
#[derive(Debug)]
pub struct Server {
    bound: watch::Receiver<Option<SocketAddr>>,
    task: JoinHandle<()>,
}

impl Server {
    /// The address that the server listens on; for port 0, with the port that the kernel chose.
    /// `None` until it is bound.
    pub fn address(&self) -> Option<SocketAddr> {
        *self.bound.borrow()
    }

    /// Waits until the server listens.
    pub async fn bound(&self) -> SocketAddr {
        let mut bound = self.bound.clone();
        let address = bound.wait_for(Option::is_some).await.map(|address| *address);
        // The task holds the sender until this server is dropped.
        address.ok().flatten().expect("a server's task lives as long as it")
    }

    /// Stops the server. When this returns, the address is free.
    pub async fn stop(mut self) {
        self.task.abort();
        // The error says that the task was aborted.
        let _ = (&mut self.task).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The task owns the connections, so they end with it.
        self.task.abort();
    }
}

/// Starts a server. When this returns, it accepts connections, unless it retries to bind its
/// address.
pub fn serve(setup: Setup, routes: Vec<Route>) -> Result<Server, RuntimeError> {
    let (report, bound) = watch::channel(None);
    let routes = Routes::new(routes);
    let Setup { address, name, wildcard, on_failure, limits } = setup;
    // Tries to bind once here, so that the address is usually known when this function returns.
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
    // The server ignores a client that disconnects or is too slow.
    let _ = timeout(limits.life, serving).await;
}
