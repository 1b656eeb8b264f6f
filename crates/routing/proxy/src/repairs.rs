//! When to repair a change of our tables by another program: at once, and with back-off if the
//! program keeps changing them. Two programs that undo each other's changes without a pause would
//! use up the node's CPU.

use std::time::{Duration, Instant};

/// Number of repairs with the short wait.
const PATIENT: u32 = 3;
/// The short wait.
const SHORT: Duration = Duration::from_millis(200);
/// The wait after one more repair; each further wait is twice as long.
const LONG: Duration = Duration::from_secs(1);
/// The longest wait, and the pause after which the back-off starts again.
const LONGEST: Duration = Duration::from_secs(60);

/// Verifications caused by other programs take at most this fraction of the time: 1/10.
const REST: u32 = 10;

/// When to repair a foreign change.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Repairs {
    /// Number of repairs without a long pause between them.
    in_a_row: u32,
    last: Option<Instant>,
    /// Earliest time of the next verification.
    rested: Option<Instant>,
}

impl Repairs {
    /// When to repair a change that was noticed at `now`.
    pub(crate) fn due(&self, now: Instant) -> Instant {
        let repair = self.last.map(|last| last + self.wait());
        [Some(now), repair, self.rested].into_iter().flatten().max().unwrap_or(now)
    }

    /// Notes a verification, whatever it found: a program that changes its own tables so fast that
    /// notifications are lost causes verifications of ours again and again.
    pub(crate) fn looked(&mut self, began: Instant, ended: Instant) {
        self.rested = Some(ended + ended.duration_since(began) * REST);
    }

    /// Notes a repair. Returns the wait until the next one if it is long enough to be logged.
    pub(crate) fn repaired(&mut self, now: Instant) -> Option<Duration> {
        let rested = self.last.is_none_or(|last| now.duration_since(last) > self.wait() + LONGEST);
        self.in_a_row = if rested { 1 } else { self.in_a_row.saturating_add(1) };
        self.last = Some(now);
        (self.in_a_row > PATIENT).then(|| self.wait())
    }

    fn wait(&self) -> Duration {
        match self.in_a_row.checked_sub(PATIENT + 1) {
            None => SHORT,
            Some(more) => LONG.saturating_mul(1 << more.min(10)).min(LONGEST),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_repair_runs_at_once() {
        let now = Instant::now();
        assert_eq!(Repairs::default().due(now), now);
    }

    #[test]
    fn verifications_after_foreign_changes_take_little_time() {
        let (mut repairs, start) = (Repairs::default(), Instant::now());
        let (mut now, mut verifying) = (start, Duration::ZERO);
        while now < start + Duration::from_secs(60) {
            now = repairs.due(now);
            let took = Duration::from_millis(300);
            verifying += took;
            repairs.looked(now, now + took);
            now += took;
        }
        assert!(verifying < Duration::from_secs(7), "{verifying:?} of a minute");
    }

    #[test]
    fn repairs_of_repeated_foreign_changes_back_off() {
        let (mut repairs, start) = (Repairs::default(), Instant::now());
        let (mut now, mut times) = (start, Vec::new());
        // The other program changes the table again at once.
        while now < start + Duration::from_secs(600) {
            now = repairs.due(now);
            let reported = repairs.repaired(now);
            times.push(now);
            assert_eq!(
                reported.is_some(),
                times.len() > 3,
                "repairs are reported from the fourth on"
            );
        }
        assert!(times[2] - start < Duration::from_secs(1), "{times:?}");
        assert!((10..20).contains(&times.len()), "{} repairs in ten minutes", times.len());
        assert!(times.windows(2).all(|two| two[1] - two[0] <= LONGEST));
        // After a long pause the back-off starts again.
        now += Duration::from_secs(300);
        assert_eq!(repairs.due(now), now);
        assert_eq!(repairs.repaired(now), None);
    }
}
