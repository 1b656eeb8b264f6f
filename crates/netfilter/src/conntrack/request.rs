//! What is asked of the kernel: dump flows, delete one, delete those between two addresses.
//!
//! A delete request without any direction empties the whole table. None can be written here: a
//! flow has all its ends, and a pair has a port and an address on both sides.

use std::net::{IpAddr, SocketAddr, SocketAddrV4};

use nearhop_core::{Family, Protocol};

use super::flow::{
    DESTINATION_PORT, Flow, ID, IPV4_DESTINATION, IPV4_SOURCE, IPV6_DESTINATION, IPV6_SOURCE,
    PROTOCOL_NUMBER, SOURCE_PORT, TUPLE_IP, TUPLE_ORIGINAL, TUPLE_PROTOCOL, TUPLE_REPLY, ZONE,
};
use crate::layout::protocol_number;
use crate::wire::abi::family_number;
use crate::wire::abi::message::{ACK, CONNTRACK, DUMP, REQUEST};
use crate::wire::attr::{Head, Writer};

/// `IPCTNL_MSG_CT_GET`.
const GET: u16 = CONNTRACK << 8 | 1;
/// `IPCTNL_MSG_CT_DELETE`.
const DELETE: u16 = CONNTRACK << 8 | 2;

/// Which parts of the directions count (kernel 5.8 for dumps, 6.12 for deletes).
const FILTER: u16 = 25;
const FILTER_ORIGINAL: u16 = 1;
const FILTER_REPLY: u16 = 2;
const BY_SOURCE: u32 = 1 << 0;
const BY_DESTINATION: u32 = 1 << 1;
const BY_PROTOCOL: u32 = 1 << 3;
const BY_SOURCE_PORT: u32 = 1 << 4;
const BY_DESTINATION_PORT: u32 = 1 << 5;

/// Asks for all flows of a family, of one protocol where it is given.
///
/// A kernel before 5.8 does not know the filter and sends all protocols, so whoever asks must look
/// at each flow's protocol all the same.
pub fn dump(sequence: u32, family: Family, protocol: Option<Protocol>) -> Vec<u8> {
    message(sequence, GET, REQUEST | DUMP, family, |out| {
        let Some(protocol) = protocol else { return };
        out.nest(TUPLE_ORIGINAL, |out| {
            out.nest(TUPLE_PROTOCOL, |out| out.byte(PROTOCOL_NUMBER, protocol_number(protocol)));
        });
        filter(out, BY_PROTOCOL, 0);
    })
}

/// Asks to delete one flow: this very one, not a later one with equal ends.
pub fn delete_flow(sequence: u32, flow: &Flow) -> Vec<u8> {
    message(sequence, DELETE, REQUEST | ACK, flow.family(), |out| {
        let ends = (Some(flow.original.source), Some(flow.original.destination));
        out.nest(TUPLE_ORIGINAL, |out| direction(out, ends, flow.protocol));
        if flow.zone != 0 {
            out.put(ZONE, &flow.zone.to_be_bytes());
        }
        out.be32(ID, flow.id);
    })
}

/// All UDP flows that were sent to one frontend and are served by one endpoint.
///
/// Only IPv4 and UDP, because the kernel's filter is wrong for the others (seen on 6.18): it takes
/// IPv6 addresses for equal when they differ, so that everybody else's flows would go, and does
/// not look at SCTP's ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pair {
    frontend: SocketAddrV4,
    endpoint: SocketAddrV4,
}

impl Pair {
    /// None if an address or a port is zero: that would not be one frontend and one endpoint.
    pub fn new(frontend: SocketAddrV4, endpoint: SocketAddrV4) -> Option<Self> {
        let exact = |end: SocketAddrV4| !end.ip().is_unspecified() && end.port() != 0;
        (exact(frontend) && exact(endpoint)).then_some(Self { frontend, endpoint })
    }
}

/// Asks to delete all flows of a pair, without a dump. The kernel walks its whole table for it.
///
/// A kernel before 6.12 takes it for the deletion of one flow with half of its ends missing, and
/// refuses.
pub fn delete_pair(sequence: u32, pair: Pair) -> Vec<u8> {
    message(sequence, DELETE, REQUEST | ACK, Family::Ipv4, |out| {
        let to = (None, Some(pair.frontend.into()));
        out.nest(TUPLE_ORIGINAL, |out| direction(out, to, Protocol::Udp));
        let from = (Some(pair.endpoint.into()), None);
        out.nest(TUPLE_REPLY, |out| direction(out, from, Protocol::Udp));
        let frontend = BY_DESTINATION | BY_PROTOCOL | BY_DESTINATION_PORT;
        let endpoint = BY_SOURCE | BY_PROTOCOL | BY_SOURCE_PORT;
        filter(out, frontend, endpoint);
    })
}

fn message(
    sequence: u32,
    kind: u16,
    flags: u16,
    family: Family,
    fill: impl FnOnce(&mut Writer),
) -> Vec<u8> {
    let mut out = Writer::with_capacity(160);
    let family = family_number(family);
    let open = out.open_message(Head { kind, flags, seq: sequence, family, resource: 0 });
    fill(&mut out);
    out.close_message(open);
    out.finish()
}

/// The inside of a direction: source and destination, as far as they are given.
fn direction(
    out: &mut Writer,
    (source, destination): (Option<SocketAddr>, Option<SocketAddr>),
    protocol: Protocol,
) {
    out.nest(TUPLE_IP, |out| {
        address(out, source, IPV4_SOURCE, IPV6_SOURCE);
        address(out, destination, IPV4_DESTINATION, IPV6_DESTINATION);
    });
    out.nest(TUPLE_PROTOCOL, |out| {
        out.byte(PROTOCOL_NUMBER, protocol_number(protocol));
        port(out, source, SOURCE_PORT);
        port(out, destination, DESTINATION_PORT);
    });
}

fn address(out: &mut Writer, end: Option<SocketAddr>, ipv4: u16, ipv6: u16) {
    match end.map(|end| end.ip()) {
        Some(IpAddr::V4(ip)) => out.put(ipv4, &ip.octets()),
        Some(IpAddr::V6(ip)) => out.put(ipv6, &ip.octets()),
        None => {}
    }
}

fn port(out: &mut Writer, end: Option<SocketAddr>, kind: u16) {
    if let Some(end) = end {
        out.put(kind, &end.port().to_be_bytes());
    }
}

/// The only numbers here in the machine's byte order.
fn filter(out: &mut Writer, original: u32, reply: u32) {
    out.nest(FILTER, |out| {
        out.put(FILTER_ORIGINAL, &original.to_ne_bytes());
        out.put(FILTER_REPLY, &reply.to_ne_bytes());
    });
}
