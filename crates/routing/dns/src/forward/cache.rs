//! Cache of upstream responses. Cluster names are never cached.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use nearhop_core::answer::{AskedName, LONGEST_NAME};
use nearhop_runtime::lock;

use super::cached_response::CachedResponse;
use crate::metrics::{CacheType, DnsMetrics};
use crate::wire::Request;

/// Name, type, DO and CD of a query.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheKey {
    octets: [u8; LONGEST_NAME + 3],
    length: usize,
}

impl CacheKey {
    pub(crate) fn of(request: &Request) -> Self {
        Self::new(&request.question.name, request)
    }

    /// The key of `request` with another name.
    pub(crate) fn new(name: &AskedName, request: &Request) -> Self {
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

    pub(super) fn as_slice(&self) -> &[u8] {
        &self.octets[..self.length]
    }
}

/// Upper bound of the cache's memory, independent of the number of entries.
const MAX_OCTETS: usize = 32 << 20;

/// Upstream responses by query.
pub struct Cache {
    max_entries: usize,
    inner: Mutex<Inner>,
    metrics: DnsMetrics,
}

#[derive(Default)]
struct Inner {
    entries: BTreeMap<Box<[u8]>, (u64, Arc<CachedResponse>)>,
    /// Keys by insertion number.
    order: BTreeMap<u64, Box<[u8]>>,
    next: u64,
    denials: usize,
    /// Memory of all entries.
    octets: usize,
}

impl Cache {
    /// Holds at most this many entries and 32 MiB; 0 disables the cache.
    pub fn new(max_entries: usize, metrics: DnsMetrics) -> Self {
        Self { max_entries, inner: Mutex::default(), metrics }
    }

    /// Like [`Self::get`], without counting a hit or miss.
    pub(super) fn peek(&self, key: &CacheKey, now: Instant) -> Option<Arc<CachedResponse>> {
        let found = self.lock().entries.get(key.as_slice()).map(|(_, cached)| cached.clone());
        found.filter(|cached| cached.is_fresh(now))
    }

    pub(crate) fn get(&self, key: &CacheKey, now: Instant) -> Option<Arc<CachedResponse>> {
        if self.max_entries == 0 {
            return None;
        }
        let fresh = self.peek(key, now);
        self.metrics.cache_lookup(fresh.as_ref().map(|cached| cached.cache_type()));
        fresh
    }

    /// Inserts a response unless its lifetime is 0. Evicts the oldest entries to make room.
    pub(super) fn put(&self, key: &[u8], cached: Arc<CachedResponse>) {
        if self.max_entries == 0 || cached.lifetime() == 0 {
            return;
        }
        let mut inner = self.lock();
        inner.remove(key);
        let room = MAX_OCTETS.saturating_sub(memory_of(key, &cached));
        while inner.entries.len() >= self.max_entries || inner.octets > room {
            let Some(oldest) = inner.order.values().next().cloned() else { break };
            inner.remove(&oldest);
        }
        inner.insert(key, cached);
        self.metrics.cache_entries(CacheType::Denial, inner.denials);
        self.metrics.cache_entries(CacheType::Success, inner.entries.len() - inner.denials);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // After a panic, one map may miss one entry; eviction removes the rest of it.
        lock(&self.inner)
    }
}

/// Memory of an entry; both maps hold the key.
fn memory_of(key: &[u8], cached: &CachedResponse) -> usize {
    cached.size() + 2 * key.len()
}

impl Inner {
    fn insert(&mut self, key: &[u8], cached: Arc<CachedResponse>) {
        let number = self.next;
        self.next += 1;
        self.denials += usize::from(cached.cache_type() == CacheType::Denial);
        self.octets += memory_of(key, &cached);
        self.order.insert(number, key.into());
        self.entries.insert(key.into(), (number, cached));
    }

    fn remove(&mut self, key: &[u8]) {
        if let Some((number, cached)) = self.entries.remove(key) {
            self.denials -= usize::from(cached.cache_type() == CacheType::Denial);
            self.octets -= memory_of(key, &cached);
            self.order.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use hickory_proto::op::{Message, MessageType, OpCode, Query};
    use hickory_proto::rr::rdata::TXT;
    use hickory_proto::rr::{Name, RData, Record, RecordType};
    use nearhop_runtime::metrics::Metrics;

    use super::*;

    /// A response of about 60,000 octets.
    fn large(now: Instant) -> Arc<CachedResponse> {
        let name = Name::from_ascii("large.example.com.").unwrap();
        let mut message = Message::new(0, MessageType::Response, OpCode::Query);
        message.add_query(Query::query(name.clone(), RecordType::TXT));
        let record = Record::from_rdata(name, 30, RData::TXT(TXT::new(vec!["x".repeat(238)])));
        message.answers = vec![record; 240];
        Arc::new(CachedResponse::new(&message, now).unwrap())
    }

    #[test]
    fn memory_is_bounded() {
        let now = Instant::now();
        let (cache, cached) =
            (Cache::new(10_000, DnsMetrics::new(&Metrics::new(), "x")), large(now));
        assert!(cached.size() > 60_000, "{}", cached.size());
        for number in 0..1000_u16 {
            cache.put(&number.to_be_bytes(), cached.clone());
            // Replacing an entry takes no more memory.
            cache.put(&number.to_be_bytes(), cached.clone());
        }
        let inner = cache.lock();
        let held: usize =
            inner.entries.iter().map(|(key, (_, cached))| memory_of(key, cached)).sum();
        assert_eq!(inner.octets, held);
        assert!(held <= MAX_OCTETS && held > MAX_OCTETS - 2 * cached.size(), "{held}");
        assert_eq!(inner.order.len(), inner.entries.len());
        assert!(
            !inner.entries.contains_key(&0_u16.to_be_bytes()[..]),
            "the oldest entry is evicted"
        );
        assert!(inner.entries.contains_key(&999_u16.to_be_bytes()[..]));
    }
}
