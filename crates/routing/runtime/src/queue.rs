//! A work queue with back-off: which key to process next, and when. Pure: the caller passes the
//! time, and sleeps until [`WorkQueue::next_due`].
//!
//! A key waits at most once and never runs twice at the same time. Of two due times the earlier
//! one counts, so that a batch window begins with the first event of a burst. A key that failed
//! waits longer after each failure, and failed keys use at most half of the workers: they never
//! block the others.
//!
//! ```
//! # use std::time::{Duration, Instant};
//! # use nearhop_runtime::backoff::Backoff;
//! # use nearhop_runtime::queue::{Cause, WorkQueue};
//! const BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(300));
//! let mut queue = WorkQueue::new(16);
//! let now = Instant::now();
//! queue.add(&"shop/web", now);
//! while let Some(key) = queue.take(now) {
//!     match "the API server rejects it" {
//!         "" => queue.succeed(&key),
//!         _ => {
//!             let delay = |failures| BACKOFF.delay(failures, rand::random());
//!             queue.fail(&key, now, Cause::Object, delay);
//!         }
//!     }
//! }
//! assert!(queue.next_due() > Some(now));
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::metrics::{Work, WorkqueueMetrics};

/// How often the metric `workqueue_depth` of a queue that is not empty is updated.
const DEPTH_PERIOD: Duration = Duration::from_millis(200);

/// Why processing a key failed. Failures of each cause are counted separately: after a long outage,
/// the first conflict of an object counts as its first failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The object: only its own next attempt shows whether the problem is fixed.
    Object,
    /// The API server: the success of any key shows that it works again.
    Server,
}

#[derive(Default)]
struct Item {
    /// When it is due, and a number that keeps keys with the same due time in order.
    due: Option<(Instant, u64)>,
    /// Since when it waits.
    added: Option<Instant>,
    running: bool,
    /// Ends the measurement of `workqueue_work_duration_seconds` when dropped.
    work: Option<Work>,
    /// Failures in a row, by [`Cause`].
    failures: [u32; 2],
    /// The end of the back-off after a failure.
    retry_at: Option<Instant>,
    last_cause: Option<Cause>,
    /// Whether the object itself changed while its key was running.
    reset_requested: bool,
}

impl Item {
    fn failures(&self) -> u32 {
        self.failures[0].saturating_add(self.failures[1])
    }

    fn reset(&mut self) {
        self.failures = [0; 2];
        self.retry_at = None;
        self.last_cause = None;
    }
}

type Waiting<K> = BTreeSet<(Instant, u64, K)>;

/// Keys that wait, and keys that are running. See the [module](self).
pub struct WorkQueue<K> {
    workers: usize,
    items: BTreeMap<K, Item>,
    /// Keys that wait and did not fail last time.
    fresh: Waiting<K>,
    /// Keys that wait and failed last time.
    failed: Waiting<K>,
    running: usize,
    running_failed: usize,
    order: u64,
    metrics: Option<WorkqueueMetrics>,
    depth_observed: Option<Instant>,
}

impl<K: Ord + Clone> WorkQueue<K> {
    /// A queue that runs at most `workers` keys at the same time (at least one).
    pub fn new(workers: usize) -> Self {
        Self {
            workers: workers.max(1),
            items: BTreeMap::new(),
            fresh: BTreeSet::new(),
            failed: BTreeSet::new(),
            running: 0,
            running_failed: 0,
            order: 0,
            metrics: None,
            depth_observed: None,
        }
    }

    /// The same queue, which reports client-go's `workqueue_*` metrics.
    #[must_use]
    pub fn with_metrics(self, metrics: WorkqueueMetrics) -> Self {
        Self { metrics: Some(metrics), ..self }
    }

    /// Adds a key that is due at this time, or at the end of its back-off if that is later.
    pub fn add(&mut self, key: &K, at: Instant) {
        self.order += 1;
        let item = self.items.entry(key.clone()).or_default();
        let old = item.due.take();
        match old {
            Some((due, order)) => {
                waiting(&mut self.fresh, &mut self.failed, item).remove(&(due, order, key.clone()));
            }
            None => self.metrics.iter().for_each(WorkqueueMetrics::add),
        }
        let at = item.retry_at.map_or(at, |retry| retry.max(at));
        let due = match old {
            Some(old) if old.0 <= at => old,
            _ => (at, self.order),
        };
        item.due = Some(due);
        item.added.get_or_insert(at);
        if !item.running {
            let waiting = waiting(&mut self.fresh, &mut self.failed, item);
            waiting.insert((due.0, due.1, key.clone()));
        }
    }

    /// The same for an object that itself changed, and may be fixed: ends its back-off.
    pub fn add_and_reset(&mut self, key: &K, at: Instant) {
        if let Some(item) = self.items.get_mut(key) {
            item.reset_requested = item.running;
            if !item.running {
                if let Some((due, order)) = item.due {
                    let entry = (due, order, key.clone());
                    waiting(&mut self.fresh, &mut self.failed, item).remove(&entry);
                    self.fresh.insert(entry);
                }
                item.reset();
            }
        }
        self.add(key, at);
    }

    /// Takes the next key that is due, if a worker is free for it. End its work with
    /// [`succeed`](Self::succeed) or [`fail`](Self::fail).
    pub fn take(&mut self, now: Instant) -> Option<K> {
        if self.running >= self.workers {
            return None;
        }
        let due = |waiting: &Waiting<K>| waiting.first().filter(|(at, ..)| *at <= now).cloned();
        let mut next = due(&self.fresh);
        if self.may_retry()
            && let Some(failed) = due(&self.failed)
            && next.as_ref().is_none_or(|next| failed < *next)
        {
            next = Some(failed);
        }
        let entry = next?;
        let item = self.items.get_mut(&entry.2).expect("a key that waits has an item");
        waiting(&mut self.fresh, &mut self.failed, item).remove(&entry);
        let waited = item.added.take().map(|at| now.saturating_duration_since(at));
        item.due = None;
        item.reset_requested = false;
        item.running = true;
        item.work = self.metrics.as_ref().map(|metrics| metrics.get(waited.unwrap_or_default()));
        self.running += 1;
        self.running_failed += usize::from(item.failures() > 0);
        Some(entry.2)
    }

    /// Ends the work on a key that succeeded, and its back-off.
    pub fn succeed(&mut self, key: &K) {
        self.stop(key);
        if let Some(item) = self.items.get_mut(key) {
            item.reset();
        }
        self.settle(key);
    }

    /// Ends the work on a key that failed, and retries it after `delay`, which gets the number of
    /// earlier failures in a row of this cause. Returns the number of failures in a row, this one
    /// included.
    pub fn fail(
        &mut self,
        key: &K,
        now: Instant,
        cause: Cause,
        delay: impl FnOnce(u32) -> Duration,
    ) -> u32 {
        self.metrics.iter().for_each(WorkqueueMetrics::retry);
        self.stop(key);
        let Some(item) = self.items.get_mut(key) else { return 0 };
        if item.reset_requested {
            item.reset();
        }
        item.last_cause = Some(cause);
        let count = &mut item.failures[cause as usize];
        let retry_at = later(now, delay(*count));
        *count = count.saturating_add(1);
        let failures = item.failures();
        item.retry_at = Some(retry_at);
        self.order += 1;
        // The retry also covers every event that came in while the key was running.
        item.due = Some((retry_at, self.order));
        item.added.get_or_insert(retry_at);
        self.settle(key);
        failures
    }

    /// Ends the back-off of keys that failed because of the API server, which works again.
    pub fn server_recovered(&mut self, now: Instant) {
        for (at, order, key) in std::mem::take(&mut self.failed) {
            let item = self.items.get_mut(&key).expect("a key that waits has an item");
            let waits = item.last_cause == Some(Cause::Server) && at > now;
            let at = if waits { now } else { at };
            if waits {
                item.retry_at = None;
                item.due = Some((at, order));
            }
            self.failed.insert((at, order, key));
        }
    }

    fn stop(&mut self, key: &K) {
        let Some(item) = self.items.get_mut(key) else { return };
        if std::mem::take(&mut item.running) {
            item.work = None;
            self.running -= 1;
            self.running_failed -= usize::from(item.failures() > 0);
        }
    }

    /// Puts a key that stopped running back into the queue if it is due again, or forgets it.
    fn settle(&mut self, key: &K) {
        let Some(item) = self.items.get_mut(key) else { return };
        match item.due {
            Some((at, order)) => {
                let waiting = waiting(&mut self.fresh, &mut self.failed, item);
                waiting.insert((at, order, key.clone()));
            }
            None if item.failures() == 0 => {
                self.items.remove(key);
            }
            None => {}
        }
    }

    /// Removes all keys that wait. Keys that are running continue.
    pub fn clear(&mut self) {
        self.fresh.clear();
        self.failed.clear();
        self.items.retain(|_, item| {
            item.due = None;
            item.running
        });
    }

    /// Failed keys use at most half of the workers.
    fn may_retry(&self) -> bool {
        self.running_failed < self.workers.div_ceil(2)
    }

    /// When the next key is due for which a worker is free.
    pub fn next_due(&self) -> Option<Instant> {
        if self.running >= self.workers {
            return None;
        }
        let failed = self.failed.first().filter(|_| self.may_retry());
        [self.fresh.first(), failed].into_iter().flatten().map(|(at, ..)| *at).min()
    }

    /// Updates `workqueue_depth`. Call it when [`take`](Self::take) returns nothing. Counting takes
    /// longer for a deep queue, so most calls do nothing.
    pub fn observe_depth(&mut self, now: Instant) {
        let recent = self.depth_observed.is_some_and(|at| now < at + DEPTH_PERIOD);
        let is_due = |waiting: &Waiting<K>| waiting.first().is_some_and(|(at, ..)| *at <= now);
        if let Some(metrics) = &self.metrics
            && !(recent && (is_due(&self.fresh) || is_due(&self.failed)))
        {
            self.depth_observed = Some(now);
            metrics.depth(self.depth(now));
        }
    }

    /// How many keys are due and wait for a worker. As in client-go, keys that are due later do not
    /// count: a queue is deep when its workers are too slow.
    fn depth(&self, now: Instant) -> usize {
        let due = |waiting: &Waiting<K>| waiting.iter().take_while(|(at, ..)| *at <= now).count();
        due(&self.fresh) + due(&self.failed)
    }

    /// How many keys are running.
    pub fn running(&self) -> usize {
        self.running
    }

    /// Whether no key is running, and no key without a failure becomes due by this time.
    pub fn is_idle(&self, by: Instant) -> bool {
        self.running == 0 && !self.has_fresh(by)
    }

    /// Whether every failing key has failed at least this many times in a row.
    pub fn has_given_up(&self, failures: u32) -> bool {
        self.items.values().all(|item| !(1..failures).contains(&item.failures()))
    }

    /// Whether a key that did not fail last time becomes due by this time.
    pub fn has_fresh(&self, by: Instant) -> bool {
        self.fresh.first().is_some_and(|(at, ..)| *at <= by)
    }

    /// Keys that failed last time.
    pub fn failing(&self) -> impl Iterator<Item = &K> {
        self.items.iter().filter(|(_, item)| item.failures() > 0).map(|(key, _)| key)
    }
}

/// `now + delay`, or one day later where the clock cannot represent that.
pub fn later(now: Instant, delay: Duration) -> Instant {
    now.checked_add(delay).unwrap_or_else(|| now + Duration::from_secs(86_400))
}

fn waiting<'a, K>(
    fresh: &'a mut Waiting<K>,
    failed: &'a mut Waiting<K>,
    item: &Item,
) -> &'a mut Waiting<K> {
    if item.failures() > 0 { failed } else { fresh }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    fn after(start: Instant, ms: u64) -> Instant {
        start + Duration::from_millis(ms)
    }

    fn fail(queue: &mut WorkQueue<&str>, key: &'static str, now: Instant, ms: u64) -> u32 {
        queue.fail(&key, now, Cause::Object, |_| Duration::from_millis(ms))
    }

    #[test]
    fn repeated_adds_are_due_once_at_the_earliest_time() {
        let start = Instant::now();
        let mut queue = WorkQueue::new(4);
        for ms in [1000, 1100, 1200, 5000] {
            queue.add(&"a", after(start, ms));
        }
        queue.add(&"a", after(start, 900));
        assert_eq!(queue.next_due(), Some(after(start, 900)));
        assert_eq!(queue.take(after(start, 899)), None);
        assert_eq!(queue.take(after(start, 900)), Some("a"));
        assert_eq!(queue.take(after(start, 9000)), None);
    }

    #[test]
    fn a_key_never_runs_twice_at_the_same_time() {
        let start = Instant::now();
        let mut queue = WorkQueue::new(4);
        queue.add(&"a", start);
        queue.take(start).unwrap();
        queue.add(&"a", start);
        assert_eq!(queue.take(start), None);
        queue.succeed(&"a");
        assert_eq!(queue.take(start), Some("a"));
        queue.succeed(&"a");
        assert!(queue.items.is_empty() && queue.running == 0);
    }

    #[test]
    fn only_a_change_of_the_object_itself_ends_its_backoff() {
        let start = Instant::now();
        let mut queue = WorkQueue::new(4);
        queue.add(&"a", start);
        queue.take(start).unwrap();
        assert_eq!(fail(&mut queue, "a", start, 500), 1);
        queue.add(&"a", start);
        assert_eq!(queue.take(after(start, 400)), None);
        queue.add_and_reset(&"a", after(start, 400));
        assert_eq!(queue.take(after(start, 400)), Some("a"));
        assert_eq!(fail(&mut queue, "a", after(start, 400), 500), 1, "the change resets the count");
        assert_eq!(queue.failing().collect::<Vec<_>>(), [&"a"]);
        assert!(queue.has_given_up(1) && !queue.has_given_up(2));
        queue.take(after(start, 900)).unwrap();
        queue.add_and_reset(&"a", after(start, 900));
        assert_eq!(
            fail(&mut queue, "a", after(start, 900), 500),
            1,
            "the object changed while its key ran"
        );
    }

    #[test]
    fn failures_are_counted_per_cause() {
        let mut now = Instant::now();
        let mut queue = WorkQueue::new(4);
        queue.add(&"a", now);
        let mut delays = Vec::new();
        for cause in [Cause::Server, Cause::Server, Cause::Server, Cause::Object, Cause::Server] {
            queue.take(now).unwrap();
            queue.fail(&"a", now, cause, |failures| {
                delays.push(failures);
                Duration::from_millis(1)
            });
            now = after(now, 1);
        }
        assert_eq!(delays, [0, 1, 2, 0, 3]);
    }

    #[test]
    fn failing_keys_use_at_most_half_of_the_workers() {
        let start = Instant::now();
        let mut queue = WorkQueue::new(4);
        for key in ["a", "b", "c", "d"] {
            queue.add(&key, start);
            queue.take(start).unwrap();
            fail(&mut queue, key, start, 1);
        }
        let later = after(start, 10);
        assert!(queue.take(later).is_some());
        assert!(queue.take(later).is_some());
        assert_eq!(queue.take(later), None);
        queue.add(&"e", later);
        assert_eq!(queue.take(later), Some("e"));
        assert_eq!(queue.running(), 3);
        assert_eq!(queue.depth(later), 2);
        assert_eq!(queue.depth(start), 0, "the keys are not due yet");
    }

    #[test]
    fn a_recovered_server_ends_the_backoffs_that_it_caused() {
        let start = Instant::now();
        let mut queue = WorkQueue::new(4);
        for (key, cause) in [("a", Cause::Object), ("b", Cause::Server)] {
            queue.add(&key, start);
            queue.take(start).unwrap();
            queue.fail(&key, start, cause, |_| Duration::from_secs(60));
        }
        assert_eq!(queue.take(after(start, 1000)), None);
        queue.server_recovered(after(start, 1000));
        assert_eq!(queue.take(after(start, 1000)), Some("b"));
        assert_eq!(queue.take(after(start, 1000)), None);
    }

    #[test]
    fn a_cleared_queue_is_empty() {
        let start = Instant::now();
        let mut queue = WorkQueue::new(1);
        queue.add(&"a", start);
        queue.clear();
        assert!(queue.items.is_empty());
        assert_eq!(queue.next_due(), None);
    }

    #[test]
    fn a_delay_beyond_the_clock_range_is_one_day() {
        let start = Instant::now();
        let mut queue = WorkQueue::new(1);
        for delay in [Duration::MAX, Duration::from_secs(1 << 63)] {
            queue.add_and_reset(&"a", start);
            queue.take(start).unwrap();
            queue.fail(&"a", start, Cause::Object, |_| delay);
            assert_eq!(queue.take(start), None);
            assert_eq!(queue.next_due(), Some(after(start, 86_400_000)));
        }
    }

    #[test]
    fn queue_metrics_match_client_go() {
        let (start, metrics) = (Instant::now(), Metrics::new());
        let mut queue = WorkQueue::new(1).with_metrics(WorkqueueMetrics::new(&metrics, "q"));
        queue.add(&"a", start);
        queue.add(&"a", start);
        queue.add(&"b", start);
        queue.take(start).unwrap();
        assert_eq!(queue.take(start), None);
        queue.observe_depth(start);
        fail(&mut queue, "a", start, 500);
        let text = metrics.encode();
        for line in [
            "workqueue_adds_total{name=\"q\"} 2",
            "workqueue_depth{name=\"q\"} 1",
            "workqueue_retries_total{name=\"q\"} 1",
            "workqueue_work_duration_seconds_count{name=\"q\"} 1",
        ] {
            assert!(text.contains(&format!("{line}\n")), "{line} in:\n{text}");
        }
    }
}
