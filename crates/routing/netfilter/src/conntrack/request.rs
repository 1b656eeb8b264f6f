//! Encodes requests to conntrack: dump flows, delete one flow.
//!
//! A delete request without any direction deletes all flows. This module cannot encode one: a flow
//! always has both directions. Nor does it encode a delete request with a filter for many flows:
//! the kernel's filter has a bug (seen on 6.18: it treats different IPv6 addresses as equal, and
//! deletes other flows).

use std::net::IpAddr;

use nearhop_core::{Family, Protocol};

use super::flow::{
    DESTINATION_PORT, Flow, ID, IPV4_DESTINATION, IPV4_SOURCE, IPV6_DESTINATION, IPV6_SOURCE,
    PROTOCOL_NUMBER, SOURCE_PORT, TUPLE_IP, TUPLE_ORIGINAL, TUPLE_PROTOCOL, ZONE,
};
use crate::layout::protocol_number;
use crate::wire::abi::family_number;
use crate::wire::abi::message::{ACK, CONNTRACK, DUMP, REQUEST};
use crate::wire::attr::{Head, Writer};

/// `IPCTNL_MSG_CT_GET`.
const GET: u16 = CONNTRACK << 8 | 1;
/// `IPCTNL_MSG_CT_DELETE`.
const DELETE: u16 = CONNTRACK << 8 | 2;

/// The fields of the directions that the filter compares (kernel 5.8).
const FILTER: u16 = 25;
const FILTER_ORIGINAL: u16 = 1;
const FILTER_REPLY: u16 = 2;
const BY_PROTOCOL: u32 = 1 << 3;

/// Requests all flows of a family, optionally of one protocol.
///
/// A kernel before 5.8 ignores the filter and sends all protocols, so the caller must check the
/// protocol of each flow.
pub fn dump(sequence: u32, family: Family, protocol: Option<Protocol>) -> Vec<u8> {
    message(sequence, GET, REQUEST | DUMP, family, |out| {
        let Some(protocol) = protocol else { return };
        out.nest(TUPLE_ORIGINAL, |out| {
            out.nest(TUPLE_PROTOCOL, |out| out.byte(PROTOCOL_NUMBER, protocol_number(protocol)));
        });
        filter(out, BY_PROTOCOL, 0);
    })
}

/// Requests the deletion of one flow, by its id: a later flow with the same addresses and ports is
/// not deleted.
pub fn delete_flow(sequence: u32, flow: &Flow) -> Vec<u8> {
    message(sequence, DELETE, REQUEST | ACK, flow.family(), |out| {
        out.nest(TUPLE_ORIGINAL, |out| direction(out, flow));
        if flow.zone != 0 {
            out.put(ZONE, &flow.zone.to_be_bytes());
        }
        out.be32(ID, flow.id);
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

/// Writes a flow's original direction.
fn direction(out: &mut Writer, flow: &Flow) {
    let (source, destination) = (flow.original.source, flow.original.destination);
    out.nest(TUPLE_IP, |out| {
        address(out, source.ip(), IPV4_SOURCE, IPV6_SOURCE);
        address(out, destination.ip(), IPV4_DESTINATION, IPV6_DESTINATION);
    });
    out.nest(TUPLE_PROTOCOL, |out| {
        out.byte(PROTOCOL_NUMBER, protocol_number(flow.protocol));
        out.put(SOURCE_PORT, &source.port().to_be_bytes());
        out.put(DESTINATION_PORT, &destination.port().to_be_bytes());
    });
}

fn address(out: &mut Writer, ip: IpAddr, ipv4: u16, ipv6: u16) {
    match ip {
        IpAddr::V4(ip) => out.put(ipv4, &ip.octets()),
        IpAddr::V6(ip) => out.put(ipv6, &ip.octets()),
    }
}

/// Writes the filter. Its numbers are the only ones in the machine's byte order.
fn filter(out: &mut Writer, original: u32, reply: u32) {
    out.nest(FILTER, |out| {
        out.put(FILTER_ORIGINAL, &original.to_ne_bytes());
        out.put(FILTER_REPLY, &reply.to_ne_bytes());
    });
}
