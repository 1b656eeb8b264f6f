//! The loop: one closed set of events, one match. Waiting and sending happen here; what to do is
//! `control`'s to say.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use jiff::Timestamp;
use nearhop_core::Kind;
use nearhop_core::world::PlanTime;
use nearhop_core::{PodKey, ServiceKey};
use nearhop_feed::{Event as FeedEvent, Feed, Selectors};
use nearhop_runtime::RuntimeError;
use nearhop_runtime::backoff::Backoff;
use nearhop_runtime::health::Check;
use nearhop_runtime::lease::{Elector, Leadership};
use nearhop_runtime::shutdown::{Shutdown, Trigger};
use nearhop_runtime::supervise;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tracing::info;

use crate::call::{Caller, Failure, Fence};
use crate::control::{Acting, Choices, Control, Now, kinds};
use crate::diff::{diff, diff_locator, diff_orphans};
use crate::leftovers::{Removed, Scope, remove};
use crate::locators::write::{LocatorJob, LocatorOutcome, write as write_locator};
use crate::status::Tell;
use crate::tell::{Told, tell};
use crate::write::{Job, Outcome, write};
use crate::{Options, Surroundings, Until};

/// Batches of the feed that are taken in at once.
const BATCHES: usize = 8;
/// Pauses after failures, per Service.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(300));
/// Work that is under way when the process is to stop may take so long.
const DRAIN: Duration = Duration::from_secs(5);

/// How the controller ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Why it ended.
    pub why: Ending,
    /// Services whose slices could not be brought in order.
    pub failed: Vec<ServiceKey>,
    /// Services whose conditions or events could not be written.
    pub untold: Vec<ServiceKey>,
    /// Pods whose PodLocators could not be brought in order.
    pub unlocated: Vec<PodKey>,
}

/// Why the controller ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It was told to stop.
    Stopped,
    /// Everything was done, as far as possible.
    Settled,
    /// It was to do everything once, and did not get the lease in time.
    NoLease,
}

/// Something happened.
enum Event {
    Fed(Vec<FeedEvent>),
    Wrote(Outcome),
    Told(Told),
    Located(LocatorOutcome),
    Swept(Result<Removed, Failure>),
    Lead(Acting),
    Due,
    Stop,
}

/// Runs until told to stop, or until everything is written.
pub async fn run(options: Options, surroundings: Surroundings) -> Result<Ended, RuntimeError> {
    let Surroundings { client, metrics, synced, shutdown } = surroundings;
    let candidacy = Candidacy::start(&options, &client, &metrics)?;
    let (feed, mut events) = start_feed(&client, &options);
    let mut work = Loop {
        control: Control::new(choices(&options), &metrics),
        caller: Caller { client, fence: candidacy.fence(&options) },
        instance: options.lease.as_ref().map_or_else(String::new, |lease| lease.identity.clone()),
        tasks: JoinSet::new(),
        synced,
        until: options.until,
        lease_by: options.lease.as_ref().map(|lease| Instant::now() + lease.lease_duration * 2),
    };
    let why = work.run(&mut events, candidacy.leadership.clone(), &shutdown).await;
    work.drain().await;
    drop(feed);
    candidacy.end().await;
    let control = &work.control;
    let (failed, untold) = (control.failing(), control.untold());
    Ok(Ended { why, failed, untold, unlocated: control.unlocated() })
}

/// Taking part in the election, or leading unopposed.
struct Candidacy {
    leadership: Option<watch::Receiver<Leadership>>,
    task: Option<(JoinHandle<()>, Trigger)>,
}

impl Candidacy {
    fn start(
        options: &Options,
        client: &kube::Client,
        metrics: &nearhop_runtime::metrics::Metrics,
    ) -> Result<Self, RuntimeError> {
        let Some(lease) = options.lease.clone() else {
            return Ok(Self { leadership: None, task: None });
        };
        let elector = Elector::new(client.clone(), lease, Some(metrics))?;
        let leadership = Some(elector.leadership());
        let (trigger, over) = Shutdown::manual();
        let task = supervise::spawn("leader election", elector.run(over));
        Ok(Self { leadership, task: Some((task, trigger)) })
    }

    fn fence(&self, options: &Options) -> Fence {
        match (&self.leadership, &options.lease) {
            (Some(leadership), Some(lease)) => Fence::Lease {
                leadership: leadership.clone(),
                grace: lease.lease_duration.saturating_sub(lease.renew_deadline),
            },
            _ => Fence::Open,
        }
    }

    /// Gives the lease back, now that nothing is written any more.
    async fn end(self) {
        if let Some((task, trigger)) = self.task {
            trigger.request();
            // Whoever waits for it waits longer then; nothing else depends on it.
            let _ = tokio::time::timeout(DRAIN, task).await;
        }
    }
}

struct Loop {
    control: Control,
    caller: Caller,
    instance: String,
    tasks: JoinSet<Event>,
    synced: Check,
    until: Until,
    /// Until when it waits for the lease, where it is to do everything once.
    lease_by: Option<Instant>,
}

impl Loop {
    async fn run(
        &mut self,
        events: &mut mpsc::Receiver<Vec<FeedEvent>>,
        leadership: Option<watch::Receiver<Leadership>>,
        shutdown: &Shutdown,
    ) -> Ending {
        let heartbeat = self.synced.heartbeat("loop");
        let mut leadership = leadership;
        if leadership.is_none() {
            self.control.lead(Acting::Yes, now());
        }
        loop {
            match heartbeat.turn(self.next(events, &mut leadership, shutdown)).await {
                Event::Fed(batch) => self.control.fed(batch, now()),
                Event::Wrote(outcome) => self.control.wrote(outcome, now()),
                Event::Told(told) => self.control.told(told, now()),
                Event::Located(outcome) => self.control.located(outcome, now()),
                Event::Swept(result) => self.control.swept(result, now()),
                Event::Lead(acting) => self.control.lead(acting, now()),
                Event::Due => {}
                Event::Stop => return Ending::Stopped,
            }
            if self.control.is_synced() {
                self.synced.set(Ok(()));
            }
            self.start_work();
            if self.until == Until::Settled {
                if self.control.is_settled(now()) {
                    return Ending::Settled;
                }
                let late = self.lease_by.is_some_and(|by| by <= Instant::now());
                if late && !self.control.acts() {
                    return Ending::NoLease;
                }
            }
        }
    }

    async fn next(
        &mut self,
        events: &mut mpsc::Receiver<Vec<FeedEvent>>,
        leadership: &mut Option<watch::Receiver<Leadership>>,
        shutdown: &Shutdown,
    ) -> Event {
        let mut batches = Vec::new();
        let waits_for_lease = self.until == Until::Settled && !self.control.acts();
        let lease_by = self.lease_by.filter(|_| waits_for_lease);
        let due = [self.control.next_due(), lease_by].into_iter().flatten().min();
        tokio::select! {
            () = shutdown.wait() => Event::Stop,
            Some(acting) = change(leadership) => Event::Lead(acting),
            Some(done) = self.tasks.join_next() => {
                done.expect("tasks catch their panics and are not aborted")
            }
            taken = events.recv_many(&mut batches, BATCHES) => {
                if taken == 0 { Event::Stop } else { Event::Fed(batches.into_iter().flatten().collect()) }
            }
            () = sleep_until(due) => Event::Due,
        }
    }

    fn start_work(&mut self) {
        let now = now();
        while let Some(job) = self.control.next_job(now) {
            let caller = self.caller.clone();
            self.tasks.spawn(async move { Event::Wrote(guarded_write(&caller, job).await) });
        }
        while let Some(job) = self.control.next_locator(now) {
            let caller = self.caller.clone();
            self.tasks.spawn(async move { Event::Located(guarded_locator(&caller, job).await) });
        }
        if let Some(scope) = self.control.next_sweep(now) {
            let caller = self.caller.clone();
            self.tasks.spawn(async move { Event::Swept(guarded_removal(&caller, scope).await) });
        }
        while let Some(what) = self.control.next_tell(now) {
            let (caller, instance) = (self.caller.clone(), self.instance.clone());
            self.tasks
                .spawn(async move { Event::Told(guarded_tell(&caller, &instance, what).await) });
        }
    }

    /// Lets what is being written come to its end.
    async fn drain(&mut self) {
        let rest = async {
            while let Some(done) = self.tasks.join_next().await {
                match done {
                    Ok(Event::Wrote(outcome)) => self.control.wrote(outcome, now()),
                    Ok(Event::Located(outcome)) => self.control.located(outcome, now()),
                    _ => {}
                }
            }
        };
        if tokio::time::timeout(DRAIN, rest).await.is_err() {
            info!("some writes did not end in time; the next start finds out what became of them");
            // Before the lease is given back.
            self.tasks.shutdown().await;
        }
    }
}

fn now() -> Now {
    Now { instant: Instant::now(), time: Timestamp::now() }
}

/// A panic costs its Service an attempt, and nobody else anything.
async fn guarded_write(caller: &Caller, job: Job) -> Outcome {
    let service = job.service.clone();
    let written = AssertUnwindSafe(write(caller, job)).catch_unwind().await;
    written.unwrap_or_else(|_| {
        let what = format!("Service {service}");
        Outcome { service, steps: Vec::new(), result: Err(Failure::Defect { what }) }
    })
}

async fn guarded_locator(caller: &Caller, job: LocatorJob) -> LocatorOutcome {
    let (key, operation, what) = (job.key().clone(), job.operation(), job.what());
    let written = AssertUnwindSafe(write_locator(caller, job)).catch_unwind().await;
    let defect = Err(Failure::Defect { what });
    written.unwrap_or(LocatorOutcome { key, operation, result: defect })
}

async fn guarded_removal(caller: &Caller, scope: Scope) -> Result<Removed, Failure> {
    let removed = AssertUnwindSafe(remove(caller, scope)).catch_unwind().await;
    removed.unwrap_or_else(|_| Err(Failure::Defect { what: "what nearhop left".to_owned() }))
}

async fn guarded_tell(caller: &Caller, instance: &str, what: Tell) -> Told {
    let service = what.service.clone();
    let told = AssertUnwindSafe(tell(caller, instance, what)).catch_unwind().await;
    told.unwrap_or_else(|_| {
        let what = format!("status of Service {service}");
        Told::failed(service, Failure::Defect { what })
    })
}

/// Waits until it changes whether this process may act; forever where nobody else could.
async fn change(leadership: &mut Option<watch::Receiver<Leadership>>) -> Option<Acting> {
    let Some(receiver) = leadership else { return std::future::pending().await };
    receiver.changed().await.ok()?;
    let leading = receiver.borrow_and_update().is_valid(Instant::now());
    Some(if leading { Acting::Yes } else { Acting::No })
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

fn start_feed(client: &kube::Client, options: &Options) -> (Feed, mpsc::Receiver<Vec<FeedEvent>>) {
    let mode = options.mode;
    let watches: BTreeMap<Kind, Selectors> = (kinds(&options.gates).into_iter())
        .map(|kind| {
            let labels = match kind {
                Kind::Service => mode.service_selector(),
                Kind::Slice => Some(mode.slice_selector()),
                Kind::Pod | Kind::Node | Kind::Namespace | Kind::ServiceCidr | Kind::Locator => {
                    None
                }
            };
            (kind, Selectors { labels, fields: None })
        })
        .collect();
    Feed::start(client.clone(), nearhop_feed::Options { watches, ..Default::default() })
}

fn choices(options: &Options) -> Choices {
    Choices {
        mode: options.mode,
        settings: options.settings(),
        workers: options.workers,
        batch_period: options.batch_period,
        condition_domain: options.condition_domain.clone(),
        started: Timestamp::now(),
        backoff: BACKOFF,
    }
}

/// How removing everything ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CleanUp {
    /// Everything is removed.
    Done(Removed),
    /// Another controller holds the lease, and would write it all again.
    NoLease,
    /// It was told to stop.
    Stopped,
    /// Something could not be removed, because of this.
    Failed(String),
}

/// Removes everything that nearhop has written, as the holder of the lease: no other controller may
/// run meanwhile.
pub async fn clean_up(
    options: Options,
    surroundings: Surroundings,
) -> Result<CleanUp, RuntimeError> {
    let Surroundings { client, metrics, shutdown, .. } = surroundings;
    let candidacy = Candidacy::start(&options, &client, &metrics)?;
    let caller = Caller { client, fence: candidacy.fence(&options) };
    let patience = options.lease.as_ref().map_or(Duration::ZERO, |lease| lease.lease_duration * 2);
    let removal = async {
        match tokio::time::timeout(patience, acts(candidacy.leadership.clone())).await {
            Err(_) => CleanUp::NoLease,
            Ok(()) => match guarded_removal(&caller, Scope::Everything).await {
                Ok(removed) => CleanUp::Done(removed),
                Err(failure) => CleanUp::Failed(failure.to_string()),
            },
        }
    };
    let ended = tokio::select! {
        () = shutdown.wait() => CleanUp::Stopped,
        ended = removal => ended,
    };
    candidacy.end().await;
    Ok(ended)
}

/// Waits until this process may act.
async fn acts(mut leadership: Option<watch::Receiver<Leadership>>) {
    if leadership.is_none() {
        return;
    }
    while let Some(acting) = change(&mut leadership).await {
        if acting == Acting::Yes {
            return;
        }
    }
    // The election is over without us.
    std::future::pending::<()>().await;
}

/// What would be written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DryRun {
    /// The plan of each Service with something to write, as text, sorted by Service.
    pub diffs: Vec<String>,
    /// Services that were planned.
    pub services: usize,
    /// PodLocators that would be written, one text each, sorted by Pod.
    pub locators: Vec<String>,
}

/// Plans every Service once and writes nothing. None if it was stopped before it had read everything.
pub async fn dry_run(options: Options, surroundings: Surroundings) -> Option<DryRun> {
    let Surroundings { client, metrics, shutdown, .. } = surroundings;
    let (_feed, mut events) = start_feed(&client, &options);
    let mut control = Control::new(choices(&options), &metrics);
    while !control.is_synced() {
        tokio::select! {
            () = shutdown.wait() => return None,
            batch = events.recv() => control.fed(batch.unwrap_or_default(), now()),
        }
    }
    let world = control.world();
    let mut result = DryRun::default();
    for service in world.services() {
        let plan = world.plan(&service.key, PlanTime::at(Timestamp::now()));
        let plan = plan.expect("the Service is there");
        result.services += 1;
        let intent = world.intent(&service.key).expect("the Service is there");
        if !plan.is_noop() {
            result.diffs.push(diff(world, &service.key, intent, &plan));
        }
    }
    result.diffs.extend(world.orphans().map(|key| diff_orphans(world, key)));
    let pods = control.located_pods();
    result.locators = pods.iter().filter_map(|pod| diff_locator(world, pod)).collect();
    Some(result)
}
