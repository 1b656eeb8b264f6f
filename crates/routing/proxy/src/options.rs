//! The options of the operator, and the configuration that results for a Node.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use nearhop_core::labels::well_known;
use nearhop_core::model::Node;
use nearhop_core::world::{KnownNodes, ReadSlicesOf, Settings};
use nearhop_core::{Cidr, Family, Gates, Kind, Name};
use nearhop_netfilter::config::{Config, LocalTraffic, Masquerade, NodePortAddresses, Priorities};
use nearhop_netfilter::conntrack::Rehome;
use nearhop_netfilter::object::Table;

/// The options of the operator.
#[derive(Clone, Debug)]
pub struct Options {
    /// The Node that this proxy serves.
    pub node: Name,
    /// The families it serves.
    pub families: Vec<Family>,
    /// `--service-proxy-name`: if set, the proxy serves only Services with this label value, and
    /// only slices that nearhop's controller manages.
    pub service_proxy_name: Option<String>,
    /// `--feature-gates`.
    pub gates: Gates,
    /// `--table`.
    pub table: Name,
    /// `--masquerade-bit`, as a mask.
    pub masquerade_mark: u32,
    /// `--masquerade-all`.
    pub masquerade: Masquerade,
    /// `--detect-local-mode`.
    pub local: DetectLocal,
    /// `--nodeport-addresses`.
    pub nodeport_addresses: NodePortChoice,
    /// `--service-cluster-ip-range`. If empty, the ServiceCIDRs define the ranges.
    pub service_cidrs: Vec<Cidr>,
    /// `--bind-address`: overrides the Node's address of its family.
    pub node_ip: Option<IpAddr>,
    /// `--dstnat-priority` and the other priorities.
    pub priorities: Priorities,
    /// `--min-sync-period`; if none, the wait adapts to the rate of changes.
    pub min_sync_period: Option<Duration>,
    /// `--sync-period`: the longest delay before a failed sync is repeated. A change that is
    /// pending for twice as long makes the proxy unhealthy.
    pub sync_period: Duration,
    /// `--verify-period`: how often the proxy verifies the rules in the kernel.
    pub verify_period: Duration,
    /// `--udp-rehome`.
    pub udp_rehome: Rehome,
}

/// `--detect-local-mode`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DetectLocal {
    /// By source address, at most one range per family.
    ClusterCidr(Vec<Cidr>),
    /// By the pod ranges of the Node.
    NodeCidr,
    /// By interface name.
    Bridge(Name),
    /// By prefix of the interface name.
    InterfacePrefix(Name),
}

/// `--nodeport-addresses`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePortChoice {
    /// The Node's first address of each family.
    Primary,
    /// Local addresses in these ranges; all local addresses for a family without a range.
    Within(Vec<Cidr>),
}

impl Options {
    /// kube-proxy's defaults for a Node.
    pub fn new(node: impl Into<Name>) -> Self {
        Self {
            node: node.into(),
            families: vec![Family::Ipv4, Family::Ipv6],
            service_proxy_name: None,
            gates: Gates::default(),
            table: Name::from("nearhop"),
            masquerade_mark: 1 << 14,
            masquerade: Masquerade::FromOutside,
            local: DetectLocal::ClusterCidr(Vec::new()),
            nodeport_addresses: NodePortChoice::Primary,
            service_cidrs: Vec::new(),
            node_ip: None,
            priorities: Priorities::default(),
            min_sync_period: None,
            sync_period: Duration::from_secs(30),
            verify_period: Duration::from_secs(60),
            udp_rehome: Rehome::NewOnly,
        }
    }

    /// The settings for the cluster state.
    pub fn settings(&self) -> Settings {
        Settings {
            gates: self.gates.clone(),
            read_slices_of: match self.service_proxy_name {
                Some(_) => ReadSlicesOf::Only(Name::from(well_known::NEARHOP_CONTROLLER)),
                None => ReadSlicesOf::All,
            },
            nodes: KnownNodes::Own,
            ..Settings::default()
        }
    }

    /// The Node's address of a family.
    pub fn node_ip(&self, family: Family, node: Option<&Node>) -> Option<IpAddr> {
        let of_family = |address: &IpAddr| Family::of(*address) == family;
        let given = self.node_ip.filter(of_family);
        let known = node.into_iter().flat_map(|node| node.addresses.iter().copied());
        given.or_else(|| known.into_iter().find(of_family))
    }

    /// The kinds to watch. ServiceCIDRs are not needed if the operator set the ranges, or beside
    /// another proxy, which handles addresses without a Service.
    pub fn kinds(&self) -> BTreeSet<Kind> {
        let mut kinds = BTreeSet::from([Kind::Service, Kind::Slice, Kind::Node]);
        if self.service_cidrs.is_empty() && self.service_proxy_name.is_none() {
            kinds.insert(Kind::ServiceCidr);
        }
        kinds
    }

    /// The configuration of a family's rules. `found` are the ranges of the ServiceCIDRs.
    pub fn config(&self, family: Family, node: Option<&Node>, found: &[Cidr]) -> Config {
        let node_ip = self.node_ip(family, node);
        Config {
            table: Table { family, name: self.table.clone() },
            masquerade_mark: self.masquerade_mark,
            masquerade: self.masquerade,
            local: self.local_traffic(family, node),
            nodeport_addresses: self.nodeports(family, node_ip),
            service_cidrs: self.dropped(family, found),
            node_ip,
            priorities: self.priorities,
        }
    }

    /// Ranges in which an address without a Service is dropped. Empty beside kube-proxy: this proxy
    /// does not know kube-proxy's Services, and kube-proxy drops the remaining addresses itself.
    fn dropped(&self, family: Family, found: &[Cidr]) -> Vec<Cidr> {
        let ranges = match (&self.service_proxy_name, &self.service_cidrs[..]) {
            (Some(_), _) => &[],
            (None, []) => found,
            (None, given) => given,
        };
        of_family(ranges, family).collect()
    }

    fn local_traffic(&self, family: Family, node: Option<&Node>) -> Option<LocalTraffic> {
        match &self.local {
            DetectLocal::ClusterCidr(ranges) => {
                of_family(ranges, family).next().map(LocalTraffic::Source)
            }
            DetectLocal::NodeCidr => {
                of_family(&node?.pod_cidrs, family).next().map(LocalTraffic::Source)
            }
            DetectLocal::Bridge(name) => Some(LocalTraffic::Bridge(name.clone())),
            DetectLocal::InterfacePrefix(name) => Some(LocalTraffic::InterfacePrefix(name.clone())),
        }
    }

    fn nodeports(&self, family: Family, node_ip: Option<IpAddr>) -> NodePortAddresses {
        match &self.nodeport_addresses {
            NodePortChoice::Primary => NodePortAddresses::primary(node_ip),
            NodePortChoice::Within(ranges) => {
                NodePortAddresses::within(of_family(ranges, family).collect())
            }
        }
    }
}

fn of_family(ranges: &[Cidr], family: Family) -> impl Iterator<Item = Cidr> {
    ranges.iter().copied().filter(move |range| range.family() == family)
}
