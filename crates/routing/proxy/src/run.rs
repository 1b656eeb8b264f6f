//! The event loop of the proxy. `control` decides what to sync; `family_sync` writes it to the
//! kernel.
//!
//! One task receives watch events and writes rules, so that a single change is written without
//! delay.

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
use nearhop_runtime::client::{Client, EventRecorder};
use nearhop_runtime::health::Check;
use nearhop_runtime::shutdown::Shutdown;
use nearhop_runtime::{interfaces, sleep_until};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use crate::cleanup::check_owner;
use crate::conntrack::Extent;
use crate::control::{Control, Waiting};
use crate::error::ProxyError;
use crate::family_sync::{FamilySync, for_each_family};
use crate::flow_eligibility::LostEndpoints;
use crate::health::event;
use crate::health::services::{ServiceHealth, Wanted};
use crate::health::{Eligibility, SharedHealth};
use crate::kernel::Kernel;
use crate::lock::Lock;
use crate::metrics::{ProxyMetrics, Traffic};
use crate::monitor::TableMonitor;
use crate::observe;
use crate::options::Options;
use crate::pace::Pace;
use crate::repairs::Repairs;
use crate::sweep::{SweepDone, Sweeper};
use crate::sysctl::Sysctls;

/// Maximum number of feed batches that one iteration processes.
const BATCHES: usize = 16;
/// Pause between two turns of deleting affinity records, so that other events are processed.
const RELEASE_PAUSE: Duration = Duration::from_millis(5);
/// Minimum interval between two counts of the gauges over all routes.
const COUNT: Duration = Duration::from_secs(1);
/// First delay before a failed conntrack sweep is repeated; the delay grows with each failure.
const SWEEP_AGAIN: Duration = Duration::from_millis(500);
/// Longest delay before a failed conntrack sweep is repeated.
const SWEEP_AT_LEAST: Duration = Duration::from_secs(30);

/// What the process passes to the proxy.
pub struct Deps {
    /// The lock of the table. The process takes it before it opens any port, so that a second proxy
    /// reports the lock and not a port in use.
    pub lock: Lock,
    /// Client of the Kubernetes API.
    pub client: Client,
    /// Metrics of the proxy.
    pub metrics: ProxyMetrics,
    /// Health of the proxy, for probes.
    pub health: SharedHealth,
    /// Readiness check: passes after the first sync.
    pub synced: Check,
    /// Requests of `/debug/services`.
    pub questions: mpsc::Receiver<Question>,
    /// Conntrack settings, applied after the initial lists. None changes nothing.
    pub sysctls: Option<Sysctls>,
    /// Signals that the proxy must stop.
    pub shutdown: Shutdown,
}

/// A request for the state of a Service, or of all Services.
#[derive(Debug)]
pub struct Question {
    /// The Service; `None` means all Services.
    pub service: Option<ServiceKey>,
    /// Receives the answer; `None` if the Service does not exist.
    pub answer: oneshot::Sender<Option<Value>>,
}

/// An event of the loop.
enum Event {
    Feed(Vec<FeedEvent>),
    Swept(SweepDone),
    Asked(Question),
    /// Another program may have changed our tables.
    Disturbed,
    Due,
    Stop,
}

/// Runs until shutdown. The rules stay in the kernel when it ends.
///
/// # Errors
/// Another proxy holds the lock, or the kernel lacks a required feature.
pub async fn run(options: Options, deps: Deps) -> Result<(), ProxyError> {
    let kernel = open_kernel(&options)?;
    let Deps { lock: _lock, client, metrics, health, synced, questions, sysctls, shutdown } = deps;
    let events = event::start_recorder(client.clone(), &options.node);
    events.emit(event::starting(&options.node));
    let (_handle, feed) = start_feed(client, &options);
    let now = Instant::now();
    let control = Control::new(options.clone(), metrics.clone(), Timestamp::now());
    let families =
        options.families.iter().map(|family| FamilySync::new(*family, &control)).collect();
    let work = Loop {
        monitor: TableMonitor::start(&kernel, &options)?,
        repairs: Repairs::default(),
        kernel,
        families,
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
        sysctls,
    };
    work.run(feed, questions, &shutdown).await;
    Ok(())
}

/// Opens the netlink socket and checks that the kernel supports the rules.
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
                "kube-proxy's table exists: its rules may act before nearhop's; stop kube-proxy and \
                 delete its table (nft delete table ip kube-proxy), or serve only labelled Services \
                 with --service-proxy-name"
            );
        }
    }
    Ok(kernel)
}

fn start_feed(client: Client, options: &Options) -> (Feed, mpsc::Receiver<Vec<FeedEvent>>) {
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
    monitor: TableMonitor,
    repairs: Repairs,
    families: Vec<FamilySync>,
    pace: Pace,
    sweeper: Sweeper,
    /// Earliest time of the next conntrack sweep after a failed one.
    sweep_again: Instant,
    sweep_failures: u32,
    /// Earliest time to delete more affinity records.
    release_from: Instant,
    services: ServiceHealth,
    wanted: BTreeMap<ServiceKey, Wanted>,
    verify_due: Instant,
    /// When the gauges over all routes are counted next.
    count_due: Option<Instant>,
    metrics: ProxyMetrics,
    health: SharedHealth,
    events: EventRecorder,
    synced: Check,
    /// Until they are applied.
    sysctls: Option<Sysctls>,
}

impl Loop {
    async fn run(
        mut self,
        mut feed: mpsc::Receiver<Vec<FeedEvent>>,
        mut questions: mpsc::Receiver<Question>,
        shutdown: &Shutdown,
    ) {
        let heartbeat = self.synced.heartbeat("loop");
        loop {
            match heartbeat.turn(self.next(&mut feed, &mut questions, shutdown)).await {
                Event::Feed(events) => self.on_feed(events),
                Event::Swept(done) => self.on_swept(done),
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
        feed: &mut mpsc::Receiver<Vec<FeedEvent>>,
        questions: &mut mpsc::Receiver<Question>,
        shutdown: &Shutdown,
    ) -> Event {
        let mut batches = Vec::new();
        let due = self.next_due();
        tokio::select! {
            biased;
            () = shutdown.wait() => Event::Stop,
            () = sleep_until(due) => Event::Due,
            taken = feed.recv_many(&mut batches, BATCHES) => {
                if taken == 0 { Event::Stop } else { Event::Feed(batches.into_iter().flatten().collect()) }
            }
            done = self.sweeper.wait() => Event::Swept(done),
            () = self.monitor.wait() => Event::Disturbed,
            Some(question) = questions.recv() => Event::Asked(question),
        }
    }

    /// The next time at which the loop must act without an event. It includes only work that is
    /// then done: a time that stays in the past would starve all other events.
    fn next_due(&self) -> Option<Instant> {
        let now = Instant::now();
        let sweeps = self
            .families
            .iter()
            .filter_map(|family_sync| family_sync.judge_from(now, self.sweep_again));
        let sweep = sweeps.min().filter(|_| self.sweeper.is_idle());
        let verify = self.is_synced().then_some(self.verify_due);
        let all = [self.sync_due(now), self.count_due, sweep, verify, self.release_due()];
        all.into_iter().flatten().min()
    }

    /// When affinity records to removed endpoints are deleted next, if there are any.
    fn release_due(&self) -> Option<Instant> {
        let due = self.families.iter().filter_map(FamilySync::release_due).min();
        due.map(|due| due.max(self.release_from))
    }

    /// Deletes the affinity records of clients whose endpoint is no longer eligible.
    fn release(&mut self) {
        tokio::task::block_in_place(|| {
            for_each_family(&mut self.families, |family_sync| {
                family_sync.release(&mut self.kernel);
            });
        });
        self.release_from = Instant::now() + RELEASE_PAUSE;
    }

    /// When the next sync is due, if one is pending.
    fn sync_due(&self, now: Instant) -> Option<Instant> {
        let waiting = self.control.is_waiting().then(|| self.pace.due(now));
        let retry = self.families.iter().filter_map(FamilySync::retry).min();
        [waiting, retry].into_iter().flatten().min()
    }

    fn is_synced(&self) -> bool {
        self.families.iter().all(|family_sync| family_sync.last().is_some())
    }

    fn on_feed(&mut self, events: Vec<FeedEvent>) {
        self.control.on_feed(events);
        if self.control.is_listed()
            && let Some(sysctls) = self.sysctls.take()
        {
            // Rules do not wait for the record of another proxy. A shutdown in between loses nothing:
            // each change is remembered before it is made.
            tokio::task::spawn_blocking(move || sysctls.apply());
        }
        if self.control.is_waiting() {
            let now = Timestamp::now();
            for family_sync in &self.families {
                self.metrics.queued(family_sync.family(), now);
                self.health.queued(family_sync.family());
            }
        }
        self.health.node(Eligibility::of_node(self.control.node().map(|node| &**node)));
    }

    async fn sync(&mut self) {
        let began = Instant::now();
        let waiting = self.control.take_waiting();
        let full = self.families.iter().any(|family_sync| family_sync.engine().needs_full());
        // A full pass takes long: let other tasks run meanwhile.
        tokio::task::block_in_place(|| {
            let Self { families, kernel, control, metrics, health, monitor, .. } = self;
            let mut sync = || {
                for_each_family(families, |family_sync| {
                    if family_sync.retry().is_some_and(|retry| retry > began) {
                        return;
                    }
                    family_sync.sync(kernel, control, &waiting, metrics);
                    if family_sync.failure().is_none() {
                        health.updated(family_sync.family());
                    }
                });
            };
            if full { monitor.while_paused(sync) } else { sync() }
        });
        if full
            && self
                .families
                .iter()
                .any(|family_sync| family_sync.is_changed_by_others(&mut self.kernel))
        {
            self.verify_due = self.verify_due.min(self.repairs.due(Instant::now()));
        }
        self.pace.synced(began, Instant::now());
        if self.is_synced() {
            self.synced.set(Ok(()));
        }
        self.refresh_services(&waiting).await;
        self.count_due.get_or_insert(began + COUNT);
    }

    /// Opens and closes the `healthCheckNodePort` listeners of Services.
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
            self.events.emit(event::listen_failed(&self.control.options().node, &failure, uid));
        }
    }

    /// Addresses for `healthCheckNodePort` listeners: the same as for node ports.
    fn health_addresses(&self) -> Vec<IpAddr> {
        let mut addresses = Vec::new();
        for family_sync in &self.families {
            match &family_sync.engine().config().nodeport_addresses {
                NodePortAddresses::All => addresses.push(match family_sync.family() {
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
            let Self { families, kernel, metrics, .. } = self;
            for_each_family(families, |family_sync| {
                let found = family_sync.verify(kernel, metrics);
                differences += found.differences;
                wants_sync |= found.wants_sync;
            });
        });
        self.repairs.looked(now, Instant::now());
        if wants_sync {
            self.control.want_all();
        }
        if differences > 0 {
            self.log_repair(differences);
        }
    }

    fn log_repair(&mut self, differences: usize) {
        let author = self.monitor.last_author();
        let program = author.name.as_ref().map_or("unknown", |name| name.as_str());
        let pid = author.pid.unwrap_or_default();
        tracing::warn!(differences, program, pid, "table repaired: another program changed it");
        if let Some(wait) = self.repairs.repaired(Instant::now()) {
            tracing::warn!(
                program,
                pid,
                ?wait,
                "another program keeps changing the table; repairs are delayed: stop that program, \
                 or choose another table with --table"
            );
        }
    }

    /// Starts a conntrack sweep for frontends that lost endpoints, one family at a time.
    fn start_sweep(&mut self, now: Instant) {
        if !self.sweeper.is_idle() {
            return;
        }
        let again = self.sweep_again;
        let due = |family_sync: &&mut FamilySync| {
            family_sync.judge_from(now, again).is_some_and(|from| from <= now)
        };
        let Some(family_sync) = self.families.iter_mut().find(due) else { return };
        let (lost, view) = family_sync.take_lost(&self.control);
        let family = family_sync.family();
        if let Err(error) = self.sweeper.give(family, view, &lost) {
            self.sweep_failed(family, &format!("cannot start a thread: {error}"), lost);
        }
    }

    fn on_swept(&mut self, done: SweepDone) {
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
                let unseen = unseen.then(|| "not all flows listed".to_owned());
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
        tracing::warn!(%family, error, "stale flows not deleted; will retry");
        self.metrics.cleanup_failed(family);
        let backoff = Backoff::new(SWEEP_AGAIN, SWEEP_AT_LEAST);
        self.sweep_again = Instant::now() + backoff.delay(self.sweep_failures, 0.0);
        self.sweep_failures += 1;
        self.put_back(family, lost);
    }

    fn put_back(&mut self, family: Family, lost: LostEndpoints) {
        if let Some(family_sync) =
            self.families.iter_mut().find(|family_sync| family_sync.family() == family)
        {
            family_sync.put_back(lost);
        }
    }

    fn answer(&self, question: Question) {
        let answer = match &question.service {
            Some(key) => observe::describe(&self.control, &self.families, key),
            None => Some(observe::describe_all(&self.control, &self.families)),
        };
        // The caller may have closed the connection.
        let _gone = question.answer.send(answer);
    }

    /// Counts the gauges over all routes.
    fn count(&mut self) {
        self.count_due = None;
        for family_sync in &self.families {
            let family = family_sync.family();
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
