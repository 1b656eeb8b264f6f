//! Metrics, under the names of kube-apiserver.

use std::time::Duration;

use nearhop_kinds::Verb;
use nearhop_runtime::metrics::{Gauge, GaugeVec, HistogramVec, IntCounterVec, Metrics as Registry};

const BUCKETS: [f64; 11] = [0.000_1, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0];

pub(crate) struct Metrics {
    registry: Registry,
    requests: IntCounterVec,
    durations: HistogramVec,
    objects: GaugeVec,
    watchers: GaugeVec,
    version: Gauge,
}

impl Metrics {
    pub(crate) fn new(registry: Registry) -> Self {
        Self {
            requests: registry.counter_vec(
                "apiserver_request_total",
                "Requests by verb, resource and code",
                &["verb", "resource", "code"],
            ),
            durations: registry.histogram_vec(
                "apiserver_request_duration_seconds",
                "Duration of requests, without watches",
                &BUCKETS,
                &["verb"],
            ),
            objects: registry.gauge_vec(
                "apiserver_storage_objects",
                "Stored objects",
                &["resource"],
            ),
            watchers: registry.gauge_vec(
                "apiserver_longrunning_requests",
                "Open watches",
                &["resource"],
            ),
            version: registry.gauge("nearhop_apiserver_resource_version", "Newest resourceVersion"),
            registry,
        }
    }

    /// Counts a request. `resource` is the plural, empty for paths without a resource.
    pub(crate) fn finished(&self, verb: Verb, resource: &str, code: u16, took: Duration) {
        if verb != Verb::Watch {
            self.durations.with_label_values(&[verb.as_str()]).observe(took.as_secs_f64());
        }
        self.requests.with_label_values(&[verb.as_str(), resource, &code.to_string()]).inc();
    }

    /// An open watch, counted until the guard is dropped.
    pub(crate) fn watching(&self, resource: &str) -> WatchGuard {
        let gauge = self.watchers.with_label_values(&[resource]);
        gauge.inc();
        WatchGuard(gauge)
    }

    pub(crate) fn render<'a>(
        &self,
        version: u64,
        counts: impl Iterator<Item = (&'a str, usize)>,
    ) -> String {
        for (storage, count) in counts {
            self.objects.with_label_values(&[storage]).set(count as f64);
        }
        self.version.set(version as f64);
        self.registry.encode()
    }
}

pub(crate) struct WatchGuard(Gauge);

impl Drop for WatchGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_names_match_kubernetes() {
        let metrics = Metrics::new(Registry::new());
        metrics.finished(Verb::Get, "pods", 200, Duration::from_millis(3));
        let open = metrics.watching("nodes");
        let text = metrics.render(42, [("pods", 7)].into_iter());
        for line in [
            "apiserver_request_total{code=\"200\",resource=\"pods\",verb=\"get\"} 1",
            "apiserver_request_duration_seconds_count{verb=\"get\"} 1",
            "apiserver_storage_objects{resource=\"pods\"} 7",
            "apiserver_longrunning_requests{resource=\"nodes\"} 1",
            "nearhop_apiserver_resource_version 42",
        ] {
            assert!(text.contains(&format!("{line}\n")), "{line} in:\n{text}");
        }
        drop(open);
        let text = metrics.render(42, std::iter::empty());
        assert!(text.contains("apiserver_longrunning_requests{resource=\"nodes\"} 0\n"), "{text}");
    }
}
