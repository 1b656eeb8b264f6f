//! From addresses to names: `in-addr.arpa` and `ip6.arpa`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::question::{AskedName, RecordType};
use super::record::{Data, DomainName, Record, ZoneSpelling};
use super::resolve::{Found, is_visible};
use super::service::host_of;
use super::zone::first_forward;
use super::{Asking, falls_through};
use crate::cidr::Cidr;

/// Finds the names of an address, or whether an address exists below a partial reverse name.
pub(super) fn resolve<'a>(
    asking: &Asking<'a>,
    name: &AskedName,
    record_type: RecordType,
) -> Found<'a> {
    let Some(range) = read_address(name) else { return Found::Missing };
    if range.first() != range.last() {
        // Other servers may have names in this range. If the query falls through, they decide.
        let some = asking.index.has_between(range.first(), range.last());
        let ours = some && !falls_through(asking.config, name);
        return if ours { Found::Empty } else { Found::Missing };
    }
    let names = names(asking, range.first());
    match record_type {
        _ if names.is_empty() => Found::Missing,
        RecordType::Ptr => Found::answers(names),
        _ => Found::Empty,
    }
}

/// The name of the Service with this cluster IP, else those of the ready endpoints with this
/// address.
fn names<'a>(asking: &Asking<'a>, address: IpAddr) -> Vec<Record<'a>> {
    let Some(zone) = first_forward(asking.config).map(ZoneSpelling::Configured) else {
        return Vec::new();
    };
    let record = |target| {
        let data = Data::Ptr(target);
        Record { owner: DomainName::Asked, ttl: asking.config.ttl, data }
    };
    let mut services = asking.index.cluster_ip(address);
    if let Some(key) = services.find(|key| is_visible(asking, &key.namespace)) {
        return vec![record(DomainName::service(key, None, zone))];
    }
    let mut records = Vec::new();
    let services = asking.index.endpoints_at(address);
    for filed in services.filter(|filed| is_visible(asking, &filed.service.key.namespace)) {
        for entry in filed.published_at(address) {
            let host = Some(host_of(asking.config, entry.endpoint, address));
            let found = record(DomainName::service(&filed.service.key, host, zone));
            if !records.contains(&found) {
                records.push(found);
            }
        }
    }
    records
}

/// The addresses at or below a reverse name: one address if the name is complete.
fn read_address(name: &AskedName) -> Option<Cidr> {
    let top = name.len().checked_sub(2)?;
    if name.label(top + 1) != b"arpa" {
        return None;
    }
    match name.label(top) {
        b"in-addr" if top <= 4 => read_v4(name, top),
        b"ip6" if top <= 32 => read_v6(name, top),
        _ => None,
    }
}

fn read_v4(name: &AskedName, labels: usize) -> Option<Cidr> {
    let mut octets = [0; 4];
    for (octet, at) in octets.iter_mut().zip((0..labels).rev()) {
        let text = name.text(at)?;
        // `u8` would also accept a sign, and leading zeros would give a second name for one
        // address.
        let canonical = text == "0" || !text.starts_with(['0', '+']);
        *octet = text.parse().ok().filter(|_| canonical)?;
    }
    Some(Cidr::new(Ipv4Addr::from(octets).into(), 8 * labels as u8))
}

fn read_v6(name: &AskedName, labels: usize) -> Option<Cidr> {
    let mut bits: u128 = 0;
    for (place, at) in (0..labels).rev().enumerate() {
        let [digit] = name.label(at) else { return None };
        let value = char::from(*digit).to_digit(16)?;
        bits |= u128::from(value) << (124 - 4 * place);
    }
    Some(Cidr::new(Ipv6Addr::from_bits(bits).into(), 4 * labels as u8))
}
