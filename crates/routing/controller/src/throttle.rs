//! Limits on retries, warnings and repairs: the same for slices, status and PodLocators. Pure.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nearhop_runtime::backoff::Backoff;
use nearhop_runtime::client::ApiFailure;
use nearhop_runtime::queue::WorkQueue;

/// How long the controller waits after RBAC rejects a write.
pub(crate) const FORBIDDEN_PAUSE: Duration = Duration::from_secs(60);
/// How often the log warns: one cause can affect thousands of objects.
const WARN_PERIOD: Duration = Duration::from_secs(60);
/// The controller repairs what other clients change at most this often per key, so that two
/// controllers that disagree do not write without a pause.
pub(crate) const REPAIR_PERIOD: Duration = Duration::from_secs(1);

/// When to write and to warn again.
#[derive(Default)]
pub(crate) struct Throttle {
    /// RBAC does not allow writes; the controller tries again at this time.
    pub(crate) forbidden_until: Option<Instant>,
    /// When the log last warned.
    warned: Option<Instant>,
}

impl Throttle {
    /// Whether to log a warning.
    pub(crate) fn may_warn(&mut self, now: Instant) -> bool {
        let due = self.warned.is_none_or(|at| at + WARN_PERIOD <= now);
        self.warned = if due { Some(now) } else { self.warned };
        due
    }
}

/// When to repair a change by another client. `repaired` has the times of the last repairs.
pub(crate) fn repair_time<K: Ord + Clone>(
    repaired: &mut BTreeMap<K, Instant>,
    key: &K,
    now: Instant,
) -> Instant {
    let last = repaired.insert(key.clone(), now);
    last.map_or(now, |last| (last + REPAIR_PERIOD).max(now))
}

/// Retries a key after a failure, with a back-off of at least the given length. Returns its
/// failures in a row.
pub(crate) fn retry<K: Ord + Clone>(
    queue: &mut WorkQueue<K>,
    key: &K,
    failure: &ApiFailure,
    (backoff, least): (Backoff, Duration),
    now: Instant,
) -> u32 {
    let least = least.max(failure.retry_after());
    queue.fail(key, now, failure.cause(), |failures| {
        backoff.delay(failures, rand::random()).max(least)
    })
}
