//! The settings of `nearhop dns`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use nearhop_core::answer::Config;
use nearhop_core::labels::well_known;
use nearhop_core::world::{ReadSlicesOf, Settings};
use nearhop_core::{Gate, Gates, Kind, Name};

use crate::client_location::TrustedForwarders;

/// The settings of `nearhop dns`.
#[derive(Clone, Debug)]
pub struct Options {
    /// Zones and records.
    pub answers: Config,
    /// `--feature-gates`.
    pub gates: Gates,
    /// `--listen`.
    pub listen: Listen,
    /// `--threads`.
    pub threads: usize,
    /// `--max-udp-size`.
    pub max_udp_size: u16,
    /// `--error-rate`: UDP errors per second and source; 0 for no limit.
    pub error_rate: u32,
    /// `--trusted-forwarders` and `--forwarder-option`.
    pub forwarders: TrustedForwarders,
    /// Servers for names outside the cluster.
    pub upstreams: Vec<SocketAddr>,
    /// Interval of the loop probes to upstream servers; zero for none.
    pub loop_probe: Duration,
    /// `--cache-size`.
    pub cache_size: usize,
    /// Limits of TCP connections.
    pub tcp: TcpOptions,
    /// `--max-staleness`: the server is not ready after this long without the API server; zero for
    /// never.
    pub max_staleness: Duration,
    /// `--lameduck`: how long the server still answers after a shutdown request.
    pub lameduck: Duration,
}

/// `--listen`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// These addresses.
    At(Vec<SocketAddr>),
    /// This port on all addresses of the families that the kernel has.
    Everywhere(u16),
}

impl Listen {
    /// The addresses to bind.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        match self {
            Self::At(addresses) => addresses.clone(),
            Self::Everywhere(port) => vec![
                SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), *port),
                SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), *port),
            ],
        }
    }

    /// The `server` label of metrics.
    pub fn label(&self) -> String {
        match self.addresses().first() {
            Some(address) if !address.ip().is_unspecified() => format!("dns://{address}"),
            Some(address) => format!("dns://:{}", address.port()),
            None => "dns://".to_owned(),
        }
    }
}

/// Limits of TCP connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpOptions {
    /// `--max-tcp-connections`.
    pub connections: usize,
    /// How long a connection may be idle between two queries.
    pub idle: Duration,
    /// How long a query may take from its first octet to its last.
    pub read: Duration,
    /// How long a client may take to receive a reply.
    pub write: Duration,
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self {
            connections: 4096,
            idle: Duration::from_secs(10),
            read: Duration::from_secs(3),
            write: Duration::from_secs(5),
        }
    }
}

impl Options {
    /// The defaults.
    pub fn new(answers: Config) -> Self {
        Self {
            answers,
            gates: Gates::default(),
            listen: Listen::Everywhere(53),
            threads: 1,
            max_udp_size: 1232,
            error_rate: 100,
            forwarders: TrustedForwarders { trusted: Vec::new(), option: 65001 },
            upstreams: Vec::new(),
            loop_probe: Duration::ZERO,
            cache_size: 10_000,
            tcp: TcpOptions::default(),
            max_staleness: Duration::from_secs(300),
            lameduck: Duration::ZERO,
        }
    }

    /// Settings of the world.
    pub fn settings(&self) -> Settings {
        settings(self.gates.clone())
    }

    pub(crate) fn kinds(&self) -> Vec<Kind> {
        let mut kinds = vec![Kind::Service, Kind::Slice, Kind::Namespace, Kind::Node];
        if self.gates.on(Gate::PodLocator) {
            kinds.push(Kind::Locator);
        }
        kinds
    }
}

/// Settings of a DNS server's world. The server answers for all Services; for those that have
/// slices of nearhop's controller it reads only these.
pub fn settings(gates: Gates) -> Settings {
    let nearhop = Name::from(well_known::NEARHOP_CONTROLLER);
    Settings { gates, read_slices_of: ReadSlicesOf::Preferably(nearhop), ..Settings::default() }
}
