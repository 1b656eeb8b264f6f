//! How long to wait before the next attempt. The caller counts failures and sleeps.

use std::time::Duration;

/// Delays that grow from `base` by `factor` up to `cap`. Each is shortened at random, so that
/// clients that failed at the same time do not retry at the same time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// The first delay.
    pub base: Duration,
    /// The ratio of each delay to the one before.
    pub factor: f64,
    /// The longest delay.
    pub cap: Duration,
    /// The largest share of a delay that is removed at random, from 0 to 1.
    pub jitter: f64,
}

impl Backoff {
    /// Doubles from `base` to `cap`; removes up to a quarter of each delay at random.
    #[must_use]
    pub const fn new(base: Duration, cap: Duration) -> Self {
        Self { base, factor: 2.0, cap, jitter: 0.25 }
    }

    /// The delay after `attempt` earlier failures (0 for the first); `random` is from 0 to 1.
    ///
    /// Jitter only shortens a delay, so that `cap` is never exceeded and delays at the cap still
    /// differ.
    #[must_use]
    pub fn delay(&self, attempt: u32, random: f64) -> Duration {
        let exponent = i32::try_from(attempt).unwrap_or(i32::MAX);
        let grown = self.base.as_secs_f64() * self.factor.powi(exponent);
        // `min` also replaces infinity, and NaN, which is 0 * infinity here.
        let capped = grown.min(self.cap.as_secs_f64());
        let kept = 1.0 - self.jitter.clamp(0.0, 1.0) * random.clamp(0.0, 1.0);
        let wait = if self.base.is_zero() { 0.0 } else { capped * kept };
        // The conversion fails only for a cap near the end of Duration's range.
        Duration::try_from_secs_f64(wait).unwrap_or(self.cap).min(self.cap)
    }

    /// The delay after one more failure, with jitter. A success sets `failures` to 0.
    pub fn next_delay(&self, failures: &mut u32) -> Duration {
        let delay = self.delay(*failures, rand::random());
        *failures = failures.saturating_add(1);
        delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn delays_double_up_to_the_cap() {
        let backoff = Backoff::new(SECOND, 30 * SECOND);
        let waits: Vec<u64> = (0..7).map(|n| backoff.delay(n, 0.0).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30]);
    }

    #[test]
    fn jitter_shortens_a_delay_by_at_most_a_quarter() {
        let backoff = Backoff::new(SECOND, 8 * SECOND);
        assert_eq!(backoff.delay(2, 1.0), 3 * SECOND);
        assert_eq!(backoff.delay(9, 1.0), 6 * SECOND);
        assert_eq!(backoff.delay(2, 0.5), Duration::from_millis(3500));
        assert_eq!(
            backoff.delay(0, 7.0),
            Duration::from_millis(750),
            "the random number is clamped"
        );
    }

    #[test]
    fn next_delay_counts_failures() {
        let backoff = Backoff::new(SECOND, 4 * SECOND);
        let mut failures = 0;
        for longest in [1, 2, 4, 4] {
            let delay = backoff.next_delay(&mut failures);
            assert!(delay >= SECOND * longest * 3 / 4 && delay <= SECOND * longest, "{delay:?}");
        }
        assert_eq!(failures, 4);
    }

    #[test]
    fn extreme_values_do_not_overflow() {
        let backoff = Backoff::new(SECOND, Duration::MAX);
        assert!(backoff.delay(u32::MAX, 0.0) > Duration::from_secs(u64::MAX / 2));
        assert_eq!(Backoff::new(Duration::ZERO, SECOND).delay(u32::MAX, 0.3), Duration::ZERO);
        assert_eq!(Backoff::new(2 * SECOND, SECOND).delay(0, 0.0), SECOND);
    }
}
