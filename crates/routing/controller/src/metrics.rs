//! The metrics of the controller. They have the names of Kubernetes' own EndpointSlice controller,
//! so that its dashboards work with nearhop.
//!
//! One difference: gauges count both IP families of a dual-stack Service, while upstream the second
//! family overwrites the first.

use std::collections::BTreeMap;

use nearhop_core::intent::Spelling;
use nearhop_core::{Intent, IntentDecision, Name, ServiceKey, SlicePlan};
use nearhop_runtime::metrics::{
    Gauge, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, Metrics,
    exponential_buckets,
};

/// The share of one Service in the gauges.
#[derive(Clone, Debug, Default, PartialEq)]
struct Record {
    desired_endpoints: usize,
    num_slices: usize,
    desired_slices: usize,
    traffic_distribution: Option<Name>,
}

/// The result of a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SyncResult {
    Success,
    /// Another client wrote in the meantime, and the controller read the slice again.
    Stale,
    Error,
}

/// The kind of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Update,
    Delete,
}

impl Operation {
    /// The value of the label.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => "delete",
        }
    }
}

/// The controller's metrics.
pub(crate) struct ControllerMetrics {
    endpoints_added: Histogram,
    endpoints_removed: Histogram,
    endpoints_desired: Gauge,
    num_slices: Gauge,
    desired_slices: Gauge,
    by_traffic_distribution: GaugeVec,
    changes: IntCounterVec,
    slices_changed: HistogramVec,
    syncs: IntCounterVec,
    foreign: IntCounter,
    problems: Gauge,
    records: BTreeMap<ServiceKey, Record>,
}

impl ControllerMetrics {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let counts = exponential_buckets(2.0, 2.0, 15).expect("the buckets grow");
        let usual = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
        let name = |name: &str| format!("endpoint_slice_controller_{name}");
        let gauge = |suffix: &str, help: &str| metrics.gauge(&name(suffix), help);
        let counts = |suffix: &str, help: &str| metrics.histogram(&name(suffix), help, &counts);
        Self {
            endpoints_added: counts(
                "endpoints_added_per_sync",
                "Number of endpoints added on each Service sync",
            ),
            endpoints_removed: counts(
                "endpoints_removed_per_sync",
                "Number of endpoints removed on each Service sync",
            ),
            endpoints_desired: gauge("endpoints_desired", "Number of endpoints desired"),
            num_slices: gauge("num_endpoint_slices", "Number of EndpointSlices"),
            desired_slices: gauge(
                "desired_endpoint_slices",
                "Number of EndpointSlices that would exist with perfect endpoint allocation",
            ),
            by_traffic_distribution: metrics.gauge_vec(
                &name("services_count_by_traffic_distribution"),
                "Number of Services using some specific trafficDistribution",
                &["traffic_distribution"],
            ),
            changes: metrics.counter_vec(
                &name("changes"),
                "Number of EndpointSlice changes",
                &["operation"],
            ),
            slices_changed: metrics.histogram_vec(
                &name("endpointslices_changed_per_sync"),
                "Number of EndpointSlices changed on each Service sync",
                &usual,
                &["topology", "traffic_distribution"],
            ),
            syncs: metrics.counter_vec(
                &name("syncs"),
                "Number of EndpointSlice syncs",
                &["result"],
            ),
            foreign: metrics.counter(
                "nearhop_controller_foreign_writes_total",
                "EndpointSlices of nearhop that other clients changed or deleted",
            ),
            problems: metrics.gauge(
                "nearhop_controller_objects_with_problems",
                "Objects with an unreadable or ignored field",
            ),
            records: BTreeMap::new(),
        }
    }

    /// Counts a plan once per IP family, as upstream does.
    pub(crate) fn planned(&mut self, key: &ServiceKey, plan: &SlicePlan, intent: &IntentDecision) {
        let mut record = Record { traffic_distribution: field_in_use(intent), ..Record::default() };
        for counts in plan.counts.values() {
            self.endpoints_added.observe(counts.added as f64);
            self.endpoints_removed.observe(counts.removed as f64);
            record.desired_endpoints += counts.desired_endpoints;
            // Without slices the placeholder counts as one.
            record.num_slices += counts.num_slices.max(1);
            record.desired_slices += counts.desired_slices;
        }
        self.replace(key, Some(record));
    }

    /// Counts a plan that was written completely.
    pub(crate) fn wrote(&self, changed: usize, intent: &IntentDecision) {
        let topology = if intent.intent == Intent::Auto { "Auto" } else { "Disabled" };
        let distribution = field_in_use(intent);
        let labels = [topology, distribution.as_deref().unwrap_or_default()];
        self.slices_changed.with_label_values(&labels).observe(changed as f64);
    }

    /// Counts one write.
    pub(crate) fn change(&self, operation: Operation) {
        self.changes.with_label_values(&[operation.as_str()]).inc();
    }

    /// Counts a sync.
    pub(crate) fn synced(&self, result: SyncResult) {
        let result = match result {
            SyncResult::Success => "success",
            SyncResult::Stale => "stale",
            SyncResult::Error => "error",
        };
        self.syncs.with_label_values(&[result]).inc();
    }

    /// Counts a change of nearhop's slices by another client.
    pub(crate) fn foreign_write(&self) {
        self.foreign.inc();
    }

    /// Sets how many objects have problems.
    pub(crate) fn problems(&self, objects: usize) {
        self.problems.set(objects as f64);
    }

    /// Forgets a Service that is gone.
    pub(crate) fn forget(&mut self, key: &ServiceKey) {
        self.replace(key, None);
    }

    fn replace(&mut self, key: &ServiceKey, new: Option<Record>) {
        let old = self.records.remove(key).unwrap_or_default();
        let now = new.clone().unwrap_or_default();
        let change = |gauge: &Gauge, old: usize, now: usize| gauge.add(now as f64 - old as f64);
        change(&self.endpoints_desired, old.desired_endpoints, now.desired_endpoints);
        change(&self.num_slices, old.num_slices, now.num_slices);
        change(&self.desired_slices, old.desired_slices, now.desired_slices);
        if old.traffic_distribution != now.traffic_distribution {
            let count = |value: &Name, by: f64| {
                self.by_traffic_distribution.with_label_values(&[value.as_str()]).add(by);
            };
            old.traffic_distribution.iter().for_each(|value| count(value, -1.0));
            now.traffic_distribution.iter().for_each(|value| count(value, 1.0));
        }
        if let Some(new) = new {
            self.records.insert(key.clone(), new);
        }
    }
}

/// The value of `trafficDistribution`, if it decides the routing.
fn field_in_use(intent: &IntentDecision) -> Option<Name> {
    let is_field = matches!(
        intent.spelling,
        Spelling::TrafficDistributionField | Spelling::TrafficDistributionAnnotation
    );
    is_field.then(|| intent.value.clone())
}
