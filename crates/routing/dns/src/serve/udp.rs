//! UDP: a thread and a socket of its own for each core. The kernel spreads packets over the
//! sockets of one address; nothing is shared but the state, which all of them read.

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

use super::datagram::{BATCH, Envelope, Inbox, send};
use super::{Service, now};
use crate::answerer::{Handled, Job, Packet};
use crate::metrics::Tally;
use crate::wire::{ReplyWriter, Transport};

/// How long a thread waits before it looks whether it is to stop.
const PATIENCE: Duration = Duration::from_millis(250);
/// Questions that may wait for a thread, in octets; the kernel may allow less.
const BUFFER: usize = 4 << 20;
/// A pause after an error that nobody expects.
const TROUBLE: Duration = Duration::from_millis(10);

/// Opens a socket of several for one address.
pub(super) fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_port(true)?;
    // The kernel gives what it allows; less only means that more is lost in a flood.
    let _less = socket.set_recv_buffer_size(BUFFER);
    let _less = socket.set_send_buffer_size(BUFFER);
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// A socket.
pub(super) struct UdpEnd {
    socket: UdpSocket,
}

impl UdpEnd {
    /// A socket that stands for all addresses must say for which one each packet was.
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
            // A client that is gone, or that no route leads to.
            tracing::debug!(to = %envelope.from, %error, "reply not sent");
        }
    }
}

/// A thread that answers.
pub(super) struct Worker {
    pub(super) end: Arc<UdpEnd>,
    pub(super) service: Arc<Service>,
    pub(super) runtime: Handle,
    pub(super) stop: Arc<AtomicBool>,
}

impl Worker {
    pub(super) fn run(self) {
        let mut inbox = Inbox::new();
        let mut tally = self.service.metrics.tally();
        let mut random = SmallRng::from_os_rng();
        let mut outs: Vec<ReplyWriter> = vec![ReplyWriter::default(); BATCH];
        while !self.stop.load(Ordering::Relaxed) {
            match inbox.receive(&self.end.socket) {
                Ok(()) => self.answer(&inbox, &mut outs, &mut random, &mut tally),
                Err(Errno::EAGAIN | Errno::EINTR) => tally.flush(),
                Err(error) => {
                    tracing::warn!(%error, "cannot receive");
                    std::thread::sleep(TROUBLE);
                }
            }
        }
    }

    fn answer(
        &self,
        inbox: &Inbox,
        outs: &mut [ReplyWriter],
        random: &mut SmallRng,
        tally: &mut Tally,
    ) {
        let now = now();
        let mut replies = 0;
        let mut later: Vec<(Envelope, Box<Job>)> = Vec::new();
        let mut ready: [Option<Envelope>; BATCH] = [None; BATCH];
        let state = self.service.shared.read();
        for ((envelope, bytes), (out, ready)) in inbox.iter().zip(outs.iter_mut().zip(&mut ready)) {
            let source = envelope.from.ip().to_canonical();
            let packet = Packet { bytes, source, transport: Transport::Udp, now };
            match self.service.answerer.handle(&state, packet, random.random(), out, tally) {
                Handled::Reply => {
                    *ready = Some(envelope);
                    replies += 1;
                }
                Handled::Later(job) => later.push((envelope, job)),
                Handled::Silence => {}
            }
        }
        // Whoever changes the state need not wait for the kernel.
        drop(state);
        for (envelope, out) in ready.iter().zip(&*outs) {
            if let Some(envelope) = envelope {
                self.end.send(envelope, out.bytes());
            }
        }
        let done = std::time::Instant::now();
        tally.took(replies, done.saturating_duration_since(now.instant));
        tally.flush_if_due(done);
        for (envelope, job) in later {
            self.wait(envelope, job);
        }
    }

    /// Somebody else waits for another server and sends the reply.
    fn wait(&self, envelope: Envelope, job: Box<Job>) {
        let (service, end) = (self.service.clone(), self.end.clone());
        self.runtime.spawn(async move {
            if let Some(out) = service.finish(&job).await {
                end.send(&envelope, out.bytes());
            }
        });
    }
}
