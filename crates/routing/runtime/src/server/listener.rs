//! Binds and accepts, for every TCP server of nearhop.
//!
//! ```no_run
//! # use std::time::Duration;
//! # use nearhop_runtime::server::{Connection, Wildcard, accept_loop, bind_with_retries};
//! # async fn example(address: std::net::SocketAddr) {
//! let retry = Duration::from_secs(1);
//! let listener = bind_with_retries("logs", address, Wildcard::BothFamilies, retry).await;
//! accept_loop(&listener, 256, |connection: Connection| async move {
//!     // Serve `connection.stream`.
//! })
//! .await;
//! # }
//! ```

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;

use crate::lock;

/// Connections that wait to be accepted; the kernel refuses more.
const BACKLOG: i32 = 4096;

/// The pause after accept(2) fails, usually because no file descriptor is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Which families an IPv6 wildcard address accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wildcard {
    /// `[::]` accepts IPv4, too.
    BothFamilies,
    /// `[::]` accepts IPv6 only, so that another program can bind `0.0.0.0`.
    OwnFamily,
}

/// Binds a TCP socket and listens on it. Unlike std's `bind`, sets which families `[::]` accepts.
pub fn bind(address: SocketAddr, wildcard: Wildcard) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(wildcard == Wildcard::OwnFamily)?;
    }
    // Closed connections of an earlier process do not block the port.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    TcpListener::from_std(socket.into())
}

/// Binds like [`bind`], and retries until it succeeds. Logs each error once.
pub async fn bind_with_retries(
    server: &str,
    address: SocketAddr,
    wildcard: Wildcard,
    retry: Duration,
) -> TcpListener {
    let mut logged = None;
    loop {
        let error = match bind(address, wildcard) {
            Ok(listener) => {
                if logged.is_some() {
                    tracing::info!(server, %address, "listening");
                }
                return listener;
            }
            Err(error) => error.to_string(),
        };
        if logged.as_ref() != Some(&error) {
            tracing::warn!(server, %address, error, retry = ?retry, "cannot listen; will retry");
            logged = Some(error);
        }
        sleep(retry).await;
    }
}

/// A connection that was accepted.
#[derive(Debug)]
pub struct Connection {
    /// The socket, without Nagle's delay.
    pub stream: TcpStream,
    /// The client. An IPv4 client of a socket for both families has its IPv4 address.
    pub peer: SocketAddr,
    /// Its slot in the limit on open connections.
    pub slot: Slot,
}

/// A connection's slot in the limit of [`accept_loop`]. It is freed when the connection ends.
#[derive(Clone, Debug)]
pub struct Slot(Arc<Mutex<Option<OwnedSemaphorePermit>>>);

impl Slot {
    /// Frees the slot early: the connection does not count from now on.
    pub fn release(&self) {
        lock(&self.0).take();
    }
}

/// Waits for the next connection. When accept(2) fails, it pauses and tries again.
pub async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        if let Ok((stream, peer)) = listener.accept().await {
            // If this fails, small replies are only slower.
            let _ = stream.set_nodelay(true);
            return (stream, SocketAddr::new(peer.ip().to_canonical(), peer.port()));
        }
        sleep(ACCEPT_PAUSE).await;
    }
}

/// Accepts connections and serves each in its own task, at most `limit` at the same time; further
/// connections wait in the kernel. Never returns; drop the future to stop accepting. Open
/// connections then continue.
pub async fn accept_loop<F>(listener: &TcpListener, limit: usize, serve: impl Fn(Connection) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let slots = Arc::new(Semaphore::new(limit));
    loop {
        let permit = Arc::clone(&slots).acquire_owned().await;
        let permit = permit.expect("the semaphore is never closed");
        let (stream, peer) = accept(listener).await;
        let slot = Slot(Arc::new(Mutex::new(Some(permit))));
        let served = serve(Connection { stream, peer, slot: slot.clone() });
        tokio::spawn(async move {
            served.await;
            slot.release();
        });
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn connections_beyond_the_limit_wait_for_a_slot() {
        let listener = bind(([127, 0, 0, 1], 0).into(), Wildcard::BothFamilies).unwrap();
        let address = listener.local_addr().unwrap();
        let accepting = tokio::spawn(async move {
            accept_loop(&listener, 1, |mut connection| async move {
                let _ = connection.stream.write_all(b"x").await;
                // Keeps the connection until the client closes it.
                let _ = connection.stream.read(&mut [0]).await;
            })
            .await;
        });
        let mut first = TcpStream::connect(address).await.unwrap();
        let mut second = TcpStream::connect(address).await.unwrap();
        let mut byte = [0];
        first.read_exact(&mut byte).await.unwrap();
        let early = timeout(Duration::from_millis(200), second.read_exact(&mut byte)).await;
        assert!(early.is_err(), "the second connection is served beside the first");
        drop(first);
        second.read_exact(&mut byte).await.unwrap();
        accepting.abort();
    }
}
