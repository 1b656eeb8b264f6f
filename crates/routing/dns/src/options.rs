//! What the operator chose.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use nearhop_core::answer::Config;
use nearhop_core::labels::well_known;
use nearhop_core::world::{ReadSlicesOf, Settings};
use nearhop_core::{Gate, Gates, Name};
use nearhop_feed::Kind;

use crate::place::Forwarders;

/// What the operator chose.
#[derive(Clone, Debug)]
pub struct Options {
    /// What is answered, and how.
    pub answers: Config,
    /// `--feature-gates`.
    pub gates: Gates,
    /// `--listen`.
    pub listen: Listen,
    /// `--threads`.
    pub threads: usize,
    /// `--max-udp-size`.
    pub max_udp_size: u16,
    /// `--error-rate`: errors for one source in a second; 0 is no limit.
    pub error_rate: u32,
    /// Whose word about askers counts.
    pub forwarders: Forwarders,
    /// Who is asked for other names.
    pub upstreams: Vec<SocketAddr>,
    /// How often upstream servers are probed for loops; never where it is zero.
    pub loop_probe: Duration,
    /// `--cache-size`.
    pub cache_size: usize,
    /// TCP.
    pub tcp: TcpOptions,
    /// `--max-staleness`: after so long without the API server this one is not ready any more;
    /// never where it is zero.
    pub max_staleness: Duration,
    /// `--lameduck`: how long it goes on answering after it was told to stop.
    pub lameduck: Duration,
}

/// Where it listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// At all of these.
    At(Vec<SocketAddr>),
    /// At every address of the families that the kernel has.
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

    /// As metrics name the server.
    pub fn label(&self) -> String {
        match self.addresses().first() {
            Some(address) if !address.ip().is_unspecified() => format!("dns://{address}"),
            Some(address) => format!("dns://:{}", address.port()),
            None => "dns://".to_owned(),
        }
    }
}

/// How much TCP clients may take of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpOptions {
    /// `--max-tcp-connections`.
    pub connections: usize,
    /// How long a connection may be silent between two questions.
    pub idle: Duration,
    /// How long a question may take from its first octet to its last.
    pub read: Duration,
    /// How long a client may take to take an answer.
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
    /// Defaults around what is answered.
    pub fn new(answers: Config) -> Self {
        Self {
            answers,
            gates: Gates::default(),
            listen: Listen::Everywhere(53),
            threads: 1,
            max_udp_size: 1232,
            error_rate: 100,
            forwarders: Forwarders { trusted: Vec::new(), option: 65001 },
            upstreams: Vec::new(),
            loop_probe: Duration::ZERO,
            cache_size: 10_000,
            tcp: TcpOptions::default(),
            max_staleness: Duration::from_secs(300),
            lameduck: Duration::ZERO,
        }
    }

    /// What the world is to know.
    pub fn settings(&self) -> Settings {
        settings(self.gates.clone())
    }

    /// The kinds to watch.
    pub fn kinds(&self) -> Vec<Kind> {
        let mut kinds = vec![Kind::Services, Kind::EndpointSlices, Kind::Namespaces, Kind::Nodes];
        if self.gates.on(Gate::PodLocator) {
            kinds.push(Kind::PodLocators);
        }
        kinds
    }
}

/// What a name server's world is to know, whatever else the operator chose. It answers for all
/// Services, those that nearhop's controller keeps slices of and all others.
pub fn settings(gates: Gates) -> Settings {
    let nearhop = Name::from(well_known::NEARHOP_CONTROLLER);
    Settings { gates, read_slices_of: ReadSlicesOf::Preferably(nearhop), ..Settings::default() }
}
