//! Exponential back-off with jitter: each pause is twice as long as the pause before, and clients
//! that failed together do not retry together.

use std::time::Duration;

/// The next pause.
#[derive(Debug)]
pub(crate) struct Backoff {
    base: Duration,
    cap: Duration,
    next: Duration,
}

impl Backoff {
    pub(crate) fn new(base: Duration, cap: Duration) -> Self {
        Self { base, cap, next: base }
    }

    /// After a success.
    pub(crate) fn reset(&mut self) {
        self.next = self.base;
    }

    /// Whether pauses no longer grow.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.next >= self.cap
    }

    /// Takes the next pause, with jitter of half of it in both directions.
    pub(crate) fn pause(&mut self) -> Duration {
        let turn = self.next;
        self.next = (turn * 2).min(self.cap);
        turn.mul_f64(rand::random_range(0.5..1.5))
    }
}

/// A duration with jitter of 5 % in both directions.
pub(crate) fn jittered(duration: Duration) -> Duration {
    duration.mul_f64(rand::random_range(0.95..1.05))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_the_cap_and_start_over() {
        let second = Duration::from_secs(1);
        let mut backoff = Backoff::new(second, second * 4);
        for turn in [1, 2, 4, 4] {
            let pause = backoff.pause();
            assert!(pause >= second * turn / 2 && pause < second * turn * 3 / 2, "{pause:?}");
        }
        backoff.reset();
        assert!(backoff.pause() < second * 3 / 2);
    }
}
