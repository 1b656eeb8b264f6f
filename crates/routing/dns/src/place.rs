//! Where the asker stands: by the packet's source, or by what a trusted forwarder says.
//!
//! A forwarder is itself a Pod or a node of the cluster, and where it stands says nothing about
//! whom it asks for. So its word comes first. From anybody else the same options are ignored:
//! a client must not be able to ask for somebody else's answer.

use std::net::IpAddr;
use std::sync::Arc;

use nearhop_core::locate::{How, Located};
use nearhop_core::route::Place;
use nearhop_core::{Cidr, World};

use crate::wire::{Edns, Subnet};

/// Whose word counts, and how they give it.
#[derive(Clone, Debug, Default)]
pub struct Forwarders {
    /// `--trusted-forwarders`.
    pub trusted: Vec<Cidr>,
    /// `--forwarder-option`: the number of an EDNS option with an address or a node's name.
    pub option: u16,
}

/// Where the asker stands, and the client subnet that this was taken from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asker {
    /// Where.
    pub located: Located,
    /// What the reply says it is meant for.
    pub subnet: Option<Subnet>,
}

impl Forwarders {
    /// Finds the asker. What a forwarder says and nobody knows leaves the place unknown: the
    /// forwarder's own would be a guess.
    pub fn find(&self, world: &World, source: IpAddr, packet: &[u8], edns: Option<&Edns>) -> Asker {
        let trusted = || self.trusted.iter().any(|range| range.contains(source));
        let by_source = || Asker { located: world.locate(source), subnet: None };
        let Some(edns) = edns else { return by_source() };
        if (edns.local.is_none() && edns.subnet.is_none()) || !trusted() {
            return by_source();
        }
        let said = edns.local.map(|span| span.of(packet)).filter(|content| !content.is_empty());
        if let Some(content) = said {
            let located = locate_told(world, content).unwrap_or_else(Located::unknown);
            return Asker { located, subnet: None };
        }
        match edns.subnet {
            Some(subnet) => Asker { located: locate_subnet(world, subnet), subnet: Some(subnet) },
            None => by_source(),
        }
    }
}

/// Reads a forwarder's own option: four or sixteen octets of an address, or the text of one, or
/// the name of a node. Nothing where it is none of these.
fn locate_told(world: &World, content: &[u8]) -> Option<Located> {
    let octets = <[u8; 4]>::try_from(content)
        .map(IpAddr::from)
        .or_else(|_| <[u8; 16]>::try_from(content).map(IpAddr::from));
    // Text comes first: a node's name may have four letters, an address in text has dots.
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
        // RFC 7871: its client does not want to be known.
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
            world.apply(Change::Node(node));
        }
        world
    }

    fn node_of(asker: &Asker) -> Option<&str> {
        asker.located.place.as_ref()?.node.as_deref()
    }

    fn find(source: &str, packet: &[u8], subnet: Option<&str>) -> Asker {
        let trusted = vec![Cidr::parse("10.244.1.53/32").unwrap()];
        let forwarders = Forwarders { trusted, option: 65001 };
        let edns = Edns {
            local: (!packet.is_empty())
                .then_some(crate::wire::Span { start: 0, end: packet.len() as u16 }),
            subnet: subnet.map(|text| Subnet { cidr: Cidr::parse(text).unwrap() }),
            ..Edns::default()
        };
        forwarders.find(&world(), source.parse().unwrap(), packet, Some(&edns))
    }

    #[test]
    fn a_trusted_forwarder_says_whom_it_asks_for() {
        let forwarder = "10.244.1.53";
        assert_eq!(node_of(&find(forwarder, b"", None)), Some("anna"), "its own place");
        for told in
            [&[10, 244, 2, 9][..], b"10.244.2.9", b"bert", b"192.168.0.2", b"::ffff:10.244.2.9"]
        {
            assert_eq!(node_of(&find(forwarder, told, None)), Some("bert"), "{told:?}");
        }
        assert_eq!(node_of(&find(forwarder, b"203.0.113.1", None)), None, "said, and unknown");
        assert_eq!(node_of(&find(forwarder, b"nobody-s", None)), None, "said, and unknown");
        let by_subnet = find(forwarder, b"", Some("10.244.2.0/25"));
        assert_eq!(node_of(&by_subnet), Some("bert"));
        assert!(by_subnet.subnet.is_some());
        assert_eq!(node_of(&find(forwarder, b"", Some("10.244.2.7/32"))), Some("bert"));
        assert_eq!(node_of(&find(forwarder, b"", Some("0.0.0.0/0"))), None);
        assert_eq!(node_of(&find(forwarder, b"", Some("10.244.0.0/16"))), None, "two nodes");
    }

    #[test]
    fn nobody_else_is_believed() {
        let asker = find("10.244.2.8", b"anna", Some("10.244.1.0/24"));
        assert_eq!(node_of(&asker), Some("bert"));
        assert_eq!(asker.subnet, None);
    }
}
