//! Which name means what: the tree below a zone.
//!
//! A node of the tree that has nothing itself but something below it is there, and empty (RFC 8020;
//! CoreDNS denies some of them, which lets strict caches deny what is below too).

use std::net::IpAddr;

use super::question::{AskedName, Question, RecordType};
use super::record::{Choice, Data, DomainName, Record};
use super::zone::{Zone, resolve_apex, resolve_ns_dns};
use super::{Asking, PodMode, alias, reverse, service};
use crate::key::Protocol;
use crate::model::ServiceType;

/// The version of the specification that names follow.
const SCHEMA_VERSION: &str = "1.1.0";
/// It changes with the program, not with the cluster.
const SCHEMA_TTL: u32 = 28_800;

/// What there is at a name.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Found<'a> {
    /// No such name.
    Missing,
    /// The name, but nothing of the type.
    Empty,
    /// Endpoints, but none for the asker's place.
    OutOfReach(Choice),
    /// Records.
    Records {
        /// Of the name.
        answers: Vec<Record<'a>>,
        /// Of names in them.
        additional: Vec<Record<'a>>,
        /// Why these.
        choice: Option<Choice>,
    },
    /// An alias of a name that is not ours.
    Elsewhere {
        /// The aliases on the way.
        answers: Vec<Record<'a>>,
        /// The name.
        target: &'a str,
    },
}

impl<'a> Found<'a> {
    pub(super) fn answers(answers: Vec<Record<'a>>) -> Self {
        Self::Records { answers, additional: Vec::new(), choice: None }
    }

    /// Those of the addresses that are of the type.
    pub(super) fn addresses(
        addresses: impl IntoIterator<Item = IpAddr>,
        record_type: RecordType,
        ttl: u32,
    ) -> Self {
        let fits = |address: &IpAddr| is_of(*address, record_type);
        let record =
            |address: IpAddr| Record { owner: DomainName::Asked, ttl, data: Data::from(address) };
        let answers: Vec<Record<'a>> = addresses.into_iter().filter(fits).map(record).collect();
        if answers.is_empty() { Self::Empty } else { Self::answers(answers) }
    }
}

/// Whether records of the type hold such addresses.
fn is_of(address: IpAddr, record_type: RecordType) -> bool {
    match record_type {
        RecordType::A => address.is_ipv4(),
        RecordType::Aaaa => address.is_ipv6(),
        _ => false,
    }
}

/// Finds what there is at a name that has `outside` labels more than its zone.
pub(super) fn resolve<'a>(
    asking: &Asking<'a>,
    zone: &Zone,
    question: &Question,
    outside: usize,
) -> Found<'a> {
    let (name, record_type) = (&question.name, question.record_type);
    if outside == 0 {
        return resolve_apex(asking, zone, record_type);
    }
    match (outside, name.label(outside - 1)) {
        (1, b"dns") => return Found::Empty,
        (2, b"dns") if name.label(0) == b"ns" => {
            return resolve_ns_dns(asking, zone, record_type);
        }
        _ => {}
    }
    if zone.is_reverse() {
        return reverse::resolve(asking, name, record_type);
    }
    match (outside, name.label(outside - 1)) {
        (1, b"dns-version") => schema_version(record_type),
        (1, b"svc" | b"pod") => Found::Empty,
        (_, b"svc") => below_svc(asking, name, record_type, outside - 1),
        (_, b"pod") => below_pod(asking, name, record_type, outside - 1),
        _ => Found::Missing,
    }
}

fn schema_version(record_type: RecordType) -> Found<'static> {
    if record_type != RecordType::Txt {
        return Found::Empty;
    }
    let data = Data::Txt(SCHEMA_VERSION);
    Found::answers(vec![Record { owner: DomainName::Asked, ttl: SCHEMA_TTL, data }])
}

/// Whether a namespace is there and shown.
pub(super) fn is_visible(asking: &Asking<'_>, namespace: &str) -> bool {
    let shown = asking.config.namespaces.as_ref().is_none_or(|shown| shown.contains(namespace));
    shown && asking.world.has_namespace(namespace)
}

/// What a name with `outside` labels left of `svc` means.
fn below_svc<'a>(
    asking: &Asking<'a>,
    name: &AskedName,
    record_type: RecordType,
    outside: usize,
) -> Found<'a> {
    let namespace = name.text(outside - 1).filter(|namespace| is_visible(asking, namespace));
    let Some(namespace) = namespace else { return Found::Missing };
    if outside == 1 {
        return Found::Empty;
    }
    let Some(service) = name.text(outside - 2) else { return Found::Missing };
    let Some(filed) = asking.index.get(namespace, service) else { return Found::Missing };
    if filed.service.service_type == ServiceType::ExternalName {
        return match outside {
            2 => alias::resolve(asking, &filed.service, name, record_type),
            _ => Found::Missing,
        };
    }
    let wanted = match outside {
        2 => service::Wanted::All,
        3 => match name.text(0) {
            Some(host) => service::Wanted::Host(host),
            None => return Found::Missing,
        },
        4 => match (name.text(0).map(bare), name.text(1).map(bare).and_then(protocol)) {
            (Some(port), Some(protocol)) if !port.is_empty() => {
                service::Wanted::Port(port, protocol)
            }
            _ => return Found::Missing,
        },
        _ => return Found::Missing,
    };
    service::resolve(asking, filed, wanted, record_type)
}

/// Ports and protocols have an underscore in front, and are found without it too.
fn bare(label: &str) -> &str {
    label.strip_prefix('_').unwrap_or(label)
}

pub(super) fn protocol(label: &str) -> Option<Protocol> {
    match label {
        "tcp" => Some(Protocol::Tcp),
        "udp" => Some(Protocol::Udp),
        "sctp" => Some(Protocol::Sctp),
        _ => None,
    }
}

/// What a name with `outside` labels left of `pod` means.
fn below_pod<'a>(
    asking: &Asking<'a>,
    name: &AskedName,
    record_type: RecordType,
    outside: usize,
) -> Found<'a> {
    let namespace = name.text(outside - 1).filter(|namespace| is_visible(asking, namespace));
    let Some(namespace) = namespace else { return Found::Missing };
    let address = match (asking.config.pods, outside) {
        (PodMode::Disabled, _) | (_, 3..) => None,
        (_, 1) => return Found::Empty,
        (_, _) => name.text(0).and_then(parse_dashed),
    };
    let known = |address: &IpAddr| {
        asking.config.pods != PodMode::Verified
            || asking.world.locators().is_in(namespace, *address)
    };
    match address.filter(known) {
        Some(address) => Found::addresses([address], record_type, asking.config.ttl),
        None => Found::Missing,
    }
}

/// Reads an address whose dots or colons are dashes.
pub(super) fn parse_dashed(label: &str) -> Option<IpAddr> {
    let dashes = label.bytes().filter(|octet| *octet == b'-').count();
    if dashes == 3 && !label.contains("--") {
        return label.replace('-', ".").parse().ok().map(IpAddr::V4);
    }
    label.replace('-', ":").parse().ok().map(IpAddr::V6)
}
