//! The loop: one closed set of events, one match. What to do is `control`'s to say, how it gets
//! into the kernel the lanes'.
//!
//! Watch to kernel is one hop: what arrives is taken in and written by the same task, so that a
//! lone change waits for nobody. A NodeReport will be made where `sync` ends: decisions, what was
//! applied and what failed are all at hand there.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use nearhop_core::Kind;
use nearhop_core::labels::well_known;
use nearhop_core::route::count_without_local;
use nearhop_core::{Family, ServiceKey};
use nearhop_feed::{Event as FeedEvent, Feed, Selectors};
use nearhop_netfilter::config::NodePortAddresses;
use nearhop_runtime::backoff::Backoff;
use nearhop_runtime::health::Check;
use nearhop_runtime::interfaces;
use nearhop_runtime::shutdown::Shutdown;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use crate::cleanup::check_owner;
use crate::conntrack::Extent;
use crate::control::{Control, Waiting};
use crate::error::ProxyError;
use crate::health::event::{Events, Note};
use crate::health::services::{ServiceHealth, Wanted};
use crate::health::{Eligibility, SharedHealth};
use crate::kernel::Kernel;
use crate::lane::{Lane, for_each_lane};
use crate::lock::Lock;
use crate::metrics::{ProxyMetrics, Traffic};
use crate::neighbours::Neighbours;
use crate::observe;
use crate::options::Options;
use crate::pace::Pace;
use crate::repairs::Repairs;
use crate::standing::LostEndpoints;
use crate::sweep::{SweepDone, Sweeper};

/// Batches of the feed that are taken in at once.
const BATCHES: usize = 16;
/// Between two turns of releasing clients others have theirs.
const RELEASE_PAUSE: Duration = Duration::from_millis(5);
/// How often gauges over all routes are counted, at most.
const COUNT: Duration = Duration::from_secs(1);
/// Flows that could not be judged or deleted are tried again after this, and later and later.
const SWEEP_AGAIN: Duration = Duration::from_millis(500);
/// At the latest after this.
const SWEEP_AT_LEAST: Duration = Duration::from_secs(30);

/// What the process gives the proxy to work with.
pub struct Surroundings {
    /// The right to the table. Taken before anything is listened on: a second proxy should say
    /// that it is the second.
    pub lock: Lock,
    /// The API.
    pub client: kube::Client,
    /// Where it counts.
    pub metrics: ProxyMetrics,
    /// Where it says how it is.
    pub health: SharedHealth,
    /// Where it says that the first sync is done. Made before anybody can ask.
    pub synced: Check,
    /// What others want to know.
    pub questions: mpsc::Receiver<Question>,
    /// When to stop.
    pub shutdown: Shutdown,
}

/// Somebody wants to know what is done with a Service, or with all.
#[derive(Debug)]
pub struct Question {
    /// Which; none for all.
    pub service: Option<ServiceKey>,
    /// Where the answer goes; nothing if there is no such Service.
    pub answer: oneshot::Sender<Option<Value>>,
}

/// Something happened.
enum Event {
    Fed(Vec<FeedEvent>),
    Swept(SweepDone),
    Asked(Question),
    /// Somebody else may have changed our tables.
    Disturbed,
    Due,
    Stop,
}

/// Runs until it is told to stop. The rules stay when it ends.
///
/// # Errors
/// Another proxy runs, or the kernel cannot do what is needed.
pub async fn run(options: Options, surroundings: Surroundings) -> Result<(), ProxyError> {
    let kernel = open_kernel(&options)?;
    let Surroundings { lock: _lock, client, metrics, health, synced, questions, shutdown } =
        surroundings;
    let events = Events::start(client.clone(), &options.node);
    events.tell(Note::starting(&options.node));
    let (_feed, fed) = start_feed(client, &options);
    let now = Instant::now();
    let control = Control::new(options.clone(), metrics.clone(), Timestamp::now());
    let lanes = options.families.iter().map(|family| Lane::new(*family, &control)).collect();
    let work = Loop {
        neighbours: Neighbours::start(&kernel, &options)?,
        repairs: Repairs::default(),
        kernel,
        lanes,
        pace: Pace::new(options.min_sync_period),
        sweeper: Sweeper::start().map_err(ProxyError::Thread)?,
        sweep_again: now,
        sweep_failures: 0,
        release_from: now,
        services: ServiceHealth::new(health.clone()),
        wanted: BTreeMap::new(),
        verify_due: now + options.verify_period,
        count_due: None,
        control,
        metrics,
        health,
        events,
        synced,
    };
    work.run(fed, questions, &shutdown).await;
    Ok(())
}

/// Opens the kernel and looks whether it can do what is needed.
fn open_kernel(options: &Options) -> Result<Kernel, ProxyError> {
    let mut kernel = Kernel::open()?;
    check_owner(&mut kernel, options)?;
    let mut missing = Vec::new();
    for family in &options.families {
        missing.extend(kernel.check_support(*family)?);
    }
    if !missing.is_empty() {
        return Err(ProxyError::Unsupported { missing });
    }
    if options.service_proxy_name.is_none() {
        let tables = kernel.tables()?;
        if tables.iter().any(|there| there.table.name == "kube-proxy") {
            tracing::warn!(
                "kube-proxy's table is there: its rules may act before ours; end kube-proxy and \
                 delete its table (nft delete table ip kube-proxy), or give nearhop only labelled \
                 Services with --service-proxy-name"
            );
        }
    }
    Ok(kernel)
}

fn start_feed(client: kube::Client, options: &Options) -> (Feed, mpsc::Receiver<Vec<FeedEvent>>) {
    let proxy = match &options.service_proxy_name {
        None => format!("!{}", well_known::SERVICE_PROXY_NAME),
        Some(name) => format!("{}={name}", well_known::SERVICE_PROXY_NAME),
    };
    let slices = match &options.service_proxy_name {
        None => format!("!{}", well_known::HEADLESS),
        Some(_) => format!(
            "!{},{}={}",
            well_known::HEADLESS,
            well_known::MANAGED_BY,
            well_known::NEARHOP_CONTROLLER
        ),
    };
    let selectors = |kind| match kind {
        Kind::Service => {
            Selectors { labels: Some(proxy.clone()), fields: Some("spec.clusterIP!=None".into()) }
        }
        Kind::Slice => Selectors { labels: Some(slices.clone()), fields: None },
        Kind::Node => {
            Selectors { labels: None, fields: Some(format!("metadata.name={}", options.node)) }
        }
        Kind::Pod | Kind::Namespace | Kind::ServiceCidr | Kind::Locator => Selectors::default(),
    };
    let watches = options.kinds().into_iter().map(|kind| (kind, selectors(kind))).collect();
    Feed::start(client, nearhop_feed::Options { watches, ..Default::default() })
}

struct Loop {
    control: Control,
    kernel: Kernel,
    neighbours: Neighbours,
    repairs: Repairs,
    lanes: Vec<Lane>,
    pace: Pace,
    sweeper: Sweeper,
    /// Not before this are flows judged again that could not be judged or deleted.
    sweep_again: Instant,
    sweep_failures: u32,
    /// Not before this are more clients let go.
    release_from: Instant,
    services: ServiceHealth,
    wanted: BTreeMap<ServiceKey, Wanted>,
    verify_due: Instant,
    /// When gauges over all routes are counted.
    count_due: Option<Instant>,
    metrics: ProxyMetrics,
    health: SharedHealth,
    events: Events,
    synced: Check,
}

impl Loop {
    async fn run(
        mut self,
        mut fed: mpsc::Receiver<Vec<FeedEvent>>,
        mut questions: mpsc::Receiver<Question>,
        shutdown: &Shutdown,
    ) {
        let heartbeat = self.synced.heartbeat("loop");
        loop {
            match heartbeat.turn(self.next(&mut fed, &mut questions, shutdown)).await {
                Event::Fed(events) => self.take_in(events),
                Event::Swept(done) => self.swept(done),
                Event::Asked(question) => self.answer(question),
                Event::Disturbed => {
                    let due = self.repairs.due(Instant::now());
                    self.verify_due = self.verify_due.min(due);
                }
                Event::Due => {}
                Event::Stop => break,
            }
            let now = Instant::now();
            if self.verify_due <= now && self.is_synced() {
                self.verify(now);
            }
            if self.sync_due(now).is_some_and(|due| due <= now) {
                self.sync().await;
            }
            if self.release_due().is_some_and(|due| due <= Instant::now()) {
                self.release();
            }
            self.start_sweep(now);
            if self.count_due.is_some_and(|due| due <= now) {
                self.count();
            }
        }
        self.events.finish(Duration::from_secs(1)).await;
    }

    async fn next(
        &mut self,
        fed: &mut mpsc::Receiver<Vec<FeedEvent>>,
        questions: &mut mpsc::Receiver<Question>,
        shutdown: &Shutdown,
    ) -> Event {
        let mut batches = Vec::new();
        let due = self.next_due();
        tokio::select! {
            biased;
            () = shutdown.wait() => Event::Stop,
            () = sleep_until(due) => Event::Due,
            taken = fed.recv_many(&mut batches, BATCHES) => {
                if taken == 0 { Event::Stop } else { Event::Fed(batches.into_iter().flatten().collect()) }
            }
            done = self.sweeper.wait() => Event::Swept(done),
            () = self.neighbours.wait() => Event::Disturbed,
            Some(question) = questions.recv() => Event::Asked(question),
        }
    }

    /// When something must happen, whatever arrives. Only what will then be done: a time that stays
    /// in the past would leave nobody else a turn.
    fn next_due(&self) -> Option<Instant> {
        let now = Instant::now();
        let sweeps = self.lanes.iter().filter_map(|lane| lane.judge_from(now, self.sweep_again));
        let sweep = sweeps.min().filter(|_| self.sweeper.is_idle());
        let verify = self.is_synced().then_some(self.verify_due);
        let all = [self.sync_due(now), self.count_due, sweep, verify, self.release_due()];
        all.into_iter().flatten().min()
    }

    /// When clients are next to be let go, if there are any.
    fn release_due(&self) -> Option<Instant> {
        let due = self.lanes.iter().filter_map(Lane::release_due).min();
        due.map(|due| due.max(self.release_from))
    }

    /// Lets go of clients that stay with an endpoint which is no longer theirs.
    fn release(&mut self) {
        tokio::task::block_in_place(|| {
            for_each_lane(&mut self.lanes, |lane| lane.release(&mut self.kernel));
        });
        self.release_from = Instant::now() + RELEASE_PAUSE;
    }

    /// When the next sync is due, if there is one.
    fn sync_due(&self, now: Instant) -> Option<Instant> {
        let waiting = self.control.is_waiting().then(|| self.pace.due(now));
        let retry = self.lanes.iter().filter_map(Lane::retry).min();
        [waiting, retry].into_iter().flatten().min()
    }

    fn is_synced(&self) -> bool {
        self.lanes.iter().all(|lane| lane.last().is_some())
    }

    fn take_in(&mut self, events: Vec<FeedEvent>) {
        self.control.fed(events);
        if self.control.is_waiting() {
            let now = Timestamp::now();
            for lane in &self.lanes {
                self.metrics.queued(lane.family(), now);
                self.health.queued(lane.family());
            }
        }
        self.health.node(Eligibility::of_node(self.control.node().map(|node| &**node)));
    }

    async fn sync(&mut self) {
        let began = Instant::now();
        let waiting = self.control.take_waiting();
        let full = self.lanes.iter().any(|lane| lane.engine().wants_full());
        // A full pass takes long enough for others to be served meanwhile.
        tokio::task::block_in_place(|| {
            let Self { lanes, kernel, control, metrics, health, neighbours, .. } = self;
            let mut sync = || {
                for_each_lane(lanes, |lane| {
                    if lane.retry().is_some_and(|retry| retry > began) {
                        return;
                    }
                    lane.sync(kernel, control, &waiting, metrics);
                    if lane.failure().is_none() {
                        health.updated(lane.family());
                    }
                });
            };
            if full { neighbours.deaf(sync) } else { sync() }
        });
        if full && self.lanes.iter().any(|lane| lane.is_touched(&mut self.kernel)) {
            self.verify_due = self.verify_due.min(self.repairs.due(Instant::now()));
        }
        self.pace.synced(began, Instant::now());
        if self.is_synced() {
            self.synced.set(Ok(()));
        }
        self.refresh_services(&waiting).await;
        self.count_due.get_or_insert(began + COUNT);
    }

    /// Opens and closes the ports on which load balancers ask about Services.
    async fn refresh_services(&mut self, waiting: &Waiting) {
        let all: BTreeSet<ServiceKey>;
        let keys = if waiting.all || waiting.config {
            let known = self.control.world().services().map(|service| &service.key);
            all = known.chain(self.wanted.keys()).cloned().collect();
            &all
        } else {
            &waiting.services
        };
        let mut changed = self.services.failing() > 0;
        let mut listen = None;
        for key in keys {
            let next = self.control.health_of(key).map(|(port, local_endpoints)| {
                let listen = listen.get_or_insert_with(|| self.health_addresses()).clone();
                Wanted { port, listen, local_endpoints }
            });
            if self.wanted.get(key) != next.as_ref() {
                changed = true;
                match next {
                    Some(next) => self.wanted.insert(key.clone(), next),
                    None => self.wanted.remove(key),
                };
            }
        }
        if !changed {
            return;
        }
        for failure in self.services.sync(self.wanted.clone()).await {
            let uid = self.control.world().service(&failure.service).map(|s| s.uid.clone());
            self.events.tell(Note::listen_failed(&self.control.options().node, &failure, uid));
        }
    }

    /// Where load balancers may ask: where node ports are served.
    fn health_addresses(&self) -> Vec<IpAddr> {
        let mut addresses = Vec::new();
        for lane in &self.lanes {
            match &lane.engine().config().nodeport_addresses {
                NodePortAddresses::All => addresses.push(match lane.family() {
                    Family::Ipv4 => IpAddr::from(Ipv4Addr::UNSPECIFIED),
                    Family::Ipv6 => IpAddr::from(Ipv6Addr::UNSPECIFIED),
                }),
                NodePortAddresses::Within(ranges) => {
                    let own = interfaces::addresses().into_iter();
                    addresses.extend(own.filter(|own| ranges.iter().any(|r| r.contains(*own))));
                }
            }
        }
        addresses
    }

    fn verify(&mut self, now: Instant) {
        self.verify_due = now + self.control.options().verify_period;
        let (mut differences, mut wants_sync) = (0, false);
        tokio::task::block_in_place(|| {
            let Self { lanes, kernel, metrics, .. } = self;
            for_each_lane(lanes, |lane| {
                let found = lane.verify(kernel, metrics);
                differences += found.differences;
                wants_sync |= found.wants_sync;
            });
        });
        self.repairs.looked(now, Instant::now());
        if wants_sync {
            self.control.want_all();
        }
        if differences > 0 {
            self.tell_of_repair(differences);
        }
    }

    fn tell_of_repair(&mut self, differences: usize) {
        let author = self.neighbours.last_author();
        let program = author.name.as_ref().map_or("unknown", |name| name.as_str());
        let pid = author.pid.unwrap_or_default();
        tracing::warn!(
            differences,
            program,
            pid,
            "another program changed our table; it is repaired"
        );
        if let Some(wait) = self.repairs.repaired(Instant::now()) {
            tracing::warn!(
                program,
                pid,
                ?wait,
                "another program keeps changing our table; it is repaired less often from now on: \
                 end that program, or give nearhop another table with --table"
            );
        }
    }

    /// Has the flows judged of frontends that lost endpoints, one family at a time.
    fn start_sweep(&mut self, now: Instant) {
        if !self.sweeper.is_idle() {
            return;
        }
        let again = self.sweep_again;
        let due = |lane: &&mut Lane| lane.judge_from(now, again).is_some_and(|from| from <= now);
        let Some(lane) = self.lanes.iter_mut().find(due) else { return };
        let (lost, view) = lane.take_lost(&self.control);
        let family = lane.family();
        if let Err(error) = self.sweeper.give(family, view, &lost) {
            self.sweep_failed(family, &format!("no thread for it: {error}"), lost);
        }
    }

    fn swept(&mut self, done: SweepDone) {
        let SweepDone { family, result, took, lost } = done;
        let again = match result {
            Ok(swept) => {
                let deleted: u64 = swept.deleted.values().sum();
                self.metrics.conntrack_reconciled(
                    family,
                    took,
                    deleted as usize,
                    swept.kept as usize,
                );
                if deleted > 0 {
                    tracing::info!(%family, deleted, kept = swept.kept, why = ?swept.deleted, "stale flows deleted");
                }
                let unseen = swept.extent == Extent::Part;
                let unseen = unseen.then(|| "not all flows could be listed".to_owned());
                swept.failure.map(|error| error.to_string()).or(unseen)
            }
            Err(error) => Some(error.to_string()),
        };
        let Some(error) = again else {
            self.sweep_failures = 0;
            return;
        };
        self.sweep_failed(family, &error, lost);
    }

    fn sweep_failed(&mut self, family: Family, error: &str, lost: LostEndpoints) {
        tracing::warn!(%family, error, "stale flows could not be deleted; trying again");
        self.metrics.cleanup_failed(family);
        let backoff = Backoff::new(SWEEP_AGAIN, SWEEP_AT_LEAST);
        self.sweep_again = Instant::now() + backoff.delay(self.sweep_failures, 0.0);
        self.sweep_failures += 1;
        self.put_back(family, lost);
    }

    fn put_back(&mut self, family: Family, lost: LostEndpoints) {
        if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.family() == family) {
            lane.put_back(lost);
        }
    }

    fn answer(&self, question: Question) {
        let answer = match &question.service {
            Some(key) => observe::describe(&self.control, &self.lanes, key),
            None => Some(observe::describe_all(&self.control, &self.lanes)),
        };
        // Who asked may have gone.
        let _gone = question.answer.send(answer);
    }

    /// Gauges over all routes.
    fn count(&mut self) {
        self.count_due = None;
        for lane in &self.lanes {
            let family = lane.family();
            let routes = self.control.routes();
            let without = count_without_local(routes, family);
            self.metrics.no_local_endpoints(Traffic::Internal, family, without.internal);
            self.metrics.no_local_endpoints(Traffic::External, family, without.external);
            let of_family = routes.iter().filter(|(key, _)| key.family == family);
            let sets = of_family.filter_map(|(_, route)| {
                route.decision.cluster.as_ref().or(route.decision.local.as_ref())
            });
            self.metrics.routes(family, sets.map(|set| &set.reason.tier));
        }
    }
}

/// Forever, where nothing is due.
async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}
