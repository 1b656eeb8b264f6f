//! Records as text in the format of zone files, for users and for comparison.

use super::record::{Answer, Data, DomainName, Host, Record, SOA_INTERVALS, ZoneSpelling, dashed};
use super::{AskedName, Config};

/// The context for printing the names of an answer.
#[derive(Clone, Copy, Debug)]
pub struct Spelling<'a> {
    /// The question's name.
    pub asked: &'a AskedName,
    /// The number of its labels that belong to the zone.
    pub zone_labels: usize,
    /// The configuration with the zones.
    pub config: &'a Config,
}

impl<'a> Spelling<'a> {
    /// The context of an answer to a question.
    pub fn of(answer: &Answer<'_>, asked: &'a AskedName, config: &'a Config) -> Self {
        Self { asked, zone_labels: answer.zone_labels, config }
    }

    /// `OWNER TTL IN TYPE DATA`.
    pub fn record(&self, record: &Record<'_>) -> String {
        let (owner, data) = (self.name(&record.owner), self.data(&record.data));
        format!("{owner} {} IN {data}", record.ttl)
    }

    /// A name, with its final dot.
    pub fn name(&self, name: &DomainName<'_>) -> String {
        match name {
            DomainName::Asked => self.asked.to_string(),
            DomainName::Service { host, service, namespace, zone } => {
                let host = match host {
                    None => String::new(),
                    Some(Host::Named(host)) => format!("{host}."),
                    Some(Host::Address(address)) => format!("{}.", dashed(*address)),
                };
                format!("{host}{service}.{namespace}.svc.{}", self.zone(*zone))
            }
            DomainName::Below(labels, zone) => {
                let labels: String = labels.iter().map(|label| format!("{label}.")).collect();
                format!("{labels}{}", self.zone(*zone))
            }
            DomainName::Absolute(text) => format!("{}.", text.strip_suffix('.').unwrap_or(text)),
        }
    }

    fn zone(&self, zone: ZoneSpelling) -> String {
        match zone {
            ZoneSpelling::AsAsked => {
                let whole = self.asked.to_string();
                let skipped = self.asked.len().saturating_sub(self.zone_labels);
                let mut rest = whole.as_str();
                for _ in 0..skipped {
                    rest = rest.split_once('.').map_or("", |(_, rest)| rest);
                }
                rest.to_owned()
            }
            ZoneSpelling::Configured(at) => {
                self.config.zones.get(at).map_or_else(String::new, |zone| zone.name().to_string())
            }
        }
    }

    fn data(&self, data: &Data<'_>) -> String {
        match data {
            Data::A(address) => format!("A {address}"),
            Data::Aaaa(address) => format!("AAAA {address}"),
            Data::Srv { weight, port, target } => {
                format!("SRV 0 {weight} {port} {}", self.name(target))
            }
            Data::Ptr(name) => format!("PTR {}", self.name(name)),
            Data::Cname(name) => format!("CNAME {}", self.name(name)),
            Data::Txt(text) => format!("TXT \"{text}\""),
            Data::Ns(name) => format!("NS {}", self.name(name)),
            Data::Soa { serial, minimum } => {
                let zone = self.zone(ZoneSpelling::AsAsked);
                let [refresh, retry, expire] = SOA_INTERVALS;
                format!(
                    "SOA ns.dns.{zone} hostmaster.{zone} \
                     {serial} {refresh} {retry} {expire} {minimum}"
                )
            }
        }
    }
}
