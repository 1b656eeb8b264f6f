//! A virtual packet: the fields that rules may read, and the host that it passes.

use std::net::{IpAddr, SocketAddr};

use nearhop_core::{Family, Protocol};

use nearhop_netfilter::layout::protocol_number;
use nearhop_netfilter::object::{Base, FIB_LOCAL};

/// The first packet of a new connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Its source.
    pub source: SocketAddr,
    /// Its destination.
    pub destination: SocketAddr,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its input interface; ignored for a packet of a local process.
    pub iif: String,
    /// Its mark.
    pub mark: u32,
}

/// The host that the packet passes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// The addresses of this machine. Loopback addresses always belong to it.
    ///
    /// A packet from one of them was sent by a local process. The source of a masqueraded packet
    /// becomes the first one of its family.
    pub node_addresses: Vec<IpAddr>,
}

impl Host {
    /// Whether an address belongs to this machine.
    pub(crate) fn is_local(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.node_addresses.contains(&address)
    }

    /// The type of an address in the routing table: `RTN_UNICAST`, `RTN_LOCAL` or `RTN_MULTICAST`.
    pub(super) fn fib_type(&self, address: IpAddr) -> u32 {
        match () {
            () if self.is_local(address) => FIB_LOCAL,
            () if address.is_multicast() => 5,
            () => 1,
        }
    }

    pub(super) fn masquerade_as(&self, family: Family) -> Option<IpAddr> {
        self.node_addresses.iter().copied().find(|address| Family::of(*address) == family)
    }
}

/// The part of a header that a virtual packet has, with the offset of its first byte.
pub(super) struct Header {
    parts: Vec<(usize, Vec<u8>)>,
}

impl Header {
    pub(super) fn of(
        base: Base,
        source: SocketAddr,
        destination: SocketAddr,
        protocol: Protocol,
    ) -> Self {
        let number = vec![protocol_number(protocol)];
        let parts = match (base, source.ip(), destination.ip()) {
            (Base::Network, IpAddr::V4(source), IpAddr::V4(destination)) => {
                vec![(9, number), (12, [source.octets(), destination.octets()].concat())]
            }
            (Base::Network, IpAddr::V6(source), IpAddr::V6(destination)) => {
                vec![(6, number), (8, [source.octets(), destination.octets()].concat())]
            }
            (Base::Network, ..) => Vec::new(),
            (Base::Transport, ..) => {
                let ports = [source.port().to_be_bytes(), destination.port().to_be_bytes()];
                vec![(0, ports.concat())]
            }
        };
        Self { parts }
    }

    /// The bytes at an offset, if the virtual packet has them.
    pub(super) fn read(&self, offset: u32, len: u32) -> Option<&[u8]> {
        let (offset, len) = (usize::try_from(offset).ok()?, usize::try_from(len).ok()?);
        self.parts.iter().find_map(|(start, bytes)| {
            let from = offset.checked_sub(*start)?;
            bytes.get(from..from.checked_add(len)?)
        })
    }
}
