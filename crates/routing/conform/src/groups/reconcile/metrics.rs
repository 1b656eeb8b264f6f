//! The metrics of the controller, as totals since the start of a case.

use nearhop_core::Name;
use nearhop_core::intent::{Intent, IntentDecision, Spelling};
use nearhop_core::model::{AddressType, Service};
use nearhop_core::slice::{PackCounts, SlicePlan};
use serde_json::{Value, json};

/// Buckets of the endpoint histograms are 2, 4, 8 and so on.
const FIRST_BUCKET: u64 = 2;

/// The label under which the changes of a Service are counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Neither of the others.
    Disabled,
    /// Auto, where the zones are known.
    Auto,
    /// `spec.trafficDistribution` decided, with this value.
    TrafficDistribution(Name),
}

impl Mode {
    /// The mode of a Service, by the field that decides.
    pub(super) fn of(intent: &IntentDecision, zones_are_known: bool) -> Self {
        match (&intent.intent, intent.spelling) {
            (Intent::Auto, _) if zones_are_known => Self::Auto,
            (Intent::Auto, _) => Self::Disabled,
            (_, Spelling::TrafficDistributionField) => {
                Self::TrafficDistribution(intent.value.clone())
            }
            _ => Self::Disabled,
        }
    }
}

/// The totals.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    created: usize,
    updated: usize,
    deleted: usize,
    added: usize,
    removed: usize,
    /// Observations in the histograms of added and of removed endpoints: one per family and sync.
    observed: usize,
    changed_disabled: usize,
    changed_auto: usize,
    changed_distribution: usize,
    /// The values of the last planned family: a Service has one record, which each family overwrites.
    gauges: PackCounts,
    distribution: Option<Name>,
}

impl Metrics {
    /// Counts one plan. `creates` includes those that a Service being deleted does not write.
    pub(super) fn count(
        &mut self,
        service: &Service,
        plan: &SlicePlan,
        mode: Mode,
        creates: usize,
    ) {
        self.created += plan.create.len();
        self.updated += plan.update.len();
        self.deleted += plan.delete.len();
        for counts in plan.counts.values() {
            self.added += counts.added;
            self.removed += counts.removed;
            self.observed += 1;
        }
        let families = service.families();
        if let Some(counts) = families.last().and_then(|family| plan.counts.get(family)) {
            self.gauges = *counts;
        }
        // Deleting slices of unsupported families does not count as a change.
        let supported = |kind: &AddressType| kind.family().is_some_and(|f| families.contains(&f));
        let deletes = plan.delete.iter().filter(|slice| supported(&slice.address_type)).count();
        let changed = match &mode {
            Mode::Disabled => &mut self.changed_disabled,
            Mode::Auto => &mut self.changed_auto,
            Mode::TrafficDistribution(_) => &mut self.changed_distribution,
        };
        *changed += creates + plan.update.len() + deletes;
        self.distribution = match mode {
            Mode::TrafficDistribution(value) => Some(value),
            _ => None,
        };
    }

    fn by_distribution(&self) -> Value {
        let values = self.distribution.iter().map(|value| (value.to_string(), json!(1)));
        Value::Object(values.collect())
    }

    /// The key `metrics`.
    pub(super) fn totals(&self) -> Value {
        json!({
            "desired_slices": self.gauges.desired_slices,
            "num_slices": self.gauges.num_slices,
            "desired_endpoints": self.gauges.desired_endpoints,
            "added_sum": self.added,
            "removed_sum": self.removed,
            "created": self.created,
            "updated": self.updated,
            "deleted": self.deleted,
            "changed_sum_disabled": self.changed_disabled,
            "changed_sum_auto": self.changed_auto,
            "changed_sum_trafficdist": self.changed_distribution,
            "services_by_trafficdist": self.by_distribution(),
        })
    }

    /// The key `gauges`, by the metrics' own names.
    pub(super) fn gauges(&self) -> Value {
        json!({
            "endpoints_desired": self.gauges.desired_endpoints,
            "num_endpoint_slices": self.gauges.num_slices,
            "desired_endpoint_slices": self.gauges.desired_slices,
            "services_count_by_traffic_distribution": self.by_distribution(),
        })
    }

    /// The key `added_histogram`.
    pub(super) fn added_histogram(&self) -> Value {
        self.histogram(self.added)
    }

    /// The key `removed_histogram`.
    pub(super) fn removed_histogram(&self) -> Value {
        self.histogram(self.removed)
    }

    fn histogram(&self, sum: usize) -> Value {
        json!({"sum": sum, "count": self.observed, "first_bucket_le": FIRST_BUCKET})
    }
}
