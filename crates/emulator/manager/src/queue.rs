//! Which piece of work is next. Pure: time goes in, the next deadline comes out.
//!
//! A piece of work waits at most once and is never done twice at a time. Of two due times the
//! earlier stands. What failed waits ever longer, whatever else happens meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use nearhop_runtime::backoff::Backoff;

use crate::object::ObjectKey;

/// A piece of work: one decision about one object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Work {
    Deployment(ObjectKey),
    ReplicaSet(ObjectKey),
    DaemonSet(ObjectKey),
    /// Finds a node for a pod.
    Schedule(ObjectKey),
    /// Judges a node.
    Node(String),
    /// Whether a pod may stay where it is.
    Pod(ObjectKey),
    /// What every namespace has.
    Namespace(String),
}

/// How a piece of work failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setback {
    /// The server said no.
    Refusal,
    /// The server said nothing, or that it is not able to.
    Silence,
}

#[derive(Debug, Default)]
struct Item {
    due: Option<Instant>,
    running: bool,
    refusals: u32,
    silences: u32,
    pause_until: Option<Instant>,
}

/// Work that waits, and work that is being done.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    items: BTreeMap<Work, Item>,
    waiting: BTreeSet<(Instant, Work)>,
    running: usize,
}

/// More requests than this at a time only wait for each other in the server.
const WORKERS: usize = 64;

/// A conflict is over with the next event of the watch; what is refused otherwise stays so.
const REFUSED: Backoff = Backoff::new(Duration::from_millis(5), Duration::from_secs(30));

/// However long a server was away: when it is back, all that waited for it is done soon.
const SILENT: Backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(1500));

impl Queue {
    /// Asks for a piece of work, not before `at`.
    pub(crate) fn add(&mut self, work: Work, at: Instant) {
        let item = self.items.entry(work.clone()).or_default();
        let at = item.pause_until.map_or(at, |pause| pause.max(at));
        if item.due.is_some_and(|due| due <= at) {
            return;
        }
        let old = item.due.replace(at);
        if !item.running {
            if let Some(old) = old {
                self.waiting.remove(&(old, work.clone()));
            }
            self.waiting.insert((at, work));
        }
    }

    /// Takes the next piece of work that is due.
    pub(crate) fn take(&mut self, now: Instant) -> Option<Work> {
        if self.running >= WORKERS || self.waiting.first().is_none_or(|(at, _)| *at > now) {
            return None;
        }
        let (_, work) = self.waiting.pop_first()?;
        let item = self.items.get_mut(&work).expect("what waits is there");
        item.due = None;
        item.running = true;
        self.running += 1;
        Some(work)
    }

    /// When something is due next.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let next = self.waiting.first().map(|(at, _)| *at);
        next.filter(|_| self.running < WORKERS)
    }

    /// Ends a piece of work that went well; it is looked at again then, if asked for.
    pub(crate) fn succeed(&mut self, work: &Work, requeue_after: Option<Instant>) {
        if let Some(item) = self.items.get_mut(work) {
            item.refusals = 0;
            item.silences = 0;
            item.pause_until = None;
        }
        self.stop(work);
        if let Some(requeue_after) = requeue_after {
            self.add(work.clone(), requeue_after);
        }
    }

    /// Ends a piece of work that failed; it is tried again after a pause.
    pub(crate) fn fail(
        &mut self,
        work: &Work,
        setback: Setback,
        now: Instant,
        random: f64,
    ) -> Duration {
        let mut pause = Duration::ZERO;
        if let Some(item) = self.items.get_mut(work) {
            // Counted apart: the first conflict after a long silence is a first conflict.
            let (backoff, count) = match setback {
                Setback::Refusal => (REFUSED, &mut item.refusals),
                Setback::Silence => (SILENT, &mut item.silences),
            };
            pause = backoff.delay(*count, random);
            *count = count.saturating_add(1);
            item.pause_until = Some(now + pause);
            item.due = Some(now + pause);
        }
        self.stop(work);
        pause
    }

    fn stop(&mut self, work: &Work) {
        let Some(item) = self.items.get_mut(work) else { return };
        if std::mem::take(&mut item.running) {
            self.running -= 1;
        }
        match item.due {
            Some(at) => {
                self.waiting.insert((at, work.clone()));
            }
            None => {
                self.items.remove(work);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(name: &str) -> Work {
        Work::Node(name.to_owned())
    }

    #[test]
    fn the_earlier_of_two_times_stands() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let mut queue = Queue::default();
        queue.add(work("a"), start + 5 * second);
        queue.add(work("a"), start + 2 * second);
        queue.add(work("a"), start + 9 * second);
        assert_eq!(queue.next_due(), Some(start + 2 * second));
        assert_eq!(queue.take(start + second), None);
        assert_eq!(queue.take(start + 2 * second), Some(work("a")));
        assert_eq!(queue.next_due(), None);
    }

    #[test]
    fn nothing_is_done_twice_at_a_time() {
        let start = Instant::now();
        let mut queue = Queue::default();
        queue.add(work("a"), start);
        queue.take(start).unwrap();
        queue.add(work("a"), start);
        assert_eq!(queue.take(start), None);
        queue.succeed(&work("a"), None);
        assert_eq!(queue.take(start), Some(work("a")));
        queue.succeed(&work("a"), None);
        assert!(queue.items.is_empty() && queue.running == 0);
    }

    #[test]
    fn what_fails_waits_ever_longer_and_events_do_not_shorten_it() {
        let start = Instant::now();
        let mut queue = Queue::default();
        queue.add(work("a"), start);
        let mut now = start;
        let mut pauses = Vec::new();
        for _ in 0..4 {
            queue.take(now).unwrap();
            let pause = queue.fail(&work("a"), Setback::Refusal, now, 0.0);
            queue.add(work("a"), now);
            assert_eq!(queue.take(now), None);
            now += pause;
            pauses.push(pause.as_millis());
        }
        assert_eq!(pauses, [5, 10, 20, 40]);
        queue.take(now).unwrap();
        queue.succeed(&work("a"), Some(now));
        assert_eq!(queue.take(now), Some(work("a")));
    }

    #[test]
    fn a_server_that_was_away_for_long_is_not_kept_waiting() {
        let mut now = Instant::now();
        let mut queue = Queue::default();
        queue.add(work("a"), now);
        for _ in 0..30 {
            queue.take(now).unwrap();
            let pause = queue.fail(&work("a"), Setback::Silence, now, 0.0);
            assert!(pause <= Duration::from_millis(1500), "{pause:?}");
            now += pause;
        }
        queue.take(now).unwrap();
        let pause = queue.fail(&work("a"), Setback::Refusal, now, 0.0);
        assert_eq!(pause, Duration::from_millis(5), "the first conflict after that");
    }
}
