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

/// All that is kept together takes no more octets, however many answers may be kept.
const MOST_OCTETS: usize = 32 << 20;

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
    /// What all of them take.
    octets: usize,
}

impl Cache {
    /// Keeps at most so many, and not more than 32 MiB of them; none where it is 0.
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
        let room = MOST_OCTETS.saturating_sub(taken(key, &kept));
        while inner.kept.len() >= self.most || inner.octets > room {
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

/// What an answer takes: itself, and what was asked, which stands in both maps.
fn taken(key: &[u8], kept: &Kept) -> usize {
    kept.size() + 2 * key.len()
}

impl Inner {
    fn insert(&mut self, key: &[u8], kept: Arc<Kept>) {
        let number = self.next;
        self.next += 1;
        self.denials += usize::from(kept.store() == Store::Denial);
        self.octets += taken(key, &kept);
        self.order.insert(number, key.into());
        self.kept.insert(key.into(), (number, kept));
    }

    fn remove(&mut self, key: &[u8]) {
        if let Some((number, kept)) = self.kept.remove(key) {
            self.denials -= usize::from(kept.store() == Store::Denial);
            self.octets -= taken(key, &kept);
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

    /// An answer of about 60,000 octets.
    fn large(now: Instant) -> Arc<Kept> {
        let name = Name::from_ascii("large.example.com.").unwrap();
        let mut message = Message::new(0, MessageType::Response, OpCode::Query);
        message.add_query(Query::query(name.clone(), RecordType::TXT));
        let record = Record::from_rdata(name, 30, RData::TXT(TXT::new(vec!["x".repeat(238)])));
        message.answers = vec![record; 240];
        Arc::new(Kept::new(&message, now).unwrap())
    }

    #[test]
    fn what_is_kept_is_bounded_by_octets_too() {
        let now = Instant::now();
        let (cache, kept) = (Cache::new(10_000, DnsMetrics::new(&Metrics::new(), "x")), large(now));
        assert!(kept.size() > 60_000, "{}", kept.size());
        for number in 0..1000_u16 {
            cache.put(&number.to_be_bytes(), kept.clone());
            // The same again takes no more room.
            cache.put(&number.to_be_bytes(), kept.clone());
        }
        let inner = cache.lock();
        let held: usize = inner.kept.iter().map(|(key, (_, kept))| taken(key, kept)).sum();
        assert_eq!(inner.octets, held);
        assert!(held <= MOST_OCTETS && held > MOST_OCTETS - 2 * kept.size(), "{held}");
        assert_eq!(inner.order.len(), inner.kept.len());
        assert!(!inner.kept.contains_key(&0_u16.to_be_bytes()[..]), "the oldest made room");
        assert!(inner.kept.contains_key(&999_u16.to_be_bytes()[..]));
    }
}
