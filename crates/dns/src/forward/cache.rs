//! Answers of other servers, kept for a while. Never answers about the cluster's own names.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use nearhop_core::answer::{AskedName, LONGEST_NAME};

use super::kept::Kept;
use crate::metrics::{DnsMetrics, Store};
use crate::wire::Request;

/// What is asked of another server: name, type, DO and CD.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    octets: [u8; LONGEST_NAME + 3],
    length: usize,
}

impl Key {
    /// What a client asks.
    pub fn of(request: &Request) -> Self {
        Self::new(&request.question.name, request)
    }

    /// What a client asks, of another name.
    pub fn new(name: &AskedName, request: &Request) -> Self {
        let mut key = Self { octets: [0; LONGEST_NAME + 3], length: 0 };
        for at in 0..name.len() {
            let label = name.label(at);
            key.push(&[label.len() as u8]);
            key.push(label);
        }
        key.push(&request.type_number.to_be_bytes());
        let cd = u8::from(request.flags.checking_disabled());
        key.push(&[u8::from(request.dnssec_ok()) | cd << 1]);
        key
    }

    fn push(&mut self, octets: &[u8]) {
        // A name has at most LONGEST_NAME octets.
        self.octets[self.length..self.length + octets.len()].copy_from_slice(octets);
        self.length += octets.len();
    }

    /// As octets.
    pub fn as_slice(&self) -> &[u8] {
        &self.octets[..self.length]
    }
}

/// Answers of other servers.
pub struct Cache {
    most: usize,
    inner: Mutex<Inner>,
    metrics: DnsMetrics,
}

#[derive(Default)]
struct Inner {
    kept: BTreeMap<Box<[u8]>, (u64, Arc<Kept>)>,
    /// In the order in which they came.
    order: BTreeMap<u64, Box<[u8]>>,
    next: u64,
    denials: usize,
}

impl Cache {
    /// Keeps at most so many; none where it is 0.
    pub fn new(most: usize, metrics: DnsMetrics) -> Self {
        Self { most, inner: Mutex::default(), metrics }
    }

    /// What is known, and not counted: somebody asked already, and waits.
    pub(super) fn peek(&self, key: &Key, now: Instant) -> Option<Arc<Kept>> {
        let kept = self.lock().kept.get(key.as_slice()).map(|(_, kept)| kept.clone());
        kept.filter(|kept| kept.is_fresh(now))
    }

    /// What is known.
    pub fn get(&self, key: &Key, now: Instant) -> Option<Arc<Kept>> {
        if self.most == 0 {
            return None;
        }
        let fresh = self.peek(key, now);
        self.metrics.cache_asked(fresh.as_ref().map(|kept| kept.store()));
        fresh
    }

    /// Keeps an answer, unless it must not be repeated. The oldest makes room.
    pub fn put(&self, key: &[u8], kept: Arc<Kept>) {
        if self.most == 0 || kept.lifetime() == 0 {
            return;
        }
        let mut inner = self.lock();
        inner.remove(key);
        while inner.kept.len() >= self.most {
            let Some(oldest) = inner.order.values().next().cloned() else { break };
            inner.remove(&oldest);
        }
        inner.insert(key, kept);
        self.metrics.cached(Store::Denial, inner.denials);
        self.metrics.cached(Store::Success, inner.kept.len() - inner.denials);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // At worst one entry is in one map and not in the other: it is dropped in its turn.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn insert(&mut self, key: &[u8], kept: Arc<Kept>) {
        let number = self.next;
        self.next += 1;
        self.denials += usize::from(kept.store() == Store::Denial);
        self.order.insert(number, key.into());
        self.kept.insert(key.into(), (number, kept));
    }

    fn remove(&mut self, key: &[u8]) {
        if let Some((number, kept)) = self.kept.remove(key) {
            self.denials -= usize::from(kept.store() == Store::Denial);
            self.order.remove(&number);
        }
    }
}
