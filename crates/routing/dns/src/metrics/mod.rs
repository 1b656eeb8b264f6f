//! Metrics, under CoreDNS' names where CoreDNS has them, so that its dashboards work; others start
//! with `nearhop_dns_`.
//!
//! Labels have CoreDNS' values: server `dns://:53`, zone `.` (CoreDNS' server block, of which there
//! is one), an empty view. Packets that are not queries have the zone `dropped`.

mod tally;

use std::time::Duration;

use nearhop_runtime::metrics::{
    Gauge, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, Metrics,
    exponential_buckets,
};

pub use tally::Tally;
pub(crate) use tally::{AnsweredBy, RequestSample, ResponseSample};

/// Buckets for message sizes.
const SIZES: [f64; 14] = [
    0.0, 100.0, 200.0, 300.0, 400.0, 511.0, 1023.0, 2047.0, 4095.0, 8291.0, 16000.0, 32000.0,
    48000.0, 64000.0,
];
/// The zone of queries.
const ZONE: &str = ".";
/// The zone of packets that are not queries.
const DROPPED: &str = "dropped";
const VIEW: &str = "";

/// The `type` label of the cache metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheType {
    /// Responses with data.
    Success,
    /// Denials and failures.
    Denial,
}

impl CacheType {
    fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Denial => "denial",
        }
    }
}

/// The server's metrics. Clones share them.
#[derive(Clone)]
pub struct DnsMetrics {
    server: String,
    requests: IntCounterVec,
    dnssec_requests: IntCounter,
    durations: HistogramVec,
    request_sizes: HistogramVec,
    response_sizes: HistogramVec,
    responses: IntCounterVec,
    panics: IntCounter,
    programming: HistogramVec,
    cache_entries: GaugeVec,
    cache_hits: IntCounterVec,
    cache_requests: IntCounter,
    cache_misses: IntCounter,
    upstream_durations: HistogramVec,
    upstream_failures: IntCounterVec,
    rejected: IntCounter,
    answers: IntCounterVec,
    limited: IntCounter,
    connections: Gauge,
    evicted: IntCounter,
}

impl DnsMetrics {
    /// Registers the metrics; `server` is the server label, such as `dns://:53`.
    ///
    /// # Panics
    /// They are registered already.
    pub fn new(metrics: &Metrics, server: &str) -> Self {
        let counters = |name, help, labels: &[&str]| metrics.counter_vec(name, help, labels);
        let histograms = |name, help, buckets: &[f64], labels: &[&str]| {
            metrics.histogram_vec(name, help, buckets, labels)
        };
        let place = ["server", "zone", "view"];
        let with = |more: &[&'static str]| [&place[..], more].concat();
        let times = exponential_buckets(0.00025, 2.0, 16).expect("a valid range");
        let changes = exponential_buckets(0.001, 2.0, 20).expect("a valid range");
        let of_server = |name, help, labels: [&str; 3]| {
            counters(name, help, &labels).with_label_values(&[server, ZONE, VIEW])
        };
        let cache = ["server", "type", "zones", "view"];
        let cache_total = ["server", "zones", "view"];
        Self {
            server: server.to_owned(),
            requests: counters(
                "coredns_dns_requests_total",
                "DNS queries received.",
                &with(&["proto", "family", "type"]),
            ),
            dnssec_requests: of_server(
                "coredns_dns_do_requests_total",
                "DNS queries with the DO bit.",
                place,
            ),
            durations: histograms(
                "coredns_dns_request_duration_seconds",
                "Time from a query to its reply.",
                &times,
                &place,
            ),
            request_sizes: histograms(
                "coredns_dns_request_size_bytes",
                "Size of queries.",
                &SIZES,
                &with(&["proto"]),
            ),
            response_sizes: histograms(
                "coredns_dns_response_size_bytes",
                "Size of replies.",
                &SIZES,
                &with(&["proto"]),
            ),
            responses: counters(
                "coredns_dns_responses_total",
                "Replies by response code.",
                &with(&["rcode", "plugin"]),
            ),
            panics: metrics.counter("coredns_panics_total", "Queries whose handling panicked."),
            programming: histograms(
                "coredns_kubernetes_dns_programming_duration_seconds",
                "Time from a change of endpoints until answers show it.",
                &changes,
                &["service_kind"],
            ),
            cache_entries: metrics.gauge_vec(
                "coredns_cache_entries",
                "Cached upstream responses.",
                &cache,
            ),
            cache_hits: counters(
                "coredns_cache_hits_total",
                "Queries answered from the cache.",
                &cache,
            ),
            cache_requests: of_server(
                "coredns_cache_requests_total",
                "Cache lookups.",
                cache_total,
            ),
            cache_misses: of_server(
                "coredns_cache_misses_total",
                "Cache lookups without a result.",
                cache_total,
            ),
            upstream_durations: histograms(
                "coredns_proxy_request_duration_seconds",
                "Time that upstream servers took to respond.",
                &times,
                &["proxy_name", "to", "rcode"],
            ),
            upstream_failures: counters(
                "coredns_proxy_healthcheck_failures_total",
                "Failed health probes of upstream servers.",
                &["proxy_name", "to"],
            ),
            rejected: metrics.counter(
                "coredns_forward_max_concurrent_rejects_total",
                "Queries rejected because too many wait for upstream servers.",
            ),
            answers: counters(
                "nearhop_dns_answers_total",
                "Answers with endpoints chosen by topology, by tier and by how the client was located.",
                &["tier", "located"],
            ),
            limited: metrics.counter(
                "nearhop_dns_errors_limited_total",
                "Error replies not sent because of the rate limit of their source.",
            ),
            connections: metrics.gauge("nearhop_dns_tcp_connections", "Open TCP connections."),
            evicted: metrics.counter(
                "nearhop_dns_tcp_evicted_total",
                "TCP connections closed to make room for new ones.",
            ),
        }
    }

    /// Counters for one thread.
    pub fn tally(&self) -> Tally {
        Tally::new(self)
    }

    pub(crate) fn programmed(&self, service_kind: &str, took: Duration) {
        self.programming.with_label_values(&[service_kind]).observe(took.as_secs_f64());
    }

    pub(crate) fn asked_upstream(&self, to: &str, code: &str, took: Duration) {
        self.upstream_durations
            .with_label_values(&["forward", to, code])
            .observe(took.as_secs_f64());
    }

    pub(crate) fn probe_failed(&self, to: &str) {
        self.upstream_failures.with_label_values(&["forward", to]).inc();
    }

    pub(crate) fn rejected(&self) {
        self.rejected.inc();
    }

    pub(crate) fn cache_lookup(&self, found: Option<CacheType>) {
        self.cache_requests.inc();
        match found {
            Some(hit) => self.cache_hits.with_label_values(&self.cache_labels(hit)).inc(),
            None => self.cache_misses.inc(),
        }
    }

    pub(crate) fn cache_entries(&self, of: CacheType, entries: usize) {
        self.cache_entries.with_label_values(&self.cache_labels(of)).set(entries as f64);
    }

    fn cache_labels(&self, of: CacheType) -> [&str; 4] {
        [&self.server, of.as_str(), ZONE, VIEW]
    }

    pub(crate) fn connections(&self, open: usize) {
        self.connections.set(open as f64);
    }

    pub(crate) fn evicted(&self) {
        self.evicted.inc();
    }

    fn duration(&self) -> Histogram {
        self.durations.with_label_values(&[&*self.server, ZONE, VIEW])
    }
}
