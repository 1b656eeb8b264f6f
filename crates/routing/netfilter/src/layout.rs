//! The sets and maps of a table, and what their keys are made of.
//!
//! No chain belongs to a Service. A Service is elements: its addresses go by `services` to a chain
//! that picks a slot, and `endpoints` says who that slot is. All Services with three slots share
//! one chain, so that loading, changing and walking cost the same for one Service and for ten
//! thousand. Only a Service port with session affinity has chains and a map of its own, because
//! only a map of its own has a bound of its own; see `affinity`.
//!
//! Cluster IPs with few slots are in plain sets, one for each number (`services-3`), because the
//! kernel looks through a whole verdict map whenever an element with a chain is added to it: 1 ms
//! with ten thousand of them, twenty with fifty thousand.

use std::net::IpAddr;

use nearhop_core::{EndpointKey, Family, Name, Protocol};

use crate::affinity::{define_map, port_of};
use crate::frontend::{At, Frontend};
use crate::object::{Bytes, Field, Set, SetData, SetKind};

/// Up to so many slots have a set of their own. Each costs a connection to a cluster IP with more
/// slots one lookup.
pub const MOST_COUNTED: u8 = 16;

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
    /// Cluster IPs with so many slots, from 1 to [`MOST_COUNTED`].
    Counted(u8),
    /// All other Service addresses: where a connection goes.
    Services,
    /// Addresses with `externalTrafficPolicy: Local`: where clients on this node go.
    ServicesNear,
    /// The same addresses: where all others go.
    ServicesLocal,
    /// Slots of Service addresses.
    Endpoints,
    /// Slots of `ServicesLocal`.
    EndpointsLocal,
    /// Node ports: where a connection goes.
    Nodeports,
    /// As `ServicesNear`.
    NodeportsNear,
    /// As `ServicesLocal`.
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
    /// Addresses that only some sources may reach.
    Firewall,
    /// Those sources.
    FirewallAllowed,
    /// Service addresses with session affinity: where a client goes that has no endpoint yet.
    StickyServices,
    /// The same under a policy Local.
    StickyServicesLocal,
    /// As `StickyServices`, for node ports.
    StickyNodeports,
    /// As `StickyServicesLocal`, for node ports.
    StickyNodeportsLocal,
    /// Service addresses whose choices are recorded.
    AffinityServices,
    /// Node ports whose choices are recorded.
    AffinityNodeports,
}

impl SetId {
    /// All of them.
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
            Self::Counted(_) => "cluster IPs with so many slots",
            Self::Services => "where connections to other Service addresses go",
            Self::ServicesNear => "external policy Local: where clients on this node go",
            Self::ServicesLocal => "external policy Local: where all others go",
            Self::Endpoints => "the endpoint in each slot",
            Self::EndpointsLocal => "the endpoint on this node in each slot",
            Self::Nodeports => "where a connection to a node port goes",
            Self::NodeportsNear => "external policy Local: where clients on this node go",
            Self::NodeportsLocal => "external policy Local: where all others go",
            Self::NodeportEndpoints => "the endpoint in each slot",
            Self::NodeportEndpointsLocal => "the endpoint on this node in each slot",
            Self::NoEndpoints => "Service addresses without endpoints",
            Self::NoEndpointNodeports => "node ports without endpoints",
            Self::ClusterIps => "cluster IPs; ports without a Service are refused",
            Self::Hairpin => "endpoints that reach themselves through a Service",
            Self::Firewall => "addresses with loadBalancerSourceRanges",
            Self::FirewallAllowed => "and who may reach them",
            Self::StickyServices | Self::StickyNodeports => {
                "session affinity: where clients without an endpoint go"
            }
            Self::StickyServicesLocal | Self::StickyNodeportsLocal => {
                "policy Local and session affinity: where clients without an endpoint go"
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

/// The definition of a set of ours by its name: a fixed one, or the map of a Service port.
pub fn define_named(name: &Name, family: Family) -> Option<Set> {
    let map = port_of(name).map(|_| define_map(name.clone(), family));
    map.or_else(|| SetId::by_name(name).map(|id| id.define(family)))
}

/// The number of a protocol in IP headers.
pub fn protocol_number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
        Protocol::Sctp => 132,
    }
}

/// The protocol of a number, if it is one of ours.
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

/// The frontend that an element belongs to, if it belongs to one alone.
pub fn frontend_of(set: SetId, key: &Bytes) -> Option<Frontend> {
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
            // The family shows in the length: no key of IPv4 is as long as the shortest of IPv6.
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

/// The endpoint that a map's value names.
pub fn read_endpoint(value: &Bytes, family: Family) -> Option<EndpointKey> {
    let (ip, rest) = read_address(value.as_slice(), family)?;
    Some(EndpointKey { ip, port: u16::from_be_bytes([*rest.first()?, *rest.get(1)?]) })
}
