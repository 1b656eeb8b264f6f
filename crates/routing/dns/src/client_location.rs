//! Finds the client's location: from the packet's source address, or from the EDNS options of a
//! trusted forwarder.
//!
//! A forwarder's own location says nothing about its clients, so its options take precedence. The
//! server ignores the same options from any other source: a client must not be able to request
//! another client's answer.

use std::net::IpAddr;
use std::sync::Arc;

use nearhop_core::locate::{How, Located};
use nearhop_core::route::Place;
use nearhop_core::{Cidr, World};

use crate::wire::{Edns, Subnet};

/// The forwarders whose EDNS options are trusted.
#[derive(Clone, Debug, Default)]
pub struct TrustedForwarders {
    /// `--trusted-forwarders`.
    pub trusted: Vec<Cidr>,
    /// `--forwarder-option`: code of the EDNS option with an address or a node name.
    pub option: u16,
}

/// Where the client is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientLocation {
    pub(crate) located: Located,
    /// The client subnet that the location comes from; the reply repeats it.
    pub(crate) subnet: Option<Subnet>,
}

impl TrustedForwarders {
    /// If a forwarder's option cannot be located, the location is unknown: the forwarder's own
    /// location would be a guess.
    pub(crate) fn locate(
        &self,
        world: &World,
        source: IpAddr,
        packet: &[u8],
        edns: Option<&Edns>,
    ) -> ClientLocation {
        let trusted = || self.trusted.iter().any(|range| range.contains(source));
        let by_source = || ClientLocation { located: world.locate(source), subnet: None };
        let Some(edns) = edns else { return by_source() };
        if (edns.local.is_none() && edns.subnet.is_none()) || !trusted() {
            return by_source();
        }
        let option = edns.local.map(|span| span.of(packet)).filter(|content| !content.is_empty());
        if let Some(content) = option {
            let located = locate_option(world, content).unwrap_or_else(Located::unknown);
            return ClientLocation { located, subnet: None };
        }
        match edns.subnet {
            Some(subnet) => {
                ClientLocation { located: locate_subnet(world, subnet), subnet: Some(subnet) }
            }
            None => by_source(),
        }
    }
}

/// Reads the forwarder option: an address in 4 or 16 octets or as text, or a node name.
fn locate_option(world: &World, content: &[u8]) -> Option<Located> {
    let octets = <[u8; 4]>::try_from(content)
        .map(IpAddr::from)
        .or_else(|_| <[u8; 16]>::try_from(content).map(IpAddr::from));
    // Text takes precedence: a node name may have four letters, an address as text has dots.
    let text = std::str::from_utf8(content).ok().filter(|text| !text.is_empty());
    if let Some(text) = text {
        if let Some(node) = world.node(text) {
            let place = Some(Arc::new(Place::of(node)));
            return Some(Located { place, how: How::NodeAddress });
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Some(world.locate(address.to_canonical()));
        }
    }
    octets.ok().map(|address| world.locate(address.to_canonical()))
}

fn locate_subnet(world: &World, Subnet { cidr }: Subnet) -> Located {
    let whole = if cidr.first().is_ipv4() { 32 } else { 128 };
    match cidr.prefix() {
        // RFC 7871: the client opts out.
        0 => Located::unknown(),
        prefix if prefix == whole => world.locate(cidr.first()),
        _ => world.locate_subnet(cidr),
    }
}

#[cfg(test)]
mod tests {
    use nearhop_core::Change;
    use nearhop_core::model::Node;

    use super::*;

    fn world() -> World {
        let mut world = World::default();
        for (name, third) in [("anna", 1), ("bert", 2)] {
            let mut node = Node::new(name);
            node.pod_cidrs = vec![Cidr::new([10, 244, third, 0].into(), 24)];
            node.addresses = vec![[192, 168, 0, third].into()];
            world.apply(Change::put(node));
        }
        world
    }

    fn node_of(client: &ClientLocation) -> Option<&str> {
        client.located.place.as_ref()?.node.as_deref()
    }

    fn find(source: &str, packet: &[u8], subnet: Option<&str>) -> ClientLocation {
        let trusted = vec![Cidr::parse("10.244.1.53/32").unwrap()];
        let forwarders = TrustedForwarders { trusted, option: 65001 };
        let edns = Edns {
            local: (!packet.is_empty())
                .then_some(crate::wire::Span { start: 0, end: packet.len() as u16 }),
            subnet: subnet.map(|text| Subnet { cidr: Cidr::parse(text).unwrap() }),
            ..Edns::default()
        };
        forwarders.locate(&world(), source.parse().unwrap(), packet, Some(&edns))
    }

    #[test]
    fn options_of_a_trusted_forwarder_locate_the_client() {
        let forwarder = "10.244.1.53";
        assert_eq!(
            node_of(&find(forwarder, b"", None)),
            Some("anna"),
            "without options, the location of the forwarder"
        );
        for option in
            [&[10, 244, 2, 9][..], b"10.244.2.9", b"bert", b"192.168.0.2", b"::ffff:10.244.2.9"]
        {
            assert_eq!(node_of(&find(forwarder, option, None)), Some("bert"), "{option:?}");
        }
        assert_eq!(node_of(&find(forwarder, b"203.0.113.1", None)), None, "unknown address");
        assert_eq!(node_of(&find(forwarder, b"no-node", None)), None, "unknown node");
        let by_subnet = find(forwarder, b"", Some("10.244.2.0/25"));
        assert_eq!(node_of(&by_subnet), Some("bert"));
        assert!(by_subnet.subnet.is_some());
        assert_eq!(node_of(&find(forwarder, b"", Some("10.244.2.7/32"))), Some("bert"));
        assert_eq!(node_of(&find(forwarder, b"", Some("0.0.0.0/0"))), None);
        assert_eq!(
            node_of(&find(forwarder, b"", Some("10.244.0.0/16"))),
            None,
            "the subnet has two nodes"
        );
    }

    #[test]
    fn options_of_other_sources_are_ignored() {
        let client = find("10.244.2.8", b"anna", Some("10.244.1.0/24"));
        assert_eq!(node_of(&client), Some("bert"));
        assert_eq!(client.subnet, None);
    }
}
