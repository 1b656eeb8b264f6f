//! A server in a namespace, until its handle is dropped.
//!
//! One thread with a small runtime for all its connections: when the thread ends, everything that
//! is open ends with it. It writes its line before the client asks, and never closes first.

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

/// As many as the kernel lets wait.
const BACKLOG: i32 = 4096;

/// A server that runs until it is dropped; then its connections are closed, and its port is free.
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

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // It fails when the thread has ended by itself.
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            // A panic in it has been printed; another one here would end the process.
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
            // A client that is gone before it was answered is no concern of the server's.
            Ok((stream, seen)) => drop(tokio::spawn(converse(stream, seen))),
            // Out of descriptors, perhaps: others may be closed meanwhile.
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
        // The way back may be closed: then the client hears nothing, which is what is to be seen.
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
