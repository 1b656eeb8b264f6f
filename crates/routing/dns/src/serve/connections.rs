//! Who is connected. Where there is no room, whoever was silent for longest makes it: ten thousand
//! connections that say nothing lock nobody out.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::task::AbortHandle;

use crate::metrics::DnsMetrics;

/// Since when a connection has been silent, and its number.
type Silence = (Instant, u64);

/// All connections. Clones share them.
#[derive(Clone)]
pub(super) struct Connections {
    most: usize,
    inner: Arc<Mutex<Inner>>,
    metrics: DnsMetrics,
}

#[derive(Default)]
struct Inner {
    open: BTreeMap<Silence, AbortHandle>,
    next: u64,
}

impl Connections {
    /// At most so many.
    pub(super) fn new(most: usize, metrics: DnsMetrics) -> Self {
        Self { most, inner: Arc::default(), metrics }
    }

    /// A number for a new connection.
    pub(super) fn number(&self) -> u64 {
        let mut inner = self.lock();
        inner.next += 1;
        inner.next
    }

    /// Makes room for one more, if it must.
    pub(super) fn make_room(&self) {
        let mut inner = self.lock();
        while inner.open.len() >= self.most {
            self.evict(&mut inner);
        }
    }

    /// Closes whoever was silent for longest.
    pub(super) fn evict_one(&self) {
        self.evict(&mut self.lock());
    }

    fn evict(&self, inner: &mut Inner) {
        if let Some((_, connection)) = inner.open.pop_first() {
            connection.abort();
            self.metrics.evicted();
        }
    }

    /// Files a connection.
    pub(super) fn add(&self, number: u64, since: Instant, connection: AbortHandle) {
        let mut inner = self.lock();
        inner.open.insert((since, number), connection);
        self.metrics.connections(inner.open.len());
    }

    /// It has said something.
    pub(super) fn heard(&self, number: u64, before: Instant, now: Instant) {
        let mut inner = self.lock();
        // It may just have been told to make room.
        if let Some(connection) = inner.open.remove(&(before, number)) {
            inner.open.insert((now, number), connection);
        }
    }

    /// It is gone.
    pub(super) fn remove(&self, number: u64, since: Instant) {
        let mut inner = self.lock();
        inner.open.remove(&(since, number));
        self.metrics.connections(inner.open.len());
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Each change is one call; nothing is left half done.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
