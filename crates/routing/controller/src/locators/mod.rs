//! PodLocators (KEP-536): which Pods' are to be written next, and what is known of those that are
//! there. No task, no clock, no socket; what they are to say is the core's to plan, and `write`
//! sends it.

pub(crate) mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use nearhop_api::Version;
use nearhop_core::{Change, Gate, Gates, ObjectRef, PodKey};
use nearhop_runtime::metrics::{Gauge, IntCounterVec, Metrics};

use crate::metrics::Operation;
use crate::queue::Queue;
use crate::sight::Sights;

/// PodLocators that others change are put right at most this often each.
const REPAIR_PERIOD: Duration = Duration::from_secs(1);

/// Whether the server knows the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Definition {
    /// Nothing can be written.
    Missing,
    /// It was missing, or nobody knew: all Pods are to be looked at.
    New,
    /// All Pods were looked at since.
    Known,
}

/// What is to be done about PodLocators, and what is known of them.
pub(crate) struct LocatorWork {
    pub(crate) queue: Queue<PodKey>,
    pub(crate) sights: Sights<PodKey>,
    pub(crate) metrics: LocatorMetrics,
    definition: Definition,
    /// Nothing is written before then: it is not allowed.
    refused_until: Option<Instant>,
    /// When somebody complained last.
    warned: Option<Instant>,
    /// When a change by somebody else was last put right.
    repaired: BTreeMap<PodKey, Instant>,
}

impl LocatorWork {
    /// None where the gate is off.
    pub(crate) fn new(gates: &Gates, workers: usize, metrics: &Metrics) -> Option<Self> {
        gates.on(Gate::PodLocator).then(|| Self {
            // A Service's change must find workers that are free.
            queue: Queue::new(workers.div_ceil(2)),
            sights: Sights::default(),
            metrics: LocatorMetrics::new(metrics),
            definition: Definition::Missing,
            refused_until: None,
            warned: None,
            repaired: BTreeMap::new(),
        })
    }

    /// A list arrived; without a version it says that the server does not know the kind.
    pub(crate) fn listed(&mut self, version: &Version) {
        let missing = version.as_str().is_empty();
        if missing {
            self.queue.clear();
            self.sights = Sights::default();
        }
        self.definition = match self.definition {
            _ if missing => Definition::Missing,
            Definition::Missing => Definition::New,
            known => known,
        };
    }

    /// Completes the names of a list by what we wrote after it; gives what counts again.
    pub(crate) fn complete(
        &mut self,
        objects: &mut BTreeSet<ObjectRef>,
        version: &Version,
    ) -> Vec<Change> {
        if version.as_str().is_empty() {
            return Vec::new();
        }
        let reference = |key: &PodKey| ObjectRef::Locator(key.clone());
        self.sights
            .listed(objects, reference, version)
            .into_iter()
            .map(|shown| shown.change)
            .collect()
    }

    /// Whether PodLocators can be written.
    pub(crate) fn is_defined(&self) -> bool {
        self.definition != Definition::Missing
    }

    /// Whether all Pods are to be looked at because the kind is new.
    pub(crate) fn is_new(&self) -> bool {
        self.definition == Definition::New
    }

    /// All Pods are being looked at.
    pub(crate) fn all_are_looked_at(&mut self) {
        if self.is_new() {
            self.definition = Definition::Known;
        }
    }

    /// Whether writing is refused for now.
    pub(crate) fn is_refused(&self, now: Instant) -> bool {
        self.refused_until.is_some_and(|until| now < until)
    }

    /// Writes nothing before then.
    pub(crate) fn refuse(&mut self, until: Instant) {
        self.refused_until = Some(until);
    }

    /// It is allowed after all.
    pub(crate) fn allow(&mut self) {
        self.refused_until = None;
    }

    /// Whether to complain aloud: what keeps one Pod's from being written keeps thousands.
    pub(crate) fn may_warn(&mut self, now: Instant, period: Duration) -> bool {
        let quiet = self.warned.is_some_and(|at| now < at + period);
        if !quiet {
            self.warned = Some(now);
        }
        !quiet
    }

    /// When a change by somebody else is put right.
    pub(crate) fn repair_time(&mut self, key: &PodKey, now: Instant) -> Instant {
        let last = self.repaired.insert(key.clone(), now);
        last.map_or(now, |last| (last + REPAIR_PERIOD).max(now))
    }

    /// A Pod and its PodLocator are gone.
    pub(crate) fn forget(&mut self, key: &PodKey) {
        self.repaired.remove(key);
    }

    /// When something is due next.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let due = self.queue.next_due()?;
        Some(self.refused_until.map_or(due, |until| until.max(due)))
    }

    /// Whether everything was written, as far as it can be.
    pub(crate) fn is_settled(&self, soon: Instant, enough: u32) -> bool {
        let done = self.queue.is_idle(soon) && self.queue.has_given_up(enough);
        done || (self.is_stuck() && self.queue.running() == 0)
    }

    /// Whether what waits cannot be written, be it failing or not.
    pub(crate) fn is_stuck(&self) -> bool {
        !self.is_defined() || self.refused_until.is_some()
    }
}

/// How a write ended, for counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    /// The server took it.
    Success,
    /// Somebody else had written it.
    Conflict,
    /// It was gone already.
    Gone,
    /// Anything else.
    Error,
}

/// What is counted of PodLocators.
pub(crate) struct LocatorMetrics {
    writes: IntCounterVec,
    there: Gauge,
}

impl LocatorMetrics {
    fn new(metrics: &Metrics) -> Self {
        Self {
            writes: metrics.counter_vec(
                "nearhop_controller_podlocator_writes_total",
                "Writes of PodLocators, by what they did and how they ended",
                &["operation", "result"],
            ),
            there: metrics.gauge("nearhop_controller_podlocators", "PodLocators that are there"),
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

    /// So many are there.
    pub(crate) fn count(&self, there: usize) {
        self.there.set(there as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work() -> LocatorWork {
        let gates = Gates::default().with(Gate::PodLocator);
        LocatorWork::new(&gates, 4, &Metrics::new()).expect("the gate is on")
    }

    #[test]
    fn without_the_gate_there_is_no_work() {
        assert!(LocatorWork::new(&Gates::default(), 4, &Metrics::new()).is_none());
    }

    #[test]
    fn all_pods_are_looked_at_each_time_the_kind_is_defined() {
        let mut work = work();
        let looks = |work: &mut LocatorWork, version: &str| {
            work.listed(&Version::from(version));
            let new = work.is_new();
            work.all_are_looked_at();
            (work.is_defined(), new)
        };
        assert_eq!(looks(&mut work, ""), (false, false));
        assert_eq!(looks(&mut work, "7"), (true, true));
        assert_eq!(looks(&mut work, "9"), (true, false), "another list is no news");
        assert_eq!(looks(&mut work, ""), (false, false));
        assert_eq!(looks(&mut work, "12"), (true, true));
    }

    #[test]
    fn who_keeps_changing_one_is_answered_once_a_second() {
        let (mut work, now, key) = (work(), Instant::now(), PodKey::new("ns", "p"));
        assert_eq!(work.repair_time(&key, now), now);
        let soon = now + Duration::from_millis(10);
        assert_eq!(work.repair_time(&key, soon), now + REPAIR_PERIOD);
        assert_eq!(work.repair_time(&PodKey::new("ns", "q"), soon), soon);
    }

    #[test]
    fn refused_work_waits_and_keeps_nobody_from_ending() {
        let (mut work, now) = (work(), Instant::now());
        work.listed(&Version::from("7"));
        work.queue.add(&PodKey::new("ns", "p"), now, crate::queue::Urgency::Usual);
        assert!(!work.is_settled(now, 5));
        let later = now + Duration::from_secs(60);
        work.refuse(later);
        assert!(work.is_refused(now) && work.is_settled(now, 5));
        assert_eq!(work.next_due(), Some(later));
    }
}
