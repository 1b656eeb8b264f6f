//! UDP: one thread and one socket per core. The kernel distributes packets over the sockets of an
//! address (SO_REUSEPORT); the threads share only the state.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::runtime::Handle;

use super::datagram::{BATCH, Envelope, ReceiveBatch, send};
use super::{Handler, now};
use crate::answerer::{Handled, Packet, PendingQuery};
use crate::metrics::Tally;
use crate::wire::{ReplyWriter, Transport};

/// How long a thread waits for packets before it checks for shutdown.
const READ_TIMEOUT: Duration = Duration::from_millis(250);
/// Size of the socket buffers in octets; the kernel may allow less.
const BUFFER: usize = 4 << 20;
/// Pause after an unexpected receive error.
const ERROR_PAUSE: Duration = Duration::from_millis(10);

/// Opens one of several sockets for an address.
pub(super) fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_port(true)?;
    // With smaller buffers more packets are lost in a flood.
    let _less = socket.set_recv_buffer_size(BUFFER);
    let _less = socket.set_send_buffer_size(BUFFER);
    socket.set_read_timeout(Some(READ_TIMEOUT))?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// A socket that sends replies.
pub(super) struct ReplySocket {
    socket: UdpSocket,
}

impl ReplySocket {
    /// A socket on the unspecified address must report each packet's destination.
    pub(super) fn new(socket: UdpSocket, address: SocketAddr) -> io::Result<Self> {
        if address.ip().is_unspecified() {
            match address {
                SocketAddr::V4(_) => setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?,
                SocketAddr::V6(_) => setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?,
            }
        }
        Ok(Self { socket })
    }

    fn send(&self, envelope: &Envelope, message: &[u8]) {
        if let Err(error) = send(&self.socket, envelope, message) {
            tracing::debug!(to = %envelope.from, %error, "reply not sent");
        }
    }
}

/// A thread that answers queries.
pub(super) struct Worker {
    pub(super) socket: Arc<ReplySocket>,
    pub(super) handler: Arc<Handler>,
    pub(super) runtime: Handle,
    pub(super) stop: Arc<AtomicBool>,
}

impl Worker {
    pub(super) fn run(self) {
        let mut batch = ReceiveBatch::new();
        let mut tally = self.handler.metrics.tally();
        let mut random = SmallRng::from_os_rng();
        let mut outs: Vec<ReplyWriter> = vec![ReplyWriter::default(); BATCH];
        while !self.stop.load(Ordering::Relaxed) {
            match batch.receive(&self.socket.socket) {
                Ok(()) => self.answer(&batch, &mut outs, &mut random, &mut tally),
                Err(Errno::EAGAIN | Errno::EINTR) => tally.flush(),
                Err(error) => {
                    tracing::warn!(%error, "UDP receive failed");
                    std::thread::sleep(ERROR_PAUSE);
                }
            }
        }
    }

    fn answer(
        &self,
        batch: &ReceiveBatch,
        outs: &mut [ReplyWriter],
        random: &mut SmallRng,
        tally: &mut Tally,
    ) {
        let now = now();
        let mut replies = 0;
        let mut pending: Vec<(Envelope, Box<PendingQuery>)> = Vec::new();
        let mut ready: [Option<Envelope>; BATCH] = [None; BATCH];
        let state = self.handler.shared.read();
        for ((envelope, bytes), (out, ready)) in batch.iter().zip(outs.iter_mut().zip(&mut ready)) {
            let source = envelope.from.ip().to_canonical();
            let (transport, seed) = (Transport::Udp, random.random());
            let packet = Packet { bytes, source, transport, now, seed };
            match self.handler.answerer.handle(&state, packet, out, tally) {
                Handled::Reply => {
                    *ready = Some(envelope);
                    replies += 1;
                }
                Handled::Forward(query) => pending.push((envelope, query)),
                Handled::Drop => {}
            }
        }
        // The writer of the state must not wait for system calls.
        drop(state);
        for (envelope, out) in ready.iter().zip(&*outs) {
            if let Some(envelope) = envelope {
                self.socket.send(envelope, out.bytes());
            }
        }
        let done = std::time::Instant::now();
        tally.observe_duration(replies, done.saturating_duration_since(now.instant));
        tally.flush_if_due(done);
        for (envelope, query) in pending {
            self.forward(envelope, query);
        }
    }

    /// Starts a task that waits for an upstream server and sends the reply.
    fn forward(&self, envelope: Envelope, query: Box<PendingQuery>) {
        let (handler, socket) = (self.handler.clone(), self.socket.clone());
        self.runtime.spawn(async move {
            if let Some(out) = handler.finish(&query).await {
                socket.send(&envelope, out.bytes());
            }
        });
    }
}
