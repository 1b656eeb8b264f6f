//! The open TCP connections. At the limit, a new connection closes the one that is idle for longest,
//! so that idle connections cannot lock out clients.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use nearhop_runtime::lock;
use tokio::task::AbortHandle;

use crate::metrics::DnsMetrics;

/// When a connection last sent a query, and its number.
type LastUse = (Instant, u64);

/// The open TCP connections. Clones share them.
#[derive(Clone)]
pub(super) struct Connections {
    max: usize,
    inner: Arc<Mutex<Inner>>,
    metrics: DnsMetrics,
}

#[derive(Default)]
struct Inner {
    open: BTreeMap<LastUse, AbortHandle>,
    next: u64,
}

impl Connections {
    pub(super) fn new(max: usize, metrics: DnsMetrics) -> Self {
        Self { max, inner: Arc::default(), metrics }
    }

    /// A number for a new connection.
    pub(super) fn number(&self) -> u64 {
        let mut inner = self.lock();
        inner.next += 1;
        inner.next
    }

    /// Closes idle connections until one more is allowed.
    pub(super) fn make_room(&self) {
        let mut inner = self.lock();
        while inner.open.len() >= self.max {
            self.evict(&mut inner);
        }
    }

    /// Closes the connection that is idle for longest.
    pub(super) fn evict_one(&self) {
        self.evict(&mut self.lock());
    }

    fn evict(&self, inner: &mut Inner) {
        if let Some((_, connection)) = inner.open.pop_first() {
            connection.abort();
            self.metrics.evicted();
        }
    }

    pub(super) fn add(&self, number: u64, since: Instant, connection: AbortHandle) {
        let mut inner = self.lock();
        inner.open.insert((since, number), connection);
        self.metrics.connections(inner.open.len());
    }

    /// Records that a connection sent a query.
    pub(super) fn touch(&self, number: u64, before: Instant, now: Instant) {
        let mut inner = self.lock();
        // It may have been evicted meanwhile.
        if let Some(connection) = inner.open.remove(&(before, number)) {
            inner.open.insert((now, number), connection);
        }
    }

    pub(super) fn remove(&self, number: u64, since: Instant) {
        let mut inner = self.lock();
        inner.open.remove(&(since, number));
        self.metrics.connections(inner.open.len());
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Each change is one call, so a panic leaves no partial change.
        lock(&self.inner)
    }
}
