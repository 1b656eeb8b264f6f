//! A blocking client in a namespace, with a timeout per request. It never retries: a lost packet is an
//! outcome.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use socket2::Socket;

use super::sctp::{self, Chunk, Packet};
use super::{Answer, Outcome, Protocol};
use crate::{Namespace, NetError};

/// One request to `to` from a new client.
///
/// Allow TCP three seconds where an ICMP refusal is expected: if it arrives while `connect` holds the
/// socket, the kernel drops it (with IPv6 nearly always), and only the next SYN, a second later,
/// causes another one.
/// Fails if `source` is not an address of the namespace, or what answers is none of our servers.
pub fn connect(
    namespace: &Namespace,
    protocol: Protocol,
    to: SocketAddr,
    timeout: Duration,
    source: Option<IpAddr>,
) -> Result<Outcome, NetError> {
    Client::new(namespace, protocol, to, timeout, source)?.ask()
}

/// A client that can send further requests on the same connection or from the same port.
#[derive(Debug)]
pub struct Client {
    namespace: Namespace,
    to: SocketAddr,
    timeout: Duration,
    flow: Flow,
}

#[derive(Debug)]
enum Flow {
    /// With the server's first line, once connected.
    Stream {
        socket: Socket,
        answer: Option<Answer>,
    },
    Datagrams(UdpSocket),
    /// Packets are written with their ports.
    RawSctp {
        socket: UdpSocket,
        port: u16,
    },
}

impl Client {
    /// Opens a socket in the namespace; sends nothing yet.
    /// Fails if `source` is not an address of the namespace.
    pub fn new(
        namespace: &Namespace,
        protocol: Protocol,
        to: SocketAddr,
        timeout: Duration,
        source: Option<IpAddr>,
    ) -> Result<Self, NetError> {
        let what = format!("open a socket for {to} ({protocol:?})");
        let flow = namespace.attempt(&what, || open(protocol, to, source))?;
        Ok(Self { namespace: namespace.clone(), to, timeout, flow })
    }

    /// Sends a request. With TCP the first one connects, later ones expect an echo.
    /// Fails if what answers is none of our servers.
    pub fn ask(&mut self) -> Result<Outcome, NetError> {
        let deadline = Instant::now() + self.timeout;
        let asked = match &mut self.flow {
            Flow::Stream { socket, answer: Some(answer) } => {
                echo(socket, deadline).map(|()| *answer)
            }
            Flow::Stream { socket, answer } => {
                first_line(socket, self.to, deadline).inspect(|line| *answer = Some(*line))
            }
            Flow::Datagrams(socket) => datagram(socket, self.to, deadline),
            Flow::RawSctp { socket, port } => init(socket, *port, self.to, deadline),
        };
        match asked {
            Ok(answer) => Ok(answer.into()),
            Err(error) => Outcome::from_error(error).map_err(|cause| {
                NetError::new(self.namespace.name(), format!("ask {}", self.to), cause)
            }),
        }
    }
}

fn open(protocol: Protocol, to: SocketAddr, source: Option<IpAddr>) -> io::Result<Flow> {
    let socket = super::socket(protocol, to)?;
    match (protocol, source) {
        (Protocol::Udp, source) => bind_afresh(&socket, source.unwrap_or(unspecified(to)))?,
        (_, Some(source)) => socket.bind(&SocketAddr::new(source, 0).into())?,
        (_, None) => {}
    }
    let raw = protocol == Protocol::Sctp && !sctp::sctp_available();
    if raw {
        report_errors(&socket, to)?;
        return Ok(Flow::RawSctp { socket: OwnedFd::from(socket).into(), port: next_port() });
    }
    Ok(match protocol {
        Protocol::Tcp | Protocol::Sctp => Flow::Stream { socket, answer: None },
        Protocol::Udp => {
            report_errors(&socket, to)?;
            Flow::Datagrams(socket.into())
        }
    })
}

/// Reports all ICMP errors; by default a datagram socket reports closed ports only.
fn report_errors(socket: &Socket, to: SocketAddr) -> io::Result<()> {
    let set = match to {
        SocketAddr::V4(_) => setsockopt(socket, sockopt::Ipv4RecvErr, &true),
        SocketAddr::V6(_) => setsockopt(socket, sockopt::Ipv6RecvErr, &true),
    };
    Ok(set?)
}

/// Binds a port that no earlier client used: conntrack may still have the flow of that client.
fn bind_afresh(socket: &Socket, source: IpAddr) -> io::Result<()> {
    loop {
        match socket.bind(&SocketAddr::new(source, next_port()).into()) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            bound => return bound,
        }
    }
}

fn unspecified(to: SocketAddr) -> IpAddr {
    match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// A port that no earlier client used. Repeats after 28,000 clients.
fn next_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    32_768 + NEXT.fetch_add(1, Ordering::Relaxed) % 28_000
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Connects and reads the server's first line.
pub(super) fn first_line(
    socket: &mut Socket,
    to: SocketAddr,
    deadline: Instant,
) -> io::Result<Answer> {
    socket.connect_timeout(&to.into(), left(deadline)?)?;
    Answer::parse(&read_line(socket, deadline)?)
}

fn echo(socket: &mut Socket, deadline: Instant) -> io::Result<()> {
    let line = b"still there?\n";
    socket.set_write_timeout(Some(left(deadline)?))?;
    socket.write_all(line)?;
    let back = read_line(socket, deadline)?;
    let same = back == line;
    same.then_some(()).ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "not an echo"))
}

fn read_line(socket: &mut Socket, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut buffer = [0; 256];
    while line.last() != Some(&b'\n') {
        socket.set_read_timeout(Some(left(deadline)?))?;
        match socket.read(&mut buffer)? {
            0 => return Err(Errno::ECONNRESET.into()),
            length => line.extend(&buffer[..length]),
        }
    }
    Ok(line)
}

/// Ignores EPERM, which means that a rule of this namespace drops or rejects the packet: after a
/// reject an ICMP error follows, after a drop there is no answer.
fn send(socket: &UdpSocket, bytes: &[u8]) -> io::Result<()> {
    match socket.send(bytes) {
        Err(error) if error.raw_os_error() == Some(Errno::EPERM as i32) => Ok(()),
        sent => sent.map(drop),
    }
}

fn datagram(socket: &UdpSocket, to: SocketAddr, deadline: Instant) -> io::Result<Answer> {
    socket.connect(to)?;
    send(socket, b"who is there?\n")?;
    let mut buffer = [0; 256];
    socket.set_read_timeout(Some(left(deadline)?))?;
    let length = socket.recv(&mut buffer)?;
    Answer::parse(&buffer[..length])
}

fn init(socket: &UdpSocket, port: u16, to: SocketAddr, deadline: Instant) -> io::Result<Answer> {
    socket.connect(sctp::without_port(to))?;
    let chunk = Chunk::Init { tag: u32::from(port) };
    send(socket, &Packet { from_port: port, to_port: to.port(), chunk }.encode())?;
    let mut buffer = [0; 2048];
    loop {
        socket.set_read_timeout(Some(left(deadline)?))?;
        let length = socket.recv(&mut buffer)?;
        // A raw socket also receives packets for other ports.
        match Packet::decode(to.ip(), &buffer[..length]) {
            Some(Packet { from_port, to_port, chunk: Chunk::InitAck { cookie, .. } })
                if (from_port, to_port) == (to.port(), port) =>
            {
                return Answer::parse(&cookie);
            }
            _ => {}
        }
    }
}
