//! A conntrack entry, and how it is decoded from a message.
//!
//! Only the fields that show who owns a flow and where it goes; counters, timeouts and helpers are
//! ignored.

use std::net::{IpAddr, SocketAddr};

use nearhop_core::{EndpointKey, Family, Protocol};

use crate::layout::protocol_of;
use crate::wire::abi::message::CONNTRACK;
use crate::wire::attr::{Attr, body};
use crate::wire::{DecodeError, Message};

pub(super) const TUPLE_ORIGINAL: u16 = 1;
pub(super) const TUPLE_REPLY: u16 = 2;
pub(super) const STATUS: u16 = 3;
pub(super) const ID: u16 = 12;
pub(super) const ZONE: u16 = 18;

pub(super) const TUPLE_IP: u16 = 1;
pub(super) const TUPLE_PROTOCOL: u16 = 2;
const TUPLE_ZONE: u16 = 3;

pub(super) const IPV4_SOURCE: u16 = 1;
pub(super) const IPV4_DESTINATION: u16 = 2;
pub(super) const IPV6_SOURCE: u16 = 3;
pub(super) const IPV6_DESTINATION: u16 = 4;

pub(super) const PROTOCOL_NUMBER: u16 = 1;
pub(super) const SOURCE_PORT: u16 = 2;
pub(super) const DESTINATION_PORT: u16 = 3;

/// `IPCTNL_MSG_CT_NEW`: the message type of a listed flow.
const FLOW: u16 = CONNTRACK << 8;
/// `IPS_SEEN_REPLY`.
const SEEN_REPLY: u32 = 1 << 1;

/// One direction of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ends {
    /// The sender.
    pub source: SocketAddr,
    /// The receiver.
    pub destination: SocketAddr,
}

/// A conntrack entry of TCP, UDP or SCTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flow {
    /// Protocol.
    pub protocol: Protocol,
    /// The original direction: from the client to the frontend.
    pub original: Ends,
    /// The reply direction: from the endpoint.
    pub reply: Ends,
    /// The kernel's `IPS_*` bits.
    pub status: u32,
    /// The kernel's id of the flow: a later flow with the same addresses and ports has another one.
    pub id: u32,
    /// The conntrack zone of the original direction; 0 unless zones are in use.
    pub zone: u16,
}

impl Flow {
    /// Decodes a message. None if it contains no flow, or one without ports, such as ICMP.
    ///
    /// # Errors
    ///
    /// A part is missing or has the wrong length.
    pub fn decode(message: &Message<'_>) -> Result<Option<Self>, DecodeError> {
        if message.kind != FLOW {
            return Ok(None);
        }
        let mut parts = Parts::default();
        for attr in body(message.payload)?.1 {
            let attr = attr?;
            match attr.kind {
                TUPLE_ORIGINAL => parts.original = Tuple::read(attr)?,
                TUPLE_REPLY => parts.reply = Tuple::read(attr)?,
                STATUS => parts.status = attr.be32()?,
                ID => parts.id = Some(attr.be32()?),
                ZONE => parts.zone = Some(be16(attr)?),
                _ => {}
            }
        }
        parts.flow()
    }

    /// The family.
    pub fn family(&self) -> Family {
        Family::of(self.original.destination.ip())
    }

    /// The endpoint that serves the flow.
    pub fn endpoint(&self) -> EndpointKey {
        EndpointKey { ip: self.reply.source.ip(), port: self.reply.source.port() }
    }

    /// Whether its destination was translated. This compares addresses: the status bit only shows
    /// that a rule matched.
    pub fn translated(&self) -> bool {
        self.reply.source != self.original.destination
    }

    /// Whether a reply was seen.
    pub fn answered(&self) -> bool {
        self.status & SEEN_REPLY != 0
    }
}

/// The parts of a message decoded so far.
#[derive(Default)]
struct Parts {
    original: Tuple,
    reply: Tuple,
    status: u32,
    id: Option<u32>,
    zone: Option<u16>,
}

impl Parts {
    fn flow(self) -> Result<Option<Flow>, DecodeError> {
        let number = self.original.protocol.ok_or(missing("protocol"))?;
        let Some(protocol) = protocol_of(number) else { return Ok(None) };
        let original = self.original.ends().ok_or(missing("original direction"))?;
        let reply = self.reply.ends().ok_or(missing("reply direction"))?;
        if self.reply.protocol != Some(number) || family(original) != family(reply) {
            return Err(missing("reply direction of the same protocol and family"));
        }
        Ok(Some(Flow {
            protocol,
            original,
            reply,
            status: self.status,
            id: self.id.ok_or(missing("id"))?,
            zone: self.zone.or(self.original.zone).unwrap_or_default(),
        }))
    }
}

fn missing(part: &'static str) -> DecodeError {
    DecodeError::Missing { object: "flow", part }
}

fn family(ends: Ends) -> Family {
    Family::of(ends.source.ip())
}

/// One direction, as far as it is decoded.
#[derive(Default)]
struct Tuple {
    source: Option<IpAddr>,
    destination: Option<IpAddr>,
    protocol: Option<u8>,
    source_port: Option<u16>,
    destination_port: Option<u16>,
    zone: Option<u16>,
}

impl Tuple {
    fn read(attr: Attr<'_>) -> Result<Self, DecodeError> {
        let mut tuple = Self::default();
        for attr in attr.attrs() {
            let attr = attr?;
            match attr.kind {
                TUPLE_IP => tuple.read_addresses(attr)?,
                TUPLE_PROTOCOL => tuple.read_protocol(attr)?,
                TUPLE_ZONE => tuple.zone = Some(be16(attr)?),
                _ => {}
            }
        }
        Ok(tuple)
    }

    fn read_addresses(&mut self, attr: Attr<'_>) -> Result<(), DecodeError> {
        for attr in attr.attrs() {
            let attr = attr?;
            match attr.kind {
                IPV4_SOURCE => self.source = Some(attr.array::<4>()?.into()),
                IPV4_DESTINATION => self.destination = Some(attr.array::<4>()?.into()),
                IPV6_SOURCE => self.source = Some(attr.array::<16>()?.into()),
                IPV6_DESTINATION => self.destination = Some(attr.array::<16>()?.into()),
                _ => {}
            }
        }
        Ok(())
    }

    fn read_protocol(&mut self, attr: Attr<'_>) -> Result<(), DecodeError> {
        for attr in attr.attrs() {
            let attr = attr?;
            match attr.kind {
                PROTOCOL_NUMBER => self.protocol = Some(attr.array::<1>()?[0]),
                SOURCE_PORT => self.source_port = Some(be16(attr)?),
                DESTINATION_PORT => self.destination_port = Some(be16(attr)?),
                _ => {}
            }
        }
        Ok(())
    }

    fn ends(&self) -> Option<Ends> {
        let (source, destination) = (self.source?, self.destination?);
        (Family::of(source) == Family::of(destination)).then_some(Ends {
            source: SocketAddr::new(source, self.source_port?),
            destination: SocketAddr::new(destination, self.destination_port?),
        })
    }
}

fn be16(attr: Attr<'_>) -> Result<u16, DecodeError> {
    attr.array().map(u16::from_be_bytes)
}
