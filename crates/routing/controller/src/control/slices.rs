//! Slices: when to sync a Service, its plan as a job, and the result of the job.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use nearhop_core::condition::{Writing, judge, judge_reach};
use nearhop_core::model::Service;
use nearhop_core::world::PlanTime;
use nearhop_core::{Affected, Change, IntentDecision, Kind, ServiceKey, SlicePlan};
use nearhop_runtime::client::ApiFailure;
use nearhop_runtime::queue::later;
use tracing::{debug, warn};

use super::{Control, Now, ORPHAN_DELAY, QUIET_FAILURES};
use crate::metrics::SyncResult;
use crate::mode::Mode;
use crate::slices::InFlight;
use crate::slices::write::{Base, Job, Outcome, Why};
use crate::status::{Assessment, Problem};
use crate::throttle::retry;

impl Control {
    pub(super) fn enqueue_all(&mut self, now: Now) {
        if !self.is_active() {
            return;
        }
        self.world.services().for_each(|service| self.slices.queue.add(&service.key, now.instant));
        let at = now.instant + ORPHAN_DELAY;
        self.world.orphans().for_each(|key| self.slices.queue.add(key, at));
        self.enqueue_all_locators(now);
    }

    /// Enqueues the Services and PodLocators that a change of an object of this kind affects.
    pub(super) fn enqueue(&mut self, affected: Affected, kind: Kind, now: Now) {
        self.enqueue_locators(&affected.locators, kind, now);
        // A plan judges the reach as well.
        for key in affected.reach.difference(&affected.plan) {
            self.judge_reach_again(key, now);
        }
        for key in affected.plan {
            let gone = self.world.service(&key).is_none();
            if gone {
                let had_conditions = self.status.statuses.forget(&key);
                let left = had_conditions && self.choices.mode == Mode::Labelled;
                self.slices.forget(&key, left);
            }
            if !self.is_active() {
                continue;
            }
            let at = match kind {
                _ if gone => now.instant + ORPHAN_DELAY,
                Kind::Service => {
                    self.slices.queue.add_and_reset(&key, now.instant);
                    continue;
                }
                Kind::Pod => later(now.instant, self.choices.batch_period),
                Kind::Node | Kind::Namespace | Kind::ServiceCidr | Kind::Locator => now.instant,
                // This may be an own write: the reply will show it.
                Kind::Slice if self.slices.is_in_flight(&key) => continue,
                Kind::Slice => self.slices.repair_time(&key, now.instant, self.choices.mode),
            };
            self.slices.queue.add(&key, at);
        }
    }

    /// Takes the next job. Plans Services until one needs a write.
    pub(crate) fn next_job(&mut self, now: Now) -> Option<Job> {
        if !self.is_active() {
            return None;
        }
        while !self.is_busy()
            && let Some(key) = self.slices.queue.take(now.instant)
        {
            if let Some(job) = self.sync(&key, now) {
                return Some(job);
            }
        }
        self.slices.queue.observe_depth(now.instant);
        None
    }

    fn sync(&mut self, key: &ServiceKey, now: Now) -> Option<Job> {
        let Some(service) = self.world.service(key).cloned() else {
            return self.sync_orphans(key, now);
        };
        let trigger_time = self.slices.take_trigger_time(&service, &self.world);
        let at = PlanTime { now: now.time, trigger_time };
        // A panic in one plan must not stop the other Services.
        let planned = catch_unwind(AssertUnwindSafe(|| self.world.plan(key, at)));
        let Ok(planned) = planned else {
            let what = format!("Service {key}");
            self.fail(key, None, &ApiFailure::Panicked { what }, now);
            return None;
        };
        let mut plan = planned.expect("the Service exists");
        let intent = self.world.intent(key).expect("the Service exists").clone();
        self.slices.metrics.planned(key, &plan, &intent);
        if plan.is_noop() {
            self.finish(key, Some(InFlight::new(plan, Some((service, intent)), 0)), now);
            return None;
        }
        debug!(
            service = %key, create = plan.create.len(), update = plan.update.len(),
            delete = plan.delete.len(), intent = %intent.intent, "writing EndpointSlices"
        );
        let job = self.job(key, &mut plan);
        let changed = job.create.len() + job.update.len() + job.delete.len();
        let in_flight = InFlight::new(plan, Some((service, intent)), changed);
        self.slices.begin(key, in_flight, trigger_time);
        Some(job)
    }

    fn job(&self, key: &ServiceKey, plan: &mut SlicePlan) -> Job {
        let update = std::mem::take(&mut plan.update).into_iter().filter_map(|slice| {
            let before = self.world.slice(&slice.namespace, &slice.name)?;
            Some((self.slices.base(before)?, slice))
        });
        let update = update.collect();
        let delete = std::mem::take(&mut plan.delete);
        let delete = delete.iter().filter_map(|slice| self.slices.base(slice)).collect();
        let create = std::mem::take(&mut plan.create);
        Job { service: key.clone(), create, update, delete, why: Why::Planned }
    }

    /// Plans to delete the slices and conditions of a Service that is gone, or that nearhop no
    /// longer manages.
    fn sync_orphans(&mut self, key: &ServiceKey, now: Now) -> Option<Job> {
        let slices = self.world.slices(key);
        let delete: Vec<Base> = slices.filter_map(|slice| self.slices.base(slice)).collect();
        if delete.is_empty() && !self.slices.has_conditions_left(key) {
            self.finish(key, None, now);
            return None;
        }
        let in_flight = InFlight::new(SlicePlan::default(), None, delete.len());
        self.slices.begin(key, in_flight, None);
        let why = Why::Orphaned(self.choices.mode);
        Some(Job { service: key.clone(), create: Vec::new(), update: Vec::new(), delete, why })
    }

    /// Handles the result of a job.
    pub(crate) fn wrote(&mut self, outcome: Outcome, now: Now) {
        let Outcome { service: key, steps, result } = outcome;
        let mut in_flight = self.slices.end(&key);
        let mut affected = Affected::default();
        for step in steps {
            let change = self.slices.take_step(step, in_flight.as_mut());
            affected.merge(self.world.apply_all(change));
        }
        for other in affected.plan.iter().filter(|other| **other != key) {
            self.slices.queue.add(other, now.instant);
        }
        if in_flight.as_ref().is_some_and(InFlight::has_foreign_writes) {
            let at = self.slices.repair_time(&key, now.instant, self.choices.mode);
            self.slices.queue.add(&key, at);
        }
        match result {
            Ok(()) => self.finish(&key, in_flight, now),
            Err(failure) => self.fail(&key, in_flight, &failure, now),
        }
    }

    /// Finishes a plan that is written, or that needed no write.
    fn finish(&mut self, key: &ServiceKey, in_flight: Option<InFlight>, now: Now) {
        self.slices.queue.succeed(key);
        if in_flight.as_ref().is_some_and(|in_flight| in_flight.changed > 0) {
            self.note_server_success(now);
        }
        self.slices.metrics.synced(SyncResult::Success);
        self.slices.all_written(key);
        let Some(InFlight { plan, planned_for: Some(planned_for), changed, .. }) = in_flight else {
            return;
        };
        if self.world.service(key).is_none() {
            return;
        }
        self.slices.metrics.wrote(changed, &planned_for.1);
        self.assess(&planned_for, &plan, &Writing::Done, now);
        if let Some(again) = plan.again_at {
            let wait = Duration::try_from(again.duration_since(now.time)).unwrap_or_default();
            self.slices.queue.add(key, now.instant + wait);
        }
        let affected = self.world.apply(Change::Planned(key.clone(), plan.state));
        self.enqueue(affected, Kind::Node, now);
    }

    fn fail(
        &mut self,
        key: &ServiceKey,
        in_flight: Option<InFlight>,
        failure: &ApiFailure,
        now: Now,
    ) {
        let backoff = self.backoff(failure);
        let failures =
            retry(&mut self.slices.queue, key, failure, (backoff, Duration::ZERO), now.instant);
        let stale = matches!(failure, ApiFailure::Conflict { .. } | ApiFailure::NotFound { .. });
        self.slices.metrics.synced(if stale { SyncResult::Stale } else { SyncResult::Error });
        if failure.is_transient() && failures <= QUIET_FAILURES {
            debug!(service = %key, failures, error = %failure, "EndpointSlice sync failed");
            return;
        }
        warn!(service = %key, failures, error = %failure, "EndpointSlice sync failed");
        let Some(InFlight { plan, planned_for: Some(planned_for), .. }) = in_flight else { return };
        let (responsible, message) = (failure.responsible(), failure.to_string());
        self.assess(&planned_for, &plan, &Writing::Failed { responsible, message }, now);
    }

    /// Assesses a plan for the status of its Service.
    fn assess(
        &mut self,
        (service, intent): &(Arc<Service>, IntentDecision),
        plan: &SlicePlan,
        writing: &Writing,
        now: Now,
    ) {
        let domain = &self.choices.condition_domain;
        let reach = self.world.reach(&service.key);
        let judgements = judge(domain, service, intent, plan, writing, reach.as_ref());
        let problem = problem(&service.key, plan, writing);
        let due = self.status.statuses.assess(service, Assessment { judgements, problem });
        self.enqueue_due(&service.key, due, now);
    }

    /// Judges which nodes the hard topology keys of a Service cut off, after nodes have changed.
    /// Its slices stay as they are, so this costs no plan.
    fn judge_reach_again(&mut self, key: &ServiceKey, now: Now) {
        // The result of a write is judged anyway.
        if self.slices.is_in_flight(key) {
            return;
        }
        let Some(service) = self.world.service(key) else { return };
        let Some((intent, reach)) = self.world.intent(key).zip(self.world.reach(key)) else {
            return;
        };
        let judgement = judge_reach(&self.choices.condition_domain, service, intent, &reach);
        let due = self.status.statuses.judge_again(key, judgement);
        self.enqueue_due(key, due, now);
    }
}

/// Why the slices of a Service are incomplete, whether or not it requests topology-aware routing.
fn problem(key: &ServiceKey, plan: &SlicePlan, writing: &Writing) -> Option<Problem> {
    let error = |responsible: &str, cause: &str| Problem {
        responsible: responsible.to_owned(),
        message: format!("Error updating Endpoint Slices for Service {key}: {cause}"),
    };
    if let Writing::Failed { responsible, message } = writing {
        return Some(error(responsible, message));
    }
    let missing = plan.missing_nodes.first()?;
    Some(error(&missing.subject.to_string(), &missing.to_string()))
}
