//! The controller's state, and its reaction to each event. Pure: its input is events and the time,
//! its output is jobs.
//!
//! ```text
//!   slices    EndpointSlices: plans a Service, handles the replies
//!   status    conditions and events
//!   locators  PodLocators
//!   sweep     removes what the other mode wrote
//! ```

mod locators;
mod slices;
mod status;
mod sweep;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use nearhop_api::Changed;
use nearhop_core::world::Settings;
use nearhop_core::{
    Change, Gate, Gates, Kind, Object, ObjectRef, Problem, ServiceKey, Subject, World,
};
use nearhop_feed::Event as FeedEvent;
use nearhop_runtime::backoff::Backoff;
use nearhop_runtime::client::ApiFailure;
use nearhop_runtime::metrics::Metrics;
use nearhop_runtime::queue::{Cause, WorkQueue};
use tracing::{info, warn};

use crate::locators::Locators;
use crate::mode::Mode;
use crate::slices::Slices;
use crate::status::{StatusWork, Statuses};
use crate::throttle::Throttle;
use sweep::Sweep;

/// How long the controller waits for the garbage collector to delete the slices of a deleted
/// Service.
const ORPHAN_DELAY: Duration = Duration::from_secs(2);
/// How long a status write waits, so that a state that flaps is written only once.
const STATUS_DELAY: Duration = Duration::from_secs(1);
/// How long a status write waits if only numbers in messages differ, so that a rollout does not
/// cost a write of the status for each Pod.
const NUMBERS_DELAY: Duration = Duration::from_secs(5);
/// With `--once`, the controller gives up on a key after this many failures in a row.
const ENOUGH_FAILURES: u32 = 5;
/// The log has no warning for up to this many transient failures in a row.
const QUIET_FAILURES: u32 = 2;
/// The longest back-off while the API server fails. It is short, because the first retry that
/// succeeds ends the back-off of all other keys.
const LONGEST_SERVER_BACKOFF: Duration = Duration::from_secs(10);

/// The current time: the monotonic clock for waits, the wall clock for timestamps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    pub(crate) instant: Instant,
    pub(crate) time: Timestamp,
}

/// The options that the operator set.
#[derive(Clone, Debug)]
pub(crate) struct Choices {
    pub(crate) mode: Mode,
    pub(crate) settings: Settings,
    pub(crate) workers: usize,
    pub(crate) batch_period: Duration,
    pub(crate) condition_domain: String,
    /// When this process started.
    pub(crate) started: Timestamp,
    pub(crate) backoff: Backoff,
}

/// Whether this process may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acting {
    Yes,
    No,
}

/// Everything the controller knows.
pub(crate) struct Control {
    choices: Choices,
    world: World,
    slices: Slices,
    status: StatusWork,
    /// `None` if the feature gate is off.
    locators: Option<Locators>,
    sweep: Sweep,
    problems: BTreeMap<Subject, Vec<Problem>>,
    unlisted: BTreeSet<Kind>,
    acting: Acting,
    /// Whether the server failed since the last successful write.
    server_fails: bool,
}

/// The kinds to watch. The controller writes nothing before it has a list of each.
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
            slices: Slices::new(choices.workers, metrics),
            status: StatusWork {
                queue: WorkQueue::new(choices.workers.div_ceil(4)),
                statuses: Statuses::new(&choices.condition_domain, choices.started),
                throttle: Throttle::default(),
            },
            locators: Locators::new(&choices.settings.gates, choices.workers, metrics),
            sweep: Sweep::new(choices.mode),
            problems: BTreeMap::new(),
            unlisted: kinds(&choices.settings.gates),
            acting: Acting::No,
            server_fails: false,
            choices,
        }
    }

    /// Whether this process may write, and has received all lists.
    fn is_active(&self) -> bool {
        self.acts() && self.is_synced()
    }

    /// Whether every list has arrived.
    pub(crate) fn is_synced(&self) -> bool {
        self.unlisted.is_empty()
    }

    /// The cluster as the controller knows it.
    pub(crate) fn world(&self) -> &World {
        &self.world
    }

    /// When the next work is due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        if !self.is_active() {
            return None;
        }
        let slices = self.slices.queue.next_due();
        let after_slices = |due: &Instant| !self.slices.queue.has_fresh(*due);
        let locators = self.locators.as_ref().and_then(Locators::next_due).filter(after_slices);
        let writes = [slices, locators].into_iter().filter(|_| !self.is_busy()).flatten();
        let status = self.status.queue.next_due().filter(after_slices);
        writes.chain(status).chain(self.sweep.retry_at()).min()
    }

    /// Whether everything is written, as far as possible.
    pub(crate) fn is_settled(&self, now: Now) -> bool {
        let soon = now.instant + ORPHAN_DELAY;
        let (slices, status) = (&self.slices.queue, &self.status.queue);
        let forbidden = self.status.throttle.forbidden_until.is_some();
        self.is_active()
            && slices.is_idle(soon)
            && self.sweep.is_settled()
            && slices.has_given_up(ENOUGH_FAILURES)
            && status.is_idle(now.instant + NUMBERS_DELAY)
            && (forbidden || status.has_given_up(ENOUGH_FAILURES))
            && self.locators.as_ref().is_none_or(|work| work.is_settled(soon, ENOUGH_FAILURES))
    }

    /// Whether this process may write.
    pub(crate) fn acts(&self) -> bool {
        self.acting == Acting::Yes
    }

    /// Services whose slices could not be written at the last attempt.
    pub(crate) fn failed_slices(&self) -> Vec<ServiceKey> {
        self.slices.queue.failing().cloned().collect()
    }

    /// Services whose conditions or events could not be written at the last attempt.
    pub(crate) fn failed_status(&self) -> Vec<ServiceKey> {
        self.status.queue.failing().cloned().collect()
    }

    /// The back-off after a failure. Remembers that the server fails.
    fn backoff(&mut self, failure: &ApiFailure) -> Backoff {
        let cap = match failure.cause() {
            Cause::Server => {
                self.server_fails = true;
                LONGEST_SERVER_BACKOFF
            }
            Cause::Object => self.choices.backoff.cap,
        };
        Backoff { cap, ..self.choices.backoff }
    }

    /// Ends the back-off of keys that failed because of the server, after it accepted a write.
    fn note_server_success(&mut self, now: Now) {
        if std::mem::take(&mut self.server_fails) {
            self.slices.queue.server_recovered(now.instant);
            self.status.queue.server_recovered(now.instant);
            self.locators.iter_mut().for_each(|work| work.queue.server_recovered(now.instant));
        }
    }

    /// Handles events of the feed.
    pub(crate) fn on_feed(&mut self, events: Vec<FeedEvent>, now: Now) {
        let mut by_kind: BTreeMap<Kind, Vec<Change>> = BTreeMap::new();
        let mut noted = Vec::new();
        for event in events {
            match event {
                FeedEvent::Changed(changed) => {
                    noted.extend(self.take_change(changed, &mut by_kind, now));
                }
                FeedEvent::Listed { kind, version, objects } => {
                    if let Some(mut objects) = objects {
                        let again = match kind {
                            Kind::Slice => {
                                self.slices.complete_list(&mut objects, &version, &self.world)
                            }
                            Kind::Locator => self.list_locators(&mut objects, &version),
                            Kind::Service => {
                                let lost = self.status.statuses.complete_list(&objects, &version);
                                lost.iter().for_each(|key| self.enqueue_status(key, now));
                                Vec::new()
                            }
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
                        info!("initial lists complete");
                        self.apply(std::mem::take(&mut by_kind), now);
                        self.enqueue_all(now);
                    }
                }
            }
        }
        self.apply(by_kind, now);
        self.check_new_definition(now);
        for (subject, problems) in noted {
            self.note_problems(subject, problems);
        }
    }

    fn apply(&mut self, by_kind: BTreeMap<Kind, Vec<Change>>, now: Now) {
        for (kind, changes) in by_kind {
            let affected = self.world.apply_all(changes);
            self.enqueue(affected, kind, now);
        }
    }

    /// Adds a change to the world unless it is outdated. Returns the problems of its object.
    fn take_change(
        &mut self,
        changed: Changed,
        by_kind: &mut BTreeMap<Kind, Vec<Change>>,
        now: Now,
    ) -> Option<(Subject, Vec<Problem>)> {
        let Changed { change, meta, problems } = changed;
        let Some(change) = change else {
            return problems.first().map(|problem| problem.subject.clone()).zip(Some(problems));
        };
        let new = match &change {
            Change::Put(Object::Slice(slice)) => {
                self.slices.observe(slice, &meta, &change, &self.world)
            }
            Change::Gone(object @ ObjectRef::Slice(..)) => {
                self.slices.observe_deleted(object, &meta, &self.world)
            }
            Change::Put(Object::Service(service)) => {
                if self.status.statuses.observe(&service.key, &meta) {
                    self.enqueue_status(&service.key, now);
                }
                true
            }
            Change::Gone(ObjectRef::Service(key)) => {
                self.status.statuses.observe_deleted(key, &meta);
                true
            }
            Change::Put(Object::Locator(locator)) => {
                let name = ObjectRef::Locator(locator.key.clone());
                self.observe_locator(&name, &meta, &change)
            }
            Change::Gone(object @ ObjectRef::Locator(_)) => {
                self.observe_locator_deleted(object, &meta)
            }
            _ => true,
        };
        let object = match &change {
            Change::Put(object) => object.reference(),
            Change::Gone(object) => object.clone(),
            Change::Listed(..) | Change::Planned(..) => return None,
        };
        if new {
            by_kind.entry(object.kind()).or_default().push(change);
        }
        // There are many Pods and PodLocators, and the core never reports problems for them.
        let many = matches!(object, ObjectRef::Pod(_) | ObjectRef::Locator(_));
        let subject = Subject::Object(object);
        let silent = many && problems.is_empty() && !self.problems.contains_key(&subject);
        (!silent).then_some((subject, problems))
    }

    /// Logs new problems only: every update of an object repeats the old ones.
    fn note_problems(&mut self, subject: Subject, mut problems: Vec<Problem>) {
        if let Subject::Object(object) = &subject {
            for problem in self.world.problems_of(object) {
                if !problems.contains(problem) {
                    problems.push(problem.clone());
                }
            }
        }
        // An invalid default is a problem of every Service that uses it, and is logged once.
        for other in problems.extract_if(.., |problem| problem.subject != subject) {
            let known = self.problems.entry(other.subject.clone()).or_default();
            if !known.contains(&other) {
                warn!(problem = %other, "invalid object");
                known.push(other);
            }
        }
        let known = self.problems.get(&subject).map_or(&[][..], Vec::as_slice);
        for problem in problems.iter().filter(|problem| !known.contains(problem)) {
            warn!(%problem, "invalid object");
        }
        if problems.is_empty() {
            self.problems.remove(&subject);
        } else if !matches!(subject, Subject::Unknown(_)) {
            self.problems.insert(subject, problems);
        }
        self.slices.metrics.problems(self.problems.len());
    }

    /// Handles a change of whether this process may write.
    pub(crate) fn lead(&mut self, acting: Acting, now: Now) {
        if acting == self.acting {
            return;
        }
        self.acting = acting;
        match acting {
            Acting::Yes => {
                // The previous leader may have run in the other mode.
                self.sweep = Sweep::new(self.choices.mode);
                self.enqueue_all(now);
            }
            Acting::No => {
                self.slices.queue.clear();
                self.status.queue.clear();
                self.locators.iter_mut().for_each(|work| work.queue.clear());
            }
        }
    }
}
