//! Servers that report their own and the client's address, and clients that report the outcome.
//!
//! A server answers each connection or datagram with one line: its own address, and the client's as
//! it sees it. So a test knows the endpoint of a connection, and whether it was masqueraded.

mod bulk;
mod client;
mod sctp;
mod server;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};

use nix::errno::Errno;
use socket2::{Domain, Socket, Type};

pub use bulk::connect_many;
pub use client::{Client, connect};
use sctp::sctp_available;
pub use server::Server;

/// A transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// The server sends the first line and echoes lines afterwards.
    Tcp,
    /// Each datagram is answered.
    Udp,
    /// Like TCP if the kernel has SCTP; else only the first exchange (INIT, INIT ACK), which is enough
    /// for rules and connection tracking.
    Sctp,
}

/// The outcome of a connection or a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// A server answered.
    Answered {
        /// The server's own address.
        server: SocketAddr,
        /// The client's address, as the server sees it.
        seen: SocketAddr,
    },
    /// TCP reset, ICMP port unreachable or protocol unreachable.
    Refused,
    /// Other ICMP unreachable messages, or no local route.
    Unreachable,
    /// No answer.
    TimedOut,
}

impl Outcome {
    /// The server that answered, if one did.
    pub fn server(self) -> Option<SocketAddr> {
        match self {
            Self::Answered { server, .. } => Some(server),
            Self::Refused | Self::Unreachable | Self::TimedOut => None,
        }
    }

    /// The client's address as the server sees it, if one answered.
    pub fn seen(self) -> Option<IpAddr> {
        match self {
            Self::Answered { seen, .. } => Some(seen.ip()),
            Self::Refused | Self::Unreachable | Self::TimedOut => None,
        }
    }

    /// The outcome that a socket error means; other errors are returned.
    fn from_error(error: io::Error) -> io::Result<Self> {
        if matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock) {
            return Ok(Self::TimedOut);
        }
        Ok(match error.raw_os_error().map(Errno::from_raw) {
            // ENOPROTOOPT is ICMP's "protocol unreachable", EPROTO is ICMPv6's "unrecognized next
            // header": the protocol is not supported.
            Some(
                Errno::ECONNREFUSED
                | Errno::ECONNRESET
                | Errno::EPIPE
                | Errno::ENOPROTOOPT
                | Errno::EPROTO,
            ) => Self::Refused,
            // EACCES is ICMPv6's "administratively prohibited", EHOSTDOWN is ICMP's "host unknown".
            Some(Errno::EHOSTUNREACH | Errno::ENETUNREACH | Errno::EACCES | Errno::EHOSTDOWN) => {
                Self::Unreachable
            }
            _ => return Err(error),
        })
    }
}

/// A server's line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Answer {
    server: SocketAddr,
    seen: SocketAddr,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {}", self.server, self.seen)
    }
}

impl Answer {
    fn parse(line: &[u8]) -> io::Result<Self> {
        let text = str::from_utf8(line).ok();
        let parts = text.and_then(|text| text.trim_end().split_once(' '));
        let answer = parts.and_then(|(server, seen)| {
            Some(Self { server: server.parse().ok()?, seen: seen.parse().ok()? })
        });
        answer.ok_or_else(|| {
            let line = String::from_utf8_lossy(line);
            io::Error::new(io::ErrorKind::InvalidData, format!("not a server's answer: {line:?}"))
        })
    }
}

impl From<Answer> for Outcome {
    fn from(Answer { server, seen }: Answer) -> Self {
        Self::Answered { server, seen }
    }
}

/// A socket of this protocol in the calling thread's namespace.
fn socket(protocol: Protocol, to: SocketAddr) -> io::Result<Socket> {
    let domain = Domain::for_address(to);
    match protocol {
        Protocol::Tcp => Socket::new(domain, Type::STREAM, Some(socket2::Protocol::TCP)),
        Protocol::Udp => Socket::new(domain, Type::DGRAM, Some(socket2::Protocol::UDP)),
        Protocol::Sctp if sctp_available() => Socket::new(domain, Type::STREAM, Some(sctp::NUMBER)),
        Protocol::Sctp => Socket::new(domain, Type::RAW, Some(sctp::NUMBER)),
    }
}
