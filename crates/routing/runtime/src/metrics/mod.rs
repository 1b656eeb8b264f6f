//! A registry of metrics in the Prometheus text format. Metrics keep exactly the names they are
//! given.
//!
//! This module has the series that every Kubernetes component has; a daemon registers the metrics
//! of its own work. nearhop only writes metrics and never reads their values back.

mod contact;
mod process;
mod rest;
mod workqueue;

use std::fmt;
use std::sync::{Arc, OnceLock};

use prometheus::core::Collector;
pub use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, exponential_buckets,
};
use prometheus::{HistogramOpts, Opts, Registry, TextEncoder};

pub(crate) use crate::metrics::contact::ContactLayer;
use crate::metrics::contact::ContactSeries;
use crate::metrics::rest::RestMetricsLayer;
use crate::metrics::rest::RestSeries;
use crate::metrics::workqueue::WorkqueueSeries;
pub use crate::metrics::workqueue::{Work, WorkqueueMetrics};

/// The content type of [`Metrics::encode`].
pub const CONTENT_TYPE_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A registry. Clones are cheap and share it.
#[derive(Clone, Default)]
pub struct Metrics(Arc<Inner>);

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// The first owner of a shared series registers it.
#[derive(Default)]
struct Inner {
    registry: Registry,
    workqueue: OnceLock<WorkqueueSeries>,
    rest: OnceLock<RestSeries>,
    contact: OnceLock<ContactSeries>,
    leader: OnceLock<GaugeVec>,
}

/// A wrong registration does not depend on input: the first test that runs finds it.
const REGISTERED: &str = "a metric has a valid name and is registered once";

impl Metrics {
    /// An empty registry, for a part of a process.
    pub fn new() -> Self {
        Self::default()
    }

    /// A registry with the metrics of the process: CPU time, memory, start time, open files.
    pub fn of_process() -> Self {
        let metrics = Self::new();
        metrics.0.registry.register(Box::new(process::ProcessCollector::new())).expect(REGISTERED);
        metrics
    }

    /// The build of this process, as labels of a metric that is 1.
    pub fn build_info(&self, version: &str, commit: &str, rustc: &str) {
        let help = "A metric with a constant '1' value labeled by version, commit and Rust compiler \
                    of this build.";
        let series = self.gauge_vec("nearhop_build_info", help, &["version", "commit", "rustc"]);
        series.with_label_values(&[version, commit, rustc]).set(1.0);
    }

    /// All metrics as text, ordered by name.
    pub fn encode(&self) -> String {
        if let Some(series) = self.0.workqueue.get() {
            series.refresh();
        }
        if let Some(series) = self.0.contact.get() {
            series.refresh();
        }
        let families = self.0.registry.gather();
        TextEncoder::new().encode_to_string(&families).expect("gathered metrics can be written")
    }

    /// A counter. Like all registrations, panics if the name is not valid or already registered.
    pub fn counter(&self, name: &str, help: &str) -> IntCounter {
        self.register(IntCounter::new(name, help))
    }

    /// Counters, one for each combination of labels.
    pub fn counter_vec(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.register(IntCounterVec::new(Opts::new(name, help), labels))
    }

    /// A value that goes up and down.
    pub fn gauge(&self, name: &str, help: &str) -> Gauge {
        self.register(Gauge::new(name, help))
    }

    /// Values that go up and down, one for each combination of labels.
    pub fn gauge_vec(&self, name: &str, help: &str, labels: &[&str]) -> GaugeVec {
        self.register(GaugeVec::new(Opts::new(name, help), labels))
    }

    /// A distribution.
    pub fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Histogram {
        let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        self.register(Histogram::with_opts(options))
    }

    /// Distributions, one for each combination of labels.
    pub fn histogram_vec(
        &self,
        name: &str,
        help: &str,
        buckets: &[f64],
        labels: &[&str],
    ) -> HistogramVec {
        let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        self.register(HistogramVec::new(options, labels))
    }

    /// Whether this process leads the election of that name: 1 or 0.
    pub fn leader_election_master_status(&self, name: &str) -> Gauge {
        let series = self.0.leader.get_or_init(|| {
            let help = "Gauge of if the reporting system is master of the relevant lease, \
                        0 indicates backup, 1 indicates master.";
            self.gauge_vec("leader_election_master_status", help, &["name"])
        });
        series.with_label_values(&[name])
    }

    /// Counts a client's requests to the API server at `host`.
    pub(crate) fn rest_client(&self, host: &str) -> RestMetricsLayer {
        let series = self.0.rest.get_or_init(|| RestSeries::register(self));
        RestMetricsLayer::new(series.clone(), host)
    }

    /// Records when each watch of a client last received data from the API server.
    pub(crate) fn watch_contact(&self) -> ContactLayer {
        let series = self.0.contact.get_or_init(|| ContactSeries::register(self));
        ContactLayer(Some(series.clone()))
    }

    fn register<C: Collector + Clone + 'static>(&self, made: prometheus::Result<C>) -> C {
        let collector = made.expect(REGISTERED);
        self.0.registry.register(Box::new(collector.clone())).expect(REGISTERED);
        collector
    }
}

/// Whether a request to the API server starts a watch.
fn is_watch<B>(request: &http::Request<B>) -> bool {
    let mut parameters = request.uri().query().unwrap_or_default().split('&');
    parameters.any(|text| matches!(text, "watch=true" | "watch=1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_names_get_no_suffix() {
        let metrics = Metrics::new();
        let changes = metrics.counter_vec("endpoint_slice_controller_changes", "C", &["operation"]);
        changes.with_label_values(&["create"]).inc();
        metrics.gauge("b", "B").set(1.5);
        metrics.histogram("a_seconds", "A", &[0.5, 1.0]).observe(0.7);
        let text = metrics.encode();
        for line in [
            "endpoint_slice_controller_changes{operation=\"create\"} 1\n",
            "# TYPE endpoint_slice_controller_changes counter\n",
            "\nb 1.5\n",
            "a_seconds_bucket{le=\"1\"} 1\n",
        ] {
            assert!(text.contains(line), "{line} in:\n{text}");
        }
    }

    #[test]
    fn empty_registry_and_empty_vectors_are_encoded() {
        let metrics = Metrics::new();
        assert_eq!(metrics.encode(), "");
        let _unused = metrics.counter_vec("c", "C", &["label"]);
        assert_eq!(metrics.encode(), "");
    }

    #[test]
    #[should_panic(expected = "registered once")]
    fn registering_a_name_twice_panics() {
        let metrics = Metrics::new();
        let _first = metrics.counter("c", "C");
        let _second = metrics.counter("c", "C");
    }

    #[test]
    fn elections_share_one_metric() {
        let metrics = Metrics::new();
        metrics.leader_election_master_status("a").set(1.0);
        metrics.leader_election_master_status("b").set(0.0);
        let text = metrics.encode();
        assert!(text.contains("leader_election_master_status{name=\"a\"} 1\n"), "{text}");
        assert!(text.contains("leader_election_master_status{name=\"b\"} 0\n"), "{text}");
    }
}
