//! PodLocators: when to write one, its job, and the result of the job. Slices have priority. This
//! module does nothing if the feature gate is off.

use std::collections::BTreeSet;
use std::time::Duration;

use nearhop_api::{Changed, Meta, Version};
use nearhop_core::locate::LocatorPlan;
use nearhop_core::{Change, Kind, ObjectRef, PodKey};
use nearhop_runtime::client::ApiFailure;
use tracing::{debug, warn};

use super::{Control, Now, ORPHAN_DELAY, QUIET_FAILURES};
use crate::locators::write::{Base, LocatorJob, LocatorOutcome, LocatorStep};
use crate::slices::stamp;
use crate::throttle::{FORBIDDEN_PAUSE, retry};

impl Control {
    /// Whether all workers are busy. Slices and PodLocators share the workers.
    pub(super) fn is_busy(&self) -> bool {
        let locators = self.locators.as_ref().map_or(0, |work| work.queue.running());
        self.slices.queue.running() + locators >= self.choices.workers.max(1)
    }

    /// Pods whose PodLocators differ from their plans and could not be written.
    pub(crate) fn failed_locators(&self) -> Vec<PodKey> {
        let Some(work) = &self.locators else { return Vec::new() };
        if !work.is_stuck() {
            return work.queue.failing().cloned().collect();
        }
        let wrong = |key: &&PodKey| self.world.plan_locator(key) != LocatorPlan::Keep;
        self.located_pods().into_iter().filter(|key| wrong(&key)).collect()
    }

    /// All Pods, and the Pods of all PodLocators.
    pub(crate) fn located_pods(&self) -> BTreeSet<PodKey> {
        let locators = self.world.locators().iter().map(|locator| &locator.key);
        self.world.pod_keys().chain(locators).cloned().collect()
    }

    /// Whether the feed shows a new version of a PodLocator.
    pub(super) fn observe_locator(
        &mut self,
        name: &ObjectRef,
        meta: &Meta,
        change: &Change,
    ) -> bool {
        self.locators.as_mut().is_none_or(|work| work.versions.observe(name, stamp(meta), change))
    }

    /// Whether a PodLocator that the feed shows as deleted is deleted.
    pub(super) fn observe_locator_deleted(&mut self, name: &ObjectRef, meta: &Meta) -> bool {
        self.locators.as_mut().is_none_or(|work| work.versions.observe_deleted(name, stamp(meta)))
    }

    /// Adds to a list the own writes that are newer. Returns the changes that are valid again.
    pub(super) fn list_locators(
        &mut self,
        objects: &mut BTreeSet<ObjectRef>,
        version: &Version,
    ) -> Vec<Change> {
        let work = self.locators.as_mut();
        work.map_or_else(Vec::new, |work| work.complete(objects, version))
    }

    /// Records from a list whether the server has the CRD.
    pub(super) fn note_definition(&mut self, kind: Kind, version: &Version) {
        if let Some(work) = self.locators.as_mut().filter(|_| kind == Kind::Locator) {
            work.listed(version);
        }
    }

    /// Checks every Pod if the CRD is new.
    pub(super) fn check_new_definition(&mut self, now: Now) {
        let there = self.world.locators().len();
        let Some(work) = &mut self.locators else { return };
        work.metrics.count(there);
        if work.is_new() {
            self.enqueue_all_locators(now);
        }
    }

    /// Handles the result of a job.
    pub(crate) fn wrote_locator(&mut self, outcome: LocatorOutcome, now: Now) {
        let Some(work) = &mut self.locators else { return };
        work.metrics.wrote(outcome.operation, outcome.counted());
        let LocatorOutcome { key, result, .. } = outcome;
        match result {
            Ok(step) => {
                work.throttle.forbidden_until = None;
                work.queue.succeed(&key);
                self.note_server_success(now);
                self.take_locator_step(&key, step, now);
            }
            // The namespace controller deletes all objects in the namespace.
            Err(ApiFailure::NamespaceTerminating { .. }) => {
                work.queue.succeed(&key);
            }
            Err(failure) => self.fail_locator(&key, &failure, now),
        }
        let there = self.world.locators().len();
        self.locators.iter().for_each(|work| work.metrics.count(there));
    }

    /// Handles the reply to a write. If the Pod changed and changed back in the meantime, the
    /// controller plans it again.
    fn take_locator_step(&mut self, key: &PodKey, step: LocatorStep, now: Now) {
        let Some(work) = &mut self.locators else { return };
        let name = ObjectRef::Locator(key.clone());
        let change = match step {
            LocatorStep::Wrote(changed) => {
                let Changed { change, meta, .. } = *changed;
                change.filter(|_| work.versions.record_write(&name, stamp(&meta)))
            }
            LocatorStep::Deleted(uid) => {
                let known = work.versions.record_delete(&name, &uid);
                known.then_some(Change::Gone(name))
            }
            LocatorStep::Vanished(uid) => {
                let known = work.versions.record_delete(&name, &uid);
                // A Pod that exists needs a new PodLocator.
                if self.world.pod_on_node(key).is_some() {
                    work.queue.add(key, now.instant);
                }
                known.then_some(Change::Gone(name))
            }
        };
        let affected = self.world.apply_all(change);
        self.enqueue_locators(&affected.locators, Kind::Locator, now);
    }

    fn fail_locator(&mut self, key: &PodKey, failure: &ApiFailure, now: Now) {
        let backoff = self.backoff(failure);
        let Some(work) = &mut self.locators else { return };
        let failures = retry(&mut work.queue, key, failure, (backoff, Duration::ZERO), now.instant);
        if matches!(failure, ApiFailure::Forbidden { .. }) {
            // Retries for each Pod are useless until RBAC changes.
            work.throttle.forbidden_until = Some(now.instant + FORBIDDEN_PAUSE);
        }
        let quiet = failure.is_transient() && failures <= QUIET_FAILURES;
        if !quiet && work.throttle.may_warn(now.instant) {
            warn!(error = %failure, "PodLocator write failed; other failures are logged at -v=4");
        } else {
            debug!(failures, error = %failure, "PodLocator write failed");
        }
    }

    pub(super) fn enqueue_all_locators(&mut self, now: Now) {
        let Some(work) = &mut self.locators else { return };
        work.mark_checked();
        let all = self.located_pods();
        self.enqueue_locators(&all, Kind::Node, now);
    }

    /// Enqueues PodLocators that differ from their plans.
    pub(super) fn enqueue_locators(&mut self, keys: &BTreeSet<PodKey>, kind: Kind, now: Now) {
        let idle = !self.is_active();
        let Some(work) = self.locators.as_mut().filter(|work| !idle && work.is_defined()) else {
            return;
        };
        for key in keys {
            let at = match (self.world.plan_locator(key), kind) {
                (LocatorPlan::Keep, _) => continue,
                (LocatorPlan::Delete, Kind::Pod) => {
                    work.forget(key);
                    now.instant
                }
                // The event of the Pod may only be late, and the garbage collector may delete the
                // PodLocator first.
                (LocatorPlan::Delete, _) => now.instant + ORPHAN_DELAY,
                (_, Kind::Locator) => work.repair_time(key, now.instant),
                _ => now.instant,
            };
            work.queue.add(key, at);
        }
    }

    /// Takes the next PodLocator to write if no slices wait for a worker: slices have priority.
    pub(crate) fn next_locator(&mut self, now: Now) -> Option<LocatorJob> {
        let slices_wait = self.slices.queue.has_fresh(now.instant);
        if !self.is_active() || slices_wait || self.is_busy() {
            return None;
        }
        let work = self.locators.as_mut().filter(|work| !work.is_forbidden(now.instant))?;
        loop {
            let key = work.queue.take(now.instant)?;
            let base = work
                .versions
                .get(&ObjectRef::Locator(key.clone()))
                .map(|(uid, version)| Base { uid: uid.clone(), version: version.clone() });
            let before = self.world.locators().get(&key).cloned();
            let job = match (self.world.plan_locator(&key), base, before) {
                (LocatorPlan::Create(locator), ..) => LocatorJob::Create(locator),
                (LocatorPlan::Update(after), Some(base), Some(before)) => {
                    LocatorJob::Update { base, before, after }
                }
                (LocatorPlan::Delete, Some(base), _) => LocatorJob::Delete(key.clone(), base),
                _ => {
                    work.queue.succeed(&key);
                    continue;
                }
            };
            debug!(pod = %job.key(), "writing PodLocator");
            return Some(job);
        }
    }
}
