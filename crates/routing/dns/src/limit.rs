//! How many errors one source may be told about in a second.
//!
//! Errors are what a flood of forged or broken packets is answered with. They are worth little to
//! whoever receives them, and so are the first to be left out. Answers, and names that are not
//! there, are never limited.

use std::hash::Hasher as _;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use siphasher::sip::SipHasher13;

/// Sources that are told apart; more of them share. A table that grew would be what an attacker
/// wants.
const SLOTS: usize = 1 << 14;
/// So much may come at once.
const BURST: Duration = Duration::from_secs(1);

/// A bucket for every source, as many as there are slots.
#[derive(Debug)]
pub struct ErrorLimit {
    /// Until when each slot's budget is spent, in nanoseconds since the start.
    spent_until: Box<[AtomicU64]>,
    /// What one error costs; nothing where there is no limit.
    cost: Option<u64>,
    start: Instant,
    /// Chance, so that nobody can aim at somebody else's slot.
    secret: [u8; 16],
}

impl ErrorLimit {
    /// So many errors in a second for each source; 0 is no limit.
    pub fn new(per_second: u32, secret: [u8; 16], start: Instant) -> Self {
        let slots = if per_second == 0 { 0 } else { SLOTS };
        let cost = BURST.as_nanos() as u64;
        Self {
            spent_until: (0..slots).map(|_| AtomicU64::new(0)).collect(),
            cost: cost.checked_div(per_second.into()),
            start,
            secret,
        }
    }

    /// Whether this source may be told about one more error now.
    pub fn allows(&self, source: IpAddr, now: Instant) -> bool {
        let Some(cost) = self.cost else { return true };
        let now = now.saturating_duration_since(self.start).as_nanos() as u64;
        let slot = &self.spent_until[self.slot(source)];
        // Two threads at the same moment may both spend the last token: no harm is done.
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
    fn a_source_has_its_budget_and_gets_it_back() {
        let start = Instant::now();
        let limit = ErrorLimit::new(10, [1; 16], start);
        let (one, other): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let allowed = |source, now| (0..100).filter(|_| limit.allows(source, now)).count();
        assert_eq!(allowed(one, start), 10);
        assert_eq!(allowed(other, start), 10, "another source has a budget of its own");
        assert_eq!(allowed(one, start + Duration::from_millis(500)), 5);
        assert_eq!(allowed(one, start + Duration::from_secs(60)), 10, "no more is saved up");
    }

    #[test]
    fn without_a_limit_everything_is_allowed() {
        let start = Instant::now();
        let limit = ErrorLimit::new(0, [1; 16], start);
        assert!((0..10_000).all(|_| limit.allows([10, 0, 0, 1].into(), start)));
    }
}
