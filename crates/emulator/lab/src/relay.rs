//! Bytes between the machine's network and the lab's.
//!
//! A socket belongs to the namespace in which it was made and can be used from everywhere: whoever
//! may enter both can join them.

use std::io;
use std::net::{SocketAddr, TcpStream as StdStream};
use std::time::Duration;

use nearhop_net::Namespace;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, spawn_blocking};

/// Whoever listens answers at once; it is one machine.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where a relay's connections go.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// In this namespace; the machine's own without one.
    pub(crate) namespace: Option<Namespace>,
    /// To this address.
    pub(crate) address: SocketAddr,
}

impl Target {
    /// Opens a connection.
    ///
    /// # Errors
    ///
    /// Nobody listens there.
    pub(crate) async fn connect(&self) -> io::Result<TcpStream> {
        let Some(namespace) = self.namespace.clone() else {
            return TcpStream::connect(self.address).await;
        };
        let address = self.address;
        let dial = move || namespace.run(|| StdStream::connect_timeout(&address, PATIENCE));
        let stream = spawn_blocking(dial).await.map_err(io::Error::other)??;
        stream.set_nonblocking(true)?;
        TcpStream::from_std(stream)
    }
}

/// A running relay; it takes no more connections when this is dropped.
#[derive(Debug)]
pub(crate) struct Relay(JoinHandle<()>);

impl Drop for Relay {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Joins each connection to the listener with a new one to the target.
pub(crate) fn relay(listener: TcpListener, target: Target) -> Relay {
    Relay(tokio::spawn(async move {
        loop {
            let Ok((client, _)) = listener.accept().await else {
                // Out of descriptors, most likely: somebody will close one.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let target = target.clone();
            tokio::spawn(async move {
                // Either side may end it at any time, and a client sees a refusal as an end.
                let _ = join(client, &target).await;
            });
        }
    }))
}

async fn join(mut client: TcpStream, target: &Target) -> io::Result<()> {
    let mut server = target.connect().await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    tokio::io::copy_bidirectional(&mut client, &mut server).await?;
    Ok(())
}

/// A listener inside a namespace.
///
/// # Errors
///
/// The address is taken, or not the namespace's.
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
