//! The controller's state and what it makes of each event. No task, no clock, no socket: events
//! and the time go in, jobs come out.

mod enqueue;
mod locators;
mod sweep;
mod work;

use nearhop_core::{Kind, Object, Subject};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use nearhop_api::{Changed, Version};
use nearhop_core::model::Service;
use nearhop_core::slice::TriggerTimes;
use nearhop_core::world::Settings;
use nearhop_core::{
    Affected, Change, Gate, Gates, IntentDecision, Name, ObjectRef, Problem, ServiceKey, SlicePlan,
    World,
};
use nearhop_feed::Event as FeedEvent;
use nearhop_runtime::backoff::Backoff;
use nearhop_runtime::metrics::{Metrics, Work, WorkqueueMetrics};
use tracing::{debug, info, warn};

use crate::call::Failure;
use crate::locators::LocatorWork;
use crate::metrics::{ControllerMetrics, Operation};
use crate::mode::Mode;
use crate::queue::{Cause, Queue, Urgency};
use crate::sight::{Shown, Sights, SliceName};
use crate::status::Statuses;
use crate::tell::Told;
use crate::write::{Outcome, Step, answered};
use sweep::Sweep;

/// The slices of a Service that went are left to the garbage collector for this long.
const ORPHAN_DELAY: Duration = Duration::from_secs(2);
/// Slices that others change are put right at most this often per Service: two controllers that
/// disagree must not write as fast as they can.
const REPAIR_PERIOD: Duration = Duration::from_secs(1);
/// What is to be said waits this long, so that what flaps is said once.
const TELL_DELAY: Duration = Duration::from_secs(1);
/// After being refused, conditions wait this long: nobody grants rights by the second.
const REFUSED_PAUSE: Duration = Duration::from_secs(60);

/// What failed so often in a row has failed, where nobody waits for longer.
const ENOUGH_FAILURES: u32 = 5;

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
    /// When this process began.
    pub(crate) started: Timestamp,
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
    /// What was planned for; the Service may have changed since. None for orphans.
    asked: Option<(Arc<Service>, IntentDecision)>,
    changed: usize,
    /// What the feed showed of its slices meanwhile: our own writes, or somebody else's.
    echoes: BTreeMap<SliceName, Echo>,
    _work: Work,
}

impl Pending {
    fn new(
        plan: SlicePlan,
        asked: Option<(Arc<Service>, IntentDecision)>,
        changed: usize,
        work: Work,
    ) -> Self {
        Self { plan, asked, changed, echoes: BTreeMap::new(), _work: work }
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
    sights: Sights<SliceName>,
    triggers: TriggerTimes,
    /// Trigger times of plans that were not written yet.
    unwritten: BTreeMap<ServiceKey, Timestamp>,
    queue: Queue<ServiceKey>,
    tellings: Queue<ServiceKey>,
    /// Where the gate is on.
    locators: Option<LocatorWork>,
    statuses: Statuses,
    pending: BTreeMap<ServiceKey, Pending>,
    repaired: BTreeMap<ServiceKey, Instant>,
    /// Services that are gone or have lost their label, with conditions of ours.
    released: BTreeSet<ServiceKey>,
    problems: BTreeMap<Subject, Vec<Problem>>,
    unlisted: BTreeSet<Kind>,
    acting: Acting,
    metrics: ControllerMetrics,
    work_metrics: WorkqueueMetrics,
    depth_measured: Option<Instant>,
    /// Whether the server failed since the last write that it took.
    server_in_trouble: bool,
    /// Conditions are refused until then.
    refused_until: Option<Instant>,
    foreign_warned: Option<Instant>,
    sweep: Sweep,
}

/// Kinds that must have arrived before anything is decided.
pub(crate) fn kinds(gates: &Gates) -> BTreeSet<Kind> {
    let mut kinds =
        BTreeSet::from([Kind::Node, Kind::Namespace, Kind::Service, Kind::Pod, Kind::Slice]);
    if gates.on(Gate::PodLocator) {
        kinds.insert(Kind::Locator);
    }
    kinds
}

impl Control {
    pub(crate) fn new(choices: Choices, metrics: &Metrics) -> Self {
        Self {
            world: World::new(choices.settings.clone()),
            sights: Sights::default(),
            triggers: TriggerTimes::default(),
            unwritten: BTreeMap::new(),
            queue: Queue::new(choices.workers),
            tellings: Queue::new(choices.workers.div_ceil(4)),
            locators: LocatorWork::new(&choices.settings.gates, choices.workers, metrics),
            statuses: Statuses::new(&choices.condition_domain, choices.started),
            pending: BTreeMap::new(),
            repaired: BTreeMap::new(),
            released: BTreeSet::new(),
            problems: BTreeMap::new(),
            unlisted: kinds(&choices.settings.gates),
            acting: Acting::No,
            metrics: ControllerMetrics::new(metrics),
            work_metrics: WorkqueueMetrics::new(metrics, "endpoint_slice"),
            depth_measured: None,
            server_in_trouble: false,
            refused_until: None,
            foreign_warned: None,
            sweep: Sweep::new(choices.mode),
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
        let slices = self.queue.next_due();
        let after_slices = |due: &Instant| !self.queue.has_fresh(*due);
        let locators = self.locators.as_ref().and_then(LocatorWork::next_due).filter(after_slices);
        let writes = [slices, locators].into_iter().filter(|_| !self.is_busy()).flatten();
        let tellings = self.tellings.next_due().filter(after_slices);
        writes.chain(tellings).chain(self.sweep.retry_at()).min()
    }

    /// Whether everything was written and said, as far as it can be.
    pub(crate) fn is_settled(&self, now: Now) -> bool {
        let soon = now.instant + ORPHAN_DELAY;
        let refused = self.refused_until.is_some();
        self.acting == Acting::Yes
            && self.is_synced()
            && self.queue.is_idle(soon)
            && self.sweep.is_settled()
            && self.queue.has_given_up(ENOUGH_FAILURES)
            && self.tellings.is_idle(soon)
            && (refused || self.tellings.has_given_up(ENOUGH_FAILURES))
            && self.locators.as_ref().is_none_or(|work| work.is_settled(soon, ENOUGH_FAILURES))
    }

    /// Whether this process may act.
    pub(crate) fn acts(&self) -> bool {
        self.acting == Acting::Yes
    }

    /// Services whose slices could not be written at the last attempt.
    pub(crate) fn failing(&self) -> Vec<ServiceKey> {
        self.queue.failing().map(|(key, _)| key.clone()).collect()
    }

    /// Services whose conditions or events could not be written at the last attempt.
    pub(crate) fn untold(&self) -> Vec<ServiceKey> {
        self.tellings.failing().map(|(key, _)| key.clone()).collect()
    }

    // Events.

    /// Takes in what the feed brought.
    pub(crate) fn fed(&mut self, events: Vec<FeedEvent>, now: Now) {
        let mut by_kind: BTreeMap<Kind, Vec<Change>> = BTreeMap::new();
        let mut noted = Vec::new();
        for event in events {
            match event {
                FeedEvent::Changed(changed) => {
                    noted.extend(self.sort_in(changed, &mut by_kind, now));
                }
                FeedEvent::Listed { kind, version, objects } => {
                    if let Some(mut objects) = objects {
                        let again = match kind {
                            Kind::Slice => self.list_slices(&mut objects, &version),
                            Kind::Locator => self.list_locators(&mut objects, &version),
                            _ => Vec::new(),
                        };
                        self.problems.retain(|subject, _| match subject {
                            Subject::Object(object) if object.kind() == kind => {
                                objects.contains(object)
                            }
                            _ => true,
                        });
                        let changes = by_kind.entry(kind).or_default();
                        changes.extend(again);
                        changes.push(Change::Listed(kind, objects));
                    }
                    self.note_definition(kind, &version);
                    if self.unlisted.remove(&kind) && self.unlisted.is_empty() {
                        info!("all objects have arrived");
                        self.apply(std::mem::take(&mut by_kind), now);
                        self.enqueue_all(now);
                    }
                }
            }
        }
        self.apply(by_kind, now);
        self.look_at_new_definition(now);
        for (subject, problems) in noted {
            self.note_problems(subject, problems);
        }
    }

    fn apply(&mut self, by_kind: BTreeMap<Kind, Vec<Change>>, now: Now) {
        for (kind, changes) in by_kind {
            let touched = self.world.apply_all(changes);
            self.enqueue(touched, kind, now);
        }
    }

    /// Files a change unless it is old news, and says what is wrong with its object.
    fn sort_in(
        &mut self,
        changed: Changed,
        by_kind: &mut BTreeMap<Kind, Vec<Change>>,
        now: Now,
    ) -> Option<(Subject, Vec<Problem>)> {
        let Changed { change, meta, problems } = changed;
        let Some(change) = change else {
            return problems.first().map(|problem| problem.subject.clone()).zip(Some(problems));
        };
        let news = match &change {
            Change::Put(Object::Slice(slice)) => {
                let name = (slice.namespace.clone(), slice.name.clone());
                let news = self.sights.feed(&name, &meta, &change);
                if news {
                    self.note_echo(slice.service(), name, || Echo::Seen(meta.version.clone()));
                }
                news
            }
            Change::Gone(ObjectRef::Slice(namespace, name)) => {
                let name = (namespace.clone(), name.clone());
                let news = self.sights.feed_gone(&name, &meta);
                if news {
                    self.note_echo(None, name, || Echo::Gone);
                }
                news
            }
            Change::Put(Object::Service(service)) => {
                if self.statuses.see(&service.key, &meta) {
                    self.tellings.add(&service.key, now.instant + TELL_DELAY, Urgency::Usual);
                }
                true
            }
            Change::Put(Object::Locator(locator)) => self.see_locator(&locator.key, &meta, &change),
            Change::Gone(ObjectRef::Locator(key)) => self.see_locator_gone(key, &meta),
            _ => true,
        };
        let object = match &change {
            Change::Put(object) => object.reference(),
            Change::Gone(object) => object.clone(),
            Change::Listed(..) | Change::Planned(..) => return None,
        };
        if news {
            by_kind.entry(object.kind()).or_default().push(change);
        }
        // Pods and PodLocators are many, and the core finds nothing wrong with them.
        let many = matches!(object, ObjectRef::Pod(_) | ObjectRef::Locator(_));
        let subject = Subject::Object(object);
        let silent = many && problems.is_empty() && !self.problems.contains_key(&subject);
        (!silent).then_some((subject, problems))
    }

    /// Completes a list by what we wrote after it; gives what counts again.
    fn list_slices(&mut self, objects: &mut BTreeSet<ObjectRef>, version: &Version) -> Vec<Change> {
        let reference = |name: &SliceName| ObjectRef::Slice(name.0.clone(), name.1.clone());
        let again = self.sights.listed(objects, reference, version);
        for Shown { version, change, .. } in &again {
            if let Change::Put(Object::Slice(slice)) = change {
                let name = (slice.namespace.clone(), slice.name.clone());
                info!(slice = %slice.name, "the server has lost a write: it was restored, it seems");
                self.note_echo(slice.service(), name, || Echo::Seen(version.clone()));
            }
        }
        again.into_iter().map(|shown| shown.change).collect()
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
    fn note_problems(&mut self, subject: Subject, mut problems: Vec<Problem>) {
        if let Subject::Object(object) = &subject {
            for problem in self.world.problems_of(object) {
                if !problems.contains(problem) {
                    problems.push(problem.clone());
                }
            }
        }
        // A default that makes no sense is a problem of every Service under it, and said once.
        for other in problems.extract_if(.., |problem| problem.subject != subject) {
            let known = self.problems.entry(other.subject.clone()).or_default();
            if !known.contains(&other) {
                warn!("{other}");
                known.push(other);
            }
        }
        let known = self.problems.get(&subject).map_or(&[][..], Vec::as_slice);
        for problem in problems.iter().filter(|problem| !known.contains(problem)) {
            warn!("{problem}");
        }
        if problems.is_empty() {
            self.problems.remove(&subject);
        } else if !matches!(subject, Subject::Unknown(_)) {
            self.problems.insert(subject, problems);
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
            Acting::Yes => {
                // Who led before may have run in another mode.
                self.sweep = Sweep::new(self.choices.mode);
                self.enqueue_all(now);
            }
            Acting::No => {
                self.queue.clear();
                self.tellings.clear();
                self.locators.iter_mut().for_each(|work| work.queue.clear());
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
    fn take_steps(&mut self, steps: Vec<Step>, mut pending: Option<&mut Pending>) -> Affected {
        let mut touched = Affected::default();
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
                Step::Found(base, changed) => self.found(&base, *changed),
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

    fn found(&mut self, base: &Version, changed: Changed) -> Option<Change> {
        let (name, meta) = answered(&changed)?;
        let news = self.sights.found(&name, base, meta);
        changed.change.filter(|_| news)
    }

    fn gone(&mut self, name: SliceName, uid: &Name) -> Option<Change> {
        let known = self.sights.deleted(&name, uid);
        known.then_some(Change::Gone(ObjectRef::Slice(name.0, name.1)))
    }

    /// Takes in how telling ended.
    pub(crate) fn told(&mut self, told: Told, now: Now) {
        let Told { service: key, meta, left, conditions, events } = told;
        if let Some(meta) = meta {
            // Where the server keeps something else than it was given, saying it again is no use.
            let _as_told = self.statuses.see(&key, &meta);
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
        self.tellings.fail(&key, now.instant, Cause::Own, |failures| {
            backoff.delay(failures, rand::random()).max(least)
        });
    }
}
