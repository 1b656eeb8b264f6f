//! Which Service is worked on next, or which Pod's PodLocator: anything with a key. Pure: time goes
//! in, the next deadline comes out.
//!
//! A Service waits at most once and is never worked on twice at a time. Of two due times the
//! earlier stands, so that a batch window begins with the first event of a burst. A Service that
//! failed waits ever longer, and those that failed share at most half of the workers: however
//! many are poisoned or slow, the others go on.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How soon a Service is to be worked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// The Service itself changed, perhaps to mend what failed: at once, and failures are forgotten.
    Fresh,
    /// Something about it changed: then, but not before a pause after a failure is over.
    Usual,
}

/// Why work failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Something about the Service: only its own next attempt can tell whether it is mended.
    Own,
    /// The server: another Service's success tells.
    Server,
}

#[derive(Debug, Default)]
struct Item {
    /// When it is due, and a number that keeps equal times in order.
    due: Option<(Instant, u64)>,
    /// Since when it has been waiting.
    added: Option<Instant>,
    /// Since when it is being worked on.
    running: Option<Instant>,
    /// Failures in a row.
    failures: u32,
    /// Not before this time, after a failure.
    pause_until: Option<Instant>,
    /// Why it failed last.
    cause: Option<Cause>,
    /// Whether the Service itself changed while it was being worked on.
    changed_meanwhile: bool,
}

/// Services that wait, and Services that are worked on.
#[derive(Debug)]
pub(crate) struct Queue<K> {
    workers: usize,
    items: BTreeMap<K, Item>,
    fresh: BTreeSet<(Instant, u64, K)>,
    failed: BTreeSet<(Instant, u64, K)>,
    running: usize,
    running_failed: usize,
    order: u64,
}

/// A Service that is to be worked on now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Taken<K> {
    pub(crate) key: K,
    /// How long it waited.
    pub(crate) waited: Duration,
}

impl<K: Ord + Clone> Queue<K> {
    pub(crate) fn new(workers: usize) -> Self {
        Self {
            workers: workers.max(1),
            items: BTreeMap::new(),
            fresh: BTreeSet::new(),
            failed: BTreeSet::new(),
            running: 0,
            running_failed: 0,
            order: 0,
        }
    }

    /// Asks for work on a Service. Says whether it was not waiting before.
    pub(crate) fn add(&mut self, key: &K, at: Instant, urgency: Urgency) -> bool {
        self.order += 1;
        let item = self.items.entry(key.clone()).or_default();
        let old = item.due.take();
        if let Some((due, order)) = old {
            lane(&mut self.fresh, &mut self.failed, item).remove(&(due, order, key.clone()));
        }
        if urgency == Urgency::Fresh {
            if item.running.is_some() {
                item.changed_meanwhile = true;
            } else {
                item.failures = 0;
                item.pause_until = None;
            }
        }
        let at = item.pause_until.map_or(at, |pause| pause.max(at));
        let due = match old {
            Some(old) if old.0 <= at => old,
            _ => (at, self.order),
        };
        item.due = Some(due);
        item.added.get_or_insert(at);
        if item.running.is_none() {
            let lane = lane(&mut self.fresh, &mut self.failed, item);
            lane.insert((due.0, due.1, key.clone()));
        }
        old.is_none()
    }

    /// Takes the next Service that is due, if a worker is free for it.
    pub(crate) fn take(&mut self, now: Instant) -> Option<Taken<K>> {
        if self.running >= self.workers {
            return None;
        }
        let due = |lane: &BTreeSet<(Instant, u64, K)>| {
            lane.first().filter(|(at, ..)| *at <= now).cloned()
        };
        let mut next = due(&self.fresh);
        if self.running_failed < self.workers.div_ceil(2)
            && let Some(failed) = due(&self.failed)
            && next.as_ref().is_none_or(|next| failed < *next)
        {
            next = Some(failed);
        }
        let (at, order, key) = next?;
        let item = self.items.get_mut(&key).expect("what waits is there");
        lane(&mut self.fresh, &mut self.failed, item).remove(&(at, order, key.clone()));
        item.due = None;
        item.changed_meanwhile = false;
        item.running = Some(now);
        self.running += 1;
        self.running_failed += usize::from(item.failures > 0);
        let waited =
            item.added.take().map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        Some(Taken { key, waited })
    }

    /// Ends the work on a Service. Says how long it took.
    pub(crate) fn succeed(&mut self, key: &K, now: Instant) -> Duration {
        let took = self.stop(key, now);
        if let Some(item) = self.items.get_mut(key) {
            item.failures = 0;
            item.pause_until = None;
            item.cause = None;
        }
        self.settle(key);
        took
    }

    /// The server answers again: who waits because it did not need not wait any longer.
    pub(crate) fn server_recovered(&mut self, now: Instant) {
        for (at, order, key) in std::mem::take(&mut self.failed) {
            let item = self.items.get_mut(&key).expect("what waits is there");
            let waits = item.cause == Some(Cause::Server) && at > now;
            let at = if waits { now } else { at };
            if waits {
                item.pause_until = None;
                item.due = Some((at, order));
            }
            self.failed.insert((at, order, key));
        }
    }

    /// Ends the work on a Service that failed; it is tried again after a pause. Gives the number
    /// of failures in a row to `pause`, which says how long.
    pub(crate) fn fail(
        &mut self,
        key: &K,
        now: Instant,
        cause: Cause,
        pause: impl FnOnce(u32) -> Duration,
    ) -> Duration {
        let took = self.stop(key, now);
        if let Some(item) = self.items.get_mut(key) {
            item.cause = Some(cause);
            if item.changed_meanwhile {
                item.failures = 0;
            }
            let until = later(now, pause(item.failures));
            item.failures = item.failures.saturating_add(1);
            item.pause_until = Some(until);
            self.order += 1;
            // What came in meanwhile is done with the next attempt.
            item.due = Some((until, self.order));
            item.added.get_or_insert(until);
        }
        self.settle(key);
        took
    }

    fn stop(&mut self, key: &K, now: Instant) -> Duration {
        let Some(item) = self.items.get_mut(key) else { return Duration::ZERO };
        let Some(since) = item.running.take() else { return Duration::ZERO };
        self.running -= 1;
        self.running_failed -= usize::from(item.failures > 0);
        now.saturating_duration_since(since)
    }

    /// Puts a Service that stopped running where it belongs: waiting, or forgotten.
    fn settle(&mut self, key: &K) {
        let Some(item) = self.items.get_mut(key) else { return };
        match item.due {
            Some((at, order)) => {
                let lane = lane(&mut self.fresh, &mut self.failed, item);
                lane.insert((at, order, key.clone()));
            }
            None if item.failures == 0 => {
                self.items.remove(key);
            }
            None => {}
        }
    }

    /// Forgets all that wait; what is worked on ends by itself.
    pub(crate) fn clear(&mut self) {
        self.fresh.clear();
        self.failed.clear();
        self.items.retain(|_, item| {
            item.due = None;
            item.running.is_some()
        });
    }

    /// When something is due next, as far as workers allow.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        if self.running >= self.workers {
            return None;
        }
        let first = |lane: &BTreeSet<(Instant, u64, K)>| lane.first().map(|(at, ..)| *at);
        let failed =
            if self.running_failed < self.workers.div_ceil(2) { first(&self.failed) } else { None };
        [first(&self.fresh), failed].into_iter().flatten().min()
    }

    /// Whether anything is due and waits for a worker.
    pub(crate) fn has_due(&self, now: Instant) -> bool {
        let due =
            |lane: &BTreeSet<(Instant, u64, K)>| lane.first().is_some_and(|(at, ..)| *at <= now);
        due(&self.fresh) || due(&self.failed)
    }

    /// How many are due and wait for a worker. Those that are to wait do not count, as with
    /// client-go: a queue is deep when its workers do not keep up.
    pub(crate) fn depth(&self, now: Instant) -> usize {
        let due = |lane: &BTreeSet<(Instant, u64, K)>| {
            lane.iter().take_while(|(at, ..)| *at <= now).count()
        };
        due(&self.fresh) + due(&self.failed)
    }

    /// How many are worked on.
    pub(crate) fn running(&self) -> usize {
        self.running
    }

    /// Whether nothing is worked on, or will be by then that did not fail before.
    pub(crate) fn is_idle(&self, by: Instant) -> bool {
        self.running == 0 && !self.has_fresh(by)
    }

    /// Whether all that fails has failed so often in a row.
    pub(crate) fn has_given_up(&self, enough: u32) -> bool {
        self.failing().all(|(_, failures)| failures >= enough)
    }

    /// Whether something is due by then that did not fail before.
    pub(crate) fn has_fresh(&self, by: Instant) -> bool {
        self.fresh.first().is_some_and(|(at, ..)| *at <= by)
    }

    /// Services that failed last time, and how often in a row.
    pub(crate) fn failing(&self) -> impl Iterator<Item = (&K, u32)> {
        self.items.iter().filter(|(_, item)| item.failures > 0).map(|(key, i)| (key, i.failures))
    }
}

/// A pause beyond the clock's range is as good as a day: nothing waits for longer than that without
/// being looked at.
pub(crate) fn later(now: Instant, pause: Duration) -> Instant {
    now.checked_add(pause).unwrap_or_else(|| now + Duration::from_secs(86_400))
}

fn lane<'a, K>(
    fresh: &'a mut BTreeSet<(Instant, u64, K)>,
    failed: &'a mut BTreeSet<(Instant, u64, K)>,
    item: &Item,
) -> &'a mut BTreeSet<(Instant, u64, K)> {
    if item.failures > 0 { failed } else { fresh }
}

#[cfg(test)]
mod tests {
    use nearhop_core::ServiceKey;

    use super::*;

    fn key(name: &str) -> ServiceKey {
        ServiceKey::new("ns", name)
    }

    fn after(start: Instant, ms: u64) -> Instant {
        start + Duration::from_millis(ms)
    }

    #[test]
    fn a_burst_is_one_piece_of_work_anchored_at_its_first_event() {
        let start = Instant::now();
        let mut queue = Queue::new(4);
        assert!(queue.add(&key("a"), after(start, 1000), Urgency::Usual));
        assert!(!queue.add(&key("a"), after(start, 1100), Urgency::Usual));
        assert!(!queue.add(&key("a"), after(start, 1200), Urgency::Usual));
        assert_eq!(queue.next_due(), Some(after(start, 1000)));
        assert_eq!(queue.take(after(start, 999)), None);
        assert_eq!(queue.take(after(start, 1000)).unwrap().key, key("a"));
        assert_eq!(queue.take(after(start, 2000)), None);
    }

    #[test]
    fn work_that_comes_in_while_it_runs_waits_for_its_end() {
        let start = Instant::now();
        let mut queue = Queue::new(4);
        queue.add(&key("a"), start, Urgency::Usual);
        queue.take(start).unwrap();
        queue.add(&key("a"), start, Urgency::Usual);
        assert_eq!(queue.take(start), None);
        queue.succeed(&key("a"), start);
        assert_eq!(queue.take(start).unwrap().key, key("a"));
    }

    #[test]
    fn failures_pause_and_only_the_service_itself_shortens_that() {
        let start = Instant::now();
        let mut queue = Queue::new(4);
        queue.add(&key("a"), start, Urgency::Usual);
        queue.take(start).unwrap();
        queue.fail(&key("a"), start, Cause::Own, |failures| {
            assert_eq!(failures, 0);
            Duration::from_millis(500)
        });
        queue.add(&key("a"), start, Urgency::Usual);
        assert_eq!(queue.take(after(start, 400)), None);
        queue.add(&key("a"), after(start, 400), Urgency::Fresh);
        assert_eq!(queue.take(after(start, 400)).unwrap().key, key("a"));
        queue.fail(&key("a"), after(start, 400), Cause::Own, |failures| {
            assert_eq!(failures, 0, "the Service changed, so counting began anew");
            Duration::from_millis(500)
        });
        assert_eq!(queue.failing().collect::<Vec<_>>(), [(&key("a"), 1)]);
    }

    #[test]
    fn failing_services_leave_workers_to_the_others() {
        let start = Instant::now();
        let mut queue = Queue::new(4);
        for name in ["a", "b", "c", "d"] {
            queue.add(&key(name), start, Urgency::Usual);
            queue.take(start).unwrap();
            queue.fail(&key(name), start, Cause::Own, |_| Duration::from_millis(1));
        }
        let later = after(start, 10);
        assert!(queue.take(later).is_some());
        assert!(queue.take(later).is_some());
        assert_eq!(queue.take(later), None, "half of the workers is the most they get");
        queue.add(&key("e"), later, Urgency::Usual);
        assert_eq!(queue.take(later).unwrap().key, key("e"));
        assert_eq!(queue.running(), 3);
        assert_eq!(queue.depth(later), 2);
        assert_eq!(queue.depth(start), 0, "they are not due yet");
    }

    #[test]
    fn a_server_that_recovers_ends_the_pauses_that_it_caused() {
        let start = Instant::now();
        let mut queue = Queue::new(4);
        for (name, cause) in [("a", Cause::Own), ("b", Cause::Server)] {
            queue.add(&key(name), start, Urgency::Usual);
            queue.take(start).unwrap();
            queue.fail(&key(name), start, cause, |_| Duration::from_secs(60));
        }
        assert_eq!(queue.take(after(start, 1000)), None);
        queue.server_recovered(after(start, 1000));
        assert_eq!(queue.take(after(start, 1000)).unwrap().key, key("b"));
        assert_eq!(queue.take(after(start, 1000)), None);
    }

    #[test]
    fn what_is_done_is_forgotten() {
        let start = Instant::now();
        let mut queue = Queue::new(1);
        queue.add(&key("a"), start, Urgency::Usual);
        queue.take(start).unwrap();
        assert_eq!(queue.succeed(&key("a"), after(start, 7)), Duration::from_millis(7));
        assert!(queue.items.is_empty());
        queue.add(&key("a"), start, Urgency::Usual);
        queue.clear();
        assert!(queue.items.is_empty());
        assert_eq!(queue.next_due(), None);
    }

    #[test]
    fn a_pause_beyond_all_times_does_no_harm() {
        let start = Instant::now();
        let mut queue = Queue::new(1);
        for pause in [Duration::MAX, Duration::from_secs(1 << 63)] {
            queue.add(&key("a"), start, Urgency::Fresh);
            queue.take(start).unwrap();
            queue.fail(&key("a"), start, Cause::Own, |_| pause);
            assert_eq!(queue.take(start), None);
            assert_eq!(queue.next_due(), Some(after(start, 86_400_000)));
        }
    }
}
