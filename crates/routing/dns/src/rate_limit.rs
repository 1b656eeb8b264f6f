//! Limits how many error replies per second each source address receives by UDP.
//!
//! A flood of forged or malformed packets causes only error replies. Answers and NXDOMAIN are never
//! limited.

use std::hash::Hasher as _;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use siphasher::sip::SipHasher13;

/// Token buckets. More sources than this share buckets, so that an attacker cannot grow the table.
const SLOTS: usize = 1 << 14;
/// A bucket holds the errors of this much time.
const BURST: Duration = Duration::from_secs(1);

/// A token bucket per source address.
#[derive(Debug)]
pub(crate) struct ErrorRateLimiter {
    /// Until when each slot's budget is spent, in nanoseconds since `start`.
    spent_until: Box<[AtomicU64]>,
    /// Nanoseconds that one error costs; None for no limit.
    cost: Option<u64>,
    start: Instant,
    /// Keys the hash, so that an attacker cannot choose a victim's slot.
    secret: [u8; 16],
}

impl ErrorRateLimiter {
    /// 0 errors per second means no limit.
    pub(crate) fn new(per_second: u32, secret: [u8; 16], start: Instant) -> Self {
        let slots = if per_second == 0 { 0 } else { SLOTS };
        let cost = BURST.as_nanos() as u64;
        Self {
            spent_until: (0..slots).map(|_| AtomicU64::new(0)).collect(),
            cost: cost.checked_div(per_second.into()),
            start,
            secret,
        }
    }

    /// Whether this source may receive one more error now.
    pub(crate) fn allows(&self, source: IpAddr, now: Instant) -> bool {
        let Some(cost) = self.cost else { return true };
        let now = now.saturating_duration_since(self.start).as_nanos() as u64;
        let slot = &self.spent_until[self.slot(source)];
        // Two threads may both spend the last token, which is harmless.
        let until = slot.load(Ordering::Relaxed).max(now);
        if until + cost > now + BURST.as_nanos() as u64 {
            return false;
        }
        slot.store(until + cost, Ordering::Relaxed);
        true
    }

    fn slot(&self, source: IpAddr) -> usize {
        let mut hasher = SipHasher13::new_with_key(&self.secret);
        match source {
            IpAddr::V4(address) => hasher.write(&address.octets()),
            IpAddr::V6(address) => hasher.write(&address.octets()),
        }
        hasher.finish() as usize % SLOTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_source_has_a_budget_that_refills() {
        let start = Instant::now();
        let limit = ErrorRateLimiter::new(10, [1; 16], start);
        let (one, other): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let allowed = |source, now| (0..100).filter(|_| limit.allows(source, now)).count();
        assert_eq!(allowed(one, start), 10);
        assert_eq!(allowed(other, start), 10, "sources do not share a budget");
        assert_eq!(allowed(one, start + Duration::from_millis(500)), 5);
        assert_eq!(allowed(one, start + Duration::from_secs(60)), 10, "the bucket is bounded");
    }

    #[test]
    fn zero_means_no_limit() {
        let start = Instant::now();
        let limit = ErrorRateLimiter::new(0, [1; 16], start);
        assert!((0..10_000).all(|_| limit.allows([10, 0, 0, 1].into(), start)));
    }
}
