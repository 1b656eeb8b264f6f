//! Counters of one thread, which others see a moment later: a question must not pay for a dozen
//! shared counters.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use prometheus::local::LocalHistogram;

use super::{DROPPED, DnsMetrics, VIEW, ZONE};
use crate::wire::{Rcode, Transport};

/// Others see what was counted after this at the latest, while there is something to count.
const EVERY: Duration = Duration::from_millis(250);

/// Types of records that have a name in metrics.
const TYPES: [(u16, &str); 19] = [
    (1, "A"),
    (28, "AAAA"),
    (33, "SRV"),
    (12, "PTR"),
    (5, "CNAME"),
    (16, "TXT"),
    (6, "SOA"),
    (2, "NS"),
    (15, "MX"),
    (65, "HTTPS"),
    (64, "SVCB"),
    (255, "ANY"),
    (43, "DS"),
    (48, "DNSKEY"),
    (46, "RRSIG"),
    (47, "NSEC"),
    (50, "NSEC3"),
    (252, "AXFR"),
    (251, "IXFR"),
];
/// The place of all others.
const OTHER: usize = TYPES.len();
/// Codes up to 16 are counted by their number, all others together.
const CODES: usize = 18;

/// Who made an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// The cluster's names.
    Kubernetes,
    /// Another server.
    Forward,
    /// Another server, some time ago.
    Cache,
    /// Nobody: the server itself says that it will not.
    Server,
    /// The same to a packet that is no question.
    Dropped,
}

impl Written {
    const ALL: [Self; 5] =
        [Self::Kubernetes, Self::Forward, Self::Cache, Self::Server, Self::Dropped];

    fn zone(self) -> &'static str {
        if self == Self::Dropped { DROPPED } else { ZONE }
    }

    fn plugin(self) -> &'static str {
        match self {
            Self::Kubernetes => "kubernetes",
            Self::Forward => "forward",
            Self::Cache => "cache",
            Self::Server | Self::Dropped => "",
        }
    }
}

/// A packet that came.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// How.
    pub transport: Transport,
    /// From whom.
    pub source: IpAddr,
    /// Its octets.
    pub size: usize,
    /// What it asks for; none where it is no question.
    pub type_number: Option<u16>,
    /// Whether it wants DNSSEC records.
    pub dnssec_ok: bool,
}

/// An answer that goes.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    /// How.
    pub transport: Transport,
    /// Its octets.
    pub size: usize,
    /// Its code.
    pub code: Rcode,
    /// Who made it.
    pub written: Written,
}

/// Counters of one thread.
pub struct Tally {
    metrics: DnsMetrics,
    /// By transport, family, type; the last type is that of packets that are no questions.
    requests: [[[u64; OTHER + 2]; 2]; 2],
    dnssec_requests: u64,
    responses: [[u64; CODES]; Written::ALL.len()],
    request_sizes: [LocalHistogram; 2],
    response_sizes: [LocalHistogram; 2],
    durations: LocalHistogram,
    answers: Vec<(&'static str, &'static str, u64)>,
    limited: u64,
    panics: u64,
    /// Since when something has been waiting.
    waiting: Option<Instant>,
}

impl Tally {
    pub(super) fn new(metrics: &DnsMetrics) -> Self {
        let place = |proto| [&*metrics.server, ZONE, VIEW, proto];
        let requests = |proto| metrics.request_sizes.with_label_values(&place(proto)).local();
        let responses = |proto| metrics.response_sizes.with_label_values(&place(proto)).local();
        Self {
            requests: [[[0; OTHER + 2]; 2]; 2],
            dnssec_requests: 0,
            responses: [[0; CODES]; Written::ALL.len()],
            request_sizes: [requests("udp"), requests("tcp")],
            response_sizes: [responses("udp"), responses("tcp")],
            durations: metrics.duration().local(),
            answers: Vec::new(),
            limited: 0,
            panics: 0,
            waiting: None,
            metrics: metrics.clone(),
        }
    }

    /// A packet came.
    pub fn seen(&mut self, seen: Seen) {
        let transport = seen.transport as usize;
        let family = usize::from(seen.source.is_ipv6());
        let kind = seen.type_number.map_or(OTHER + 1, index_of);
        self.requests[transport][family][kind] += 1;
        self.dnssec_requests += u64::from(seen.dnssec_ok);
        self.request_sizes[transport].observe(seen.size as f64);
    }

    /// An answer goes.
    pub fn told(&mut self, told: Told) {
        let code = usize::from(told.code.0).min(CODES - 1);
        self.responses[told.written as usize][code] += 1;
        self.response_sizes[told.transport as usize].observe(told.size as f64);
    }

    /// So many answers took so long.
    pub fn took(&mut self, answers: usize, took: Duration) {
        let seconds = took.as_secs_f64();
        (0..answers).for_each(|_| self.durations.observe(seconds));
    }

    /// Endpoints were chosen by place.
    pub fn chosen(&mut self, tier: &'static str, located: &'static str) {
        let known = self.answers.iter_mut().find(|(t, l, _)| *t == tier && *l == located);
        match known {
            Some((_, _, count)) => *count += 1,
            None => self.answers.push((tier, located, 1)),
        }
    }

    /// An error was not sent.
    pub fn limited(&mut self) {
        self.limited += 1;
    }

    /// An answer panicked.
    pub fn panicked(&mut self) {
        self.panics += 1;
    }

    /// Shows others what was counted, if that is due.
    pub fn flush_if_due(&mut self, now: Instant) {
        match self.waiting {
            None => self.waiting = Some(now),
            Some(since) if now.saturating_duration_since(since) >= EVERY => self.flush(),
            Some(_) => {}
        }
    }

    /// Shows others what was counted.
    pub fn flush(&mut self) {
        self.waiting = None;
        self.flush_requests();
        self.flush_responses();
        for histogram in self.request_sizes.iter().chain(&self.response_sizes) {
            histogram.flush();
        }
        self.durations.flush();
        for (tier, located, count) in self.answers.drain(..) {
            self.metrics.answers.with_label_values(&[tier, located]).inc_by(count);
        }
        self.metrics.dnssec_requests.inc_by(std::mem::take(&mut self.dnssec_requests));
        self.metrics.limited.inc_by(std::mem::take(&mut self.limited));
        self.metrics.panics.inc_by(std::mem::take(&mut self.panics));
    }

    fn flush_requests(&mut self) {
        for (families, proto) in self.requests.iter_mut().zip(["udp", "tcp"]) {
            for (kinds, family) in families.iter_mut().zip(["1", "2"]) {
                for (kind, count) in kinds.iter_mut().enumerate().filter(|(_, count)| **count > 0) {
                    let zone = if kind > OTHER { DROPPED } else { ZONE };
                    let name = TYPES.get(kind).map_or("other", |(_, name)| name);
                    let labels = [&*self.metrics.server, zone, VIEW, proto, family, name];
                    let counter = self.metrics.requests.with_label_values(&labels);
                    counter.inc_by(std::mem::take(count));
                }
            }
        }
    }

    fn flush_responses(&mut self) {
        for (codes, written) in self.responses.iter_mut().zip(Written::ALL) {
            for (code, count) in codes.iter_mut().enumerate().filter(|(_, count)| **count > 0) {
                let code = Rcode(code as u16).as_str();
                let labels = [&*self.metrics.server, written.zone(), VIEW, code, written.plugin()];
                let counter = self.metrics.responses.with_label_values(&labels);
                counter.inc_by(std::mem::take(count));
            }
        }
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        self.flush();
    }
}

fn index_of(type_number: u16) -> usize {
    TYPES.iter().position(|(number, _)| *number == type_number).unwrap_or(OTHER)
}

#[cfg(test)]
mod tests {
    use nearhop_runtime::metrics::Metrics;

    use super::*;

    #[test]
    fn series_have_the_names_that_dashboards_look_for() {
        let metrics = Metrics::new();
        let mut tally = DnsMetrics::new(&metrics, "dns://:53").tally();
        let (transport, source) = (Transport::Udp, IpAddr::from([10, 0, 0, 1]));
        let seen = Seen { transport, source, size: 50, type_number: Some(28), dnssec_ok: true };
        tally.seen(seen);
        tally.seen(Seen { type_number: None, transport: Transport::Tcp, ..seen });
        tally.told(Told {
            transport,
            size: 90,
            code: Rcode::NX_DOMAIN,
            written: Written::Kubernetes,
        });
        tally.told(Told { transport, size: 12, code: Rcode::FORM_ERR, written: Written::Dropped });
        tally.took(2, Duration::from_micros(300));
        tally.chosen("key", "locator");
        tally.flush();
        let text = metrics.encode();
        for line in [
            "coredns_dns_requests_total{family=\"1\",proto=\"udp\",server=\"dns://:53\",type=\"AAAA\",view=\"\",zone=\".\"} 1",
            "coredns_dns_requests_total{family=\"1\",proto=\"tcp\",server=\"dns://:53\",type=\"other\",view=\"\",zone=\"dropped\"} 1",
            "coredns_dns_do_requests_total{server=\"dns://:53\",view=\"\",zone=\".\"} 2",
            "coredns_dns_responses_total{plugin=\"kubernetes\",rcode=\"NXDOMAIN\",server=\"dns://:53\",view=\"\",zone=\".\"} 1",
            "coredns_dns_responses_total{plugin=\"\",rcode=\"FORMERR\",server=\"dns://:53\",view=\"\",zone=\"dropped\"} 1",
            "coredns_dns_request_duration_seconds_bucket{server=\"dns://:53\",view=\"\",zone=\".\",le=\"0.0005\"} 2",
            "coredns_dns_response_size_bytes_bucket{proto=\"udp\",server=\"dns://:53\",view=\"\",zone=\".\",le=\"100\"} 2",
            "nearhop_dns_answers_total{located=\"locator\",tier=\"key\"} 1",
            "coredns_panics_total 0",
        ] {
            assert!(text.contains(&format!("{line}\n")), "{line}\n{text}");
        }
    }
}
