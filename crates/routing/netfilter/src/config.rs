//! What the operator and the node decide about the rules; everything else follows from decisions.

use std::collections::BTreeSet;
use std::net::IpAddr;

use nearhop_core::{Cidr, Family, Name};

use crate::object::Table;

/// What the rules of one family depend on beside the Services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The table that is ours, whole.
    pub table: Table,
    /// The bit of the packet mark that asks for masquerading.
    pub masquerade_mark: u32,
    /// Which traffic to cluster IPs is masqueraded.
    pub masquerade: Masquerade,
    /// How local pod traffic is detected; without it no traffic counts as local.
    pub local: Option<LocalTraffic>,
    /// Node addresses on which node ports are served: local ones within these ranges.
    pub nodeport_addresses: NodePortAddresses,
    /// Addresses without a Service in these ranges are dropped.
    pub service_cidrs: Vec<Cidr>,
    /// The node's own address. A source range that holds it lets load-balancer addresses in too,
    /// for clients on the node itself.
    pub node_ip: Option<IpAddr>,
    /// Where in the order of hooks the base chains hang.
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

    /// Whether a client is on this node. Detection by interface is possible only in the
    /// kernel; the client then counts as remote.
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
    /// Traffic that does not come from a pod of this node, where that is detected.
    FromOutside,
}

/// How local pod traffic is detected (`--detect-local-mode`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalTraffic {
    /// By its source address.
    Source(Cidr),
    /// By the interface it comes in on.
    Bridge(Name),
    /// By the beginning of that interface's name.
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
    /// The node's own address alone; none where it has none of the family.
    pub fn primary(node_ip: Option<IpAddr>) -> Self {
        let primary = node_ip.filter(|address| !address.is_loopback());
        Self::Within(primary.map(|address| Cidr::new(address, u8::MAX)).into_iter().collect())
    }

    /// As kube-proxy reads ranges of one family: all addresses where there are none, or where one
    /// holds everything.
    pub fn within(ranges: Vec<Cidr>) -> Self {
        let all = ranges.is_empty() || ranges.iter().any(|range| range.prefix() == 0);
        if all { Self::All } else { Self::Within(ranges) }
    }
}

/// Priorities of the base chains, in nft's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priorities {
    /// Destination NAT. Source ranges are checked ten before.
    pub dstnat: i32,
    /// Refusals.
    pub filter: i32,
    /// Source NAT. Affinity is recorded ten before.
    pub srcnat: i32,
}

impl Priorities {
    /// Beside kube-proxy: connections without endpoints are refused before kube-proxy, which does not know our
    /// Services, drops it as an address without a Service. Its checks are at 0, those of older
    /// versions at -110 (at -90 on output); a verdict of ours to refuse ends the way of a packet.
    pub fn beside_kube_proxy() -> Self {
        Self { filter: -115, ..Self::default() }
    }
}

impl Default for Priorities {
    fn default() -> Self {
        Self { dstnat: -100, filter: 0, srcnat: 100 }
    }
}
