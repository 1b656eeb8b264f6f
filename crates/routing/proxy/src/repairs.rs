//! When a change of our tables by another program is repaired: at once, and with back-off where the
//! program keeps changing them. Two programs that undo each other's work as fast as they
//! can would leave the node no time for anything else.

use std::time::{Duration, Instant};

/// So many repairs follow each other closely.
const PATIENT: u32 = 3;
/// The wait between them.
const SHORT: Duration = Duration::from_millis(200);
/// The wait after one more; each further one is twice as long.
const LONG: Duration = Duration::from_secs(1);
/// The longest wait, and the time after which a neighbour counts as a new one.
const LONGEST: Duration = Duration::from_secs(60);

/// Looks that others cause take at most one part in so many of the time.
const REST: u32 = 10;

/// When a foreign change is repaired.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Repairs {
    /// Repairs without a longer rest between them.
    in_a_row: u32,
    last: Option<Instant>,
    /// Not before this is looked again.
    rested: Option<Instant>,
}

impl Repairs {
    /// When what is known since `now` is repaired.
    pub(crate) fn due(&self, now: Instant) -> Instant {
        let repair = self.last.map(|last| last + self.wait());
        [Some(now), repair, self.rested].into_iter().flatten().max().unwrap_or(now)
    }

    /// Notes a look, whatever it found: a program whose own tables change so fast that news is lost
    /// has ours read again and again.
    pub(crate) fn looked(&mut self, began: Instant, ended: Instant) {
        self.rested = Some(ended + ended.duration_since(began) * REST);
    }

    /// Notes a repair. The wait until the next one, if it is long enough to be logged.
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
    fn the_first_repair_waits_for_nobody() {
        let now = Instant::now();
        assert_eq!(Repairs::default().due(now), now);
    }

    #[test]
    fn looks_that_others_cause_take_a_small_part_of_the_time() {
        let (mut repairs, start) = (Repairs::default(), Instant::now());
        let (mut now, mut looking) = (start, Duration::ZERO);
        while now < start + Duration::from_secs(60) {
            now = repairs.due(now);
            let took = Duration::from_millis(300);
            looking += took;
            repairs.looked(now, now + took);
            now += took;
        }
        assert!(looking < Duration::from_secs(7), "{looking:?} of a minute");
    }

    #[test]
    fn a_neighbour_that_keeps_coming_back_is_met_less_and_less_often() {
        let (mut repairs, start) = (Repairs::default(), Instant::now());
        let (mut now, mut times) = (start, Vec::new());
        // The neighbour is there again at once.
        while now < start + Duration::from_secs(600) {
            now = repairs.due(now);
            let reported = repairs.repaired(now);
            times.push(now);
            assert_eq!(reported.is_some(), times.len() > 3, "it is reported from the fourth on");
        }
        assert!(times[2] - start < Duration::from_secs(1), "{times:?}");
        assert!((10..20).contains(&times.len()), "{} repairs in ten minutes", times.len());
        assert!(times.windows(2).all(|two| two[1] - two[0] <= LONGEST));
        // After a rest it counts as a new one.
        now += Duration::from_secs(300);
        assert_eq!(repairs.due(now), now);
        assert_eq!(repairs.repaired(now), None);
    }
}
