//! The flags of `nearhop proxy`: kube-proxy's names where it has them.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{ArgAction, Args as ClapArgs, ValueEnum};
use nearhop_core::{Cidr, Family, Gates, Name};
use nearhop_netfilter::config::{Masquerade, Priorities};
use nearhop_netfilter::conntrack::Rehome;
use nearhop_proxy::options::{DetectLocal, NodePortChoice, Options};

use crate::parse::{ClusterArgs, LogArgs, parse_duration, parse_listen};

/// Runs the service proxy of a node: nftables rules that send each connection to the nearest
/// endpoint.
///
/// Runs on each node, instead of kube-proxy or beside it (--service-proxy-name). Needs root, or
/// CAP_NET_ADMIN.
///
/// When it has read the cluster's state it sets net.netfilter.nf_conntrack_max (upwards only, with the
/// hash size of nf_conntrack), nf_conntrack_tcp_timeout_established and
/// nf_conntrack_tcp_timeout_close_wait, and those that --conntrack-… flags name. It logs each change
/// before it makes it; --cleanup restores the values.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  sudo nearhop proxy --kubeconfig kubeconfig --service-proxy-name nearhop   # beside kube-proxy
  sudo nearhop proxy --cluster-cidr 10.244.0.0/16                           # instead of it
  sudo nearhop proxy --cleanup")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(super) cluster: ClusterArgs,

    /// Name of the Node that this proxy serves. Default: the host name.
    #[arg(help_heading = "Node", long, value_name = "NODE")]
    hostname_override: Option<String>,

    /// Serve only Services whose label service.kubernetes.io/service-proxy-name has this value, from
    /// EndpointSlices of nearhop's controller, beside kube-proxy. Empty: all Services without that
    /// label, as kube-proxy does.
    #[arg(help_heading = "Services", long, value_name = "NAME", default_value = "", value_parser = parse_label)]
    service_proxy_name: String,

    /// IP families to serve. Default: both, or IPv4 where the kernel has no IPv6.
    #[arg(help_heading = "Node", long, value_name = "IPv4,IPv6", value_delimiter = ',', value_parser = parse_family)]
    ip_families: Vec<Family>,

    /// Feature gates: `PreferSameTrafficDistribution=false`.
    #[arg(help_heading = "Services", long, value_name = "NAME=BOOL,…", value_parser = Gates::parse, default_value = "", overrides_with = "feature_gates")]
    feature_gates: Gates,

    /// How local pod traffic is detected.
    #[arg(help_heading = "Pod traffic", long, value_name = "MODE", default_value = "ClusterCIDR")]
    detect_local_mode: LocalMode,

    /// Pod address ranges, one for each family (--detect-local-mode ClusterCIDR).
    #[arg(help_heading = "Pod traffic", long, value_name = "CIDR,…", value_delimiter = ',', value_parser = parse_cidr)]
    cluster_cidr: Vec<Cidr>,

    /// The bridge that local pods are attached to (--detect-local-mode BridgeInterface).
    #[arg(help_heading = "Pod traffic", long, value_name = "NAME", default_value = "")]
    pod_bridge_interface: String,

    /// Prefix of the interface names of local pods (--detect-local-mode InterfaceNamePrefix).
    #[arg(help_heading = "Pod traffic", long, value_name = "PREFIX", default_value = "")]
    pod_interface_name_prefix: String,

    /// Node addresses that serve node ports: `primary`, or local addresses within these ranges.
    #[arg(
        help_heading = "Node",
        long,
        value_name = "primary|CIDR,…",
        value_delimiter = ',',
        default_value = "primary"
    )]
    nodeport_addresses: Vec<String>,

    /// Cluster IP ranges: packets to an address without a Service are dropped. Default: the ranges of
    /// the cluster's ServiceCIDRs. Neither has an effect with --service-proxy-name, because
    /// kube-proxy's Services are in the same ranges.
    #[arg(help_heading = "Services", long, value_name = "CIDR,…", value_delimiter = ',', value_parser = parse_cidr)]
    service_cluster_ip_range: Vec<Cidr>,

    /// The node's own address, instead of the one in the Node object. 0.0.0.0 and `::` stand for
    /// the address of the Node object.
    #[arg(help_heading = "Node", long, value_name = "ADDRESS", default_value = "0.0.0.0")]
    bind_address: IpAddr,

    /// Masquerade all traffic to cluster IPs.
    #[arg(help_heading = "Pod traffic", long)]
    masquerade_all: bool,

    /// The bit of the packet mark that requests masquerading.
    #[arg(help_heading = "Pod traffic", long, value_name = "0-31", default_value_t = 14, value_parser = clap::value_parser!(u8).range(0..=31))]
    masquerade_bit: u8,

    /// Name of the nftables table, in families ip and ip6.
    #[arg(help_heading = "nftables", long, value_name = "NAME", default_value = "nearhop", value_parser = parse_table)]
    table: String,

    /// Priority of the destination NAT chains; source ranges are checked at this priority minus 10.
    #[arg(help_heading = "nftables", long, value_name = "N", default_value_t = -100, allow_hyphen_values = true, value_parser = clap::value_parser!(i32).range(-189..=1000))]
    dstnat_priority: i32,

    /// Priority of the reject and drop chains. Default: 0; with --service-proxy-name -115, before
    /// kube-proxy's.
    #[arg(help_heading = "nftables", long, value_name = "N", allow_hyphen_values = true, value_parser = clap::value_parser!(i32).range(-1000..=1000))]
    filter_priority: Option<i32>,

    /// Priority of the source NAT chains; affinity is recorded at this priority minus 10.
    #[arg(help_heading = "nftables", long, value_name = "N", default_value_t = 100, allow_hyphen_values = true, value_parser = clap::value_parser!(i32).range(-189..=1000))]
    srcnat_priority: i32,

    /// Minimum time between two syncs. 0: none for a single change, up to 10ms for many changes.
    #[arg(help_heading = "Sync", long, alias = "iptables-min-sync-period", value_name = "DURATION", value_parser = parse_duration, default_value = "0s")]
    min_sync_period: Duration,

    /// Longest pause before the proxy retries a failed sync. After twice this time without a
    /// successful sync, the proxy reports itself unhealthy.
    #[arg(help_heading = "Sync", long, alias = "iptables-sync-period", value_name = "DURATION", value_parser = parse_duration, default_value = "30s")]
    sync_period: Duration,

    /// How often the proxy verifies that the kernel still holds its rules.
    #[arg(help_heading = "Sync", long, value_name = "DURATION", value_parser = parse_duration, default_value = "60s")]
    verify_period: Duration,

    /// Existing UDP flows to an endpoint that is healthy but no longer preferred: keep them
    /// (new-only), or move them (immediate).
    #[arg(
        help_heading = "Sync",
        long,
        value_name = "new-only|immediate",
        default_value = "new-only"
    )]
    udp_rehome: UdpRehome,

    /// Address for /healthz and /livez. Default: 0.0.0.0:10256; with --service-proxy-name
    /// 0.0.0.0:10276, beside kube-proxy's.
    #[arg(help_heading = "Ports", long, value_name = "ADDRESS:PORT", value_parser = parse_listen)]
    healthz_bind_address: Option<SocketAddr>,

    /// Address for /metrics, /readyz, /proxyMode, /configz and /debug/services. Default:
    /// 127.0.0.1:10249; with --service-proxy-name 127.0.0.1:10269, beside kube-proxy's.
    #[arg(help_heading = "Ports", long, value_name = "ADDRESS:PORT", value_parser = parse_listen)]
    metrics_bind_address: Option<SocketAddr>,

    /// Exit if the proxy cannot listen on an address, instead of retrying.
    #[arg(help_heading = "Ports", long)]
    pub(super) bind_address_hard_fail: bool,

    /// File with a bearer token that permits requests to /debug/services from other addresses than
    /// loopback.
    #[arg(help_heading = "Ports", long, value_name = "FILE")]
    pub(super) admin_token_file: Option<PathBuf>,

    /// Conntrack limit per CPU core; 0 keeps the kernel's limit.
    #[arg(help_heading = "Conntrack", long, value_name = "N", default_value_t = 32_768)]
    pub(super) conntrack_max_per_core: u32,

    /// Lowest conntrack limit, independent of the number of cores.
    #[arg(help_heading = "Conntrack", long, value_name = "N", default_value_t = 131_072)]
    pub(super) conntrack_min: u32,

    /// Conntrack timeout of established TCP connections; 0 keeps the kernel's.
    #[arg(help_heading = "Conntrack", long, value_name = "DURATION", value_parser = parse_duration, default_value = "24h")]
    pub(super) conntrack_tcp_timeout_established: Duration,

    /// Conntrack timeout of TCP connections in CLOSE_WAIT; 0 keeps the kernel's.
    #[arg(help_heading = "Conntrack", long, value_name = "DURATION", value_parser = parse_duration, default_value = "1h")]
    pub(super) conntrack_tcp_timeout_close_wait: Duration,

    /// Accept TCP packets that are out of window.
    #[arg(help_heading = "Conntrack", long, value_name = "BOOL", action = ArgAction::Set, default_value_t = false, num_args = 0..=1, default_missing_value = "true")]
    pub(super) conntrack_tcp_be_liberal: bool,

    /// Conntrack timeout of UDP flows without replies; 0 keeps the kernel's.
    #[arg(help_heading = "Conntrack", long, value_name = "DURATION", value_parser = parse_duration, default_value = "0s")]
    pub(super) conntrack_udp_timeout: Duration,

    /// Conntrack timeout of UDP flows with replies; 0 keeps the kernel's.
    #[arg(help_heading = "Conntrack", long, value_name = "DURATION", value_parser = parse_duration, default_value = "0s")]
    pub(super) conntrack_udp_timeout_stream: Duration,

    /// Directory in which the proxy remembers the values of the sysctls that it changes, for --cleanup.
    /// In a container: a directory of the host that lasts until the next reboot.
    #[arg(help_heading = "Conntrack", long, value_name = "DIR", default_value = "/run/nearhop")]
    pub(super) state_dir: PathBuf,

    /// Delete nearhop's nftables tables, restore the sysctls that the proxy changed, and exit.
    #[arg(help_heading = "nftables", long)]
    pub(super) cleanup: bool,

    #[command(flatten)]
    pub(super) log: LogArgs,
}

/// `--detect-local-mode`.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum LocalMode {
    #[value(name = "ClusterCIDR")]
    ClusterCidr,
    #[value(name = "NodeCIDR")]
    NodeCidr,
    #[value(name = "BridgeInterface")]
    BridgeInterface,
    #[value(name = "InterfaceNamePrefix")]
    InterfaceNamePrefix,
}

/// `--udp-rehome`.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum UdpRehome {
    NewOnly,
    Immediate,
}

impl Args {
    /// What the proxy is to do.
    pub(super) fn options(&self) -> anyhow::Result<Options> {
        if self.sync_period.is_zero() || self.min_sync_period > self.sync_period {
            bail!("--sync-period must be positive and not shorter than --min-sync-period");
        }
        if self.verify_period.is_zero() {
            bail!("--verify-period must be positive");
        }
        let given = (!self.bind_address.is_unspecified()).then_some(self.bind_address);
        let name = &self.service_proxy_name;
        let fixed = (!self.min_sync_period.is_zero()).then_some(self.min_sync_period);
        Ok(Options {
            families: self.families()?,
            service_proxy_name: (!name.is_empty()).then(|| name.clone()),
            gates: self.feature_gates.clone(),
            table: Name::from(self.table.as_str()),
            masquerade_mark: 1 << self.masquerade_bit,
            masquerade: if self.masquerade_all { Masquerade::All } else { Masquerade::FromOutside },
            local: self.detect_local()?,
            nodeport_addresses: self.nodeports()?,
            service_cidrs: self.service_cluster_ip_range.clone(),
            node_ip: given,
            priorities: self.priorities(),
            min_sync_period: fixed,
            sync_period: self.sync_period,
            verify_period: self.verify_period,
            udp_rehome: match self.udp_rehome {
                UdpRehome::NewOnly => Rehome::NewOnly,
                UdpRehome::Immediate => Rehome::Immediate,
            },
            ..Options::new(self.node()?)
        })
    }

    /// Whether kube-proxy is to run on the same node.
    fn is_beside_kube_proxy(&self) -> bool {
        !self.service_proxy_name.is_empty()
    }

    fn priorities(&self) -> Priorities {
        let usual = if self.is_beside_kube_proxy() {
            Priorities::beside_kube_proxy()
        } else {
            Priorities::default()
        };
        Priorities {
            dstnat: self.dstnat_priority,
            filter: self.filter_priority.unwrap_or(usual.filter),
            srcnat: self.srcnat_priority,
        }
    }

    /// `--healthz-bind-address`.
    pub(super) fn health_address(&self) -> SocketAddr {
        let port = if self.is_beside_kube_proxy() { 10276 } else { 10256 };
        self.healthz_bind_address.unwrap_or((Ipv4Addr::UNSPECIFIED, port).into())
    }

    /// `--metrics-bind-address`.
    pub(super) fn metrics_address(&self) -> SocketAddr {
        let port = if self.is_beside_kube_proxy() { 10269 } else { 10249 };
        self.metrics_bind_address.unwrap_or((Ipv4Addr::LOCALHOST, port).into())
    }

    /// The Node's name, as kubelets write it.
    fn node(&self) -> anyhow::Result<String> {
        let name = match &self.hostname_override {
            Some(name) => name.clone(),
            None => fs::read_to_string("/proc/sys/kernel/hostname")
                .context("cannot read the host's name: give the Node's with --hostname-override")?,
        };
        let name = name.trim().to_lowercase();
        if name.is_empty() {
            bail!("this host has no name: give the Node's with --hostname-override");
        }
        Ok(name)
    }

    fn families(&self) -> anyhow::Result<Vec<Family>> {
        if !self.ip_families.is_empty() {
            let mut families = self.ip_families.clone();
            families.sort_unstable();
            families.dedup();
            return Ok(families);
        }
        let off = fs::read_to_string("/proc/sys/net/ipv6/conf/all/disable_ipv6");
        let has_ipv6 = fs::exists("/proc/net/if_inet6").unwrap_or(false)
            && !off.is_ok_and(|value| value.trim() == "1");
        Ok(if has_ipv6 { vec![Family::Ipv4, Family::Ipv6] } else { vec![Family::Ipv4] })
    }

    fn detect_local(&self) -> anyhow::Result<DetectLocal> {
        let interface = |name: &str, flag: &str| -> anyhow::Result<Name> {
            if name.is_empty() || name.len() > 15 {
                bail!("{flag} must name an interface with 1 to 15 characters");
            }
            Ok(Name::from(name))
        };
        Ok(match self.detect_local_mode {
            LocalMode::ClusterCidr => {
                for family in [Family::Ipv4, Family::Ipv6] {
                    let of_family = self.cluster_cidr.iter().filter(|c| c.family() == family);
                    if of_family.count() > 1 {
                        bail!("--cluster-cidr has more than one {family} range: give one each");
                    }
                }
                DetectLocal::ClusterCidr(self.cluster_cidr.clone())
            }
            LocalMode::NodeCidr => DetectLocal::NodeCidr,
            LocalMode::BridgeInterface => {
                let name = &self.pod_bridge_interface;
                DetectLocal::Bridge(interface(name, "--pod-bridge-interface")?)
            }
            LocalMode::InterfaceNamePrefix => {
                let name = &self.pod_interface_name_prefix;
                DetectLocal::InterfacePrefix(interface(name, "--pod-interface-name-prefix")?)
            }
        })
    }

    fn nodeports(&self) -> anyhow::Result<NodePortChoice> {
        if self.nodeport_addresses.iter().any(|text| text == "primary") {
            if self.nodeport_addresses.len() > 1 {
                bail!("--nodeport-addresses: primary cannot be combined with ranges");
            }
            return Ok(NodePortChoice::Primary);
        }
        let ranges = self.nodeport_addresses.iter().map(|text| {
            parse_cidr(text).map_err(|why| anyhow::anyhow!("--nodeport-addresses {text:?}: {why}"))
        });
        Ok(NodePortChoice::Within(ranges.collect::<anyhow::Result<_>>()?))
    }
}

fn parse_cidr(text: &str) -> Result<Cidr, String> {
    Cidr::parse(text.trim()).ok_or_else(|| "expected a range such as 10.244.0.0/16".to_owned())
}

fn parse_family(text: &str) -> Result<Family, String> {
    Family::parse(text).ok_or_else(|| "expected IPv4 or IPv6".to_owned())
}

/// nft must be able to read the name back.
fn parse_table(text: &str) -> Result<String, String> {
    let inner = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let sound = text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(inner);
    if sound && text.len() <= 64 {
        return Ok(text.to_owned());
    }
    Err("expected a letter, then up to 63 letters, digits, - and _".to_owned())
}

/// A label's value, or nothing.
fn parse_label(text: &str) -> Result<String, String> {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let ends = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    let sound = text.len() <= 63
        && text.chars().all(inner)
        && ends(text.chars().next())
        && ends(text.chars().last());
    if sound { Ok(text.to_owned()) } else { Err("expected the value of a label".to_owned()) }
}
