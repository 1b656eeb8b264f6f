//! Forwards queries for names outside the cluster to upstream servers, and caches the responses.
//!
//! ```text
//!   cache     responses by query             cached_response  a response in its stored form
//!   upstream  servers and their health       exchange         one query to one server
//!   loops     servers that forward to this server
//! ```

mod cache;
mod cached_response;
mod exchange;
mod loops;
mod upstream;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use nearhop_core::ServiceKey;
use nearhop_core::answer::{AskedName, service_of_own};
use nearhop_runtime::lock;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{MissedTickBehavior, interval};

pub use cache::Cache;
pub(crate) use cache::CacheKey;
pub use cached_response::CachedResponse;
use exchange::UpstreamQuery;
pub(crate) use loops::LoopProbes;

use crate::metrics::DnsMetrics;
use crate::state::Shared;
use crate::wire::Request;
use upstream::Upstreams;

/// Clients that may wait for upstream servers at the same time.
const MAX_WAITING: usize = 1000;
/// How often the state is searched for upstreams that are Services of this server.
const LOOK_EVERY: Duration = Duration::from_secs(1);

type Waiting = BTreeMap<Box<[u8]>, Vec<oneshot::Sender<Arc<CachedResponse>>>>;

/// Asks upstream servers.
pub(crate) struct Forwarder {
    upstreams: Upstreams,
    cache: Arc<Cache>,
    /// Clients by query: identical queries are sent once.
    waiting: Mutex<Waiting>,
    permits: Arc<Semaphore>,
    metrics: DnsMetrics,
}

impl Forwarder {
    pub(crate) fn new(addresses: &[SocketAddr], cache: Arc<Cache>, metrics: DnsMetrics) -> Self {
        Self {
            upstreams: Upstreams::new(addresses, metrics.clone()),
            cache,
            waiting: Mutex::default(),
            permits: Arc::new(Semaphore::new(MAX_WAITING)),
            metrics,
        }
    }

    pub(crate) fn loops(&self) -> Arc<LoopProbes> {
        self.upstreams.loops.clone()
    }

    /// Looks for upstream servers that lead to the sockets `own`: in the state every second, by
    /// probes at the interval `every`. Never returns.
    pub(crate) async fn watch_loops(
        self: Arc<Self>,
        shared: Shared,
        own: Vec<SocketAddr>,
        every: Duration,
    ) {
        let mut tick = interval(LOOK_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut probed: Option<Instant> = None;
        loop {
            tick.tick().await;
            let services: Vec<Option<ServiceKey>> = {
                let state = shared.read();
                let servers = self.upstreams.addresses();
                servers.map(|at| service_of_own(&state.index, at, &own).cloned()).collect()
            };
            self.upstreams.set_services(&services);
            if probed.is_none_or(|at| at.elapsed() >= every) {
                probed = Some(Instant::now());
                self.upstreams.probe_for_loops().await;
            }
            self.upstreams.check_probes();
        }
    }

    /// A permit to wait for an upstream server; None if too many clients wait.
    pub(crate) fn permit(&self) -> Option<OwnedSemaphorePermit> {
        let permit = self.permits.clone().try_acquire_owned().ok();
        if permit.is_none() {
            self.metrics.rejected();
        }
        permit
    }

    /// Resolves the client's query for this name; None if no server responds.
    pub(crate) async fn resolve(
        self: &Arc<Self>,
        name: &AskedName,
        request: &Request,
    ) -> Option<Arc<CachedResponse>> {
        let key = CacheKey::new(name, request);
        if let Some(cached) = self.cache.peek(&key, Instant::now()) {
            return Some(cached);
        }
        let query = UpstreamQuery::new(name, request).ok()?;
        let (sender, receiver) = oneshot::channel();
        let first = {
            let mut waiting = self.lock();
            let senders = waiting.entry(key.as_slice().into()).or_default();
            senders.push(sender);
            senders.len() == 1
        };
        if first {
            let this = self.clone();
            // A separate task: the first client may disconnect while others wait.
            tokio::spawn(async move { this.ask(key, query).await });
        }
        receiver.await.ok()
    }

    async fn ask(self: Arc<Self>, key: CacheKey, query: UpstreamQuery) {
        let mut in_flight = InFlight { forwarder: &self, key: Some(key) };
        let response = self.upstreams.ask(&query).await;
        let cached = response.and_then(|response| CachedResponse::new(&response, Instant::now()));
        if let Some(cached) = cached.map(Arc::new) {
            self.cache.put(key.as_slice(), cached.clone());
            for sender in in_flight.take_waiting() {
                // The client may have disconnected.
                let _gone = sender.send(cached.clone());
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Each change is one call, so a panic leaves no partial change.
        lock(&self.waiting)
    }
}

/// A query in flight. Drops the waiting clients' channels when it ends without a response.
struct InFlight<'a> {
    forwarder: &'a Forwarder,
    /// None once the waiting clients are taken: new ones may wait for the same query.
    key: Option<CacheKey>,
}

impl InFlight<'_> {
    fn take_waiting(&mut self) -> Vec<oneshot::Sender<Arc<CachedResponse>>> {
        let Some(key) = self.key.take() else { return Vec::new() };
        self.forwarder.lock().remove(key.as_slice()).unwrap_or_default()
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.take_waiting();
    }
}
