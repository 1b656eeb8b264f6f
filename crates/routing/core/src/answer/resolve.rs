//! The meaning of each name: the tree below a zone.
//!
//! An empty non-terminal (a name without records but with names below it) exists and gets NODATA
//! (RFC 8020). CoreDNS returns NXDOMAIN for some of them; strict caches then also deny the names
//! below.

use std::net::IpAddr;

use super::question::{Question, RecordType};
use super::record::{Choice, Data, DomainName, Record};
use super::zone::{Zone, resolve_apex, resolve_ns_dns};
use super::{Asking, PodMode, alias, reverse, service};
use crate::key::Protocol;
use crate::model::ServiceType;

/// The version of the DNS specification.
const SCHEMA_VERSION: &str = "1.1.0";
/// A long TTL: the version changes with the program, not with the cluster.
const SCHEMA_TTL: u32 = 28_800;

/// The result for a name.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Found<'a> {
    /// The name does not exist.
    Missing,
    /// The name exists, but has no records of the type.
    Empty,
    /// The name has endpoints, but none for the client's place.
    OutOfReach(Choice),
    /// Records.
    Records {
        /// Records of the name.
        answers: Vec<Record<'a>>,
        /// Records of names in the answers.
        additional: Vec<Record<'a>>,
        /// Why these endpoints were chosen.
        choice: Option<Choice>,
    },
    /// An alias of a name outside this server's zones.
    Elsewhere {
        /// The aliases up to that name.
        answers: Vec<Record<'a>>,
        /// The name outside.
        target: &'a str,
    },
}

impl<'a> Found<'a> {
    pub(super) fn answers(answers: Vec<Record<'a>>) -> Self {
        Self::Records { answers, additional: Vec::new(), choice: None }
    }

    /// The addresses that match the record type.
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

/// Whether the record type is the one for the family of this address.
fn is_of(address: IpAddr, record_type: RecordType) -> bool {
    match record_type {
        RecordType::A => address.is_ipv4(),
        RecordType::Aaaa => address.is_ipv6(),
        _ => false,
    }
}

/// Resolves a name that has `outside` more labels than its zone.
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
    let below = match (outside, name.label(outside - 1)) {
        (1, b"dns-version") => return schema_version(record_type),
        (1, b"svc" | b"pod") => return Found::Empty,
        (_, b"svc") => below_svc,
        (_, b"pod") => below_pod,
        _ => return Found::Missing,
    };
    match name.text(outside - 2).filter(|namespace| is_visible(asking, namespace)) {
        Some(namespace) => below(asking, question, namespace, outside - 1),
        None => Found::Missing,
    }
}

fn schema_version(record_type: RecordType) -> Found<'static> {
    if record_type != RecordType::Txt {
        return Found::Empty;
    }
    let data = Data::Txt(SCHEMA_VERSION);
    Found::answers(vec![Record { owner: DomainName::Asked, ttl: SCHEMA_TTL, data }])
}

/// Whether a namespace exists and has DNS names.
pub(super) fn is_visible(asking: &Asking<'_>, namespace: &str) -> bool {
    let shown = asking.config.namespaces.as_ref().is_none_or(|shown| shown.contains(namespace));
    shown && asking.world.has_namespace(namespace)
}

/// Resolves a name with `outside` labels left of `svc`.
fn below_svc<'a>(
    asking: &Asking<'a>,
    Question { name, record_type }: &Question,
    namespace: &str,
    outside: usize,
) -> Found<'a> {
    if outside == 1 {
        return Found::Empty;
    }
    let Some(service) = name.text(outside - 2) else { return Found::Missing };
    let Some(filed) = asking.index.get(namespace, service) else { return Found::Missing };
    if filed.service.service_type == ServiceType::ExternalName {
        return match outside {
            2 => alias::resolve(asking, &filed.service, name, *record_type),
            _ => Found::Missing,
        };
    }
    let wanted = match outside {
        2 => service::Wanted::All,
        3 => {
            let Some(host) = name.text(0) else { return Found::Missing };
            service::Wanted::Host(host)
        }
        4 => match (name.text(0).map(bare), name.text(1).map(bare).and_then(protocol)) {
            (Some(port), Some(protocol)) if !port.is_empty() => {
                service::Wanted::Port(port, protocol)
            }
            _ => return Found::Missing,
        },
        _ => return Found::Missing,
    };
    service::resolve(asking, filed, wanted, *record_type)
}

/// Removes the leading underscore of a port or protocol; names without it are valid too.
fn bare(label: &str) -> &str {
    label.strip_prefix('_').unwrap_or(label)
}

/// The protocol of a label in lower case, as all labels of a question are.
pub(super) fn protocol(label: &str) -> Option<Protocol> {
    Protocol::parse(&label.to_ascii_uppercase())
}

/// Resolves a name with `outside` labels left of `pod`.
fn below_pod<'a>(
    asking: &Asking<'a>,
    Question { name, record_type }: &Question,
    namespace: &str,
    outside: usize,
) -> Found<'a> {
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
        Some(address) => Found::addresses([address], *record_type, asking.config.ttl),
        None => Found::Missing,
    }
}

/// Parses an address with dashes instead of dots or colons.
pub(super) fn parse_dashed(label: &str) -> Option<IpAddr> {
    let dashes = label.bytes().filter(|octet| *octet == b'-').count();
    if dashes == 3 && !label.contains("--") {
        return label.replace('-', ".").parse().ok().map(IpAddr::V4);
    }
    label.replace('-', ":").parse().ok().map(IpAddr::V6)
}
