//! The upstream servers and their health.
//!
//! A server that did not respond to one query is not down: some names take long, and any client can
//! ask for them. It is probed. After two missed probes it is down, and gets no queries until it
//! responds to a probe; while all servers are down, clients get SERVFAIL at once.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hickory_proto::op::Message;
use nearhop_core::ServiceKey;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::exchange::{ExchangeError, UpstreamQuery, exchange};
use super::loops::LoopProbes;
use crate::metrics::DnsMetrics;
use crate::wire::Rcode;

/// After this long without a response the next server is asked too, and this one probed.
const NEXT_AFTER: Duration = Duration::from_secs(1);
/// Upper bound for a query, over all servers.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);
const PROBE_EVERY: Duration = Duration::from_millis(500);
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// A server that misses this many probes in a row is down.
const MAX_MISSED: u32 = 2;

#[derive(Debug)]
struct Upstream {
    address: SocketAddr,
    label: String,
    down: AtomicBool,
    /// A health probe is running.
    probing: AtomicBool,
    /// The address is a Service that has this server as an endpoint.
    own_service: AtomicBool,
    /// A loop probe returned.
    loops: AtomicBool,
}

impl Upstream {
    fn leads_back(&self) -> bool {
        self.own_service.load(Ordering::Relaxed) || self.loops.load(Ordering::Relaxed)
    }
}

/// The upstream servers.
#[derive(Clone)]
pub(super) struct Upstreams {
    all: Arc<[Arc<Upstream>]>,
    pub(super) loops: Arc<LoopProbes>,
    metrics: DnsMetrics,
}

impl Upstreams {
    pub(super) fn new(addresses: &[SocketAddr], metrics: DnsMetrics) -> Self {
        let upstream = |address: &SocketAddr| {
            Arc::new(Upstream {
                address: *address,
                label: address.to_string(),
                down: AtomicBool::default(),
                probing: AtomicBool::default(),
                own_service: AtomicBool::default(),
                loops: AtomicBool::default(),
            })
        };
        let loops = Arc::new(LoopProbes::new(addresses.len(), rand::random()));
        Self { all: addresses.iter().map(upstream).collect(), loops, metrics }
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.all.iter().map(|upstream| upstream.address)
    }

    /// Sets, per server, the Service of this server that its address belongs to.
    pub(super) fn set_services(&self, services: &[Option<ServiceKey>]) {
        for (upstream, service) in self.all.iter().zip(services) {
            let before = upstream.own_service.swap(service.is_some(), Ordering::Relaxed);
            let server = &upstream.label;
            match service {
                Some(service) if !before => tracing::error!(
                    server, %service,
                    "upstream disabled: it is a Service with this server as an endpoint; set other \
                     servers with --upstream or --resolv-conf"
                ),
                None if before => {
                    tracing::info!(server, "upstream enabled: no longer a Service of this server");
                }
                _ => {}
            }
        }
    }

    /// Sends each server a query for a name that only this process knows.
    pub(super) async fn probe_for_loops(&self) {
        for (at, upstream) in self.all.iter().enumerate() {
            if upstream.own_service.load(Ordering::Relaxed) {
                continue;
            }
            self.loops.reset(at);
            let Ok(query) = UpstreamQuery::loop_probe(&self.loops.name(at)) else { continue };
            // The response does not matter, only whether the query returns here.
            let _response = timeout(PROBE_TIMEOUT, exchange(upstream.address, &query)).await;
            if !self.loops.has_returned(at) && upstream.loops.swap(false, Ordering::Relaxed) {
                tracing::info!(server = upstream.label, "upstream enabled: loop ended");
            }
        }
    }

    /// Disables the servers whose loop probes returned, however late.
    pub(super) fn check_probes(&self) {
        for (at, upstream) in self.all.iter().enumerate() {
            if self.loops.has_returned(at) && !upstream.loops.swap(true, Ordering::Relaxed) {
                tracing::error!(
                    server = upstream.label,
                    "upstream disabled: it forwards to this server; set other servers with \
                     --upstream or --resolv-conf"
                );
            }
        }
    }

    /// Asks the healthy servers one after the other, starting with a random one.
    pub(super) async fn ask(&self, query: &UpstreamQuery) -> Option<Message> {
        timeout(QUERY_TIMEOUT, self.ask_in_turn(query)).await.ok().flatten()
    }

    async fn ask_in_turn(&self, query: &UpstreamQuery) -> Option<Message> {
        let mut left = self.healthy();
        let mut running = JoinSet::new();
        // Servers that were asked and have not responded yet.
        let mut silent: Vec<Arc<Upstream>> = Vec::new();
        loop {
            if let Some(upstream) = left.pop() {
                silent.push(upstream.clone());
                let (this, query) = (self.clone(), query.clone());
                running.spawn(async move { (this.ask_one(&upstream, &query).await, upstream) });
            }
            tokio::select! {
                Some(done) = running.join_next() => {
                    if let Ok((response, upstream)) = done {
                        if response.is_some() {
                            return response;
                        }
                        silent.retain(|other| !Arc::ptr_eq(other, &upstream));
                    }
                }
                () = sleep(NEXT_AFTER), if !silent.is_empty() || !left.is_empty() => {
                    // Probed now, because another server's response ends this query.
                    for upstream in silent.drain(..) {
                        self.probe(&upstream);
                    }
                }
                else => return None,
            }
            if left.is_empty() && running.is_empty() {
                return None;
            }
        }
    }

    fn healthy(&self) -> Vec<Arc<Upstream>> {
        let is_healthy = |upstream: &&Arc<Upstream>| {
            !upstream.down.load(Ordering::Relaxed) && !upstream.leads_back()
        };
        let mut healthy: Vec<_> = self.all.iter().filter(is_healthy).cloned().collect();
        if !healthy.is_empty() {
            let first = rand::random::<u32>() as usize % healthy.len();
            healthy.rotate_left(first);
        }
        healthy
    }

    async fn ask_one(&self, upstream: &Arc<Upstream>, query: &UpstreamQuery) -> Option<Message> {
        let began = Instant::now();
        match exchange(upstream.address, query).await {
            Ok(response) => {
                let code = Rcode(response.metadata.response_code.into());
                self.metrics.asked_upstream(&upstream.label, code.as_str(), began.elapsed());
                Some(response)
            }
            Err(error) => {
                tracing::debug!(server = upstream.label, %error, "upstream query failed");
                if error.is_unresponsive() {
                    self.probe(upstream);
                }
                None
            }
        }
    }

    /// Starts a health probe unless one is running.
    fn probe(&self, upstream: &Arc<Upstream>) {
        if !upstream.probing.swap(true, Ordering::Relaxed) {
            let probe = HealthProbe { upstream: upstream.clone(), metrics: self.metrics.clone() };
            // A separate task: the query that caused it may end earlier.
            tokio::spawn(probe.run());
        }
    }
}

/// Probes a server until it responds. When the probe ends, for whatever reason, the server is up.
struct HealthProbe {
    upstream: Arc<Upstream>,
    metrics: DnsMetrics,
}

impl HealthProbe {
    async fn run(self) {
        let mut every = interval(PROBE_EVERY);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut missed = 0;
        loop {
            every.tick().await;
            let query = UpstreamQuery::health_probe();
            let response = timeout(PROBE_TIMEOUT, exchange(self.upstream.address, &query)).await;
            match response.unwrap_or(Err(ExchangeError::TimedOut)) {
                Ok(_) => return,
                Err(error) if error.is_response() => return,
                // A local error says nothing about the server.
                Err(error) if !error.is_unresponsive() => {}
                Err(error) => {
                    missed += 1;
                    if missed == MAX_MISSED {
                        self.upstream.down.store(true, Ordering::Relaxed);
                        let server = &self.upstream.label;
                        tracing::warn!(server, %error, "upstream down");
                    }
                    self.metrics.probe_failed(&self.upstream.label);
                }
            }
        }
    }
}

impl Drop for HealthProbe {
    fn drop(&mut self) {
        if self.upstream.down.swap(false, Ordering::Relaxed) {
            tracing::info!(server = self.upstream.label, "upstream up");
        }
        self.upstream.probing.store(false, Ordering::Relaxed);
    }
}
