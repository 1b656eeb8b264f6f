//! What the server counts, under the names of CoreDNS, so that dashboards that know that one know
//! this one; what CoreDNS has no name for is under `nearhop_dns_`.
//!
//! Labels have CoreDNS' values: the server as `dns://:53`, the zone as `.` (it means the block of
//! the configuration file, of which there is one), no view. Packets that are no questions count
//! under the zone `dropped`.

mod tally;

use std::time::Duration;

use nearhop_runtime::metrics::{
    Gauge, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, Metrics,
    exponential_buckets,
};

pub use tally::{Seen, Tally, Told, Written};

/// Sizes of messages.
const SIZES: [f64; 14] = [
    0.0, 100.0, 200.0, 300.0, 400.0, 511.0, 1023.0, 2047.0, 4095.0, 8291.0, 16000.0, 32000.0,
    48000.0, 64000.0,
];
/// The zone of all questions.
const ZONE: &str = ".";
/// The zone of packets that are none.
const DROPPED: &str = "dropped";
const VIEW: &str = "";

/// Which store of the cache, as CoreDNS has two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// Answers with data.
    Success,
    /// Denials and failures.
    Denial,
}

impl Store {
    fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Denial => "denial",
        }
    }
}

/// The server's series. Clones share them.
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
    cache: CacheSeries,
    upstream_durations: HistogramVec,
    upstream_failures: IntCounterVec,
    rejected: IntCounter,
    answers: IntCounterVec,
    limited: IntCounter,
    connections: Gauge,
    evicted: IntCounter,
}

#[derive(Clone)]
struct CacheSeries {
    entries: GaugeVec,
    hits: IntCounterVec,
    requests: IntCounter,
    misses: IntCounter,
}

impl DnsMetrics {
    /// Registers everything; `server` is how the server is named, such as `dns://:53`.
    ///
    /// # Panics
    /// It is registered already.
    #[must_use]
    pub fn new(metrics: &Metrics, server: &str) -> Self {
        let counters =
            |name: &str, help: &str, labels: &[&str]| metrics.counter_vec(name, help, labels);
        let place = ["server", "zone", "view"];
        let with = |more: &[&'static str]| [&place[..], more].concat();
        let times = exponential_buckets(0.00025, 2.0, 16).expect("a valid range");
        let changes = exponential_buckets(0.001, 2.0, 20).expect("a valid range");
        let histograms = |name: &str, help: &str, buckets: &[f64], labels: &[&str]| {
            metrics.histogram_vec(name, help, buckets, labels)
        };
        let dnssec_requests =
            counters("coredns_dns_do_requests_total", "Questions with the DO bit", &place);
        Self {
            server: server.to_owned(),
            requests: counters(
                "coredns_dns_requests_total",
                "Questions",
                &with(&["proto", "family", "type"]),
            ),
            dnssec_requests: dnssec_requests.with_label_values(&[server, ZONE, VIEW]),
            durations: histograms(
                "coredns_dns_request_duration_seconds",
                "Time from a question to its answer",
                &times,
                &place,
            ),
            request_sizes: histograms(
                "coredns_dns_request_size_bytes",
                "Sizes of questions",
                &SIZES,
                &with(&["proto"]),
            ),
            response_sizes: histograms(
                "coredns_dns_response_size_bytes",
                "Sizes of answers",
                &SIZES,
                &with(&["proto"]),
            ),
            responses: counters(
                "coredns_dns_responses_total",
                "Answers, by their code",
                &with(&["rcode", "plugin"]),
            ),
            panics: metrics.counter("coredns_panics_total", "Packets whose answer panicked"),
            programming: histograms(
                "coredns_kubernetes_dns_programming_duration_seconds",
                "Time from a change of endpoints to the answers that show it",
                &changes,
                &["service_kind"],
            ),
            cache: CacheSeries::register(metrics, server),
            upstream_durations: histograms(
                "coredns_proxy_request_duration_seconds",
                "Time that other servers took to answer",
                &times,
                &["proxy_name", "to", "rcode"],
            ),
            upstream_failures: counters(
                "coredns_proxy_healthcheck_failures_total",
                "Failed probes of other servers",
                &["proxy_name", "to"],
            ),
            rejected: metrics.counter(
                "coredns_forward_max_concurrent_rejects_total",
                "Questions that were refused because too many waited for other servers",
            ),
            answers: counters(
                "nearhop_dns_answers_total",
                "Answers whose endpoints were chosen by place: which, and how the asker was found",
                &["tier", "located"],
            ),
            limited: metrics.counter(
                "nearhop_dns_errors_limited_total",
                "Errors that were not sent, because their source had too many",
            ),
            connections: metrics.gauge("nearhop_dns_tcp_connections", "Open TCP connections"),
            evicted: metrics.counter(
                "nearhop_dns_tcp_evicted_total",
                "TCP connections that were closed to make room",
            ),
        }
    }

    /// Counters for one thread.
    #[must_use]
    pub fn tally(&self) -> Tally {
        Tally::new(self)
    }

    /// A change of endpoints is in the answers.
    pub(crate) fn programmed(&self, service_kind: &str, took: Duration) {
        self.programming.with_label_values(&[service_kind]).observe(took.as_secs_f64());
    }

    /// Another server has answered.
    pub(crate) fn asked_upstream(&self, to: &str, code: &str, took: Duration) {
        self.upstream_durations
            .with_label_values(&["forward", to, code])
            .observe(took.as_secs_f64());
    }

    /// Another server did not answer a probe.
    pub(crate) fn probe_failed(&self, to: &str) {
        self.upstream_failures.with_label_values(&["forward", to]).inc();
    }

    /// Too many questions wait for other servers.
    pub(crate) fn rejected(&self) {
        self.rejected.inc();
    }

    /// A question was looked for in the cache.
    pub(crate) fn cache_asked(&self, found: Option<Store>) {
        self.cache.requests.inc();
        match found {
            Some(store) => self
                .cache
                .hits
                .with_label_values(&[&*self.server, store.as_str(), ZONE, VIEW])
                .inc(),
            None => self.cache.misses.inc(),
        }
    }

    /// So many answers are in a store of the cache.
    pub(crate) fn cached(&self, store: Store, entries: usize) {
        let labels = [&*self.server, store.as_str(), ZONE, VIEW];
        self.cache.entries.with_label_values(&labels).set(entries as f64);
    }

    /// So many TCP connections are open.
    pub(crate) fn connections(&self, open: usize) {
        self.connections.set(open as f64);
    }

    /// A TCP connection had to make room.
    pub(crate) fn evicted(&self) {
        self.evicted.inc();
    }

    fn duration(&self) -> Histogram {
        self.durations.with_label_values(&[&*self.server, ZONE, VIEW])
    }
}

impl CacheSeries {
    fn register(metrics: &Metrics, server: &str) -> Self {
        let labels = ["server", "type", "zones", "view"];
        let whole = ["server", "zones", "view"];
        let of_all = |name: &str, help: &str| {
            metrics.counter_vec(name, help, &whole).with_label_values(&[server, ZONE, VIEW])
        };
        Self {
            entries: metrics.gauge_vec(
                "coredns_cache_entries",
                "Answers of others that are kept",
                &labels,
            ),
            hits: metrics.counter_vec(
                "coredns_cache_hits_total",
                "Questions that the cache answered",
                &labels,
            ),
            requests: of_all("coredns_cache_requests_total", "Questions to the cache"),
            misses: of_all("coredns_cache_misses_total", "Questions that the cache did not answer"),
        }
    }
}
