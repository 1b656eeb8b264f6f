//! Counters of one thread, added to the shared metrics every 250 ms: a query must not pay for a
//! dozen shared counters.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use prometheus::local::LocalHistogram;

use super::{DROPPED, DnsMetrics, VIEW, ZONE};
use crate::wire::{Rcode, Transport};

/// Interval at which counts are added to the shared metrics.
const EVERY: Duration = Duration::from_millis(250);

/// Record types that have a name in metrics.
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
/// The index of all other types.
const OTHER: usize = TYPES.len();
/// Codes up to 16 are counted by number, all others together.
const CODES: usize = 18;

/// What produced a reply: CoreDNS' `plugin` label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnsweredBy {
    /// The cluster's state.
    Kubernetes,
    /// An upstream server.
    Forward,
    /// The cache.
    Cache,
    /// The server itself: an error.
    Server,
    /// The server itself: an error for a packet that is not a query.
    Dropped,
}

impl AnsweredBy {
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

/// A received packet, as counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestSample {
    pub(crate) transport: Transport,
    pub(crate) source: IpAddr,
    pub(crate) size: usize,
    /// The requested type; None if the packet is not a query.
    pub(crate) type_number: Option<u16>,
    pub(crate) dnssec_ok: bool,
}

/// A reply, as counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponseSample {
    pub(crate) transport: Transport,
    pub(crate) size: usize,
    pub(crate) code: Rcode,
    pub(crate) by: AnsweredBy,
}

/// Counters of one thread.
pub struct Tally {
    metrics: DnsMetrics,
    /// By transport, family and type; the last type is that of packets that are not queries.
    requests: [[[u64; OTHER + 2]; 2]; 2],
    dnssec_requests: u64,
    responses: [[u64; CODES]; AnsweredBy::ALL.len()],
    request_sizes: [LocalHistogram; 2],
    response_sizes: [LocalHistogram; 2],
    durations: LocalHistogram,
    answers: Vec<(&'static str, &'static str, u64)>,
    limited: u64,
    panics: u64,
    /// When the first count since the last flush was made.
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
            responses: [[0; CODES]; AnsweredBy::ALL.len()],
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

    pub(crate) fn count_request(&mut self, request: RequestSample) {
        let transport = request.transport as usize;
        let family = usize::from(request.source.is_ipv6());
        let kind = request.type_number.map_or(OTHER + 1, index_of);
        self.requests[transport][family][kind] += 1;
        self.dnssec_requests += u64::from(request.dnssec_ok);
        self.request_sizes[transport].observe(request.size as f64);
    }

    pub(crate) fn count_response(&mut self, response: ResponseSample) {
        let code = usize::from(response.code.0).min(CODES - 1);
        self.responses[response.by as usize][code] += 1;
        self.response_sizes[response.transport as usize].observe(response.size as f64);
    }

    /// Observes the duration of a batch of replies.
    pub(crate) fn observe_duration(&mut self, replies: usize, took: Duration) {
        let seconds = took.as_secs_f64();
        (0..replies).for_each(|_| self.durations.observe(seconds));
    }

    /// Counts an answer with endpoints chosen by topology.
    pub(crate) fn count_choice(&mut self, tier: &'static str, located: &'static str) {
        let known = self.answers.iter_mut().find(|(t, l, _)| *t == tier && *l == located);
        match known {
            Some((_, _, count)) => *count += 1,
            None => self.answers.push((tier, located, 1)),
        }
    }

    pub(crate) fn count_limited(&mut self) {
        self.limited += 1;
    }

    pub(crate) fn count_panic(&mut self) {
        self.panics += 1;
    }

    pub(crate) fn flush_if_due(&mut self, now: Instant) {
        match self.waiting {
            None => self.waiting = Some(now),
            Some(since) if now.saturating_duration_since(since) >= EVERY => self.flush(),
            Some(_) => {}
        }
    }

    /// Adds the counts to the shared metrics.
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
        for (codes, by) in self.responses.iter_mut().zip(AnsweredBy::ALL) {
            for (code, count) in codes.iter_mut().enumerate().filter(|(_, count)| **count > 0) {
                let code = Rcode(code as u16).as_str();
                let labels = [&*self.metrics.server, by.zone(), VIEW, code, by.plugin()];
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
    fn metrics_have_the_names_of_coredns() {
        let metrics = Metrics::new();
        let mut tally = DnsMetrics::new(&metrics, "dns://:53").tally();
        let (transport, source) = (Transport::Udp, IpAddr::from([10, 0, 0, 1]));
        let request =
            RequestSample { transport, source, size: 50, type_number: Some(28), dnssec_ok: true };
        tally.count_request(request);
        let not_a_query = RequestSample { type_number: None, transport: Transport::Tcp, ..request };
        tally.count_request(not_a_query);
        let (code, by) = (Rcode::NX_DOMAIN, AnsweredBy::Kubernetes);
        tally.count_response(ResponseSample { transport, size: 90, code, by });
        let (code, by) = (Rcode::FORM_ERR, AnsweredBy::Dropped);
        tally.count_response(ResponseSample { transport, size: 12, code, by });
        tally.observe_duration(2, Duration::from_micros(300));
        tally.count_choice("key", "locator");
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
