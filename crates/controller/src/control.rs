//! The controller's state and what it makes of each event. No task, no clock, no socket: events
//! and the time go in, jobs come out.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use nearhop_api::Version;
use nearhop_core::condition::{Writing, judge};
use nearhop_core::slice::TriggerTimes;
use nearhop_core::world::{PlanTime, Settings};
use nearhop_core::{
    Change, Intent, Name, ObjectRef, Problem, Roll, ServiceKey, SlicePlan, Touched, World,
};
use nearhop_feed::{Changed, Event as FeedEvent, Kind};
use nearhop_runtime::backoff::Backoff;
use nearhop_runtime::metrics::{Metrics, Work, WorkqueueMetrics};
use tracing::{debug, info, warn};

use crate::call::Failure;
use crate::metrics::{ControllerMetrics, Operation, SyncResult};
use crate::mode::Mode;
use crate::queue::{Queue, Urgency};
use crate::sight::{Sights, SliceName};
use crate::status::{Statuses, Tell, Trouble, Verdict};
use crate::tell::Told;
use crate::write::{Job, Known, Outcome, Step, Why, answered};

/// The slices of a Service that went are left to the garbage collector for this long.
const ORPHAN_DELAY: Duration = Duration::from_secs(2);
/// Slices that others change are put right at most this often per Service: two controllers that
/// disagree must not write as fast as they can.
const REPAIR_PERIOD: Duration = Duration::from_secs(1);
/// What is to be said waits this long, so that what flaps is said once.
const TELL_DELAY: Duration = Duration::from_millis(250);
/// After being refused, conditions wait this long: nobody grants rights by the second.
const REFUSED_PAUSE: Duration = Duration::from_secs(60);
/// Failures in a row that are no news: a conflict or an overloaded server mends itself.
const QUIET_FAILURES: u32 = 2;

/// Now, by both clocks: one for waiting, one for stamping.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    pub(crate) instant: Instant,
    pub(crate) time: Timestamp,
}

/// What the operator chose.
#[derive(Clone, Debug)]
pub(crate) struct Choices {
    pub(crate) mode: Mode,
    pub(crate) settings: Settings,
    pub(crate) workers: usize,
    pub(crate) batch_period: Duration,
    pub(crate) condition_domain: String,
    pub(crate) backoff: Backoff,
}

/// Whether this process may act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acting {
    Yes,
    No,
}

/// A plan whose writing is under way, without what is being written.
struct Pending {
    plan: SlicePlan,
    changed: usize,
    /// What the feed showed of its slices meanwhile: our own writes, or somebody else's.
    echoes: BTreeMap<SliceName, Echo>,
    _work: Work,
}

impl Pending {
    fn new(plan: SlicePlan, changed: usize, work: Work) -> Self {
        Self { plan, changed, echoes: BTreeMap::new(), _work: work }
    }
}

#[derive(Debug, PartialEq)]
enum Echo {
    Seen(Version),
    Gone,
}

/// Everything the controller knows.
pub(crate) struct Control {
    choices: Choices,
    world: World,
    sights: Sights,
    triggers: TriggerTimes,
    /// Trigger times of plans that were not written yet.
    unwritten: BTreeMap<ServiceKey, Timestamp>,
    queue: Queue,
    tellings: Queue,
    statuses: Statuses,
    pending: BTreeMap<ServiceKey, Pending>,
    repaired: BTreeMap<ServiceKey, Instant>,
    problems: BTreeMap<ObjectRef, Vec<Problem>>,
    unlisted: BTreeSet<Kind>,
    acting: Acting,
    metrics: ControllerMetrics,
    work_metrics: WorkqueueMetrics,
    /// Conditions are refused until then.
    refused_until: Option<Instant>,
    foreign_warned: Option<Instant>,
}

/// Kinds that must have arrived before anything is decided.
pub(crate) const KINDS: [Kind; 5] =
    [Kind::Nodes, Kind::Namespaces, Kind::Services, Kind::Pods, Kind::EndpointSlices];

impl Control {
    pub(crate) fn new(choices: Choices, metrics: &Metrics) -> Self {
        Self {
            world: World::new(choices.settings.clone()),
            sights: Sights::default(),
            triggers: TriggerTimes::default(),
            unwritten: BTreeMap::new(),
            queue: Queue::new(choices.workers),
            tellings: Queue::new(choices.workers.div_ceil(4)),
            statuses: Statuses::new(&choices.condition_domain),
            pending: BTreeMap::new(),
            repaired: BTreeMap::new(),
            problems: BTreeMap::new(),
            unlisted: BTreeSet::from(KINDS),
            acting: Acting::No,
            metrics: ControllerMetrics::new(metrics),
            work_metrics: WorkqueueMetrics::new(metrics, "endpoint_slice"),
            refused_until: None,
            foreign_warned: None,
            choices,
        }
    }

    /// Whether every list has arrived.
    pub(crate) fn is_synced(&self) -> bool {
        self.unlisted.is_empty()
    }

    /// The cluster as it is known.
    pub(crate) fn world(&self) -> &World {
        &self.world
    }

    /// When something is due next.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        if self.acting == Acting::No || !self.is_synced() {
            return None;
        }
        [self.queue.next_due(), self.tellings.next_due()].into_iter().flatten().min()
    }

    /// Whether everything was written and said, as far as it can be: what fails is listed.
    pub(crate) fn is_idle(&self, now: Now) -> bool {
        let soon = now.instant + ORPHAN_DELAY;
        let due = |queue: &Queue| queue.running() > 0 || queue.has_fresh(soon);
        self.is_synced() && !due(&self.queue) && !due(&self.tellings)
    }

    /// Services whose last attempt failed, and how many failed in a row.
    pub(crate) fn failing(&self) -> impl Iterator<Item = (&ServiceKey, u32)> {
        self.queue.failing()
    }

    // Events.

    /// Takes in what the feed brought.
    pub(crate) fn fed(&mut self, events: Vec<FeedEvent>, now: Now) {
        let mut by_kind: BTreeMap<Origin, Vec<Change>> = BTreeMap::new();
        let mut noted = Vec::new();
        for event in events {
            match event {
                FeedEvent::Changed(changed) => {
                    noted.extend(self.sort_in(changed, &mut by_kind, now));
                }
                FeedEvent::Listed { kind, version, roll } => {
                    if let Some(mut roll) = roll {
                        if let Roll::Slices(names) = roll.as_mut() {
                            self.sights.listed(names, &version);
                        }
                        self.problems.retain(|object, _| is_listed(&roll, object));
                        by_kind.entry(Origin::of_roll(&roll)).or_default().push(Change::Only(roll));
                    }
                    if self.unlisted.remove(&kind) && self.unlisted.is_empty() {
                        info!("all objects have arrived");
                        self.apply(std::mem::take(&mut by_kind), now);
                        self.enqueue_all(now);
                    }
                }
            }
        }
        self.apply(by_kind, now);
        for (object, problems) in noted {
            self.note_problems(object, problems);
        }
    }

    fn apply(&mut self, by_kind: BTreeMap<Origin, Vec<Change>>, now: Now) {
        for (origin, changes) in by_kind {
            let touched = self.world.apply_all(changes);
            self.enqueue(touched, origin, now);
        }
    }

    /// Files a change unless it is old news, and says what is wrong with its object.
    fn sort_in(
        &mut self,
        changed: Changed,
        by_kind: &mut BTreeMap<Origin, Vec<Change>>,
        now: Now,
    ) -> Option<(ObjectRef, Vec<Problem>)> {
        let Changed { change, meta, problems } = changed;
        let Some(change) = change else {
            return problems.first().map(|problem| problem.object.clone()).zip(Some(problems));
        };
        let news = match &change {
            Change::Slice(slice) => {
                let name = (slice.namespace.clone(), slice.name.clone());
                let news = self.sights.feed(&name, &meta);
                if news {
                    self.note_echo(slice.service(), name, || Echo::Seen(meta.version.clone()));
                }
                news
            }
            Change::SliceGone(namespace, name) => {
                let name = (namespace.clone(), name.clone());
                let news = self.sights.feed_gone(&name, &meta);
                if news {
                    self.note_echo(None, name, || Echo::Gone);
                }
                news
            }
            Change::Service(service) => {
                if self.statuses.see(&service.key, &meta) {
                    self.tellings.add(&service.key, now.instant + TELL_DELAY, Urgency::Usual);
                }
                true
            }
            _ => true,
        };
        let object = object_of(&change);
        if news {
            by_kind.entry(Origin::of(&change)).or_default().push(change);
        }
        // Pods are many, and the core finds nothing wrong with them.
        let silent = |object: &ObjectRef| {
            matches!(object, ObjectRef::Pod(_))
                && problems.is_empty()
                && !self.problems.contains_key(object)
        };
        let object = object.filter(|object| !silent(object))?;
        Some((object, problems))
    }

    /// Notes what is seen of slices whose Service is being written, to be compared with what the
    /// writing says: of the Service it belongs to now, and of the one it belonged to.
    fn note_echo(&mut self, service: Option<ServiceKey>, name: SliceName, echo: impl Fn() -> Echo) {
        if self.pending.is_empty() {
            return;
        }
        let before = self.world.slice(&name.0, &name.1).and_then(|slice| slice.service());
        for key in [service, before].into_iter().flatten() {
            if let Some(pending) = self.pending.get_mut(&key) {
                pending.echoes.insert(name.clone(), echo());
            }
        }
    }

    /// Logs problems when they are new; every update of an object repeats them.
    fn note_problems(&mut self, object: ObjectRef, mut problems: Vec<Problem>) {
        for problem in self.world.problems_of(&object) {
            if !problems.contains(problem) {
                problems.push(problem.clone());
            }
        }
        let known = self.problems.get(&object).map_or(&[][..], Vec::as_slice);
        for problem in problems.iter().filter(|problem| !known.contains(problem)) {
            warn!("{problem}");
        }
        if problems.is_empty() {
            self.problems.remove(&object);
        } else if !matches!(object, ObjectRef::Unknown(_)) {
            self.problems.insert(object, problems);
        }
        self.metrics.problems(self.problems.len());
    }

    /// Takes in whether this process may act.
    pub(crate) fn lead(&mut self, acting: Acting, now: Now) {
        if acting == self.acting {
            return;
        }
        self.acting = acting;
        match acting {
            Acting::Yes => self.enqueue_all(now),
            Acting::No => {
                self.queue.clear();
                self.tellings.clear();
            }
        }
    }

    /// Takes in how a job ended.
    pub(crate) fn wrote(&mut self, outcome: Outcome, now: Now) {
        let Outcome { service: key, steps, result } = outcome;
        let mut pending = self.pending.remove(&key);
        let touched = self.take_steps(steps, pending.as_mut());
        for other in touched.plan.iter().filter(|other| **other != key) {
            self.add(other, now.instant, Urgency::Usual);
        }
        if pending.as_ref().is_some_and(|pending| !pending.echoes.is_empty()) {
            let at = self.repair_time(&key, now);
            self.add(&key, at, Urgency::Usual);
        }
        match result {
            Ok(()) => self.finish(&key, pending, now),
            Err(failure) => self.fail(&key, pending, failure, now),
        }
    }

    /// Takes in the answers to our writes: they are what the plan wanted. What they explain of
    /// what the feed showed is no news.
    fn take_steps(&mut self, steps: Vec<Step>, mut pending: Option<&mut Pending>) -> Touched {
        let mut touched = Touched::default();
        let mut explain = |name: &SliceName, echo: Echo| {
            if let Some(pending) = &mut pending
                && pending.echoes.get(name) == Some(&echo)
            {
                pending.echoes.remove(name);
            }
        };
        for step in steps {
            let change = match step {
                Step::Wrote(operation, changed) => {
                    self.metrics.change(operation);
                    if let Some((name, meta)) = answered(&changed) {
                        explain(&name, Echo::Seen(meta.version.clone()));
                    }
                    self.written(*changed)
                }
                Step::Found(changed) => self.written(*changed),
                Step::Deleted(name, uid) => {
                    self.metrics.change(Operation::Delete);
                    explain(&name, Echo::Gone);
                    self.gone(name, &uid)
                }
                Step::Vanished(name, uid) => self.gone(name, &uid),
            };
            touched.merge(self.world.apply_all(change));
        }
        touched
    }

    fn written(&mut self, changed: Changed) -> Option<Change> {
        let (name, meta) = answered(&changed)?;
        let news = self.sights.written(&name, meta);
        changed.change.filter(|_| news)
    }

    fn gone(&mut self, name: SliceName, uid: &Name) -> Option<Change> {
        let known = self.sights.deleted(&name, uid);
        known.then_some(Change::SliceGone(name.0, name.1))
    }

    /// Takes in how telling ended.
    pub(crate) fn told(&mut self, told: Told, now: Now) {
        let Told { service: key, meta, left, conditions, events } = told;
        if let Some(meta) = meta
            && self.statuses.see(&key, &meta)
        {
            self.tellings.add(&key, now.instant + TELL_DELAY, Urgency::Usual);
        }
        self.statuses.put_back(&key, left);
        let failure = match (conditions, events) {
            (Ok(()), Ok(())) => {
                self.tellings.succeed(&key, now.instant);
                return;
            }
            (Err(failure), _) | (_, Err(failure)) => failure,
        };
        let refused = matches!(failure, Failure::Forbidden { .. });
        if refused && self.refused_until.is_none_or(|until| until < now.instant) {
            warn!("conditions and events are not written for a while: {failure}");
            self.refused_until = Some(now.instant + REFUSED_PAUSE);
        } else {
            debug!("{failure}");
        }
        let least = if refused { REFUSED_PAUSE } else { failure.retry_after() };
        let backoff = self.choices.backoff;
        self.tellings
            .fail(&key, now.instant, |failures| backoff.delay(failures, rand::random()).max(least));
    }

    // Queueing.

    fn enqueue_all(&mut self, now: Now) {
        if self.acting == Acting::No || !self.is_synced() {
            return;
        }
        let services: Vec<ServiceKey> =
            self.world.services().map(|service| service.key.clone()).collect();
        for key in services {
            self.add(&key, now.instant, Urgency::Usual);
        }
        let orphans: Vec<ServiceKey> = self.world.orphans().cloned().collect();
        for key in orphans {
            self.add(&key, now.instant + ORPHAN_DELAY, Urgency::Usual);
        }
    }

    fn enqueue(&mut self, touched: Touched, origin: Origin, now: Now) {
        for key in touched.plan {
            let gone = self.world.service(&key).is_none();
            if gone {
                self.forget(&key);
            }
            if self.acting == Acting::No || !self.is_synced() {
                continue;
            }
            let (at, urgency) = match origin {
                _ if gone => (now.instant + ORPHAN_DELAY, Urgency::Usual),
                Origin::Service => (now.instant, Urgency::Fresh),
                Origin::Pod => (now.instant + self.choices.batch_period, Urgency::Usual),
                Origin::Place => (now.instant, Urgency::Usual),
                // Our own write, perhaps: its answer will tell.
                Origin::Slice if self.pending.contains_key(&key) => continue,
                Origin::Slice => (self.repair_time(&key, now), Urgency::Usual),
            };
            self.add(&key, at, urgency);
        }
    }

    fn add(&mut self, key: &ServiceKey, at: Instant, urgency: Urgency) {
        if self.queue.add(key, at, urgency) {
            self.work_metrics.add();
        }
    }

    /// When slices that somebody else changed are put right.
    fn repair_time(&mut self, key: &ServiceKey, now: Now) -> Instant {
        self.metrics.foreign_write();
        let last = self.repaired.insert(key.clone(), now.instant);
        let too_soon = last.map(|last| last + REPAIR_PERIOD).filter(|at| *at > now.instant);
        let Some(at) = too_soon else { return now.instant };
        let quiet = self.foreign_warned.is_some_and(|at| now.instant < at + REFUSED_PAUSE);
        if !quiet {
            self.foreign_warned = Some(now.instant);
            warn!(
                "Service {key}: somebody else keeps writing its EndpointSlices labelled \
                 managed-by {}; run one such controller only (kube-controller-manager \
                 --controllers=-endpointslice-controller), or use --mode=labelled",
                self.choices.mode.managed_by()
            );
        }
        at
    }

    fn forget(&mut self, key: &ServiceKey) {
        self.triggers.forget(key);
        self.unwritten.remove(key);
        self.repaired.remove(key);
        self.metrics.forget(key);
        self.statuses.forget(key);
    }

    // Work.

    /// Takes the next job, planning as many Services as it takes to find one.
    pub(crate) fn next_job(&mut self, now: Now) -> Option<Job> {
        if self.acting == Acting::No || !self.is_synced() {
            return None;
        }
        while let Some(taken) = self.queue.take(now.instant) {
            let work = self.work_metrics.get(taken.waited);
            if let Some(job) = self.sync(&taken.key, work, now) {
                return Some(job);
            }
        }
        self.work_metrics.depth(self.queue.depth());
        None
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
        let intent = self.world.intent(key).expect("the Service is there");
        self.metrics.planned(key, &plan, intent);
        if plan.is_noop() {
            self.finish(key, Some(Pending::new(plan, 0, work)), now);
            return None;
        }
        debug!(
            service = %key, create = plan.create.len(), update = plan.update.len(),
            delete = plan.delete.len(), intent = %intent.intent, "writing"
        );
        self.unwritten.extend(trigger_time.map(|time| (key.clone(), time)));
        let job = self.job(key, &mut plan);
        let changed = job.create.len() + job.update.len() + job.delete.len();
        self.pending.insert(key.clone(), Pending::new(plan, changed, work));
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

    fn known(&self, slice: &std::sync::Arc<nearhop_core::model::Slice>) -> Option<Known> {
        let (uid, version) = self.sights.get(&(slice.namespace.clone(), slice.name.clone()))?;
        Some(Known { slice: slice.clone(), uid: uid.clone(), version: version.clone() })
    }

    /// Slices of ours whose Service is not there, or not ours any more.
    fn sync_orphans(&mut self, key: &ServiceKey, work: Work, now: Now) -> Option<Job> {
        let delete: Vec<Known> = self.world.slices(key).filter_map(|s| self.known(s)).collect();
        if delete.is_empty() {
            self.queue.succeed(key, now.instant);
            self.metrics.synced(SyncResult::Success);
            return None;
        }
        let (create, update) = (Vec::new(), Vec::new());
        let changed = delete.len();
        let plan = SlicePlan::default();
        self.pending.insert(key.clone(), Pending::new(plan, changed, work));
        let why = Why::Orphaned(self.choices.mode);
        Some(Job { service: key.clone(), create, update, delete, why })
    }

    /// A plan is written, or there was nothing to write.
    fn finish(&mut self, key: &ServiceKey, pending: Option<Pending>, now: Now) {
        self.queue.succeed(key, now.instant);
        self.metrics.synced(SyncResult::Success);
        self.unwritten.remove(key);
        let Some(Pending { mut plan, changed, .. }) = pending else { return };
        let Some(intent) = self.world.intent(key) else { return };
        self.metrics.wrote(changed, intent);
        self.say(key, &mut plan, &Writing::Done, now);
        if let Some(again) = plan.again_at {
            let wait = Duration::try_from(again.duration_since(now.time)).unwrap_or_default();
            self.add(key, now.instant + wait, Urgency::Usual);
        }
        let touched = self.world.apply(Change::Planned(key.clone(), plan.state));
        self.enqueue(touched, Origin::Place, now);
    }

    fn fail(&mut self, key: &ServiceKey, pending: Option<Pending>, failure: Failure, now: Now) {
        self.work_metrics.retry();
        let mut failures = 0;
        let backoff = self.choices.backoff;
        self.queue.fail(key, now.instant, |before| {
            failures = before;
            backoff.delay(before, rand::random()).max(failure.retry_after())
        });
        // A lease that was late is renewed, or somebody else leads and nothing waits here.
        let passing = matches!(
            failure,
            Failure::Fenced
                | Failure::Conflict { .. }
                | Failure::NotFound { .. }
                | Failure::Trouble { .. }
        );
        let stale = matches!(failure, Failure::Conflict { .. } | Failure::NotFound { .. });
        self.metrics.synced(if stale { SyncResult::Stale } else { SyncResult::Error });
        if passing && failures < QUIET_FAILURES {
            debug!(service = %key, "{failure}");
            return;
        }
        warn!(service = %key, failures = failures + 1, "{failure}");
        let Some(Pending { mut plan, .. }) = pending else { return };
        let (culprit, message) = (failure.culprit(), failure.to_string());
        self.say(key, &mut plan, &Writing::Failed { culprit, message }, now);
    }

    /// Judges a plan, and sees to it that it is told.
    fn say(&mut self, key: &ServiceKey, plan: &mut SlicePlan, writing: &Writing, now: Now) {
        let (Some(service), Some(intent)) = (self.world.service(key), self.world.intent(key))
        else {
            return;
        };
        let domain = &self.choices.condition_domain;
        let judgements = judge(domain, service, intent, plan, writing);
        let verdict = Verdict { judgements, trouble: trouble(key, plan, writing) };
        let hint_events = match writing {
            Writing::Done => std::mem::take(&mut plan.events),
            Writing::Failed { .. } => Vec::new(),
        };
        if self.statuses.judge(key, verdict, &intent.intent, hint_events) {
            self.tellings.add(key, now.instant + TELL_DELAY, Urgency::Usual);
        }
    }

    /// Takes the next thing to tell.
    pub(crate) fn next_tell(&mut self, now: Now) -> Option<Tell> {
        if self.acting == Acting::No || !self.is_synced() {
            return None;
        }
        loop {
            let taken = self.tellings.take(now.instant)?;
            let intent: Option<&Intent> =
                self.world.intent(&taken.key).map(|decision| &decision.intent);
            match self.statuses.tell(&taken.key, intent, now.time) {
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
    Some(error(&missing.object.to_string(), &missing.to_string()))
}

/// Where a change came from; it decides how soon it is worked on. The order is that in which a
/// batch is taken in: what endpoints depend on before the endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Origin {
    /// Nodes and Namespaces.
    Place,
    Service,
    Pod,
    Slice,
}

impl Origin {
    fn of(change: &Change) -> Self {
        match change {
            Change::Service(_) | Change::ServiceGone(_) => Self::Service,
            Change::Pod(_) | Change::PodGone(_) => Self::Pod,
            Change::Slice(_) | Change::SliceGone(..) => Self::Slice,
            Change::Only(roll) => Self::of_roll(roll),
            Change::Node(_)
            | Change::NodeGone(_)
            | Change::Namespace(_)
            | Change::NamespaceGone(_)
            | Change::Planned(..) => Self::Place,
        }
    }

    fn of_roll(roll: &Roll) -> Self {
        match roll {
            Roll::Services(_) => Self::Service,
            Roll::Pods(_) => Self::Pod,
            Roll::Slices(_) => Self::Slice,
            Roll::Nodes(_) | Roll::Namespaces(_) => Self::Place,
        }
    }
}

/// Whether a list names an object, or is not about its kind.
fn is_listed(roll: &Roll, object: &ObjectRef) -> bool {
    match (roll, object) {
        (Roll::Services(names), ObjectRef::Service(key)) => names.contains(key),
        (Roll::Pods(names), ObjectRef::Pod(key)) => names.contains(key),
        (Roll::Nodes(names), ObjectRef::Node(name))
        | (Roll::Namespaces(names), ObjectRef::Namespace(name)) => names.contains(name),
        (Roll::Slices(names), ObjectRef::Slice(namespace, name)) => {
            names.contains(&(namespace.clone(), name.clone()))
        }
        _ => true,
    }
}

fn object_of(change: &Change) -> Option<ObjectRef> {
    Some(match change {
        Change::Service(service) => ObjectRef::Service(service.key.clone()),
        Change::ServiceGone(key) => ObjectRef::Service(key.clone()),
        Change::Pod(pod) => ObjectRef::Pod(pod.key.clone()),
        Change::PodGone(key) => ObjectRef::Pod(key.clone()),
        Change::Node(node) => ObjectRef::Node(node.name.clone()),
        Change::NodeGone(name) => ObjectRef::Node(name.clone()),
        Change::Namespace(namespace) => ObjectRef::Namespace(namespace.name.clone()),
        Change::NamespaceGone(name) => ObjectRef::Namespace(name.clone()),
        Change::Slice(slice) => ObjectRef::Slice(slice.namespace.clone(), slice.name.clone()),
        Change::SliceGone(namespace, name) => ObjectRef::Slice(namespace.clone(), name.clone()),
        Change::Planned(..) | Change::Only(_) => return None,
    })
}
