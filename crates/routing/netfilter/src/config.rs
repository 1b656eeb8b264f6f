//! The settings of the operator and the node that the rules depend on, beside the routes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use nearhop_core::{Cidr, Family, Name};

use crate::object::Table;

/// The configuration of the rules of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The table, which belongs to the proxy alone.
    pub table: Table,
    /// The bit of the packet mark for masquerading.
    pub masquerade_mark: u32,
    /// Which traffic to cluster IPs is masqueraded.
    pub masquerade: Masquerade,
    /// How local pod traffic is detected; without it no traffic counts as local.
    pub local: Option<LocalTraffic>,
    /// Node addresses that serve node ports: local addresses within these ranges.
    pub nodeport_addresses: NodePortAddresses,
    /// Packets to addresses without a Service in these ranges are dropped.
    pub service_cidrs: Vec<Cidr>,
    /// The node's own address. A source range that contains it also allows the load balancer IPs as
    /// sources, for clients on the node itself.
    pub node_ip: Option<IpAddr>,
    /// Priorities of the base chains.
    pub priorities: Priorities,
}

impl Config {
    /// kube-proxy's defaults for a table called `nearhop`.
    pub fn new(family: Family) -> Self {
        Self {
            table: Table { family, name: Name::from("nearhop") },
            masquerade_mark: 1 << 14,
            masquerade: Masquerade::FromOutside,
            local: None,
            nodeport_addresses: NodePortAddresses::All,
            service_cidrs: Vec::new(),
            node_ip: None,
            priorities: Priorities::default(),
        }
    }

    /// The family.
    pub fn family(&self) -> Family {
        self.table.family
    }

    /// Whether a client is on this node. Only the kernel can detect clients by interface; the
    /// client then counts as remote.
    pub fn is_near(&self, client: IpAddr, node_addresses: &BTreeSet<IpAddr>) -> bool {
        let pod = match &self.local {
            Some(LocalTraffic::Source(cidr)) => cidr.contains(client),
            _ => false,
        };
        pod || node_addresses.contains(&client)
    }
}

/// Which traffic to cluster IPs is masqueraded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Masquerade {
    /// All (`--masquerade-all`).
    All,
    /// Traffic that does not come from a pod of this node, if local traffic is detected.
    FromOutside,
}

/// How local pod traffic is detected (`--detect-local-mode`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalTraffic {
    /// By source address.
    Source(Cidr),
    /// By input interface.
    Bridge(Name),
    /// By prefix of the input interface's name.
    InterfacePrefix(Name),
}

/// `--nodeport-addresses`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// All but loopback.
    All,
    /// Those in a range.
    Within(Vec<Cidr>),
}

impl NodePortAddresses {
    /// Only the node's own address; none if it has no address of the family.
    pub fn primary(node_ip: Option<IpAddr>) -> Self {
        let primary = node_ip.filter(|address| !address.is_loopback());
        Self::Within(primary.map(|address| Cidr::new(address, u8::MAX)).into_iter().collect())
    }

    /// The ranges of one family, as kube-proxy interprets them: all addresses if there is no range,
    /// or if a range contains all addresses.
    pub fn within(ranges: Vec<Cidr>) -> Self {
        let all = ranges.is_empty() || ranges.iter().any(|range| range.prefix() == 0);
        if all { Self::All } else { Self::Within(ranges) }
    }
}

/// Priorities of the base chains, as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priorities {
    /// Destination NAT. Source ranges are checked at this priority minus ten.
    pub dstnat: i32,
    /// Reject and drop rules.
    pub filter: i32,
    /// Source NAT. Affinity is recorded at this priority minus ten.
    pub srcnat: i32,
}

impl Priorities {
    /// For use beside kube-proxy: connections without endpoints are refused before kube-proxy,
    /// which does not know our Services, drops them. Its checks are at 0, those of older versions
    /// at -110 (at -90 on output); after our reject or drop the kernel runs no further chain.
    pub fn beside_kube_proxy() -> Self {
        Self { filter: -115, ..Self::default() }
    }
}

impl Default for Priorities {
    fn default() -> Self {
        Self { dstnat: -100, filter: 0, srcnat: 100 }
    }
}
