//! The `workqueue_*` series of client-go, which dashboards expect from every controller.
//!
//! The daemon owns the queue: it reports here each addition, and each start and end of work.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{
    Gauge, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, Metrics,
    exponential_buckets,
};
use crate::lock;

/// The series, shared by all queues of a process.
pub(super) struct WorkqueueSeries {
    adds: IntCounterVec,
    depth: GaugeVec,
    queue_duration: HistogramVec,
    work_duration: HistogramVec,
    retries: IntCounterVec,
    unfinished: GaugeVec,
    longest: GaugeVec,
    queues: Mutex<Vec<Arc<Queue>>>,
}

impl WorkqueueSeries {
    fn register(metrics: &Metrics) -> Self {
        let buckets = exponential_buckets(1e-8, 10.0, 10).expect("the buckets grow");
        let counters = |name: &str, help: &str| metrics.counter_vec(name, help, &["name"]);
        let gauges = |name: &str, help: &str| metrics.gauge_vec(name, help, &["name"]);
        let histograms =
            |name: &str, help: &str| metrics.histogram_vec(name, help, &buckets, &["name"]);
        Self {
            adds: counters("workqueue_adds_total", "Total number of adds handled by workqueue"),
            depth: gauges("workqueue_depth", "Current depth of workqueue"),
            queue_duration: histograms(
                "workqueue_queue_duration_seconds",
                "How long in seconds an item stays in workqueue before being requested.",
            ),
            work_duration: histograms(
                "workqueue_work_duration_seconds",
                "How long in seconds processing an item from workqueue takes.",
            ),
            retries: counters(
                "workqueue_retries_total",
                "Total number of retries handled by workqueue",
            ),
            unfinished: gauges(
                "workqueue_unfinished_work_seconds",
                "How many seconds of work has done that is in progress and hasn't been observed \
                 by work_duration. Large values indicate stuck threads.",
            ),
            longest: gauges(
                "workqueue_longest_running_processor_seconds",
                "How many seconds has the longest running processor for workqueue been running.",
            ),
            queues: Mutex::new(Vec::new()),
        }
    }

    fn queue(&self, name: &str) -> Arc<Queue> {
        let mut queues = lock(&self.queues);
        if let Some(queue) = queues.iter().find(|queue| queue.name == name) {
            return Arc::clone(queue);
        }
        let label = &[name];
        let queue = Arc::new(Queue {
            name: name.to_owned(),
            adds: self.adds.with_label_values(label),
            depth: self.depth.with_label_values(label),
            queue_duration: self.queue_duration.with_label_values(label),
            work_duration: self.work_duration.with_label_values(label),
            retries: self.retries.with_label_values(label),
            unfinished: self.unfinished.with_label_values(label),
            longest: self.longest.with_label_values(label),
            running: Mutex::default(),
        });
        queues.push(Arc::clone(&queue));
        queue
    }

    /// Updates the series that grow with time. A scrape calls it, not the queue, because these two
    /// series must also show work that is stuck.
    pub(super) fn refresh(&self) {
        let now = Instant::now();
        for queue in lock(&self.queues).iter() {
            let (unfinished, longest) = lock(&queue.running).ages(now);
            queue.unfinished.set(unfinished.as_secs_f64());
            queue.longest.set(longest.as_secs_f64());
        }
    }
}

struct Queue {
    name: String,
    adds: IntCounter,
    depth: Gauge,
    queue_duration: Histogram,
    work_duration: Histogram,
    retries: IntCounter,
    unfinished: Gauge,
    longest: Gauge,
    running: Mutex<Running>,
}

/// The pieces of work that are running, with their start times.
#[derive(Default)]
struct Running {
    next: u64,
    since: BTreeMap<u64, Instant>,
}

impl Running {
    fn begin(&mut self, now: Instant) -> u64 {
        self.next += 1;
        self.since.insert(self.next, now);
        self.next
    }

    /// The sum of all ages, and the highest one.
    fn ages(&self, now: Instant) -> (Duration, Duration) {
        let ages = || self.since.values().map(|since| now.saturating_duration_since(*since));
        (ages().sum(), ages().max().unwrap_or_default())
    }
}

/// The metrics of one queue. Clones are cheap.
#[derive(Clone)]
pub struct WorkqueueMetrics(Arc<Queue>);

impl WorkqueueMetrics {
    /// The metrics of the queue with this name; queues with the same name share them.
    pub fn new(metrics: &Metrics, name: &str) -> Self {
        let series = metrics.0.workqueue.get_or_init(|| WorkqueueSeries::register(metrics));
        Self(series.queue(name))
    }

    /// Counts an item that was added and was not already waiting.
    pub fn add(&self) {
        self.0.adds.inc();
    }

    /// Sets how many items wait.
    pub fn depth(&self, items: usize) {
        self.0.depth.set(items as f64);
    }

    /// Records that an item was taken after this wait. Its work lasts until the value is dropped.
    #[must_use = "the work lasts until this is dropped"]
    pub fn get(&self, waited: Duration) -> Work {
        self.0.queue_duration.observe(waited.as_secs_f64());
        let started = Instant::now();
        let number = lock(&self.0.running).begin(started);
        Work { queue: Arc::clone(&self.0), number, started }
    }

    /// Counts an item that failed and is added again later.
    pub fn retry(&self) {
        self.0.retries.inc();
    }
}

/// Work in progress. It ends when this value is dropped, so that cancelled work ends, too.
pub struct Work {
    queue: Arc<Queue>,
    number: u64,
    started: Instant,
}

impl Drop for Work {
    fn drop(&mut self) {
        lock(&self.queue.running).since.remove(&self.number);
        self.queue.work_duration.observe(self.started.elapsed().as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_queue_has_its_own_label_in_shared_metrics() {
        let metrics = Metrics::new();
        let slices = WorkqueueMetrics::new(&metrics, "slices");
        let locators = WorkqueueMetrics::new(&metrics, "locators");
        slices.add();
        slices.add();
        locators.add();
        slices.depth(1);
        let work = slices.get(Duration::from_millis(20));
        slices.retry();
        let text = metrics.encode();
        for line in [
            "workqueue_adds_total{name=\"slices\"} 2",
            "workqueue_adds_total{name=\"locators\"} 1",
            "workqueue_depth{name=\"slices\"} 1",
            "workqueue_retries_total{name=\"slices\"} 1",
            "workqueue_queue_duration_seconds_bucket{name=\"slices\",le=\"0.01\"} 0",
            "workqueue_queue_duration_seconds_count{name=\"slices\"} 1",
            "workqueue_work_duration_seconds_count{name=\"slices\"} 0",
            "workqueue_unfinished_work_seconds{name=\"locators\"} 0",
        ] {
            assert!(text.contains(&format!("{line}\n")), "{line} in:\n{text}");
        }
        assert!(!text.contains("workqueue_longest_running_processor_seconds{name=\"slices\"} 0\n"));
        drop(work);
        let text = metrics.encode();
        assert!(text.contains("workqueue_work_duration_seconds_count{name=\"slices\"} 1\n"));
        assert!(text.contains("workqueue_unfinished_work_seconds{name=\"slices\"} 0\n"));
    }

    #[test]
    fn ages_are_summed_and_the_longest_is_found() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let mut running = Running::default();
        running.begin(start);
        running.begin(start + second);
        assert_eq!(running.ages(start + 3 * second), (5 * second, 3 * second));
    }
}
