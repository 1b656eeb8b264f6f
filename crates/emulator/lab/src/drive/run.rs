//! Runs the clients and collects their counts.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nearhop_runtime::shutdown::Shutdown;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::assertion::Assertion;
use super::client::{self, Meeting};
use super::origin::{Client, Plan, Where, find};
use super::places::find_places;
use super::question::{Amount, Question};
use super::report::{End, Lost, Measurement, Report, report};
use super::tally::Tally;
use super::worker::Times;
use crate::LabError;
use crate::cluster::Cluster;
use crate::control::{Answer, Request, send};

pub(crate) use super::client::command_line;

/// How long the API server and the lab may take to answer.
const API_TIMEOUT: Duration = Duration::from_secs(15);

/// How long the Pods that were created meanwhile may take to be listed.
const PODS_TIMEOUT: Duration = Duration::from_secs(3);

/// How long clients may take to end after a request to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// Without a duration and a rate, a drive gives up if for this time every connection timed out, …
const GIVE_UP: Duration = Duration::from_secs(10);

/// … or for this many timeouts, if that is longer.
const GIVE_UP_TIMEOUTS: u32 = 3;

/// Time between two calls of `on_progress`.
const TICK: Duration = Duration::from_millis(100);

/// The counts so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Ended connections.
    pub done: u64,
    /// Failed ones among them.
    pub failed: u64,
    /// Number of connections; None if only the time is limited.
    pub planned: Option<u64>,
    /// Time since the start.
    pub elapsed: Duration,
    /// The time limit.
    pub duration: Option<Duration>,
}

/// A drive whose clients and targets are known.
#[derive(Clone)]
pub struct Drive {
    state: PathBuf,
    cluster: Cluster,
    question: Question,
    plan: Plan,
    /// Why the plan could not be refreshed.
    stale: Option<String>,
}

impl Drive {
    /// Finds clients and targets in the lab of this directory.
    pub async fn prepare(
        state: &Path,
        cluster: &Cluster,
        question: &Question,
    ) -> Result<Self, LabError> {
        let plan = plan(state, cluster, question).await?;
        let (state, cluster) = (state.to_owned(), cluster.clone());
        Ok(Self { state, cluster, question: question.clone(), plan, stale: None })
    }

    /// Finds clients and targets again. After an error the earlier ones are kept, and the next report
    /// has a note.
    pub async fn refresh(&mut self) {
        match plan(&self.state, &self.cluster, &self.question).await {
            Ok(plan) => (self.plan, self.stale) = (plan, None),
            Err(error) => self.stale = Some(error.to_string()),
        }
    }

    /// Refuses an assertion on a value that this drive cannot measure.
    pub fn check(&self, assertion: &Assertion) -> Result<(), String> {
        let nodes = &self.plan.places.nodes;
        let zones: BTreeSet<&str> = nodes.values().map(|node| node.zone.as_str()).collect();
        // Nodes without a zone are in no zone that a user could name.
        let zones: Vec<&str> = zones.into_iter().filter(|zone| !zone.is_empty()).collect();
        let nodes: Vec<&str> = nodes.keys().map(String::as_str).collect();
        assertion.check(&self.question, &zones, &nodes)
    }

    /// Opens the connections. Ends early when `stop` is requested, or if every connection times out.
    /// Fails if no client could run.
    pub async fn run(
        &self,
        stop: &Shutdown,
        on_progress: impl FnMut(&Progress),
    ) -> Result<Report, LabError> {
        let mut collected = self.collect(stop, on_progress).await?;
        if let Some(error) = collected.complete_failure() {
            return Err(error);
        }
        collected.close_times();
        let mut places = self.plan.places.clone();
        // Adds Pods that were created meanwhile. Without the API server the known ones remain.
        let namespace = &self.question.service.namespace;
        let now = timeout(PODS_TIMEOUT, find_places(&self.cluster, namespace)).await;
        if let Ok(Ok(now)) = now {
            places.pods.extend(now.pods);
            places.owners.extend(now.owners);
        }
        collected.measurement.endpoints = self.plan.endpoints;
        let mut report = report(&self.question, &collected.measurement, &places);
        report.notes.extend(
            self.stale
                .iter()
                .map(|why| format!("clients and targets are those of an earlier interval: {why}")),
        );
        Ok(report)
    }

    async fn collect(
        &self,
        stop: &Shutdown,
        mut on_progress: impl FnMut(&Progress),
    ) -> Result<Collected, LabError> {
        let (ender, end) = Shutdown::manual();
        let (_clients, mut events) = self.start_clients(&end)?;
        let mut collected = Collected::new(&self.plan, &self.question);
        let mut ticks = tokio::time::interval(TICK);
        let mut stopped_at: Option<Instant> = None;
        loop {
            let mut ended = None;
            tokio::select! {
                event = events.recv() => match event {
                    Some((number, event)) => collected.take(number, event),
                    None => return Ok(collected),
                },
                _ = ticks.tick() => on_progress(&collected.progress(&self.question)),
                () = stop.wait(), if stopped_at.is_none() => ended = Some(End::Interrupted),
            }
            let gave_up = collected.gives_up(&self.question).then_some(End::GaveUp);
            match (ended.or(gave_up), stopped_at) {
                (Some(end), None) => {
                    collected.measurement.end = end;
                    stopped_at = Some(Instant::now());
                    ender.request();
                }
                (_, Some(at)) if at.elapsed() > STOP_TIMEOUT => {
                    collected.lose_the_rest();
                    return Ok(collected);
                }
                _ => {}
            }
        }
    }

    /// The clients end when the set is dropped.
    fn start_clients(&self, end: &Shutdown) -> Result<(JoinSet<()>, Events), LabError> {
        let origins = &self.plan.origins;
        let on_nodes = origins.iter().filter(|one| matches!(one.place, Where::Lab(_)));
        let meeting = Arc::new(Meeting::open(&self.state, on_nodes.count())?);
        let (sender, events) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        for (number, origin) in origins.iter().cloned().enumerate() {
            let (end, sender) = (end.clone(), sender.clone());
            let (state, cluster) = (self.state.clone(), self.cluster.clone());
            let meeting = Arc::clone(&meeting);
            tasks.spawn(async move {
                // The drive may have ended without waiting for this client.
                let on_counts = |tally| drop(sender.send((number, Event::Counts(tally))));
                let place = (state.as_path(), &cluster);
                let ended = client::run(number, &origin, place, &meeting, &end, on_counts).await;
                let _ = sender.send((number, Event::Ended(ended)));
            });
        }
        Ok((tasks, events))
    }
}

async fn plan(state: &Path, cluster: &Cluster, question: &Question) -> Result<Plan, LabError> {
    let found = async { find(cluster, &nodes_of(state).await?, question).await };
    let silent = |_| LabError::Drive {
        what: format!("Service {}/{}", question.service.namespace, question.service.name),
        why: format!(
            "the lab does not answer within {} s. Cure: `nearhop lab status` shows what runs",
            API_TIMEOUT.as_secs()
        ),
    };
    timeout(API_TIMEOUT, found).await.map_err(silent)?
}

/// The lab's nodes.
async fn nodes_of(state: &Path) -> Result<Vec<String>, LabError> {
    let failed = |cause| LabError::File { path: state.to_owned(), cause };
    match send(state, &Request::Status).await.map_err(failed)? {
        Answer::Status(status) => Ok(status.zones.into_values().flatten().collect()),
        _ => Err(failed(std::io::Error::other("unexpected answer from the lab"))),
    }
}

/// With the number of the client.
type Events = mpsc::UnboundedReceiver<(usize, Event)>;

enum Event {
    Counts(Tally),
    Ended(Result<Times, String>),
}

/// What the clients have sent so far.
struct Collected {
    measurement: Measurement,
    begun: Instant,
    done: u64,
    failed: u64,
    running: Vec<bool>,
    /// When a connection last ended otherwise than by a timeout.
    moved: Instant,
    /// Timeouts since then.
    timeouts: u64,
}

impl Collected {
    fn new(plan: &Plan, question: &Question) -> Self {
        let now = Instant::now();
        let clients: Vec<(Client, Tally)> =
            plan.origins.iter().map(|origin| (origin.client.clone(), Tally::default())).collect();
        Self {
            running: vec![true; clients.len()],
            measurement: Measurement { planned: question.planned(), ..Measurement::of(clients) },
            begun: now,
            done: 0,
            failed: 0,
            moved: now,
            timeouts: 0,
        }
    }

    fn take(&mut self, number: usize, event: Event) {
        let (client, all) = &mut self.measurement.clients[number];
        match event {
            Event::Counts(tally) => {
                let (failed, timed_out) = (tally.failed(), tally.timed_out());
                let done = tally.answered() + failed;
                self.done += done;
                self.failed += failed;
                self.timeouts += timed_out;
                if done > timed_out {
                    (self.moved, self.timeouts) = (Instant::now(), 0);
                }
                all.merge(&tally);
            }
            Event::Ended(ended) => {
                self.running[number] = false;
                match ended {
                    Ok(times) => self.measurement.extend(times),
                    Err(why) => {
                        self.measurement.lost.push(Lost { client: client.name.clone(), why });
                    }
                }
            }
        }
    }

    fn progress(&self, question: &Question) -> Progress {
        Progress {
            done: self.done,
            failed: self.failed,
            planned: self.measurement.planned,
            elapsed: self.begun.elapsed(),
            duration: question.amount.duration,
        }
    }

    /// Whether only timeouts are left to wait for. With a duration or a rate the end is known.
    fn gives_up(&self, question: &Question) -> bool {
        let Amount { duration, rate, .. } = question.amount;
        let patience = GIVE_UP.max(question.timeout * GIVE_UP_TIMEOUTS);
        let endless = duration.is_none() && rate.is_none();
        endless && self.timeouts > 0 && self.moved.elapsed() > patience
    }

    /// Counts the clients that do not end as lost.
    fn lose_the_rest(&mut self) {
        for (number, running) in self.running.iter().enumerate() {
            if *running {
                let client = self.measurement.clients[number].0.name.clone();
                let why = "it does not stop".to_owned();
                self.measurement.lost.push(Lost { client, why });
            }
        }
    }

    /// Lost clients have sent no times.
    fn close_times(&mut self) {
        let Measurement { lost, times, .. } = &mut self.measurement;
        if !lost.is_empty() {
            let now = self.begun.elapsed().as_secs_f64();
            *times = Times { last_begun: times.last_begun.max(now), ended: times.ended.max(now) };
        }
    }

    /// The error, if no client could run.
    fn complete_failure(&self) -> Option<LabError> {
        let Measurement { lost, clients, .. } = &self.measurement;
        let first = lost.first().filter(|_| self.done == 0 && lost.len() == clients.len())?;
        let what = format!("driving from {}", first.client);
        Some(LabError::Drive { what, why: first.why.clone() })
    }
}
