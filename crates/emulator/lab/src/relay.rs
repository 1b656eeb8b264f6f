//! Relays TCP connections between the machine's network and the lab's.
//!
//! A socket belongs to the network namespace in which it was made and can be used from any other, so
//! one process can connect the two.

use std::io;
use std::net::{SocketAddr, TcpStream as StdStream};
use std::time::Duration;

use nearhop_net::Namespace;
use nearhop_runtime::server::accept;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, spawn_blocking};

/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The destination of a relay.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// None for the machine's own network namespace.
    pub(crate) namespace: Option<Namespace>,
    pub(crate) address: SocketAddr,
}

impl Target {
    pub(crate) async fn connect(&self) -> io::Result<TcpStream> {
        let Some(namespace) = self.namespace.clone() else {
            return TcpStream::connect(self.address).await;
        };
        let address = self.address;
        let dial = move || namespace.run(|| StdStream::connect_timeout(&address, CONNECT_TIMEOUT));
        let stream = spawn_blocking(dial).await.map_err(io::Error::other)??;
        stream.set_nonblocking(true)?;
        TcpStream::from_std(stream)
    }
}

/// A running relay. Dropping it closes the listener.
#[derive(Debug)]
pub(crate) struct Relay(JoinHandle<()>);

impl Drop for Relay {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Relays each connection of the listener to the target.
pub(crate) fn relay(listener: TcpListener, target: Target) -> Relay {
    Relay(tokio::spawn(async move {
        loop {
            let (client, _) = accept(&listener).await;
            let target = target.clone();
            tokio::spawn(async move {
                // Either side may close it; a refusal closes the client's connection.
                let _ = join(client, &target).await;
            });
        }
    }))
}

async fn join(mut client: TcpStream, target: &Target) -> io::Result<()> {
    let mut server = target.connect().await?;
    server.set_nodelay(true)?;
    tokio::io::copy_bidirectional(&mut client, &mut server).await?;
    Ok(())
}

/// Listens inside a network namespace.
pub(crate) async fn listen_in(
    namespace: &Namespace,
    address: SocketAddr,
) -> io::Result<TcpListener> {
    let namespace = namespace.clone();
    let bind = move || namespace.run(|| std::net::TcpListener::bind(address));
    let listener = spawn_blocking(bind).await.map_err(io::Error::other)??;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}
