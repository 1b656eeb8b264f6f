//! Names that are not ours: asked of other servers, their answers kept for a while.
//!
//! ```text
//!   cache     what is known already             kept      an answer in the form it is repeated in
//!   upstream  which servers live                exchange  one question to one of them
//!   loops     which servers lead back here
//! ```

mod cache;
mod exchange;
mod kept;
mod loops;
mod upstream;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nearhop_core::ServiceKey;
use nearhop_core::answer::{AskedName, service_of_own};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{MissedTickBehavior, interval};

pub use cache::{Cache, Key};
pub use exchange::Ask;
pub use kept::Kept;
pub use loops::Loops;

use crate::metrics::DnsMetrics;
use crate::state::Shared;
use crate::wire::Request;
use upstream::Upstreams;

/// Clients that may wait for other servers at a time.
const WAITING: usize = 1000;
/// How often the state is asked whether a server leads back here.
const LOOK_EVERY: Duration = Duration::from_secs(1);

type Waiting = BTreeMap<Box<[u8]>, Vec<oneshot::Sender<Arc<Kept>>>>;

/// Asks other servers.
pub struct Forwarder {
    upstreams: Upstreams,
    cache: Arc<Cache>,
    /// Who waits for which question: it is asked once.
    waiting: Mutex<Waiting>,
    places: Arc<Semaphore>,
    metrics: DnsMetrics,
}

/// The right to wait for another server.
#[derive(Debug)]
pub struct Place {
    _place: OwnedSemaphorePermit,
}

impl Forwarder {
    /// Asks these servers.
    pub fn new(addresses: &[SocketAddr], cache: Arc<Cache>, metrics: DnsMetrics) -> Self {
        Self {
            upstreams: Upstreams::new(addresses, metrics.clone()),
            cache,
            waiting: Mutex::default(),
            places: Arc::new(Semaphore::new(WAITING)),
            metrics,
        }
    }

    /// The probes that find servers which lead back here.
    pub fn loops(&self) -> Arc<Loops> {
        self.upstreams.loops.clone()
    }

    /// Looks for servers that lead back to these sockets, for ever: in the state about every second,
    /// by a probe every so often.
    pub async fn watch_loops(
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
            self.upstreams.note_services(&services);
            if probed.is_none_or(|at| at.elapsed() >= every) {
                probed = Some(Instant::now());
                self.upstreams.probe_for_loops().await;
            }
            self.upstreams.note_probes();
        }
    }

    /// Takes a place among those who wait, if there is one.
    pub fn enter(&self) -> Option<Place> {
        let place = self.places.clone().try_acquire_owned().ok();
        if place.is_none() {
            self.metrics.rejected();
        }
        place.map(|place| Place { _place: place })
    }

    /// Asks what a client asks, of this name. None where no server answers.
    pub async fn resolve(
        self: &Arc<Self>,
        name: &AskedName,
        request: &Request,
    ) -> Option<Arc<Kept>> {
        let key = Key::new(name, request);
        if let Some(kept) = self.cache.peek(&key, Instant::now()) {
            return Some(kept);
        }
        let ask = Ask::new(name, request).ok()?;
        let (sender, receiver) = oneshot::channel();
        let first = {
            let mut waiting = self.lock();
            let others = waiting.entry(key.as_slice().into()).or_default();
            others.push(sender);
            others.len() == 1
        };
        if first {
            let this = self.clone();
            // A task of its own: who asked first may go away while others wait.
            tokio::spawn(async move { this.ask(key, ask).await });
        }
        receiver.await.ok()
    }

    async fn ask(self: Arc<Self>, key: Key, ask: Ask) {
        // Dropped at the end, whatever happens: nobody waits for an answer that nobody asks for.
        let mut asked = Asked { forwarder: &self, key: Some(key) };
        let answer = self.upstreams.ask(&ask).await;
        let kept = answer.and_then(|answer| Kept::new(&answer, Instant::now())).map(Arc::new);
        if let Some(kept) = kept {
            self.cache.put(key.as_slice(), kept.clone());
            for waiting in asked.take() {
                // Who asked may have gone.
                let _gone = waiting.send(kept.clone());
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Each change is one call; nothing is left half done.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A question that is being asked.
struct Asked<'a> {
    forwarder: &'a Forwarder,
    /// None once those who wait have been taken: others may wait for the same question since.
    key: Option<Key>,
}

impl Asked<'_> {
    fn take(&mut self) -> Vec<oneshot::Sender<Arc<Kept>>> {
        let Some(key) = self.key.take() else { return Vec::new() };
        self.forwarder.lock().remove(key.as_slice()).unwrap_or_default()
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.take();
    }
}
