//! What is made of events about PodLocators: who is looked at, what is handed out as a job, how it
//! ended. Slices come first, and nothing here happens where the gate is off.

use std::collections::BTreeSet;

use nearhop_api::Changed;
use nearhop_api::{Meta, Version};
use nearhop_core::locate::LocatorPlan;
use nearhop_core::{Change, Kind, ObjectRef, PodKey};
use tracing::{debug, warn};

use super::{Acting, Control, Now, ORPHAN_DELAY, REFUSED_PAUSE};
use crate::call::Failure;
use crate::locators::write::{Base, LocatorJob, LocatorOutcome, LocatorStep};
use crate::queue::Urgency;

impl Control {
    /// Whether all workers have something to do. Slices and PodLocators share them.
    pub(super) fn is_busy(&self) -> bool {
        let locators = self.locators.as_ref().map_or(0, |work| work.queue.running());
        self.queue.running() + locators >= self.choices.workers.max(1)
    }

    /// Pods whose PodLocators are not as they should be, and could not be written.
    pub(crate) fn unlocated(&self) -> Vec<PodKey> {
        let Some(work) = &self.locators else { return Vec::new() };
        if !work.is_stuck() {
            return work.queue.failing().map(|(key, _)| key.clone()).collect();
        }
        let wrong = |key: &&PodKey| self.world.plan_locator(key) != LocatorPlan::Keep;
        self.located_pods().into_iter().filter(|key| wrong(&key)).collect()
    }

    /// Pods that are there, and Pods whose PodLocators are.
    pub(crate) fn located_pods(&self) -> BTreeSet<PodKey> {
        let locators = self.world.locators().iter().map(|locator| &locator.key);
        self.world.pod_keys().chain(locators).cloned().collect()
    }

    // Events.

    /// Whether what the feed shows of a PodLocator is news.
    pub(super) fn see_locator(&mut self, key: &PodKey, meta: &Meta, change: &Change) -> bool {
        self.locators.as_mut().is_none_or(|work| work.sights.feed(key, meta, change))
    }

    /// Whether a PodLocator that the feed shows as gone is to be taken as gone.
    pub(super) fn see_locator_gone(&mut self, key: &PodKey, meta: &Meta) -> bool {
        self.locators.as_mut().is_none_or(|work| work.sights.feed_gone(key, meta))
    }

    /// Completes a list by what we wrote after it; gives what counts again.
    pub(super) fn list_locators(
        &mut self,
        objects: &mut BTreeSet<ObjectRef>,
        version: &Version,
    ) -> Vec<Change> {
        let work = self.locators.as_mut();
        work.map_or_else(Vec::new, |work| work.complete(objects, version))
    }

    /// A list came, or word that the server does not know the kind.
    pub(super) fn note_definition(&mut self, kind: Kind, version: &Version) {
        if let Some(work) = self.locators.as_mut().filter(|_| kind == Kind::Locator) {
            work.listed(version);
        }
    }

    /// Looks at every Pod where PodLocators were not defined until now.
    pub(super) fn look_at_new_definition(&mut self, now: Now) {
        let there = self.world.locators().len();
        let Some(work) = &mut self.locators else { return };
        work.metrics.count(there);
        if work.is_new() {
            self.enqueue_all_locators(now);
        }
    }

    /// Takes in how a job ended.
    pub(crate) fn located(&mut self, outcome: LocatorOutcome, now: Now) {
        let Some(work) = &mut self.locators else { return };
        work.metrics.wrote(outcome.operation, outcome.counted());
        let LocatorOutcome { key, result, .. } = outcome;
        match result {
            Ok(step) => {
                work.allow();
                work.queue.succeed(&key, now.instant);
                self.server_answers(now);
                self.take_locator_step(&key, step, now);
            }
            // What is in a namespace that goes will go by itself.
            Err(Failure::NamespaceTerminating { .. }) => {
                work.queue.succeed(&key, now.instant);
            }
            Err(failure) => self.fail_locator(&key, &failure, now),
        }
        let there = self.world.locators().len();
        self.locators.iter().for_each(|work| work.metrics.count(there));
    }

    /// Takes in the answer to our write. What it was planned from may have changed meanwhile, and
    /// changed back: then it is planned again.
    fn take_locator_step(&mut self, key: &PodKey, step: LocatorStep, now: Now) {
        let Some(work) = &mut self.locators else { return };
        let change = match step {
            LocatorStep::Wrote(changed) => {
                let Changed { change, meta, .. } = *changed;
                change.filter(|_| work.sights.written(key, &meta))
            }
            LocatorStep::Deleted(uid) => {
                let known = work.sights.deleted(key, &uid);
                known.then(|| Change::Gone(ObjectRef::Locator(key.clone())))
            }
            LocatorStep::Vanished(uid) => {
                let known = work.sights.deleted(key, &uid);
                // Where the Pod is there, its PodLocator is to be made anew.
                if self.world.pod_on_node(key).is_some() {
                    work.queue.add(key, now.instant, Urgency::Usual);
                }
                known.then(|| Change::Gone(ObjectRef::Locator(key.clone())))
            }
        };
        let touched = self.world.apply_all(change);
        self.enqueue_locators(&touched.locators, Kind::Locator, now);
    }

    fn fail_locator(&mut self, key: &PodKey, failure: &Failure, now: Now) {
        let (cause, backoff) = self.cause_of(failure);
        let Some(work) = &mut self.locators else { return };
        let mut failures = 0;
        work.queue.fail(key, now.instant, cause, |before| {
            failures = before;
            backoff.delay(before, rand::random()).max(failure.retry_after())
        });
        let refused = matches!(failure, Failure::Forbidden { .. });
        if refused {
            // Nobody grants rights by the second, and there are as many as there are Pods.
            work.refuse(now.instant + REFUSED_PAUSE);
        }
        let quiet = failure.is_passing() && failures < super::work::QUIET_FAILURES;
        if !quiet && work.may_warn(now.instant, REFUSED_PAUSE) {
            warn!("{failure}; others that fail alike are not named for a while");
        } else {
            debug!(failures = failures + 1, "{failure}");
        }
    }

    // Queueing.

    pub(super) fn enqueue_all_locators(&mut self, now: Now) {
        let Some(work) = &mut self.locators else { return };
        work.all_are_looked_at();
        let all = self.located_pods();
        self.enqueue_locators(&all, Kind::Node, now);
    }

    /// Sees to PodLocators that are not as they should be.
    pub(super) fn enqueue_locators(&mut self, keys: &BTreeSet<PodKey>, kind: Kind, now: Now) {
        let idle = self.acting == Acting::No || !self.is_synced();
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
                // The Pod may only be late, and the garbage collector may be faster.
                (LocatorPlan::Delete, _) => now.instant + ORPHAN_DELAY,
                (_, Kind::Locator) => work.repair_time(key, now.instant),
                _ => now.instant,
            };
            work.queue.add(key, at, Urgency::Usual);
        }
    }

    /// Takes the next PodLocator to write, when no slices wait for a worker: they come first.
    pub(crate) fn next_locator(&mut self, now: Now) -> Option<LocatorJob> {
        let slices_wait = self.queue.has_fresh(now.instant);
        if self.acting == Acting::No || !self.is_synced() || slices_wait || self.is_busy() {
            return None;
        }
        let work = self.locators.as_mut().filter(|work| !work.is_refused(now.instant))?;
        loop {
            let key = work.queue.take(now.instant)?.key;
            let base = work
                .sights
                .get(&key)
                .map(|(uid, version)| Base { uid: uid.clone(), version: version.clone() });
            let before = self.world.locators().get(&key).cloned();
            let job = match (self.world.plan_locator(&key), base, before) {
                (LocatorPlan::Create(locator), ..) => LocatorJob::Create(locator),
                (LocatorPlan::Update(after), Some(base), Some(before)) => {
                    LocatorJob::Update { base, before, after }
                }
                (LocatorPlan::Delete, Some(base), _) => LocatorJob::Delete(key.clone(), base),
                _ => {
                    work.queue.succeed(&key, now.instant);
                    continue;
                }
            };
            debug!("writing {}", job.what());
            return Some(job);
        }
    }
}
