//! The other servers, and which of them live.
//!
//! One that did not answer a question is not dead: some names take long, and any client can ask
//! for them. It is probed, and only when it misses two probes it is left alone until it answers
//! one: whoever asks while all are dead is told so at once.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hickory_proto::op::Message;
use nearhop_core::ServiceKey;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::exchange::{Ask, Failure, exchange};
use super::loops::Loops;
use crate::metrics::DnsMetrics;

/// When one has not answered for so long, the next server is asked too, and this one probed.
const NEXT_AFTER: Duration = Duration::from_secs(1);
/// A question takes no longer, whatever happens.
const WHOLE: Duration = Duration::from_secs(5);
/// How often a server is probed.
const PROBE_EVERY: Duration = Duration::from_millis(500);
/// How long it has to answer a probe, which needs nobody else.
const PROBE_PATIENCE: Duration = Duration::from_secs(1);
/// A server that misses so many probes in a row is dead.
const MOST_MISSED: u32 = 2;

/// Another server.
#[derive(Debug)]
struct Upstream {
    address: SocketAddr,
    label: String,
    dead: AtomicBool,
    /// Somebody probes it already.
    probed: AtomicBool,
    /// It is a Service of this very server.
    own_service: AtomicBool,
    /// A probe for loops came back.
    loops: AtomicBool,
}

impl Upstream {
    /// Whether what is asked there comes back.
    fn leads_back(&self) -> bool {
        self.own_service.load(Ordering::Relaxed) || self.loops.load(Ordering::Relaxed)
    }
}

/// The other servers.
#[derive(Clone)]
pub(super) struct Upstreams {
    all: Arc<[Arc<Upstream>]>,
    pub(super) loops: Arc<Loops>,
    metrics: DnsMetrics,
}

impl Upstreams {
    pub(super) fn new(addresses: &[SocketAddr], metrics: DnsMetrics) -> Self {
        let upstream = |address: &SocketAddr| {
            let (address, label) = (*address, address.to_string());
            let no = || AtomicBool::new(false);
            let (dead, probed, own_service, loops) = (no(), no(), no(), no());
            Arc::new(Upstream { address, label, dead, probed, own_service, loops })
        };
        let loops = Arc::new(Loops::new(addresses.len(), rand::random()));
        Self { all: addresses.iter().map(upstream).collect(), loops, metrics }
    }

    /// Where they are.
    pub(super) fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.all.iter().map(|upstream| upstream.address)
    }

    /// Takes in which of them are Services of this very server.
    pub(super) fn note_services(&self, services: &[Option<ServiceKey>]) {
        for (upstream, service) in self.all.iter().zip(services) {
            let before = upstream.own_service.swap(service.is_some(), Ordering::Relaxed);
            let server = &upstream.label;
            match service {
                Some(service) if !before => tracing::error!(
                    server, %service,
                    "upstream is a Service that this server is an endpoint of: it is not asked; \
                     give other servers with --upstream or --resolv-conf"
                ),
                None if before => {
                    tracing::info!(server, "upstream is not this server's Service any more");
                }
                _ => {}
            }
        }
    }

    /// Sends each of them a question that only this process knows.
    pub(super) async fn probe_for_loops(&self) {
        for (at, upstream) in self.all.iter().enumerate() {
            if upstream.own_service.load(Ordering::Relaxed) {
                continue;
            }
            self.loops.forget(at);
            let Ok(ask) = Ask::loop_probe(self.loops.probe(at)) else { continue };
            // Whatever it answers: what counts is whether the question comes back.
            let _answer = timeout(PROBE_PATIENCE, exchange(upstream.address, &ask)).await;
            if !self.loops.has_come_back(at) && upstream.loops.swap(false, Ordering::Relaxed) {
                tracing::info!(
                    server = upstream.label,
                    "upstream does not lead back here any more"
                );
            }
        }
    }

    /// Takes in which probes came back, however late.
    pub(super) fn note_probes(&self) {
        for (at, upstream) in self.all.iter().enumerate() {
            if self.loops.has_come_back(at) && !upstream.loops.swap(true, Ordering::Relaxed) {
                tracing::error!(
                    server = upstream.label,
                    "upstream leads back to this server: it is not asked; give other servers with \
                     --upstream or --resolv-conf"
                );
            }
        }
    }

    /// Asks one after the other, those that live, beginning anywhere.
    pub(super) async fn ask(&self, ask: &Ask) -> Option<Message> {
        timeout(WHOLE, self.ask_in_turn(ask)).await.ok().flatten()
    }

    async fn ask_in_turn(&self, ask: &Ask) -> Option<Message> {
        let mut left = self.living();
        let mut running = JoinSet::new();
        // Those that were asked, and have said nothing yet.
        let mut silent: Vec<Arc<Upstream>> = Vec::new();
        loop {
            if let Some(upstream) = left.pop() {
                silent.push(upstream.clone());
                let (this, ask) = (self.clone(), ask.clone());
                running.spawn(async move { (this.ask_one(&upstream, &ask).await, upstream) });
            }
            tokio::select! {
                Some(done) = running.join_next() => {
                    if let Ok((answer, upstream)) = done {
                        if answer.is_some() {
                            return answer;
                        }
                        silent.retain(|other| !Arc::ptr_eq(other, &upstream));
                    }
                }
                () = sleep(NEXT_AFTER), if !silent.is_empty() || !left.is_empty() => {
                    // Another one's answer ends this question, and nobody would ever know.
                    for upstream in silent.drain(..) {
                        self.suspect(&upstream);
                    }
                }
                else => return None,
            }
            if left.is_empty() && running.is_empty() {
                return None;
            }
        }
    }

    /// Those that live, in an order that begins anywhere.
    fn living(&self) -> Vec<Arc<Upstream>> {
        let alive = |upstream: &&Arc<Upstream>| {
            !upstream.dead.load(Ordering::Relaxed) && !upstream.leads_back()
        };
        let mut living: Vec<_> = self.all.iter().filter(alive).cloned().collect();
        if !living.is_empty() {
            let first = rand::random::<u32>() as usize % living.len();
            living.rotate_left(first);
        }
        living
    }

    async fn ask_one(&self, upstream: &Arc<Upstream>, ask: &Ask) -> Option<Message> {
        let began = Instant::now();
        match exchange(upstream.address, ask).await {
            Ok(answer) => {
                let code = crate::wire::Rcode(answer.metadata.response_code.into());
                self.metrics.asked_upstream(&upstream.label, code.as_str(), began.elapsed());
                Some(answer)
            }
            Err(failure) => {
                tracing::debug!(server = upstream.label, %failure, "upstream gave no answer");
                if failure.is_silence() {
                    self.suspect(upstream);
                }
                None
            }
        }
    }

    /// Finds out whether a server is dead, unless somebody does so already.
    fn suspect(&self, upstream: &Arc<Upstream>) {
        if !upstream.probed.swap(true, Ordering::Relaxed) {
            let probe = Probe { upstream: upstream.clone(), metrics: self.metrics.clone() };
            // A task of its own: the question that raised the suspicion may end before.
            tokio::spawn(probe.run());
        }
    }
}

/// The probing of a server. When it ends, however it does, the server is asked again.
struct Probe {
    upstream: Arc<Upstream>,
    metrics: DnsMetrics,
}

impl Probe {
    /// Probes until there is an answer.
    async fn run(self) {
        let mut every = interval(PROBE_EVERY);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut missed = 0;
        loop {
            every.tick().await;
            let ask = Ask::probe();
            let answer = timeout(PROBE_PATIENCE, exchange(self.upstream.address, &ask)).await;
            match answer.unwrap_or(Err(Failure::Silent)) {
                Ok(_) => return,
                Err(failure) if failure.is_answer() => return,
                // What is wrong here says nothing about it.
                Err(failure) if !failure.is_silence() => {}
                Err(failure) => {
                    missed += 1;
                    if missed == MOST_MISSED {
                        self.bury(&failure);
                    }
                    self.metrics.probe_failed(&self.upstream.label);
                }
            }
        }
    }

    /// Leaves a server alone until it answers a probe.
    fn bury(&self, why: &Failure) {
        self.upstream.dead.store(true, Ordering::Relaxed);
        let server = &self.upstream.label;
        tracing::warn!(server, %why, "upstream does not answer; probing it until it does");
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        if self.upstream.dead.swap(false, Ordering::Relaxed) {
            tracing::info!(server = self.upstream.label, "upstream is asked again");
        }
        self.upstream.probed.store(false, Ordering::Relaxed);
    }
}
