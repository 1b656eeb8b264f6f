//! What the server counts of itself, under the names that Kubernetes' dashboards look for.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// A finished request.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct RequestLabels {
    pub(crate) verb: &'static str,
    pub(crate) resource: String,
    pub(crate) code: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct VerbLabels {
    verb: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ResourceLabels {
    resource: String,
}

/// The server's metrics.
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    durations: Family<VerbLabels, Histogram>,
    objects: Family<ResourceLabels, Gauge>,
    watchers: Family<ResourceLabels, Gauge>,
    version: Gauge,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::default();
        let requests = Family::default();
        registry.register("apiserver_request", "Requests that were answered", requests.clone());
        let durations: Family<VerbLabels, Histogram> = Family::new_with_constructor(|| {
            Histogram::new([0.000_1, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0])
        });
        registry.register(
            "apiserver_request_duration_seconds",
            "Time to answer a request, watches left out",
            durations.clone(),
        );
        let objects = Family::default();
        registry.register("apiserver_storage_objects", "Stored objects", objects.clone());
        let watchers = Family::default();
        registry.register("apiserver_longrunning_requests", "Open watches", watchers.clone());
        let version = Gauge::default();
        registry.register(
            "nearhop_apiserver_resource_version",
            "The newest resourceVersion",
            version.clone(),
        );
        Self { registry, requests, durations, objects, watchers, version }
    }

    pub(crate) fn finished(&self, labels: RequestLabels, took: Duration) {
        if labels.verb != "watch" {
            let verb = VerbLabels { verb: labels.verb };
            self.durations.get_or_create(&verb).observe(took.as_secs_f64());
        }
        self.requests.get_or_create(&labels).inc();
    }

    /// An open watch, counted until the guard is dropped.
    pub(crate) fn watching(&self, resource: &str) -> WatchGuard {
        let gauge =
            self.watchers.get_or_create_owned(&ResourceLabels { resource: resource.to_owned() });
        gauge.inc();
        WatchGuard(gauge)
    }

    pub(crate) fn render<'a>(
        &self,
        version: u64,
        counts: impl Iterator<Item = (&'a str, usize)>,
    ) -> String {
        for (storage, count) in counts {
            let labels = ResourceLabels { resource: storage.to_owned() };
            self.objects.get_or_create(&labels).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        self.version.set(i64::try_from(version).unwrap_or(i64::MAX));
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("metrics are written to memory");
        text
    }
}

/// Counts one open watch.
pub(crate) struct WatchGuard(Gauge);

impl Drop for WatchGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}
