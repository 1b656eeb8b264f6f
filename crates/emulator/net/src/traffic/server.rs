//! A server in a namespace, until its handle is dropped.
//!
//! One thread with a runtime for all its connections, which end with the thread. The server sends its
//! line first and never closes a connection.

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::io::{AsyncWriteExt, copy};
use tokio::net;
use tokio::runtime::{self, Runtime};
use tokio::sync::oneshot;

use super::sctp::{self, Chunk, Packet};
use super::{Answer, Protocol};
use crate::{Namespace, NetError};

/// The kernel may allow fewer.
const BACKLOG: i32 = 4096;

/// A running server. Dropping it closes its connections and port.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

enum Listening {
    Streams(TcpListener),
    Datagrams(UdpSocket),
    RawSctp(UdpSocket),
}

impl Server {
    /// Listens at the address, which must be one of the namespace's own (a datagram's answer names
    /// the address that was listened at). Port 0 lets the kernel choose, except for SCTP.
    /// Fails if the address is taken, or not the namespace's.
    pub fn start(
        namespace: &Namespace,
        protocol: Protocol,
        address: SocketAddr,
    ) -> Result<Self, NetError> {
        let what = format!("listen at {address} ({protocol:?})");
        let started = namespace.attempt(&what, || Ok((listen(protocol, address)?, runtime()?)))?;
        let ((listening, address), runtime) = started;
        let (stop, stopped) = oneshot::channel();
        let name = format!("{} {address}", namespace.name());
        let thread = thread::Builder::new()
            .name(name)
            .spawn(move || serve_until(&runtime, listening, address, stopped))
            .map_err(|cause| NetError::new(namespace.name(), what, cause))?;
        Ok(Self { address, stop: Some(stop), thread: Some(thread) })
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // Fails if the thread has ended.
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            // A second panic would abort the process.
            let _ = thread.join();
        }
    }
}

fn runtime() -> io::Result<Runtime> {
    runtime::Builder::new_current_thread().enable_all().build()
}

fn listen(protocol: Protocol, address: SocketAddr) -> io::Result<(Listening, SocketAddr)> {
    let socket = super::socket(protocol, address)?;
    socket.set_nonblocking(true)?;
    let raw = protocol == Protocol::Sctp && !sctp::sctp_available();
    if raw {
        socket.bind(&sctp::without_port(address).into())?;
        return Ok((Listening::RawSctp(OwnedFd::from(socket).into()), address));
    }
    socket.set_reuse_address(protocol != Protocol::Udp)?;
    socket.bind(&address.into())?;
    let bound = socket.local_addr()?;
    let bound = bound.as_socket().ok_or_else(|| io::Error::other("not an IP address"))?;
    Ok(match protocol {
        Protocol::Udp => (Listening::Datagrams(socket.into()), bound),
        Protocol::Tcp | Protocol::Sctp => {
            socket.listen(BACKLOG)?;
            (Listening::Streams(socket.into()), bound)
        }
    })
}

fn serve_until(
    runtime: &Runtime,
    listening: Listening,
    address: SocketAddr,
    stopped: oneshot::Receiver<()>,
) {
    runtime.block_on(async {
        tokio::select! {
            failed = serve(listening, address) => {
                if let Err(error) = failed {
                    panic!("the test server at {address} failed: {error}");
                }
            }
            _ = stopped => {}
        }
    });
}

async fn serve(listening: Listening, address: SocketAddr) -> io::Result<()> {
    match listening {
        Listening::Streams(listener) => streams(&net::TcpListener::from_std(listener)?).await,
        Listening::Datagrams(socket) => {
            datagrams(&net::UdpSocket::from_std(socket)?, address).await
        }
        Listening::RawSctp(socket) => inits(&net::UdpSocket::from_std(socket)?, address).await,
    }
}

async fn streams(listener: &net::TcpListener) -> ! {
    loop {
        match listener.accept().await {
            // The client may disconnect.
            Ok((stream, seen)) => drop(tokio::spawn(converse(stream, seen))),
            // Possibly out of file descriptors.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn converse(mut stream: net::TcpStream, seen: SocketAddr) -> io::Result<()> {
    let answer = Answer { server: stream.local_addr()?, seen };
    stream.write_all(answer.to_string().as_bytes()).await?;
    let (mut incoming, mut outgoing) = stream.split();
    copy(&mut incoming, &mut outgoing).await?;
    Ok(())
}

async fn datagrams(socket: &net::UdpSocket, server: SocketAddr) -> io::Result<()> {
    let mut buffer = [0; 2048];
    loop {
        let (_, seen) = socket.recv_from(&mut buffer).await?;
        let answer = Answer { server, seen }.to_string();
        // If sending fails, the client times out.
        let _ = socket.send_to(answer.as_bytes(), seen).await;
    }
}

async fn inits(socket: &net::UdpSocket, server: SocketAddr) -> io::Result<()> {
    let mut buffer = [0; 2048];
    loop {
        let (length, peer) = socket.recv_from(&mut buffer).await?;
        let Some(packet) = Packet::decode(peer.ip(), &buffer[..length]) else { continue };
        let Chunk::Init { tag } = packet.chunk else { continue };
        if packet.to_port != server.port() {
            continue;
        }
        let seen = SocketAddr::new(peer.ip(), packet.from_port);
        let cookie = Answer { server, seen }.to_string().into_bytes();
        let chunk = Chunk::InitAck { tag, cookie };
        let reply = Packet { from_port: server.port(), to_port: packet.from_port, chunk };
        let _ = socket.send_to(&reply.encode(), sctp::without_port(peer)).await;
    }
}
