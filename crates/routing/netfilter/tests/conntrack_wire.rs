//! Encoded flows and requests: encoded data can be decoded, invalid data is refused without a
//! panic, and no request can delete the whole conntrack table.

use std::net::{IpAddr, SocketAddr};

use nearhop_core::{Family, Protocol};
use nearhop_netfilter::conntrack::{Ends, Flow, delete_flow, dump};
use nearhop_netfilter::wire::attr::{Attrs, Head, Writer};
use nearhop_netfilter::wire::{DecodeError, Reply, messages};
use proptest::prelude::*;

/// A flow as kernel 6.18 dumps it: UDP, 10.0.0.1:1111 to 10.96.0.10:53, served by 10.1.0.1:5353.
const RECORDED: &str = include_str!("data/conntrack_flow.hex");

fn from_hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).expect("hexadecimal digits are ASCII");
        u8::from_str_radix(pair, 16).expect("only hexadecimal digits were kept")
    };
    digits.chunks(2).map(byte).collect()
}

fn at(text: &str) -> SocketAddr {
    text.parse().expect("a valid test address")
}

/// Decodes the first message.
fn decode(datagram: &[u8]) -> Result<Option<Flow>, DecodeError> {
    let message = messages(datagram).next().expect("the datagram has a message")?;
    assert_eq!(message.reply(), Ok(Reply::Object));
    Flow::decode(&message)
}

#[test]
fn a_recorded_flow_is_decoded() {
    let datagram = from_hex(RECORDED);
    let flow = decode(&datagram).expect("the flow is complete").expect("its protocol is UDP");
    let expected = Flow {
        protocol: Protocol::Udp,
        original: Ends { source: at("10.0.0.1:1111"), destination: at("10.96.0.10:53") },
        reply: Ends { source: at("10.1.0.1:5353"), destination: at("10.0.0.1:1111") },
        ..flow
    };
    assert_eq!(flow, expected);
    assert_eq!(flow.family(), Family::Ipv4);
    assert!(flow.translated());
    assert!(flow.answered());
    assert_ne!(flow.id, 0, "deleting exactly this flow needs its id");
}

/// A message that ends within an attribute is an error. It never decodes to a different flow.
#[test]
fn a_truncated_flow_is_an_error_or_the_same_flow() {
    let mut datagram = from_hex(RECORDED);
    let flow = decode(&datagram);
    for len in 20..datagram.len() as u32 {
        datagram[..4].copy_from_slice(&len.to_ne_bytes());
        if let Ok(Some(cut)) = decode(&datagram[..len as usize]) {
            assert_eq!(Ok(Some(cut)), flow, "{len} bytes");
        }
    }
}

/// Encodes a flow as the kernel does.
fn message_of(flow: &Flow) -> Vec<u8> {
    let number = match flow.protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
        Protocol::Sctp => 132,
    };
    message(|out| {
        out.nest(1, |out| direction(out, &flow.original, number));
        out.nest(2, |out| direction(out, &flow.reply, number));
        out.be32(3, flow.status);
        out.be32(12, flow.id);
        if flow.zone != 0 {
            out.put(18, &flow.zone.to_be_bytes());
        }
    })
}

fn message(fill: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut out = Writer::default();
    let head = Head { kind: 1 << 8, flags: 2, seq: 1, family: 2, resource: 0 };
    let open = out.open_message(head);
    fill(&mut out);
    out.close_message(open);
    out.finish()
}

fn direction(out: &mut Writer, ends: &Ends, number: u8) {
    out.nest(1, |out| {
        for (end, ipv4, ipv6) in [(ends.source, 1, 3), (ends.destination, 2, 4)] {
            match end.ip() {
                IpAddr::V4(ip) => out.put(ipv4, &ip.octets()),
                IpAddr::V6(ip) => out.put(ipv6, &ip.octets()),
            }
        }
    });
    out.nest(2, |out| {
        out.byte(1, number);
        out.put(2, &ends.source.port().to_be_bytes());
        out.put(3, &ends.destination.port().to_be_bytes());
    });
}

fn end(family: Family) -> BoxedStrategy<SocketAddr> {
    let ip = match family {
        Family::Ipv4 => any::<[u8; 4]>().prop_map(IpAddr::from).boxed(),
        Family::Ipv6 => any::<[u8; 16]>().prop_map(IpAddr::from).boxed(),
    };
    (ip, any::<u16>()).prop_map(|(ip, port)| SocketAddr::new(ip, port)).boxed()
}

fn flow() -> impl Strategy<Value = Flow> {
    let protocol = prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp), Just(Protocol::Sctp)];
    let ends = prop_oneof![Just(Family::Ipv4), Just(Family::Ipv6)].prop_flat_map(|family| {
        let ends = || (end(family), end(family));
        (ends(), ends())
    });
    let rest = (any::<u32>(), any::<u32>(), any::<u16>());
    (protocol, ends, rest).prop_map(|(protocol, (original, reply), (status, id, zone))| Flow {
        protocol,
        original: Ends { source: original.0, destination: original.1 },
        reply: Ends { source: reply.0, destination: reply.1 },
        status,
        id,
        zone,
    })
}

/// The attributes of a request: their path of types and their bytes.
fn leaves(request: &[u8]) -> Vec<(Vec<u16>, Vec<u8>)> {
    fn walk(path: &[u16], bytes: &[u8], depth: usize, found: &mut Vec<(Vec<u16>, Vec<u8>)>) {
        for attr in Attrs::new(bytes) {
            let attr = attr.expect("the request is valid");
            let path = [path, &[attr.kind]].concat();
            // Directions have two levels, the filter has one.
            let inside = match path[..] {
                [1 | 2] | [25] | [1 | 2, _] => depth,
                _ => 0,
            };
            match inside {
                0 => found.push((path, attr.bytes.to_vec())),
                _ => walk(&path, attr.bytes, depth - 1, found),
            }
        }
    }
    let mut found = Vec::new();
    walk(&[], &request[20..], 2, &mut found);
    found
}

fn paths(request: &[u8]) -> Vec<Vec<u16>> {
    leaves(request).into_iter().map(|(path, _)| path).collect()
}

proptest! {
    #[test]
    fn flows_round_trip(flow in flow()) {
        prop_assert_eq!(decode(&message_of(&flow)), Ok(Some(flow)));
    }

    #[test]
    fn decoding_any_bytes_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut datagram = message(|_| ());
        datagram.extend(bytes);
        let len = datagram.len() as u32;
        datagram[..4].copy_from_slice(&len.to_ne_bytes());
        let _ = decode(&datagram);
    }

    #[test]
    fn decoding_a_damaged_flow_does_not_panic(flow in flow(), at in any::<prop::sample::Index>(), to: u8) {
        let mut datagram = message_of(&flow);
        let at = 16 + at.index(datagram.len() - 16);
        datagram[at] = to;
        let _ = decode(&datagram);
    }

    /// A request without directions would delete all flows.
    #[test]
    fn a_deletion_contains_all_fields_of_one_flow(flow in flow()) {
        let request = delete_flow(9, &flow);
        let (source, destination) = match flow.family() {
            Family::Ipv4 => (1, 2),
            Family::Ipv6 => (3, 4),
        };
        let mut expected = vec![
            vec![1, 1, source], vec![1, 1, destination],
            vec![1, 2, 1], vec![1, 2, 2], vec![1, 2, 3],
        ];
        expected.extend((flow.zone != 0).then(|| vec![18]));
        expected.push(vec![12]);
        prop_assert_eq!(paths(&request), expected);
    }
}

#[test]
fn dump_headers_have_type_flags_number_and_family() {
    let head = |request: &[u8]| {
        let half = |at: usize| u16::from_ne_bytes([request[at], request[at + 1]]);
        let len = u32::from_ne_bytes([request[0], request[1], request[2], request[3]]);
        assert_eq!(len as usize, request.len());
        (half(4), half(6), u32::from(half(8)), request[16])
    };
    assert_eq!(head(&dump(9, Family::Ipv4, None)), (0x101, 0x301, 9, 2));
    assert_eq!(head(&dump(9, Family::Ipv6, Some(Protocol::Udp))), (0x101, 0x301, 9, 10));
}

#[test]
fn a_dump_request_filters_by_protocol() {
    let filters = leaves(&dump(9, Family::Ipv4, Some(Protocol::Sctp)));
    let expected = [
        (vec![1, 2, 1], vec![132]),
        (vec![25, 1], (1_u32 << 3).to_ne_bytes().to_vec()),
        (vec![25, 2], vec![0; 4]),
    ];
    assert_eq!(filters, expected);
    assert_eq!(leaves(&dump(9, Family::Ipv4, None)), []);
}

#[test]
fn flows_of_other_protocols_are_ignored() {
    let icmp = message(|out| out.nest(1, |out| out.nest(2, |out| out.byte(1, 1))));
    assert_eq!(decode(&icmp), Ok(None), "ICMP has no ports");
}
