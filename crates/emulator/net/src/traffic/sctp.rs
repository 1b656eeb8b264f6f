//! The SCTP packets INIT and INIT ACK, for tests on kernels without SCTP.
//!
//! The server's line is the state cookie of its INIT ACK. There is no association afterwards.

use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;

use socket2::{Domain, Protocol, Socket, Type};

/// The protocol's number in IP.
pub(super) const NUMBER: Protocol = Protocol::SCTP;

const INIT: u8 = 1;
const INIT_ACK: u8 = 2;
const STATE_COOKIE: u16 = 7;
/// Common header, chunk header, and what an INIT and an INIT ACK always have.
const FIXED: usize = 12 + 4 + 16;

/// Whether the kernel has SCTP sockets.
pub(crate) fn sctp_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| Socket::new(Domain::IPV4, Type::STREAM, Some(NUMBER)).is_ok())
}

/// The ports of a packet and the one chunk in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) from_port: u16,
    pub(super) to_port: u16,
    pub(super) chunk: Chunk,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Chunk {
    /// Replies must carry this tag.
    Init { tag: u32 },
    /// Carries the INIT's tag, and a cookie.
    InitAck { tag: u32, cookie: Vec<u8> },
}

impl Packet {
    /// The bytes after the IP header.
    pub(super) fn encode(&self) -> Vec<u8> {
        let (kind, verification, tag, cookie) = match &self.chunk {
            Chunk::Init { tag } => (INIT, 0, *tag, None),
            Chunk::InitAck { tag, cookie } => (INIT_ACK, *tag, !*tag, Some(cookie)),
        };
        let parameter = cookie.map(|cookie| parameter(STATE_COOKIE, cookie)).unwrap_or_default();
        let mut bytes = Vec::with_capacity(FIXED + parameter.len());
        bytes.extend(self.from_port.to_be_bytes());
        bytes.extend(self.to_port.to_be_bytes());
        bytes.extend(u32::to_be_bytes(verification));
        bytes.extend([0; 4]);
        let length = length(FIXED - 12 + parameter.len());
        bytes.extend([kind, 0]);
        bytes.extend(length.to_be_bytes());
        bytes.extend(tag.max(1).to_be_bytes());
        // Receive window, streams out and in, first sequence number.
        bytes.extend([0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1]);
        bytes.extend(parameter);
        let sum = crc32c(&bytes);
        // The checksum is little-endian.
        bytes[8..12].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Decodes a packet that a raw socket received from `peer`, with the IP header for IPv4. None for
    /// other packets than INIT and INIT ACK.
    pub(super) fn decode(peer: IpAddr, received: &[u8]) -> Option<Self> {
        let header = match peer {
            IpAddr::V4(_) => usize::from(received.first()? & 0xf) * 4,
            IpAddr::V6(_) => 0,
        };
        let bytes = received.get(header..)?;
        let u16_at = |at: usize| Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        let u32_at = |at: usize| Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let chunk = match *bytes.get(12)? {
            INIT => Chunk::Init { tag: u32_at(16)? },
            INIT_ACK if u16_at(FIXED)? == STATE_COOKIE => {
                let end = FIXED + usize::from(u16_at(FIXED + 2)?);
                let cookie = bytes.get(FIXED + 4..end)?.to_vec();
                Chunk::InitAck { tag: u32_at(4)?, cookie }
            }
            _ => return None,
        };
        Some(Self { from_port: u16_at(0)?, to_port: u16_at(2)?, chunk })
    }
}

/// The address for a raw socket: the ports are in the packet, and IPv6 rejects one in the address.
pub(super) fn without_port(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), 0)
}

/// Padded to a multiple of four; the length does not count the padding.
fn parameter(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::from(kind.to_be_bytes());
    bytes.extend(length(4 + value.len()).to_be_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn length(bytes: usize) -> u16 {
    u16::try_from(bytes).expect("an answer is one short line")
}

/// CRC-32C, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 0 { crc >> 1 } else { crc >> 1 ^ 0x82f6_3b78 };
    let add = |crc, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc));
    !bytes.iter().fold(!0, add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_is_crc32c() {
        // The check value that catalogues of CRCs give.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn packets_round_trip() {
        for cookie in ["", "a", "10.0.0.1:80 10.0.0.2:4000\n"] {
            for chunk in
                [Chunk::Init { tag: 7 }, Chunk::InitAck { tag: 0xfeed_beef, cookie: cookie.into() }]
            {
                let packet = Packet { from_port: 80, to_port: 40_000, chunk };
                let bytes = packet.encode();
                assert_eq!(bytes.len() % 4, 0);
                let v6 = IpAddr::from([0; 16]);
                assert_eq!(Packet::decode(v6, &bytes).as_ref(), Some(&packet));
                let v4 = [&[0x45; 20], bytes.as_slice()].concat();
                assert_eq!(Packet::decode([0; 4].into(), &v4).as_ref(), Some(&packet));
            }
        }
    }

    #[test]
    fn other_packets_are_ignored() {
        let ack = Chunk::InitAck { tag: 1, cookie: b"cookie".into() };
        let bytes = Packet { from_port: 1, to_port: 2, chunk: ack }.encode();
        let v6 = IpAddr::from([0; 16]);
        for end in 0..FIXED + 4 {
            assert_eq!(Packet::decode(v6, &bytes[..end]), None, "{end}");
        }
        let mut data = bytes;
        data[12] = 0;
        assert_eq!(Packet::decode(v6, &data), None);
    }
}
