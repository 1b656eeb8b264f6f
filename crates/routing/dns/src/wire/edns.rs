//! EDNS options (RFC 6891): cookie, client subnet and the forwarder option. Others are ignored.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nearhop_core::Cidr;

use super::cookie::Cookie;
use super::read_u16;
use super::request::Span;

const SUBNET: u16 = 8;
const COOKIE: u16 = 10;

/// The OPT record of a query.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Edns {
    /// The largest UDP message that the client accepts.
    pub(crate) udp_size: u16,
    pub(crate) version: u8,
    pub(crate) dnssec_ok: bool,
    pub(crate) cookie: Option<Cookie>,
    pub(crate) subnet: Option<Subnet>,
    /// Content of the forwarder option (`--forwarder-option`) in the packet.
    pub(crate) local: Option<Span>,
}

/// An EDNS Client Subnet option (RFC 7871).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Subnet {
    pub(crate) cidr: Cidr,
}

impl Subnet {
    /// None if the option is malformed.
    fn read(content: &[u8]) -> Option<Self> {
        let [_, family, source, _scope, rest @ ..] = content else { return None };
        let most = match (content[0], *family) {
            (0, 1) => 32,
            (0, 2) => 128,
            _ => return None,
        };
        // RFC 7871: exactly the octets of the prefix, with no bit set beyond it.
        if *source > most || rest.len() != usize::from(source.div_ceil(8)) {
            return None;
        }
        let mut octets = [0; 16];
        octets[..rest.len()].copy_from_slice(rest);
        let address = match most {
            32 => IpAddr::from(Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3])),
            _ => IpAddr::from(Ipv6Addr::from(octets)),
        };
        let cidr = Cidr::new(address, *source);
        (cidr.first() == address).then_some(Self { cidr })
    }

    /// Appends the option of the reply, with the scope of the whole prefix.
    pub(super) fn write(self, out: &mut Vec<u8>) {
        let prefix = self.cidr.prefix();
        let used = usize::from(prefix.div_ceil(8));
        let (family, octets) = match self.cidr.first() {
            IpAddr::V4(address) => (1, address.to_ipv6_mapped().octets()[12..].to_vec()),
            IpAddr::V6(address) => (2, address.octets().to_vec()),
        };
        out.extend(SUBNET.to_be_bytes());
        out.extend((4 + used as u16).to_be_bytes());
        out.extend([0, family, prefix, prefix]);
        out.extend(&octets[..used]);
    }

    /// How many octets [`Self::write`] appends.
    pub(super) fn size(self) -> usize {
        8 + usize::from(self.cidr.prefix().div_ceil(8))
    }
}

pub(super) fn write_cookie(cookie: &[u8], out: &mut Vec<u8>) {
    out.extend(COOKIE.to_be_bytes());
    out.extend((cookie.len() as u16).to_be_bytes());
    out.extend(cookie);
}

/// Reads the options of an OPT record; None if they are malformed. `local` is the code of the
/// forwarder option.
pub(super) fn read_options(packet: &[u8], span: Span, local: u16, edns: &mut Edns) -> Option<()> {
    let mut at = usize::from(span.start);
    let end = usize::from(span.end);
    while at < end {
        let code = read_u16(packet, at)?;
        let length = usize::from(read_u16(packet, at + 2)?);
        let (start, after) = (at + 4, at + 4 + length);
        if after > end {
            return None;
        }
        let content = &packet[start..after];
        match code {
            COOKIE => edns.cookie = Some(Cookie::read(content)?),
            // A malformed subnet is ignored: most clients are not trusted to send one anyway.
            SUBNET => edns.subnet = Subnet::read(content),
            code if code == local => edns.local = Some(Span::new(start, after)?),
            _ => {}
        }
        at = after;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_subnets_round_trip() {
        for (content, expected) in [
            (&[0, 1, 24, 0, 10, 1, 2][..], Some("10.1.2.0/24")),
            (&[0, 1, 20, 0, 10, 1, 0x20], Some("10.1.32.0/20")),
            (&[0, 1, 0, 0], Some("0.0.0.0/0")),
            (&[0, 2, 16, 0, 0xfd, 0], Some("fd00::/16")),
            (&[0, 1, 20, 0, 10, 1, 0x2f], None),
            (&[0, 1, 24, 0, 10, 1], None),
            (&[0, 1, 33, 0, 10, 1, 2, 3, 4], None),
            (&[0, 3, 8, 0, 10], None),
            (&[0, 1], None),
        ] {
            let read = Subnet::read(content);
            assert_eq!(read.map(|subnet| subnet.cidr), expected.and_then(Cidr::parse));
            if let Some(subnet) = read {
                let mut out = Vec::new();
                subnet.write(&mut out);
                assert_eq!(out.len(), subnet.size());
                assert_eq!(out[4..7], content[..3]);
                assert_eq!(out[7], content[2], "the scope is the whole prefix");
                assert_eq!(out[8..], content[4..]);
            }
        }
    }
}
