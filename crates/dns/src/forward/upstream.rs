//! The other servers, and which of them live.
//!
//! One that did not answer is probed until it does, and asked again only then: whoever asks while
//! all are dead is told so at once.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hickory_proto::op::Message;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::exchange::{Ask, exchange};
use crate::metrics::DnsMetrics;

/// The next server is asked too when one has not answered for so long.
const NEXT_AFTER: Duration = Duration::from_secs(1);
/// A question takes no longer, whatever happens.
const WHOLE: Duration = Duration::from_secs(5);
/// How often a dead server is probed.
const PROBE_EVERY: Duration = Duration::from_millis(500);

/// Another server.
#[derive(Debug)]
struct Upstream {
    address: SocketAddr,
    label: String,
    dead: AtomicBool,
}

/// The other servers.
#[derive(Clone)]
pub(super) struct Upstreams {
    all: Arc<[Arc<Upstream>]>,
    metrics: DnsMetrics,
}

impl Upstreams {
    pub(super) fn new(addresses: &[SocketAddr], metrics: DnsMetrics) -> Self {
        let upstream = |address: &SocketAddr| {
            let (address, label) = (*address, address.to_string());
            Arc::new(Upstream { address, label, dead: AtomicBool::new(false) })
        };
        Self { all: addresses.iter().map(upstream).collect(), metrics }
    }

    /// Asks one after the other, those that live, beginning anywhere.
    pub(super) async fn ask(&self, ask: &Ask) -> Option<Message> {
        timeout(WHOLE, self.ask_in_turn(ask)).await.ok().flatten()
    }

    async fn ask_in_turn(&self, ask: &Ask) -> Option<Message> {
        let mut left = self.living();
        let mut running = JoinSet::new();
        loop {
            if let Some(upstream) = left.pop() {
                let (this, ask) = (self.clone(), ask.clone());
                running.spawn(async move { this.ask_one(&upstream, &ask).await });
            }
            tokio::select! {
                Some(done) = running.join_next() => {
                    if let Some(answer) = done.ok().flatten() {
                        return Some(answer);
                    }
                }
                () = sleep(NEXT_AFTER), if !left.is_empty() => {}
                else => return None,
            }
            if left.is_empty() && running.is_empty() {
                return None;
            }
        }
    }

    /// Those that live, in an order that begins anywhere.
    fn living(&self) -> Vec<Arc<Upstream>> {
        let alive = |upstream: &&Arc<Upstream>| !upstream.dead.load(Ordering::Relaxed);
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
                self.bury(upstream, &failure.to_string());
                None
            }
        }
    }

    /// Leaves a server alone until it answers a probe.
    fn bury(&self, upstream: &Arc<Upstream>, why: &str) {
        if upstream.dead.swap(true, Ordering::Relaxed) {
            return;
        }
        tracing::warn!(server = upstream.label, why, "upstream does not answer; probing it");
        let (upstream, metrics) = (upstream.clone(), self.metrics.clone());
        tokio::spawn(async move {
            while let Err(_dead) = exchange(upstream.address, &Ask::probe()).await {
                metrics.probe_failed(&upstream.label);
                sleep(PROBE_EVERY).await;
            }
            upstream.dead.store(false, Ordering::Relaxed);
            tracing::info!(server = upstream.label, "upstream answers again");
        });
    }
}
