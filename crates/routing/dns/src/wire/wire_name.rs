//! A name of an answer, encoded without compression.

use std::io::Write as _;
use std::net::IpAddr;

use nearhop_core::answer::{DomainName, Host, LONGEST_NAME, ZoneSpelling, dashed};

use super::reply::Zones;

/// Length-prefixed labels without the root.
#[derive(Clone, Debug)]
pub(super) struct WireName {
    octets: [u8; LONGEST_NAME],
    length: usize,
}

impl WireName {
    pub(super) fn new() -> Self {
        Self { octets: [0; LONGEST_NAME], length: 0 }
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        &self.octets[..self.length]
    }

    /// Encodes a name; None if it is too long or has an invalid label.
    pub(super) fn set(&mut self, name: DomainName<'_>, zones: &Zones<'_>) -> Option<()> {
        self.length = 0;
        match name {
            DomainName::Asked => self.append(zones.asked.spelled_from(0)),
            DomainName::Service { host, service, namespace, zone } => {
                match host {
                    Some(Host::Named(name)) => self.label(name.as_bytes())?,
                    Some(Host::Address(address)) => self.address(address)?,
                    None => {}
                }
                self.label(service.as_bytes())?;
                self.label(namespace.as_bytes())?;
                self.label(b"svc")?;
                self.zone(zone, zones)
            }
            DomainName::Below(labels, zone) => {
                labels.iter().try_for_each(|label| self.label(label.as_bytes()).ok_or(())).ok()?;
                self.zone(zone, zones)
            }
            DomainName::Absolute(text) => {
                let text = text.strip_suffix('.').unwrap_or(text);
                text.split('.').try_for_each(|label| self.label(label.as_bytes()).ok_or(())).ok()
            }
        }
    }

    fn label(&mut self, label: &[u8]) -> Option<()> {
        if label.is_empty() || label.len() > 63 {
            return None;
        }
        let start = self.length + 1;
        let end = start + label.len();
        // The root needs one more octet.
        if end >= LONGEST_NAME {
            return None;
        }
        self.octets[self.length] = label.len() as u8;
        self.octets[start..end].copy_from_slice(label);
        self.length = end;
        Some(())
    }

    fn append(&mut self, labels: &[u8]) -> Option<()> {
        let end = self.length + labels.len();
        if end >= LONGEST_NAME {
            return None;
        }
        self.octets[self.length..end].copy_from_slice(labels);
        self.length = end;
        Some(())
    }

    fn zone(&mut self, zone: ZoneSpelling, zones: &Zones<'_>) -> Option<()> {
        match zone {
            ZoneSpelling::AsAsked => {
                let first = zones.asked.len().checked_sub(zones.zone_labels)?;
                self.append(zones.asked.spelled_from(first))
            }
            ZoneSpelling::Configured(at) => {
                self.append(zones.configured.get(at)?.name().spelled_from(0))
            }
        }
    }

    /// A dashed address as a label; allocates for IPv6 only.
    fn address(&mut self, address: IpAddr) -> Option<()> {
        let IpAddr::V4(address) = address else { return self.label(dashed(address).as_bytes()) };
        let [a, b, c, d] = address.octets();
        let mut text = [0; 15];
        let room = text.len();
        let mut rest = &mut text[..];
        write!(rest, "{a}-{b}-{c}-{d}").ok()?;
        let used = room - rest.len();
        self.label(&text[..used])
    }
}
