//! The sets and maps of a table, and the fields of their keys.
//!
//! A Service has no chain. It consists of elements: `services` maps its addresses to a chain that
//! picks a slot, and `endpoints` maps the slot to an endpoint. All Services with three slots share
//! one chain, so that the cost of a change or a packet does not depend on the number of Services.
//! Only a Service port with session affinity has its own chains and its own map, because only a
//! separate map has a separate size limit; see `affinity`.
//!
//! Cluster IPs with few slots are in plain sets, one for each number of slots (`services-3`),
//! because the kernel walks a whole verdict map whenever an element with a chain is added to it: 1
//! ms with 10,000 elements, 20 ms with 50,000.

use std::net::IpAddr;

use nearhop_core::{EndpointKey, Family, Name, Protocol};

use crate::affinity::{define_map, port_of};
use crate::frontend::{At, Frontend};
use crate::object::{Bytes, Field, Set, SetData, SetKind};

/// Maximum number of slots with a separate set. Each set costs one lookup for a connection to a
/// cluster IP with more slots.
pub(crate) const MOST_COUNTED: u8 = 16;

const COUNTED: [&str; MOST_COUNTED as usize] = [
    "services-1",
    "services-2",
    "services-3",
    "services-4",
    "services-5",
    "services-6",
    "services-7",
    "services-8",
    "services-9",
    "services-10",
    "services-11",
    "services-12",
    "services-13",
    "services-14",
    "services-15",
    "services-16",
];

/// The sets and maps of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SetId {
    /// Cluster IPs with this many slots, from 1 to 16.
    Counted(u8),
    /// All other Service addresses: the chain for a connection.
    Services,
    /// Addresses with `externalTrafficPolicy: Local`: the chain for clients on this node.
    ServicesNear,
    /// The same addresses: the chain for all other clients.
    ServicesLocal,
    /// Slots of Service addresses.
    Endpoints,
    /// Slots of `ServicesLocal`.
    EndpointsLocal,
    /// Node ports: the chain for a connection.
    Nodeports,
    /// Like `ServicesNear`, for node ports.
    NodeportsNear,
    /// Like `ServicesLocal`, for node ports.
    NodeportsLocal,
    /// Slots of node ports.
    NodeportEndpoints,
    /// Slots of `NodeportsLocal`.
    NodeportEndpointsLocal,
    /// Service addresses without endpoints.
    NoEndpoints,
    /// Node ports without endpoints.
    NoEndpointNodeports,
    /// Cluster IPs; other ports of them are refused.
    ClusterIps,
    /// Endpoints on this node, by themselves as source and destination.
    Hairpin,
    /// Addresses with `loadBalancerSourceRanges`.
    Firewall,
    /// The allowed sources.
    FirewallAllowed,
    /// Service addresses with session affinity: the chain for clients without a record.
    StickyServices,
    /// The same under a policy `Local`.
    StickyServicesLocal,
    /// Like `StickyServices`, for node ports.
    StickyNodeports,
    /// Like `StickyServicesLocal`, for node ports.
    StickyNodeportsLocal,
    /// Service addresses for which endpoints are recorded.
    AffinityServices,
    /// Node ports for which endpoints are recorded.
    AffinityNodeports,
}

impl SetId {
    /// All sets and maps.
    pub const ALL: [Self; 22 + MOST_COUNTED as usize] = Self::all();

    const fn all() -> [Self; 22 + MOST_COUNTED as usize] {
        let mut all = [Self::Services; 22 + MOST_COUNTED as usize];
        let named = [
            Self::Services,
            Self::ServicesNear,
            Self::ServicesLocal,
            Self::Endpoints,
            Self::EndpointsLocal,
            Self::Nodeports,
            Self::NodeportsNear,
            Self::NodeportsLocal,
            Self::NodeportEndpoints,
            Self::NodeportEndpointsLocal,
            Self::NoEndpoints,
            Self::NoEndpointNodeports,
            Self::ClusterIps,
            Self::Hairpin,
            Self::Firewall,
            Self::FirewallAllowed,
            Self::StickyServices,
            Self::StickyServicesLocal,
            Self::StickyNodeports,
            Self::StickyNodeportsLocal,
            Self::AffinityServices,
            Self::AffinityNodeports,
        ];
        let mut at = 0;
        while at < named.len() {
            all[at] = named[at];
            at += 1;
        }
        let mut slots = 1;
        while slots <= MOST_COUNTED {
            all[at] = Self::Counted(slots);
            at += 1;
            slots += 1;
        }
        all
    }

    /// Its name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counted(slots) => COUNTED[usize::from(slots - 1)],
            Self::Services => "services",
            Self::ServicesNear => "services-near",
            Self::ServicesLocal => "services-local",
            Self::Endpoints => "endpoints",
            Self::EndpointsLocal => "endpoints-local",
            Self::Nodeports => "nodeports",
            Self::NodeportsNear => "nodeports-near",
            Self::NodeportsLocal => "nodeports-local",
            Self::NodeportEndpoints => "nodeport-endpoints",
            Self::NodeportEndpointsLocal => "nodeport-endpoints-local",
            Self::NoEndpoints => "no-endpoints",
            Self::NoEndpointNodeports => "no-endpoint-nodeports",
            Self::ClusterIps => "cluster-ips",
            Self::Hairpin => "hairpin",
            Self::Firewall => "firewall",
            Self::FirewallAllowed => "firewall-allowed",
            Self::StickyServices => "sticky-services",
            Self::StickyServicesLocal => "sticky-services-local",
            Self::StickyNodeports => "sticky-nodeports",
            Self::StickyNodeportsLocal => "sticky-nodeports-local",
            Self::AffinityServices => "affinity-services",
            Self::AffinityNodeports => "affinity-nodeports",
        }
    }

    fn comment(self) -> &'static str {
        match self {
            Self::Counted(_) => "cluster IPs, by number of slots",
            Self::Services => "chains of the other Service addresses",
            Self::ServicesNear => "external policy Local: chains for clients on this node",
            Self::ServicesLocal => "external policy Local: chains for other clients",
            Self::Endpoints => "the endpoint in each slot",
            Self::EndpointsLocal => "the endpoint on this node in each slot",
            Self::Nodeports => "chains of the node ports",
            Self::NodeportsNear => "external policy Local: chains for clients on this node",
            Self::NodeportsLocal => "external policy Local: chains for other clients",
            Self::NodeportEndpoints => "the endpoint in each slot",
            Self::NodeportEndpointsLocal => "the endpoint on this node in each slot",
            Self::NoEndpoints => "Service addresses without endpoints",
            Self::NoEndpointNodeports => "node ports without endpoints",
            Self::ClusterIps => "cluster IPs; ports without a Service are refused",
            Self::Hairpin => "endpoints that reach themselves through a Service",
            Self::Firewall => "addresses with loadBalancerSourceRanges",
            Self::FirewallAllowed => "sources allowed by loadBalancerSourceRanges",
            Self::StickyServices | Self::StickyNodeports => {
                "session affinity: chains for clients without an endpoint"
            }
            Self::StickyServicesLocal | Self::StickyNodeportsLocal => {
                "policy Local and session affinity: chains for clients without an endpoint"
            }
            Self::AffinityServices => "Service addresses with session affinity",
            Self::AffinityNodeports => "node ports with session affinity",
        }
    }

    /// Finds a set by its name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|id| id.name() == name)
    }

    /// Its definition.
    pub fn define(self, family: Family) -> Set {
        let address = Field::Address(family);
        let service = vec![address, Field::Protocol, Field::Port];
        let slot = vec![address, Field::Protocol, Field::Port, Field::Slot];
        let nodeport = vec![Field::Protocol, Field::Port];
        let nodeport_slot = vec![Field::Protocol, Field::Port, Field::Slot];
        let pair = vec![address, address, Field::Protocol, Field::Port];
        let endpoint = SetData::Value(vec![address, Field::Port]);
        let (key, data) = match self {
            Self::Services
            | Self::ServicesNear
            | Self::ServicesLocal
            | Self::NoEndpoints
            | Self::StickyServices
            | Self::StickyServicesLocal
            | Self::AffinityServices => (service, SetData::Verdict),
            Self::Nodeports
            | Self::NodeportsNear
            | Self::NodeportsLocal
            | Self::NoEndpointNodeports
            | Self::StickyNodeports
            | Self::StickyNodeportsLocal
            | Self::AffinityNodeports => (nodeport, SetData::Verdict),
            Self::Endpoints | Self::EndpointsLocal => (slot, endpoint),
            Self::NodeportEndpoints | Self::NodeportEndpointsLocal => (nodeport_slot, endpoint),
            Self::ClusterIps => (vec![address], SetData::None),
            Self::Hairpin => (pair, SetData::None),
            Self::Counted(_) | Self::Firewall => (service, SetData::None),
            Self::FirewallAllowed => {
                (vec![address, Field::Protocol, Field::Port, address], SetData::None)
            }
        };
        let kind = match self {
            Self::FirewallAllowed => SetKind::Interval,
            _ => SetKind::Exact,
        };
        let comment = Some(Name::from(self.comment()));
        Set { name: Name::from(self.name()), key, data, kind, comment }
    }
}

/// The definition of one of our sets by name: a fixed one, or the map of a Service port.
pub fn define_named(name: &Name, family: Family) -> Option<Set> {
    let map = port_of(name).map(|_| define_map(name.clone(), family));
    map.or_else(|| SetId::by_name(name).map(|id| id.define(family)))
}

/// The IP protocol number.
pub fn protocol_number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
        Protocol::Sctp => 132,
    }
}

/// The protocol of a number, if a Service can use it.
pub fn protocol_of(number: u8) -> Option<Protocol> {
    [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
        .into_iter()
        .find(|protocol| protocol_number(*protocol) == number)
}

/// The key of a frontend in the maps for its kind.
pub fn key_of(frontend: &Frontend) -> Bytes {
    let key = match frontend.at {
        At::Address(address) => Bytes::EMPTY.address(address),
        At::Node => Bytes::EMPTY,
    };
    key.protocol(protocol_number(frontend.protocol)).port(frontend.port)
}

/// The frontend that an element belongs to, if it belongs to exactly one.
pub(crate) fn frontend_of(set: SetId, key: &Bytes) -> Option<Frontend> {
    match set {
        SetId::Nodeports
        | SetId::NodeportsNear
        | SetId::NodeportsLocal
        | SetId::NodeportEndpoints
        | SetId::NodeportEndpointsLocal
        | SetId::NoEndpointNodeports
        | SetId::StickyNodeports
        | SetId::StickyNodeportsLocal
        | SetId::AffinityNodeports => read_frontend(At::Node, key.as_slice()),
        SetId::ClusterIps | SetId::Hairpin => None,
        SetId::Counted(_)
        | SetId::Services
        | SetId::ServicesNear
        | SetId::ServicesLocal
        | SetId::Endpoints
        | SetId::EndpointsLocal
        | SetId::NoEndpoints
        | SetId::Firewall
        | SetId::FirewallAllowed
        | SetId::StickyServices
        | SetId::StickyServicesLocal
        | SetId::AffinityServices => {
            let bytes = key.as_slice();
            // The length shows the family: every IPv4 key is shorter than every IPv6 key.
            let family = if bytes.len() <= 16 { Family::Ipv4 } else { Family::Ipv6 };
            let (address, rest) = read_address(bytes, family)?;
            read_frontend(At::Address(address), rest)
        }
    }
}

/// A frontend from the protocol and port of a key.
pub(crate) fn read_frontend(at: At, bytes: &[u8]) -> Option<Frontend> {
    let ports = bytes.first_chunk::<8>()?;
    let port = u16::from_be_bytes([ports[4], ports[5]]);
    Some(Frontend { at, protocol: protocol_of(ports[0])?, port })
}

pub(crate) fn read_address(bytes: &[u8], family: Family) -> Option<(IpAddr, &[u8])> {
    Some(match family {
        Family::Ipv4 => {
            let (octets, rest) = bytes.split_first_chunk::<4>()?;
            (IpAddr::from(*octets), rest)
        }
        Family::Ipv6 => {
            let (octets, rest) = bytes.split_first_chunk::<16>()?;
            (IpAddr::from(*octets), rest)
        }
    })
}

/// The endpoint in a map's value.
pub fn read_endpoint(value: &Bytes, family: Family) -> Option<EndpointKey> {
    let (ip, rest) = read_address(value.as_slice(), family)?;
    Some(EndpointKey { ip, port: u16::from_be_bytes([*rest.first()?, *rest.get(1)?]) })
}
