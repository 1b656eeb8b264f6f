//! The back-off of a kube watch that lost its server: it retries often.

use std::time::Duration;

use kube::runtime::utils::Backoff as WatchBackoff;

use crate::backoff::Backoff;

/// Short, so that a server that comes back is found soon; a request to a server that is down costs
/// nothing.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));

/// The back-off of one watch, for `WatchStreamExt::backoff`.
#[derive(Debug, Default)]
pub struct Waits {
    failures: u32,
}

impl Iterator for Waits {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let wait = BACKOFF.delay(self.failures, rand::random());
        self.failures = self.failures.saturating_add(1);
        Some(wait)
    }
}

impl WatchBackoff for Waits {
    fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_two_seconds_and_start_over() {
        let mut waits = Waits::default();
        let first = waits.next().expect("a watch is never given up");
        assert!(first <= Duration::from_millis(100), "{first:?}");
        let last = waits.by_ref().take(20).last().expect("a watch is never given up");
        assert!(last > Duration::from_secs(1) && last <= Duration::from_secs(2), "{last:?}");
        waits.reset();
        assert!(waits.next().is_some_and(|wait| wait <= Duration::from_millis(100)));
    }
}
