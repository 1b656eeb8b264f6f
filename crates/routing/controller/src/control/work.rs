//! What is done for one Service: plan it, hand the plan out as a job, and take in how it ended.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use nearhop_core::condition::{Writing, judge};
use nearhop_core::model::{Service, Slice};
use nearhop_core::world::PlanTime;
use nearhop_core::{Change, IntentDecision, Kind, ServiceKey, SlicePlan};
use nearhop_runtime::backoff::Backoff;
use nearhop_runtime::metrics::Work;
use tracing::{debug, warn};

use super::{Acting, Control, Now, Pending, TELL_DELAY};
use crate::call::Failure;
use crate::metrics::SyncResult;
use crate::queue::{Cause, Urgency};
use crate::status::{Tell, Trouble, Verdict};
use crate::write::{Job, Known, Why};

/// Failures in a row that are no news: a conflict or an overloaded server mends itself.
pub(super) const QUIET_FAILURES: u32 = 2;
/// Somebody has to try whether the server answers again; who does ends the others' pauses.
const LONGEST_PAUSE_BY_SERVER: Duration = Duration::from_secs(10);
/// How often the depth of a queue that is not empty is measured.
const DEPTH_PERIOD: Duration = Duration::from_millis(200);

impl Control {
    /// Takes the next job, planning as many Services as it takes to find one.
    pub(crate) fn next_job(&mut self, now: Now) -> Option<Job> {
        if self.acting == Acting::No || !self.is_synced() || self.is_busy() {
            return None;
        }
        while let Some(taken) = self.queue.take(now.instant) {
            let work = self.work_metrics.get(taken.waited);
            if let Some(job) = self.sync(&taken.key, work, now) {
                return Some(job);
            }
        }
        self.measure_depth(now);
        None
    }

    /// Counting what is due takes as long as the queue is deep, and so is not done at every event.
    fn measure_depth(&mut self, now: Now) {
        let fresh = self.depth_measured.is_some_and(|at| now.instant < at + DEPTH_PERIOD);
        if !fresh || !self.queue.has_due(now.instant) {
            self.depth_measured = Some(now.instant);
            self.work_metrics.depth(self.queue.depth(now.instant));
        }
    }

    fn sync(&mut self, key: &ServiceKey, work: Work, now: Now) -> Option<Job> {
        let Some(service) = self.world.service(key).cloned() else {
            return self.sync_orphans(key, work, now);
        };
        let pods = self.world.pods(key).map(|(pod, _)| pod);
        let observed = self.triggers.observe(&service, pods);
        let trigger_time = [observed, self.unwritten.remove(key)].into_iter().flatten().min();
        let at = PlanTime { now: now.time, trigger_time, demand: None };
        // A Service that nearhop cannot plan must not take the others with it.
        let planned = catch_unwind(AssertUnwindSafe(|| self.world.plan(key, at)));
        let Ok(planned) = planned else {
            self.fail(key, None, Failure::Defect { what: format!("Service {key}") }, now);
            return None;
        };
        let mut plan = planned.expect("the Service is there");
        let intent = self.world.intent(key).expect("the Service is there").clone();
        self.metrics.planned(key, &plan, &intent);
        if plan.is_noop() {
            self.finish(key, Some(Pending::new(plan, Some((service, intent)), 0, work)), now);
            return None;
        }
        debug!(
            service = %key, create = plan.create.len(), update = plan.update.len(),
            delete = plan.delete.len(), intent = %intent.intent, "writing"
        );
        self.unwritten.extend(trigger_time.map(|time| (key.clone(), time)));
        let job = self.job(key, &mut plan);
        let changed = job.create.len() + job.update.len() + job.delete.len();
        let asked = Some((service, intent));
        self.pending.insert(key.clone(), Pending::new(plan, asked, changed, work));
        Some(job)
    }

    fn job(&self, key: &ServiceKey, plan: &mut SlicePlan) -> Job {
        let update = std::mem::take(&mut plan.update);
        let update = update.into_iter().filter_map(|slice| {
            let before = self.world.slice(&slice.namespace, &slice.name)?;
            Some((self.known(before)?, slice))
        });
        let update = update.collect();
        let delete = std::mem::take(&mut plan.delete);
        let delete = delete.iter().filter_map(|slice| self.known(slice)).collect();
        let create = std::mem::take(&mut plan.create);
        Job { service: key.clone(), create, update, delete, why: Why::Planned }
    }

    fn known(&self, slice: &Arc<Slice>) -> Option<Known> {
        let (uid, version) = self.sights.get(&(slice.namespace.clone(), slice.name.clone()))?;
        Some(Known { slice: slice.clone(), uid: uid.clone(), version: version.clone() })
    }

    /// Slices and conditions of ours whose Service is not there, or not ours any more.
    fn sync_orphans(&mut self, key: &ServiceKey, work: Work, now: Now) -> Option<Job> {
        let delete: Vec<Known> = self.world.slices(key).filter_map(|s| self.known(s)).collect();
        if delete.is_empty() && !self.released.contains(key) {
            self.queue.succeed(key, now.instant);
            self.metrics.synced(SyncResult::Success);
            return None;
        }
        let (create, update) = (Vec::new(), Vec::new());
        let changed = delete.len();
        let plan = SlicePlan::default();
        self.pending.insert(key.clone(), Pending::new(plan, None, changed, work));
        let why = Why::Orphaned(self.choices.mode);
        Some(Job { service: key.clone(), create, update, delete, why })
    }

    /// A plan is written, or there was nothing to write.
    pub(super) fn finish(&mut self, key: &ServiceKey, pending: Option<Pending>, now: Now) {
        self.queue.succeed(key, now.instant);
        let wrote = pending.as_ref().is_some_and(|pending| pending.changed > 0);
        if wrote {
            self.server_answers(now);
        }
        self.metrics.synced(SyncResult::Success);
        self.unwritten.remove(key);
        self.released.remove(key);
        let Some(Pending { plan, asked: Some(asked), changed, .. }) = pending else { return };
        if self.world.service(key).is_none() {
            return;
        }
        self.metrics.wrote(changed, &asked.1);
        self.say(&asked, &plan, &Writing::Done, now);
        if let Some(again) = plan.again_at {
            let wait = Duration::try_from(again.duration_since(now.time)).unwrap_or_default();
            self.add(key, now.instant + wait, Urgency::Usual);
        }
        // A Node may have changed since the plan was made.
        let touched = self.world.apply(Change::Planned(key.clone(), plan.state));
        self.enqueue(touched, Kind::Node, now);
    }

    pub(super) fn fail(
        &mut self,
        key: &ServiceKey,
        pending: Option<Pending>,
        failure: Failure,
        now: Now,
    ) {
        self.work_metrics.retry();
        let mut failures = 0;
        let (cause, backoff) = self.cause_of(&failure);
        self.queue.fail(key, now.instant, cause, |before| {
            failures = before;
            backoff.delay(before, rand::random()).max(failure.retry_after())
        });
        let stale = matches!(failure, Failure::Conflict { .. } | Failure::NotFound { .. });
        self.metrics.synced(if stale { SyncResult::Stale } else { SyncResult::Error });
        if failure.is_passing() && failures < QUIET_FAILURES {
            debug!(service = %key, "{failure}");
            return;
        }
        warn!(service = %key, failures = failures + 1, "{failure}");
        let Some(Pending { plan, asked: Some(asked), .. }) = pending else { return };
        let (culprit, message) = (failure.culprit(), failure.to_string());
        self.say(&asked, &plan, &Writing::Failed { culprit, message }, now);
    }

    /// Whose fault a failure is, and how long to pause after it.
    pub(super) fn cause_of(&mut self, failure: &Failure) -> (Cause, Backoff) {
        let (cause, cap) = match failure {
            Failure::Trouble { .. } | Failure::Unreachable { .. } => {
                self.server_in_trouble = true;
                (Cause::Server, LONGEST_PAUSE_BY_SERVER)
            }
            _ => (Cause::Own, self.choices.backoff.cap),
        };
        (cause, Backoff { cap, ..self.choices.backoff })
    }

    /// The server took a write: nobody need wait any longer because it was in trouble.
    pub(super) fn server_answers(&mut self, now: Now) {
        if std::mem::take(&mut self.server_in_trouble) {
            self.queue.server_recovered(now.instant);
            self.locators.iter_mut().for_each(|work| work.queue.server_recovered(now.instant));
        }
    }

    /// Judges a plan, and sees to it that it is told.
    fn say(
        &mut self,
        (service, intent): &(Arc<Service>, IntentDecision),
        plan: &SlicePlan,
        writing: &Writing,
        now: Now,
    ) {
        let key = &service.key;
        let domain = &self.choices.condition_domain;
        let judgements = judge(domain, service, intent, plan, writing);
        let verdict = Verdict { judgements, trouble: trouble(key, plan, writing) };
        if self.statuses.judge(service, verdict) {
            self.tellings.add(key, now.instant + TELL_DELAY, Urgency::Usual);
        }
    }

    /// Takes the next thing to tell, when no slices wait for a worker: they come first.
    pub(crate) fn next_tell(&mut self, now: Now) -> Option<Tell> {
        let slices_wait = self.queue.has_fresh(now.instant);
        if self.acting == Acting::No || !self.is_synced() || slices_wait {
            return None;
        }
        loop {
            let taken = self.tellings.take(now.instant)?;
            match self.statuses.tell(&taken.key, now.time) {
                Some(tell) => return Some(tell),
                None => {
                    self.tellings.succeed(&taken.key, now.instant);
                }
            }
        }
    }
}

/// What stands in the way of a Service's slices, asked for topology or not.
fn trouble(key: &ServiceKey, plan: &SlicePlan, writing: &Writing) -> Option<Trouble> {
    let error = |culprit: &str, cause: &str| Trouble {
        culprit: culprit.to_owned(),
        message: format!("Error updating Endpoint Slices for Service {key}: {cause}"),
    };
    if let Writing::Failed { culprit, message } = writing {
        return Some(error(culprit, message));
    }
    let missing = plan.missing_nodes.first()?;
    Some(error(&missing.subject.to_string(), &missing.to_string()))
}
