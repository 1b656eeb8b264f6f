//! A conntrack table in its own network namespace, filled by netlink: no packets, no rules.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use nearhop_core::{Family, Protocol};
use nearhop_netfilter::wire::attr::{Head, Writer};
use nearhop_proxy::conntrack::{Conntrack, Extent};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket,
};

use nearhop_netfilter::conntrack::{Ends, Flow};

/// A flow to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NewFlow {
    pub(crate) protocol: Protocol,
    pub(crate) original: Ends,
    pub(crate) reply: Ends,
    pub(crate) zone: u16,
}

impl From<&Flow> for NewFlow {
    fn from(flow: &Flow) -> Self {
        Self {
            protocol: flow.protocol,
            original: flow.original,
            reply: flow.reply,
            zone: flow.zone,
        }
    }
}

/// A flow of a client to a frontend, translated to an endpoint.
pub(crate) fn new_flow(
    protocol: Protocol,
    client: &str,
    frontend: &str,
    endpoint: &str,
) -> NewFlow {
    let at = |text: &str| text.parse::<SocketAddr>().expect("a valid test address");
    NewFlow {
        protocol,
        original: Ends { source: at(client), destination: at(frontend) },
        reply: Ends { source: at(endpoint), destination: at(client) },
        zone: 0,
    }
}

pub(crate) fn udp(client: &str, frontend: &str, endpoint: &str) -> NewFlow {
    new_flow(Protocol::Udp, client, frontend, endpoint)
}

/// Adds flows to the conntrack table of the calling thread's namespace.
pub(crate) fn insert(flows: &[NewFlow]) {
    let (family, protocol) = (AddressFamily::Netlink, SockProtocol::NetlinkNetFilter);
    let socket = socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol).unwrap();
    for some in flows.chunks(100) {
        let mut out = Writer::default();
        some.iter().for_each(|flow| write(&mut out, flow));
        let sent = send(socket.as_raw_fd(), &out.finish(), MsgFlags::empty());
        sent.expect("the socket sends");
        some.iter().for_each(|_| expect_ack(&socket));
    }
}

fn write(out: &mut Writer, flow: &NewFlow) {
    const NEW: u16 = 1 << 8;
    const REQUEST_CREATE_EXCLUSIVE_CAPPED_ACK: u16 = 0x1 | 0x4 | 0x400 | 0x200;
    let family = match Family::of(flow.original.source.ip()) {
        Family::Ipv4 => 2,
        Family::Ipv6 => 10,
    };
    let flags = REQUEST_CREATE_EXCLUSIVE_CAPPED_ACK;
    let open = out.open_message(Head { kind: NEW, flags, seq: 1, family, resource: 0 });
    out.nest(1, |out| direction(out, &flow.original, flow.protocol));
    out.nest(2, |out| direction(out, &flow.reply, flow.protocol));
    if flow.zone != 0 {
        out.put(18, &flow.zone.to_be_bytes());
    }
    // A timeout of ten minutes.
    out.be32(7, 600);
    // Confirmed, assured, answered.
    out.be32(3, 0b1110);
    match flow.protocol {
        Protocol::Udp => {}
        // Established; likewise SCTP below, with its verification tags.
        Protocol::Tcp => out.nest(4, |out| out.nest(1, |out| out.byte(1, 3))),
        Protocol::Sctp => out.nest(4, |out| {
            out.nest(3, |out| {
                out.byte(1, 4);
                out.be32(2, 1);
                out.be32(3, 1);
            });
        }),
    }
    out.close_message(open);
}

fn direction(out: &mut Writer, ends: &Ends, protocol: Protocol) {
    out.nest(1, |out| {
        for (end, ipv4, ipv6) in [(ends.source, 1, 3), (ends.destination, 2, 4)] {
            match end.ip() {
                IpAddr::V4(ip) => out.put(ipv4, &ip.octets()),
                IpAddr::V6(ip) => out.put(ipv6, &ip.octets()),
            }
        }
    });
    out.nest(2, |out| {
        let number = match protocol {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Sctp => 132,
        };
        out.byte(1, number);
        out.put(2, &ends.source.port().to_be_bytes());
        out.put(3, &ends.destination.port().to_be_bytes());
    });
}

fn expect_ack(socket: &OwnedFd) {
    let mut buffer = [0; 1024];
    let len = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty()).expect("the kernel answers");
    assert!(len >= 20, "an answer of {len} bytes");
    let number = i32::from_ne_bytes([buffer[16], buffer[17], buffer[18], buffer[19]]);
    assert_eq!(
        number,
        0,
        "the kernel accepts the flow: {}",
        std::io::Error::from_raw_os_error(-number)
    );
}

/// All flows of a protocol, both families, sorted.
pub(crate) fn flows(table: &mut Conntrack, protocol: Protocol) -> Vec<Flow> {
    let mut all = Vec::new();
    for family in [Family::Ipv4, Family::Ipv6] {
        let dump = table.dump(family, protocol, Vec::new, |all, flow| all.push(*flow));
        let dump = dump.expect("the kernel dumps the table");
        assert_eq!((dump.extent, dump.unreadable), (Extent::Whole, 0));
        all.extend(dump.value);
    }
    all.sort();
    all
}

/// All flows in the table, in the form in which they were created.
pub(crate) fn everything(table: &mut Conntrack) -> Vec<NewFlow> {
    let protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    let mut all: Vec<NewFlow> = protocols
        .into_iter()
        .flat_map(|protocol| flows(table, protocol).iter().map(NewFlow::from).collect::<Vec<_>>())
        .collect();
    all.sort();
    all
}
