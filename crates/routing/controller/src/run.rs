//! The main loop: waits for an event, handles it, sends the jobs. `control` decides what to do.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use jiff::Timestamp;
use nearhop_core::Kind;
use nearhop_core::world::PlanTime;
use nearhop_core::{PodKey, ServiceKey};
use nearhop_feed::{Event as FeedEvent, Feed, Selectors};
use nearhop_runtime::backoff::Backoff;
use nearhop_runtime::client::{ApiFailure, ApiSender, Client, EventWriter, Fence};
use nearhop_runtime::health::Check;
use nearhop_runtime::lease::{Elector, Leadership};
use nearhop_runtime::shutdown::{Shutdown, Trigger};
use nearhop_runtime::{RuntimeError, sleep_until, supervise};
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tracing::info;

use crate::control::{Acting, Choices, Control, Now, kinds};
use crate::diff::{diff, diff_locator, diff_orphans};
use crate::leftovers::{Removed, Scope, remove};
use crate::locators::write::{LocatorOutcome, write as write_locator};
use crate::slices::write::{Outcome, write as write_slices};
use crate::status::write::{StatusOutcome, write as write_status};
use crate::writes::{locator_write, orphan_writes, slice_writes};
use crate::{Deps, FIELD_MANAGER, Options, Until};

/// The most batches of the feed that are processed at once.
const BATCHES: usize = 8;
/// The back-off of each Service after failures.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(300));
/// How long running writes may take after a stop is requested.
const DRAIN: Duration = Duration::from_secs(5);

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Why it ended.
    pub why: Ending,
    /// Services whose slices could not be written.
    pub failed_slices: Vec<ServiceKey>,
    /// Services whose conditions or events could not be written.
    pub failed_status: Vec<ServiceKey>,
    /// Pods whose PodLocators could not be written.
    pub failed_locators: Vec<PodKey>,
}

/// Why the controller ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The process was asked to stop.
    Stopped,
    /// Everything was written, as far as possible.
    Settled,
    /// With `--once`: the process did not get the lease in time.
    NoLease,
}

enum Event {
    Feed(Vec<FeedEvent>),
    WroteSlices(Outcome),
    WroteStatus(StatusOutcome),
    WroteLocator(LocatorOutcome),
    Swept(Result<Removed, ApiFailure>),
    Lead(Acting),
    Due,
    Stop,
}

/// Runs until `deps.shutdown`, or with [`Until::Settled`] until everything is written.
pub async fn run(options: Options, deps: Deps) -> Result<Ended, RuntimeError> {
    let Deps { client, metrics, synced, shutdown } = deps;
    let candidacy = Candidacy::start(&options, &client, &metrics)?;
    let (feed, mut events) = start_feed(&client, &options);
    let sender = ApiSender::new(client, FIELD_MANAGER).with_fence(candidacy.fence(&options));
    let instance = options.lease.as_ref().map_or_else(String::new, |lease| lease.identity.clone());
    let mut work = Loop {
        control: Control::new(choices(&options), &metrics),
        events: EventWriter::new(sender.clone(), FIELD_MANAGER, instance),
        sender,
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
    let (failed_slices, failed_status) = (control.failed_slices(), control.failed_status());
    Ok(Ended { why, failed_slices, failed_status, failed_locators: control.failed_locators() })
}

/// This process as a candidate in the leader election, or without an election.
struct Candidacy {
    leadership: Option<watch::Receiver<Leadership>>,
    task: Option<(JoinHandle<()>, Trigger)>,
}

impl Candidacy {
    fn start(
        options: &Options,
        client: &Client,
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

    /// Releases the lease, after the last write.
    async fn end(self) {
        if let Some((task, trigger)) = self.task {
            trigger.request();
            // If that fails, the next leader waits until the lease expires.
            let _ = tokio::time::timeout(DRAIN, task).await;
        }
    }
}

struct Loop {
    control: Control,
    sender: ApiSender,
    events: EventWriter,
    tasks: JoinSet<Event>,
    synced: Check,
    until: Until,
    /// With `--once`: when the process stops waiting for the lease.
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
                Event::Feed(batch) => self.control.on_feed(batch, now()),
                Event::WroteSlices(outcome) => self.control.wrote(outcome, now()),
                Event::WroteStatus(outcome) => self.control.wrote_status(outcome, now()),
                Event::WroteLocator(outcome) => self.control.wrote_locator(outcome, now()),
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
                if taken == 0 { Event::Stop } else { Event::Feed(batches.into_iter().flatten().collect()) }
            }
            () = sleep_until(due) => Event::Due,
        }
    }

    fn start_work(&mut self) {
        let now = now();
        while let Some(job) = self.control.next_job(now) {
            let (sender, service) = (self.sender.clone(), job.service.clone());
            let what = format!("Service {service}");
            let write = async move { write_slices(&sender, job).await };
            let failed = |failure| Outcome { service, steps: Vec::new(), result: Err(failure) };
            self.tasks.spawn(guarded(what, write, failed).map(Event::WroteSlices));
        }
        while let Some(job) = self.control.next_locator(now) {
            let (sender, key, operation) =
                (self.sender.clone(), job.key().clone(), job.operation());
            let what = job.what();
            let write = async move { write_locator(&sender, job).await };
            let failed = move |failure| LocatorOutcome { key, operation, result: Err(failure) };
            self.tasks.spawn(guarded(what, write, failed).map(Event::WroteLocator));
        }
        if let Some(scope) = self.control.next_sweep(now) {
            let sender = self.sender.clone();
            self.tasks.spawn(guarded_removal(sender, scope).map(Event::Swept));
        }
        while let Some(write) = self.control.next_status(now) {
            let (sender, events) = (self.sender.clone(), self.events.clone());
            let service = write.service.clone();
            let what = format!("status of Service {service}");
            let write = async move { write_status(&sender, &events, write).await };
            let failed = |failure| {
                let (meta, unsent, result) = (None, Vec::new(), Err(failure));
                StatusOutcome { service, meta, unsent, result }
            };
            self.tasks.spawn(guarded(what, write, failed).map(Event::WroteStatus));
        }
    }

    /// Waits for the writes that are running.
    async fn drain(&mut self) {
        let rest = async {
            while let Some(done) = self.tasks.join_next().await {
                match done {
                    Ok(Event::WroteSlices(outcome)) => self.control.wrote(outcome, now()),
                    Ok(Event::WroteLocator(outcome)) => self.control.wrote_locator(outcome, now()),
                    _ => {}
                }
            }
        };
        if tokio::time::timeout(DRAIN, rest).await.is_err() {
            info!(limit = ?DRAIN, "writes aborted at shutdown; the next leader checks their results");
            // Ends all writes before the lease is released.
            self.tasks.shutdown().await;
        }
    }
}

fn now() -> Now {
    Now { instant: Instant::now(), time: Timestamp::now() }
}

/// Runs a write. A panic counts as a failure of its object only.
async fn guarded<T>(
    what: String,
    write: impl Future<Output = T>,
    failed: impl FnOnce(ApiFailure) -> T,
) -> T {
    let written = AssertUnwindSafe(write).catch_unwind().await;
    written.unwrap_or_else(|_| failed(ApiFailure::Panicked { what }))
}

async fn guarded_removal(sender: ApiSender, scope: Scope) -> Result<Removed, ApiFailure> {
    guarded("removal of leftovers".to_owned(), remove(&sender, scope), Err).await
}

/// Waits until leadership changes; waits forever without leader election.
async fn change(leadership: &mut Option<watch::Receiver<Leadership>>) -> Option<Acting> {
    let Some(receiver) = leadership else { return std::future::pending().await };
    receiver.changed().await.ok()?;
    let leading = receiver.borrow_and_update().is_valid(Instant::now());
    Some(if leading { Acting::Yes } else { Acting::No })
}

fn start_feed(client: &Client, options: &Options) -> (Feed, mpsc::Receiver<Vec<FeedEvent>>) {
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

/// The result of `--cleanup`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CleanUp {
    /// Everything is removed.
    Done(Removed),
    /// Another controller holds the lease, and would write everything again.
    NoLease,
    /// The process was asked to stop.
    Stopped,
    /// An object could not be removed, with the error.
    Failed(String),
}

/// Removes everything that nearhop wrote, as the holder of the lease: no other controller may run
/// at the same time.
pub async fn clean_up(options: Options, deps: Deps) -> Result<CleanUp, RuntimeError> {
    let Deps { client, metrics, shutdown, .. } = deps;
    let candidacy = Candidacy::start(&options, &client, &metrics)?;
    let sender = ApiSender::new(client, FIELD_MANAGER).with_fence(candidacy.fence(&options));
    let patience = options.lease.as_ref().map_or(Duration::ZERO, |lease| lease.lease_duration * 2);
    let removal = async {
        match tokio::time::timeout(patience, wait_for_leadership(candidacy.leadership.clone()))
            .await
        {
            Err(_) => CleanUp::NoLease,
            Ok(()) => match guarded_removal(sender, Scope::Everything).await {
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

/// Waits until this process may write.
async fn wait_for_leadership(mut leadership: Option<watch::Receiver<Leadership>>) {
    if leadership.is_none() {
        return;
    }
    while let Some(acting) = change(&mut leadership).await {
        if acting == Acting::Yes {
            return;
        }
    }
    // The election has ended, and this process does not lead.
    std::future::pending::<()>().await;
}

/// The result of `--dry-run`: what would be written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DryRun {
    /// A text for each Service whose slices would change, sorted by Service.
    pub diffs: Vec<String>,
    /// Services that were planned.
    pub services: usize,
    /// A text for each PodLocator that would change, sorted by Pod.
    pub locators: Vec<String>,
    /// All of them for programs, one for each write.
    pub writes: Vec<Value>,
}

/// Plans every Service once and writes nothing. None if it was stopped before it had all lists.
pub async fn dry_run(options: Options, deps: Deps) -> Option<DryRun> {
    let Deps { client, metrics, shutdown, .. } = deps;
    let (_feed, mut events) = start_feed(&client, &options);
    let mut control = Control::new(choices(&options), &metrics);
    while !control.is_synced() {
        tokio::select! {
            () = shutdown.wait() => return None,
            batch = events.recv() => control.on_feed(batch.unwrap_or_default(), now()),
        }
    }
    let world = control.world();
    let mut result = DryRun::default();
    for service in world.services() {
        let plan = world.plan(&service.key, PlanTime::at(Timestamp::now()));
        let plan = plan.expect("the Service exists");
        result.services += 1;
        let intent = world.intent(&service.key).expect("the Service exists");
        if !plan.is_noop() {
            result.diffs.push(diff(world, &service.key, intent, &plan));
            result.writes.extend(slice_writes(world, &service.key, &plan));
        }
    }
    for key in world.orphans() {
        result.diffs.push(diff_orphans(world, key));
        result.writes.extend(orphan_writes(world, key));
    }
    let pods = control.located_pods();
    result.writes.extend(pods.iter().filter_map(|pod| locator_write(world, pod)));
    result.locators = pods.iter().filter_map(|pod| diff_locator(world, pod)).collect();
    Some(result)
}
