//! The zones themselves: the zone of a name, the SOA and the name servers.

use std::net::IpAddr;

use super::question::{AskedName, NameError, RecordType};
use super::record::{Data, DomainName, Record, ZoneSpelling};
use super::resolve::Found;
use super::service::host_of;
use super::{Asking, Config};
use crate::model::ClusterIps;

/// A zone that this server answers for.
#[derive(Clone, Debug)]
pub struct Zone {
    name: AskedName,
    kind: ZoneKind,
}

/// The content of a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ZoneKind {
    /// Services and Pods by name.
    Forward,
    /// Names by address.
    Reverse,
}

impl Zone {
    /// Parses a zone's name; zones below `in-addr.arpa` and `ip6.arpa` are reverse zones.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let name = AskedName::parse(text)?;
        let below = |top: &str| AskedName::parse(top).is_ok_and(|top| name.below(&top).is_some());
        let reverse = below("in-addr.arpa") || below("ip6.arpa");
        let kind = if reverse { ZoneKind::Reverse } else { ZoneKind::Forward };
        Ok(Self { name, kind })
    }

    /// Its name.
    pub fn name(&self) -> &AskedName {
        &self.name
    }

    /// Whether it is a reverse zone.
    pub fn is_reverse(&self) -> bool {
        self.kind == ZoneKind::Reverse
    }
}

/// The zone of a name, and the number of labels that the name has in addition.
pub(super) fn find<'c>(config: &'c Config, name: &AskedName) -> Option<(&'c Zone, usize)> {
    let fitting = config.zones.iter().filter_map(|zone| Some((zone, name.below(zone.name())?)));
    fitting.min_by_key(|(_, outside)| *outside)
}

/// The first forward zone: the target of reverse records.
pub(super) fn first_forward(config: &Config) -> Option<usize> {
    config.zones.iter().position(|zone| !zone.is_reverse())
}

/// The zone's SOA, with the TTL of the record and of negative answers.
pub(super) fn soa(asking: &Asking<'_>, ttl: u32) -> Record<'static> {
    /// Maximum TTL of the zone's own record.
    const LONGEST: u32 = 300;
    Record {
        owner: DomainName::Below(&[], ZoneSpelling::AsAsked),
        ttl: ttl.min(LONGEST),
        data: Data::Soa { serial: asking.serial, minimum: ttl },
    }
}

/// Resolves the zone's own name.
pub(super) fn resolve_apex<'a>(
    asking: &Asking<'a>,
    zone: &Zone,
    record_type: RecordType,
) -> Found<'a> {
    match record_type {
        RecordType::Soa => {
            let soa = Record { owner: DomainName::Asked, ..soa(asking, asking.config.ttl) };
            Found::answers(vec![soa])
        }
        RecordType::Ns => name_servers(asking, zone),
        _ => Found::Empty,
    }
}

/// A name server and one of its addresses.
type Server<'a> = (DomainName<'a>, IpAddr);

/// `NS` records with addresses: the Services that have this server as an endpoint, else `ns.dns`.
fn name_servers<'a>(asking: &Asking<'a>, zone: &Zone) -> Found<'a> {
    let servers = servers(asking, zone);
    let ttl = asking.config.ttl;
    let mut answers: Vec<Record<'a>> = Vec::new();
    let mut additional: Vec<Record<'a>> = Vec::new();
    for (name, address) in servers {
        let ns = Record { owner: DomainName::Asked, ttl, data: Data::Ns(name) };
        let glue = Record { owner: name, ttl, data: address.into() };
        if !answers.contains(&ns) {
            answers.push(ns);
        }
        if !additional.contains(&glue) {
            additional.push(glue);
        }
    }
    if answers.is_empty() {
        return Found::Empty;
    }
    Found::Records { answers, additional, choice: None }
}

/// Resolves `ns.dns`: the addresses of all name servers.
pub(super) fn resolve_ns_dns<'a>(
    asking: &Asking<'a>,
    zone: &Zone,
    record_type: RecordType,
) -> Found<'a> {
    let mut addresses: Vec<IpAddr> = servers(asking, zone).into_iter().map(|it| it.1).collect();
    addresses.sort_unstable();
    addresses.dedup();
    Found::addresses(addresses, record_type, asking.config.ttl)
}

fn servers<'a>(asking: &Asking<'a>, zone: &Zone) -> Vec<Server<'a>> {
    // Names of Services exist only in a forward zone.
    let spelling = match first_forward(asking.config) {
        Some(at) if zone.is_reverse() => ZoneSpelling::Configured(at),
        _ => ZoneSpelling::AsAsked,
    };
    let local = asking.config.local_ips.iter().copied();
    let known = local.clone().filter(|address| !address.is_loopback());
    let found: Vec<Server<'a>> =
        known.flat_map(|address| services_at(asking, address, spelling)).collect();
    if !found.is_empty() {
        return found;
    }
    let own = DomainName::Below(&["ns", "dns"], ZoneSpelling::AsAsked);
    local.map(|address| (own, address)).collect()
}

/// The Services with an endpoint at this address, each with the address that clients use.
fn services_at<'a>(asking: &Asking<'a>, address: IpAddr, zone: ZoneSpelling) -> Vec<Server<'a>> {
    let mut servers = Vec::new();
    for filed in asking.index.endpoints_at(address) {
        let service = filed.service.as_ref();
        match &service.cluster_ips {
            ClusterIps::Addresses(ips) => {
                let owner = DomainName::service(&service.key, None, zone);
                servers.extend(ips.iter().map(|ip| (owner, *ip)));
            }
            _ => {
                for endpoint in filed.endpoints_at(address) {
                    let host = Some(host_of(asking.config, endpoint, address));
                    servers.push((DomainName::service(&service.key, host, zone), address));
                }
            }
        }
    }
    servers
}
