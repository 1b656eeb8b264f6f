//! What the cluster's DNS says: a question and an asker's place in, records and their reason out.
//!
//! The Kubernetes DNS specification 1.1.0, and beyond it what clients have come to rely on
//! (docs/dns.md names both). The name of a headless Service is answered with the endpoints that
//! [`choose_route`](crate::choose_route) gives the asker's place (KEP-536 "DNS server changes");
//! names of single endpoints and addresses are the same for all clients, because peers address each
//! other by them.
//!
//! ```text
//!   question  the name and type                    record  an answer as a value
//!   resolve   which name means what                index   addresses to Services
//!   service   records of Services and endpoints    select  which endpoints, by place
//!   alias     ExternalName                         reverse addresses to names
//!   zone      the zone itself: SOA, NS             text    records for people
//! ```
//!
//! Deliberately absent: bytes, sockets, caches, other servers; and chance, which is an argument.

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

/// Denials that a change elsewhere may end at any moment are kept for at most this long.
const SHORT_TTL: u32 = 1;

/// What the operator chose.
#[derive(Clone, Debug)]
pub struct Config {
    /// The zones that are answered for; of several that fit the longest counts.
    pub zones: Vec<Zone>,
    /// TTL of records and denials.
    pub ttl: u32,
    /// Which names Pods have by their address.
    pub pods: PodMode,
    /// The namespaces that are shown; all where none are given.
    pub namespaces: Option<BTreeSet<Name>>,
    /// How endpoints without a host name are called.
    pub endpoint_names: EndpointNames,
    /// Whether Services without ready endpoints have a name.
    pub empty_services: EmptyServices,
    /// Names that are not found in or below these are passed on.
    pub fallthrough: Vec<AskedName>,
    /// Addresses that this server listens on.
    pub local_ips: Vec<IpAddr>,
}

impl Config {
    /// One zone, and what CoreDNS does by default.
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

/// Which names Pods have by their address (`10-0-0-1.namespace.pod`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodMode {
    /// None.
    Disabled,
    /// Any address.
    Insecure,
    /// Addresses that a PodLocator knows in that namespace.
    Verified,
}

/// How endpoints without a host name are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointNames {
    /// By their address.
    Address,
    /// By their Pod's name, where it fits into a label.
    Pod,
}

/// Whether Services with a cluster address but no ready endpoint have a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmptyServices {
    /// They have.
    Shown,
    /// They have not.
    Hidden,
}

/// Whether everything is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Synced {
    /// It is.
    Yes,
    /// Some objects have not arrived yet.
    No,
}

/// Who asks, and whom.
#[derive(Clone, Copy, Debug)]
pub struct Asking<'a> {
    /// Everything known.
    pub world: &'a World,
    /// The same by address.
    pub index: &'a Index,
    /// What the operator chose.
    pub config: &'a Config,
    /// Seconds of the last change.
    pub serial: u32,
    /// Whether everything is known.
    pub synced: Synced,
    /// Where the client is.
    pub asker: &'a Located,
    /// What the order of records, and the draw between weighted zones, come from. Without it
    /// records are sorted and nothing is drawn.
    pub seed: Option<u64>,
    /// More endpoints than this do not fit into one answer, so no more are picked.
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

/// The Service that a name is of, or below.
pub fn service_of(config: &Config, name: &AskedName) -> Option<ServiceKey> {
    let (zone, outside) = zone::find(config, name)?;
    let named = !zone.is_reverse() && outside >= 3 && name.label(outside - 1) == b"svc";
    if !named {
        return None;
    }
    Some(ServiceKey::new(name.text(outside - 2)?, name.text(outside - 3)?))
}

/// The Service at a cluster address that has one of these sockets, which are the server's own, among
/// its endpoints: what is asked there may come back.
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

/// From what was found to the whole message.
fn finish<'a>(
    asking: &Asking<'a>,
    question: &Question,
    found: Found<'a>,
    zone_labels: usize,
) -> Answer<'a> {
    let covered = || falls_through(asking.config, &question.name);
    // Asked for below the zone's top, SOA denies only itself, as clients that look for a zone's
    // top expect it.
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

/// Whether a name that is not there is passed on.
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
