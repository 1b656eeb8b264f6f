//! PodLocators (KEP-536): decides which one to write next, and tracks the controller's own writes.
//! Pure; the core plans their content, and `write` sends it.

pub(crate) mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use nearhop_api::Version;
use nearhop_core::{Change, Gate, Gates, ObjectRef, PodKey};
use nearhop_runtime::metrics::{Gauge, IntCounterVec, Metrics};
use nearhop_runtime::queue::WorkQueue;

use crate::metrics::Operation;
use crate::slices::Versions;
use crate::throttle::{Throttle, repair_time};

/// Whether the server has the CRD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Definition {
    /// The CRD is missing: no PodLocator can be written.
    Missing,
    /// The CRD is there now, and was missing or unknown before: all Pods must be checked.
    New,
    /// The CRD is there, and all Pods were checked.
    Known,
}

/// The queue of PodLocators, and the controller's own writes.
pub(crate) struct Locators {
    pub(crate) queue: WorkQueue<PodKey>,
    pub(crate) versions: Versions,
    pub(crate) metrics: LocatorMetrics,
    definition: Definition,
    pub(crate) throttle: Throttle,
    /// When a change by another client was last repaired.
    repaired: BTreeMap<PodKey, Instant>,
}

impl Locators {
    /// `None` if the feature gate is off.
    pub(crate) fn new(gates: &Gates, workers: usize, metrics: &Metrics) -> Option<Self> {
        gates.on(Gate::PodLocator).then(|| Self {
            // The other half of the workers is for slices.
            queue: WorkQueue::new(workers.div_ceil(2)),
            versions: Versions::default(),
            metrics: LocatorMetrics::new(metrics),
            definition: Definition::Missing,
            throttle: Throttle::default(),
            repaired: BTreeMap::new(),
        })
    }

    /// Handles a list; an empty version means that the server does not have the CRD.
    pub(crate) fn listed(&mut self, version: &Version) {
        let missing = version.as_str().is_empty();
        if missing {
            self.queue.clear();
            self.versions = Versions::default();
        }
        self.definition = match self.definition {
            _ if missing => Definition::Missing,
            Definition::Missing => Definition::New,
            known => known,
        };
    }

    /// Adds to a list the own writes that are newer. Returns the changes that are valid again.
    pub(crate) fn complete(
        &mut self,
        objects: &mut BTreeSet<ObjectRef>,
        version: &Version,
    ) -> Vec<Change> {
        if version.as_str().is_empty() {
            return Vec::new();
        }
        let again = self.versions.complete_list(objects, version);
        again.into_iter().map(|(_, outdated)| outdated.value).collect()
    }

    /// Whether PodLocators can be written.
    pub(crate) fn is_defined(&self) -> bool {
        self.definition != Definition::Missing
    }

    /// Whether all Pods must be checked because the CRD is new.
    pub(crate) fn is_new(&self) -> bool {
        self.definition == Definition::New
    }

    /// Records that all Pods are being checked.
    pub(crate) fn mark_checked(&mut self) {
        if self.is_new() {
            self.definition = Definition::Known;
        }
    }

    /// Whether writes are forbidden for now.
    pub(crate) fn is_forbidden(&self, now: Instant) -> bool {
        self.throttle.forbidden_until.is_some_and(|until| now < until)
    }

    /// When to repair a change by another client.
    pub(crate) fn repair_time(&mut self, key: &PodKey, now: Instant) -> Instant {
        repair_time(&mut self.repaired, key, now)
    }

    /// Forgets a Pod that is gone, with its PodLocator.
    pub(crate) fn forget(&mut self, key: &PodKey) {
        self.repaired.remove(key);
    }

    /// When the next work is due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let due = self.queue.next_due()?;
        Some(self.throttle.forbidden_until.map_or(due, |until| until.max(due)))
    }

    /// Whether everything is written, as far as possible.
    pub(crate) fn is_settled(&self, soon: Instant, enough: u32) -> bool {
        let done = self.queue.is_idle(soon) && self.queue.has_given_up(enough);
        done || (self.is_stuck() && self.queue.running() == 0)
    }

    /// Whether writes are impossible: the CRD is missing, or RBAC forbids them.
    pub(crate) fn is_stuck(&self) -> bool {
        !self.is_defined() || self.throttle.forbidden_until.is_some()
    }
}

/// The result of a write, for the metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    /// The server accepted it.
    Success,
    /// Another client changed it first.
    Conflict,
    /// It did not exist any more.
    Gone,
    /// Anything else.
    Error,
}

/// Metrics of PodLocators.
pub(crate) struct LocatorMetrics {
    writes: IntCounterVec,
    there: Gauge,
}

impl LocatorMetrics {
    fn new(metrics: &Metrics) -> Self {
        Self {
            writes: metrics.counter_vec(
                "nearhop_controller_podlocator_writes_total",
                "Number of PodLocator writes by operation and result",
                &["operation", "result"],
            ),
            there: metrics.gauge("nearhop_controller_podlocators", "Number of PodLocators"),
        }
    }

    /// Counts a write.
    pub(crate) fn wrote(&self, operation: Operation, result: Counted) {
        let result = match result {
            Counted::Success => "success",
            Counted::Conflict => "conflict",
            Counted::Gone => "gone",
            Counted::Error => "error",
        };
        self.writes.with_label_values(&[operation.as_str(), result]).inc();
    }

    /// Sets the number of PodLocators.
    pub(crate) fn count(&self, there: usize) {
        self.there.set(there as f64);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::throttle::REPAIR_PERIOD;

    fn work() -> Locators {
        let gates = Gates::default().with(Gate::PodLocator);
        Locators::new(&gates, 4, &Metrics::new()).expect("the feature gate is on")
    }

    #[test]
    fn without_the_feature_gate_there_are_no_locators() {
        assert!(Locators::new(&Gates::default(), 4, &Metrics::new()).is_none());
    }

    #[test]
    fn all_pods_are_checked_each_time_the_crd_appears() {
        let mut work = work();
        let looks = |work: &mut Locators, version: &str| {
            work.listed(&Version::from(version));
            let new = work.is_new();
            work.mark_checked();
            (work.is_defined(), new)
        };
        assert_eq!(looks(&mut work, ""), (false, false));
        assert_eq!(looks(&mut work, "7"), (true, true));
        assert_eq!(looks(&mut work, "9"), (true, false), "another list of the CRD changes nothing");
        assert_eq!(looks(&mut work, ""), (false, false));
        assert_eq!(looks(&mut work, "12"), (true, true));
    }

    #[test]
    fn foreign_changes_are_repaired_once_a_second() {
        let (mut work, now, key) = (work(), Instant::now(), PodKey::new("ns", "p"));
        assert_eq!(work.repair_time(&key, now), now);
        let soon = now + Duration::from_millis(10);
        assert_eq!(work.repair_time(&key, soon), now + REPAIR_PERIOD);
        assert_eq!(work.repair_time(&PodKey::new("ns", "q"), soon), soon);
    }

    #[test]
    fn forbidden_writes_wait_and_count_as_settled() {
        let (mut work, now) = (work(), Instant::now());
        work.listed(&Version::from("7"));
        work.queue.add(&PodKey::new("ns", "p"), now);
        assert!(!work.is_settled(now, 5));
        let later = now + Duration::from_secs(60);
        work.throttle.forbidden_until = Some(later);
        assert!(work.is_forbidden(now) && work.is_settled(now, 5));
        assert_eq!(work.next_due(), Some(later));
    }
}
