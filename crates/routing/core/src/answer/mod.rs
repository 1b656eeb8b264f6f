//! The cluster's DNS answers: the input is a question and a client's place, the output is records
//! and their reason.
//!
//! This module follows the Kubernetes DNS specification 1.1.0, and other behaviour that clients
//! rely on (see docs/dns.md). The answer for a headless Service contains the endpoints that
//! [`choose_route`](crate::choose_route) chooses for the client's place (KEP-536 "DNS server
//! changes"). The answers for single endpoints and addresses are the same for all clients, because
//! peers use them to address each other.
//!
//! ```text
//!   question  the name and type                    record  an answer as a value
//!   resolve   the meaning of each name             index   addresses to Services
//!   service   records of Services and endpoints    select  which endpoints, by place
//!   alias     ExternalName                         reverse addresses to names
//!   zone      the zone itself: SOA, NS             text    records as text
//! ```
//!
//! This module has no wire format, sockets, caches or other servers. The random seed is an
//! argument.

mod alias;
mod index;
mod question;
mod record;
mod resolve;
mod reverse;
mod select;
mod service;
mod text;
mod zone;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use crate::key::{Name, ServiceKey};
use crate::locate::Located;
use crate::world::World;

pub use alias::Upstream;
pub use index::Index;
pub use question::{AskedName, LONGEST_NAME, NameError, Question, RecordType};
pub use record::{
    Answer, Choice, Data, DomainName, Host, Outcome, Record, SOA_INTERVALS, ZoneSpelling, dashed,
};
pub use select::{Candidate, explain_headless};
pub use text::Spelling;
pub use zone::Zone;

use resolve::{Found, resolve};

/// Maximum TTL of a negative answer that another change can end at any time.
const SHORT_TTL: u32 = 1;

/// The operator's settings.
#[derive(Clone, Debug)]
pub struct Config {
    /// The zones of this server. If several match, the longest is used.
    pub zones: Vec<Zone>,
    /// TTL of records and negative answers.
    pub ttl: u32,
    /// Which Pods have a DNS name by their address.
    pub pods: PodMode,
    /// The namespaces with DNS names; `None` means all.
    pub namespaces: Option<BTreeSet<Name>>,
    /// The names of endpoints without a host name.
    pub endpoint_names: EndpointNames,
    /// Whether Services without ready endpoints have a DNS name.
    pub empty_services: EmptyServices,
    /// If a name in one of these zones does not exist, the query goes to the next server.
    pub fallthrough: Vec<AskedName>,
    /// Addresses that this server listens on.
    pub local_ips: Vec<IpAddr>,
}

impl Config {
    /// One zone, with the default settings of CoreDNS.
    pub fn new(zone: Zone) -> Self {
        Self {
            zones: vec![zone],
            ttl: 5,
            pods: PodMode::Disabled,
            namespaces: None,
            endpoint_names: EndpointNames::Address,
            empty_services: EmptyServices::Shown,
            fallthrough: Vec::new(),
            local_ips: Vec::new(),
        }
    }
}

/// Which Pods have a DNS name by their address (`10-0-0-1.namespace.pod`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodMode {
    /// No Pods.
    Disabled,
    /// All addresses, without a check.
    Insecure,
    /// Addresses of PodLocators in that namespace.
    Verified,
}

/// The names of endpoints without a host name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointNames {
    /// By their address.
    Address,
    /// By their Pod's name, if it is a valid DNS label.
    Pod,
}

/// Whether Services with a cluster IP but without a ready endpoint have a DNS name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmptyServices {
    /// They have a name.
    Shown,
    /// They have no name.
    Hidden,
}

/// Whether the initial lists of objects are complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Synced {
    /// The lists are complete.
    Yes,
    /// Some objects are still missing.
    No,
}

/// The input of an answer besides the question.
#[derive(Clone, Copy, Debug)]
pub struct Asking<'a> {
    /// The state of the cluster.
    pub world: &'a World,
    /// The index of that state for DNS.
    pub index: &'a Index,
    /// The operator's settings.
    pub config: &'a Config,
    /// Time of the last change in seconds, as the SOA serial.
    pub serial: u32,
    /// Whether the initial lists of objects are complete.
    pub synced: Synced,
    /// The client's place.
    pub asker: &'a Located,
    /// The seed for the order of records and for the draw between weighted zones. Without it,
    /// records are sorted and no zone is drawn.
    pub seed: Option<u64>,
    /// Maximum number of endpoints that fit into one answer.
    pub most: usize,
}

/// Answers a question.
pub fn answer<'a>(asking: &Asking<'a>, question: &Question) -> Answer<'a> {
    let Some((zone, outside)) = zone::find(asking.config, &question.name) else {
        return Answer::bare(Outcome::PassedOn, 0);
    };
    let zone_labels = question.name.len() - outside;
    if question.record_type == RecordType::Transfer {
        return Answer::bare(Outcome::Refused, zone_labels);
    }
    let found = resolve(asking, zone, question, outside);
    finish(asking, question, found, zone_labels)
}

/// The Service that a name belongs to.
pub fn service_of(config: &Config, name: &AskedName) -> Option<ServiceKey> {
    let (zone, outside) = zone::find(config, name)?;
    let named = !zone.is_reverse() && outside >= 3 && name.label(outside - 1) == b"svc";
    if !named {
        return None;
    }
    Some(ServiceKey::new(name.text(outside - 2)?, name.text(outside - 3)?))
}

/// The Service with this cluster IP that has one of the server's own sockets as an endpoint. A
/// query to this address may return to this server.
pub fn service_of_own<'a>(
    index: &'a Index,
    address: SocketAddr,
    own: &[SocketAddr],
) -> Option<&'a ServiceKey> {
    index.cluster_ip(address.ip()).find(|key| {
        let filed = index.get(&key.namespace, &key.name);
        filed.is_some_and(|filed| filed.leads_to(address.port(), own))
    })
}

/// Builds the whole message from the records found.
fn finish<'a>(
    asking: &Asking<'a>,
    question: &Question,
    found: Found<'a>,
    zone_labels: usize,
) -> Answer<'a> {
    let covered = || falls_through(asking.config, &question.name);
    // For a SOA query below the apex the answer is NODATA, even if the name does not exist: clients
    // that search for the apex expect it.
    let soa = question.record_type == RecordType::Soa;
    let denial = |outcome, ttl| {
        let authority = Some(zone::soa(asking, ttl));
        Answer { authority, ..Answer::bare(outcome, zone_labels) }
    };
    let ttl = asking.config.ttl;
    match found {
        Found::Missing if covered() => Answer::bare(Outcome::PassedOn, zone_labels),
        Found::Missing if soa => denial(Outcome::NoData, ttl),
        Found::Missing if asking.synced == Synced::No => denial(Outcome::Unsynced, ttl),
        Found::Missing => denial(Outcome::NameError, ttl),
        Found::Empty => denial(Outcome::NoData, ttl),
        Found::OutOfReach(choice) => {
            Answer { choice: Some(choice), ..denial(Outcome::NoData, ttl.min(SHORT_TTL)) }
        }
        Found::Records { answers, additional, choice } => {
            let bare = Answer::bare(Outcome::Data, zone_labels);
            Answer { answers, additional, choice, ..bare }
        }
        Found::Elsewhere { answers, target } => {
            Answer { answers, ..denial(Outcome::Alias(target), ttl) }
        }
    }
}

/// Whether a query for a missing name goes to the next server.
fn falls_through(config: &Config, name: &AskedName) -> bool {
    config.fallthrough.iter().any(|top| name.below(top).is_some())
}

impl Answer<'_> {
    fn bare(outcome: Outcome<'_>, zone_labels: usize) -> Answer<'_> {
        Answer {
            outcome,
            zone_labels,
            answers: Vec::new(),
            authority: None,
            additional: Vec::new(),
            choice: None,
        }
    }
}
