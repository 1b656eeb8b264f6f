//! DNS records of Services and of their endpoints.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::index::{Entry, Filed};
use super::question::RecordType;
use super::record::{Choice, Data, DomainName, Host, Record, ZoneSpelling};
use super::resolve::{Found, parse_dashed};
use super::select::{self, Picked};
use super::{Asking, Config, EmptyServices, EndpointNames};
use crate::key::{Name, Protocol};
use crate::model::{ClusterIps, Endpoint, Service, Slice};
use crate::route::Tier;

/// Maximum length of a DNS label.
const LONGEST_LABEL: usize = 63;

/// The part of a Service that a question asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted<'q> {
    /// The Service itself.
    All,
    /// One endpoint.
    Host(&'q str),
    /// One port.
    Port(&'q str, Protocol),
}

/// The records at a Service's name, or below it.
pub(super) fn resolve<'a>(
    asking: &Asking<'a>,
    filed: &'a Filed,
    wanted: Wanted<'_>,
    record_type: RecordType,
) -> Found<'a> {
    let service = filed.service.as_ref();
    let hidden = asking.config.empty_services == EmptyServices::Hidden
        && matches!(service.cluster_ips, ClusterIps::Addresses(_))
        && !filed.has_published();
    match wanted {
        _ if hidden => Found::Missing,
        Wanted::Host(host) => resolve_host(asking, filed, host, record_type),
        Wanted::All | Wanted::Port(..) => {
            let port = match wanted {
                Wanted::Port(name, protocol) => Some((name, protocol)),
                _ => None,
            };
            match &service.cluster_ips {
                ClusterIps::Headless => resolve_headless(asking, filed, port, record_type),
                ClusterIps::Addresses(ips) => {
                    resolve_cluster_ip(asking, service, ips, port, record_type)
                }
                ClusterIps::Unset => Found::Missing,
            }
        }
    }
}

/// The name of an endpoint: its host name, else its Pod's name if the configuration requires it,
/// else its address.
pub(super) fn host_of<'a>(config: &Config, endpoint: &'a Endpoint, address: IpAddr) -> Host<'a> {
    let named = endpoint.hostname.as_ref().filter(|name| !name.is_empty());
    let pod = || {
        let pod = endpoint.target.as_ref().map(|pod| &pod.name)?;
        let fits = (1..=LONGEST_LABEL).contains(&pod.len());
        (config.endpoint_names == EndpointNames::Pod && fits).then_some(pod)
    };
    named.or_else(pod).map_or(Host::Address(address), |name| Host::Named(name))
}

// Cluster addresses.

fn resolve_cluster_ip<'a>(
    asking: &Asking<'a>,
    service: &'a Service,
    ips: &[IpAddr],
    port: Option<(&str, Protocol)>,
    record_type: RecordType,
) -> Found<'a> {
    let fits = |name: &Name, protocol: Protocol| {
        port.is_none_or(|wanted| wanted == (name.as_str(), protocol))
    };
    let ports = service.ports.iter().filter(|port| fits(&port.name, port.protocol));
    let numbers: Vec<u16> = ports.map(|port| port.port).collect();
    if ips.is_empty() || (numbers.is_empty() && port.is_some()) {
        return Found::Missing;
    }
    if record_type != RecordType::Srv {
        return Found::addresses(ips.iter().copied(), record_type, asking.config.ttl);
    }
    let target = DomainName::service(&service.key, None, ZoneSpelling::AsAsked);
    let entries = (numbers.len() * ips.len()).max(1);
    let mut srv = SrvRecords::new(asking.config.ttl);
    for number in numbers {
        for ip in ips {
            srv.add(target, *ip, number, even_weight(entries));
        }
    }
    srv.found(None)
}

/// As in CoreDNS: all addresses and ports share a weight of 100.
fn even_weight(entries: usize) -> u16 {
    (100 / entries.max(1)).max(1) as u16
}

/// SRV records with the addresses of their targets, without duplicates, in the order of insertion.
struct SrvRecords<'a> {
    ttl: u32,
    seen: BTreeSet<(DomainName<'a>, Data<'a>)>,
    answers: Vec<Record<'a>>,
    additional: Vec<Record<'a>>,
}

impl<'a> SrvRecords<'a> {
    fn new(ttl: u32) -> Self {
        Self { ttl, seen: BTreeSet::new(), answers: Vec::new(), additional: Vec::new() }
    }

    fn add(&mut self, target: DomainName<'a>, address: IpAddr, port: u16, weight: u16) {
        // If two records have the same target and port, the weight of the first counts.
        let unweighted = Data::Srv { weight: 0, port, target };
        if self.seen.insert((DomainName::Asked, unweighted)) {
            let data = Data::Srv { weight, port, target };
            self.answers.push(Record { owner: DomainName::Asked, ttl: self.ttl, data });
        }
        let data = Data::from(address);
        if self.seen.insert((target, data)) {
            self.additional.push(Record { owner: target, ttl: self.ttl, data });
        }
    }

    fn found(self, choice: Option<Choice>) -> Found<'a> {
        if self.answers.is_empty() {
            return Found::Empty;
        }
        Found::Records { answers: self.answers, additional: self.additional, choice }
    }
}

// Endpoints by their own names: the same for all clients.

fn resolve_host<'a>(
    asking: &Asking<'a>,
    filed: &'a Filed,
    host: &str,
    record_type: RecordType,
) -> Found<'a> {
    let address = parse_dashed(host).filter(|address| super::dashed(*address) == host);
    let is_it = |entry: &Entry<'a>| match host_of(asking.config, entry.endpoint, entry.address) {
        Host::Named(name) => name == host,
        Host::Address(_) => Some(entry.address) == address,
    };
    // If the label is an address, first check the endpoints at this address, then all endpoints.
    let at_address = address.into_iter().flat_map(|address| filed.published_at(address));
    let mut entries: Vec<Entry<'a>> = at_address.filter(is_it).collect();
    if entries.is_empty() {
        entries = filed.published(None).filter(is_it).collect();
    }
    if entries.is_empty() {
        return if is_above_ports(filed, host) { Found::Empty } else { Found::Missing };
    }
    if record_type == RecordType::Srv {
        return srv_of_entries(asking, filed, &entries, None, None);
    }
    let mut addresses: Vec<IpAddr> = entries.iter().map(|entry| entry.address).collect();
    addresses.sort_unstable();
    addresses.dedup();
    Found::addresses(addresses, record_type, asking.config.ttl)
}

/// Whether the label is the protocol of a named port of the Service: an empty non-terminal in the
/// DNS tree.
fn is_above_ports(filed: &Filed, label: &str) -> bool {
    let protocol = label.strip_prefix('_').and_then(super::resolve::protocol);
    let Some(protocol) = protocol else { return false };
    let named = |name: &Name, its: Protocol| !name.is_empty() && its == protocol;
    if let ClusterIps::Addresses(_) = filed.service.cluster_ips {
        return filed.service.ports.iter().any(|p| named(&p.name, p.protocol));
    }
    let has = |slice: &Slice| slice.ports.iter().any(|p| named(&p.name, p.protocol));
    filed.has_published() && filed.slices().any(has)
}

// Headless Services: the endpoints for the client's place.

fn resolve_headless<'a>(
    asking: &Asking<'a>,
    filed: &'a Filed,
    port: Option<(&str, Protocol)>,
    record_type: RecordType,
) -> Found<'a> {
    let Picked { entries, choice, left_out } = select::pick(asking, filed, port, record_type);
    if !entries.is_empty() {
        let choice = Some(choice);
        return match record_type {
            RecordType::Srv => srv_of_entries(asking, filed, &entries, port, choice),
            _ => address_records(&entries, asking.config.ttl, choice),
        };
    }
    if left_out {
        return Found::OutOfReach(choice);
    }
    let other = filed.published(port).next().is_some();
    if other { Found::Empty } else { Found::Missing }
}

fn address_records<'a>(entries: &[Entry<'a>], ttl: u32, choice: Option<Choice>) -> Found<'a> {
    let record = |entry: &Entry<'a>| {
        let data = Data::from(entry.address);
        Record { owner: DomainName::Asked, ttl, data }
    };
    let answers = entries.iter().map(record).collect();
    Found::Records { answers, additional: Vec::new(), choice }
}

fn srv_of_entries<'a>(
    asking: &Asking<'a>,
    filed: &'a Filed,
    entries: &[Entry<'a>],
    port: Option<(&str, Protocol)>,
    choice: Option<Choice>,
) -> Found<'a> {
    let fits = |name: &Name, protocol: Protocol| {
        port.is_none_or(|wanted| wanted == (name.as_str(), protocol))
    };
    // Slices without ports count too: their endpoints have addresses, but no SRV records.
    let count: usize = entries
        .iter()
        .map(|entry| match &entry.slice.ports[..] {
            [] => 1,
            ports => ports.iter().filter(|p| fits(&p.name, p.protocol)).count(),
        })
        .sum();
    let total: u64 = entries.iter().map(|entry| u64::from(entry.weight)).sum();
    let weighted = choice
        .as_ref()
        .is_some_and(|choice| choice.reasons.iter().any(|reason| reason.tier == Tier::Weights));
    let mut srv = SrvRecords::new(asking.config.ttl);
    for entry in entries {
        let host = host_of(asking.config, entry.endpoint, entry.address);
        let target = DomainName::service(&filed.service.key, Some(host), ZoneSpelling::AsAsked);
        let weight = if weighted { share(entry.weight, total) } else { even_weight(count) };
        let ports = entry.slice.ports.iter().filter(|p| fits(&p.name, p.protocol));
        for number in ports.filter_map(|port| port.port).filter(|number| *number != 0) {
            srv.add(target, entry.address, number, weight);
        }
    }
    srv.found(choice)
}

/// A weight for SRV records (RFC 2782); the client applies it.
fn share(weight: u32, total: u64) -> u16 {
    let share = u64::from(weight) * u64::from(u16::MAX) / total.max(1);
    share.clamp(1, u16::MAX.into()) as u16
}
