//! When to sync: a single change at once, many changes in batches, and never later than a fixed
//! time after the last sync.

use std::time::{Duration, Instant};

/// The longest wait without `--min-sync-period`.
const LONGEST: Duration = Duration::from_millis(10);
/// The first wait without `--min-sync-period`.
const SHORTEST: Duration = Duration::from_millis(1);

/// When to sync.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// `--min-sync-period`; if none, the wait adapts to the rate of changes.
    fixed: Option<Duration>,
    wait: Duration,
    last: Option<Instant>,
}

impl Pace {
    /// Creates it with a fixed wait between two syncs, or with an adaptive wait.
    pub(crate) fn new(fixed: Option<Duration>) -> Self {
        Self { fixed, wait: Duration::ZERO, last: None }
    }

    /// When to sync a change that was known at `now` or before.
    pub(crate) fn due(&self, now: Instant) -> Instant {
        let earliest = self.last.map(|last| last + self.fixed.unwrap_or(self.wait));
        earliest.map_or(now, |earliest| earliest.max(now))
    }

    /// Notes a finished sync. The wait doubles while syncs follow each other without a pause, and
    /// is reset after a pause.
    pub(crate) fn synced(&mut self, began: Instant, ended: Instant) {
        let close = self.last.is_some_and(|last| began < last + self.wait + SHORTEST);
        self.wait = if close { (self.wait * 2).clamp(SHORTEST, LONGEST) } else { Duration::ZERO };
        self.last = Some(ended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_single_change_is_synced_at_once() {
        let mut pace = Pace::new(None);
        let start = Instant::now();
        assert_eq!(pace.due(start), start);
        pace.synced(start, start + MS);
        assert_eq!(pace.due(start + 50 * MS), start + 50 * MS);
    }

    #[test]
    fn frequent_changes_are_batched_without_long_delays() {
        let mut pace = Pace::new(None);
        let mut now = Instant::now();
        let mut syncs = 0;
        let end = now + 1000 * MS;
        // Another change is always pending.
        while now < end {
            let due = pace.due(now);
            assert!(due - now <= LONGEST);
            pace.synced(due, due + MS / 10);
            now = due + MS / 10;
            syncs += 1;
        }
        assert!((90..130).contains(&syncs), "{syncs} syncs in a second");
    }

    #[test]
    fn the_delay_ends_after_a_pause() {
        let mut pace = Pace::new(None);
        let mut now = Instant::now();
        for _ in 0..20 {
            now = pace.due(now);
            pace.synced(now, now);
        }
        assert_eq!(pace.due(now), now + LONGEST);
        now += 100 * MS;
        pace.synced(now, now);
        assert_eq!(pace.due(now + 2 * MS), now + 2 * MS);
    }

    #[test]
    fn a_configured_period_is_kept() {
        let mut pace = Pace::new(Some(1000 * MS));
        let start = Instant::now();
        pace.synced(start, start);
        assert_eq!(pace.due(start + MS), start + 1000 * MS);
    }
}
