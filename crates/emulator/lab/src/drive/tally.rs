//! The counts of one client, which later counts are added to.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Failure;

/// Failures by cause.
pub type Causes = BTreeMap<Failure, u64>;

/// The counts of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Tally {
    /// Answers by Pod name.
    pub answers: BTreeMap<String, u64>,
    /// Failures by cause.
    pub failures: Causes,
    /// Failures by the address of the endpoint that the kernel had chosen, or by the address that
    /// the client used if it had not chosen one.
    pub targets: BTreeMap<String, Causes>,
    /// From the first packet to the answer, per answer.
    pub latencies: Latencies,
    /// Connections that began more than [`super::worker::LATE`] after their time.
    pub late: u64,
}

impl Tally {
    pub(crate) fn count(&mut self, outcome: Result<String, Failure>, took: Duration) {
        match outcome {
            Ok(pod) => {
                *self.answers.entry(pod).or_default() += 1;
                self.latencies.add(u32::try_from(took.as_micros()).unwrap_or(u32::MAX));
            }
            Err(failure) => *self.failures.entry(failure).or_default() += 1,
        }
    }

    /// Records the address at which connections failed.
    pub(super) fn count_target(&mut self, target: String, failure: Failure) {
        *self.targets.entry(target).or_default().entry(failure).or_default() += 1;
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (pod, count) in &other.answers {
            *self.answers.entry(pod.clone()).or_default() += count;
        }
        add_causes(&mut self.failures, &other.failures);
        for (target, causes) in &other.targets {
            add_causes(self.targets.entry(target.clone()).or_default(), causes);
        }
        self.latencies.merge(&other.latencies);
        self.late += other.late;
    }

    pub(crate) fn answered(&self) -> u64 {
        self.answers.values().sum()
    }

    pub(crate) fn failed(&self) -> u64 {
        self.failures.values().sum()
    }

    pub(super) fn timed_out(&self) -> u64 {
        self.failures.get(&Failure::TimedOut).copied().unwrap_or_default()
    }
}

pub(super) fn add_causes(all: &mut Causes, more: &Causes) {
    for (failure, count) in more {
        *all.entry(*failure).or_default() += count;
    }
}

/// Latencies in microseconds, rounded up to 1/256, so that a long run needs little memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Latencies {
    /// Number of latencies, by rounded value.
    buckets: BTreeMap<u32, u64>,
    /// The largest, not rounded.
    max: u32,
}

/// Percentiles, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Percentiles {
    /// Median.
    pub p50_us: u32,
    /// 90th percentile.
    pub p90_us: u32,
    /// 99th percentile.
    pub p99_us: u32,
    /// Maximum.
    pub max_us: u32,
}

impl Latencies {
    fn add(&mut self, micros: u32) {
        *self.buckets.entry(round_up(micros)).or_default() += 1;
        self.max = self.max.max(micros);
    }

    fn merge(&mut self, other: &Self) {
        for (value, count) in &other.buckets {
            *self.buckets.entry(*value).or_default() += count;
        }
        self.max = self.max.max(other.max);
    }

    /// None without latencies.
    pub(super) fn percentiles(&self) -> Option<Percentiles> {
        let total: u64 = self.buckets.values().sum();
        if total == 0 {
            return None;
        }
        let at = |percent: u64| self.at_rank((total * percent).div_ceil(100).max(1));
        let (p50_us, p90_us, p99_us) = (at(50), at(90), at(99));
        Some(Percentiles { p50_us, p90_us, p99_us, max_us: self.max })
    }

    /// Nearest-rank: the value at this place of the sorted list, from 1.
    fn at_rank(&self, rank: u64) -> u32 {
        let mut seen = 0;
        let bucket = self.buckets.iter().find(|(_, count)| {
            seen += **count;
            seen >= rank
        });
        // A rounded value may be above the largest one.
        bucket.map_or(self.max, |(value, _)| (*value).min(self.max))
    }
}

/// Keeps the eight leading bits.
fn round_up(micros: u32) -> u32 {
    let bits = u32::BITS - micros.leading_zeros();
    let step = 1 << bits.saturating_sub(8);
    micros.checked_next_multiple_of(step).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latencies(values: impl IntoIterator<Item = u32>) -> Latencies {
        let mut all = Latencies::default();
        values.into_iter().for_each(|value| all.add(value));
        all
    }

    #[test]
    fn percentiles_are_measured_values() {
        assert_eq!(latencies([]).percentiles(), None);
        let some = latencies((1..=200).rev()).percentiles().expect("the list has latencies");
        assert_eq!((some.p50_us, some.p90_us), (100, 180));
        assert_eq!((some.p99_us, some.max_us), (198, 200));
        let one = latencies([70_007]).percentiles().expect("the list has a latency");
        assert_eq!((one.p50_us, one.max_us), (70_007, 70_007));
    }

    #[test]
    fn rounding_changes_less_than_one_percent() {
        for micros in [0, 1, 255, 256, 257, 9_999, 1_234_567, u32::MAX - 1, u32::MAX] {
            let rounded = round_up(micros);
            assert!(
                rounded >= micros && f64::from(rounded) <= f64::from(micros) * 1.01,
                "{micros}"
            );
        }
        let buckets = latencies((0..2_000_000).step_by(10)).buckets.len();
        assert!(buckets < 2500, "{buckets} buckets for any number of latencies");
    }

    #[test]
    fn merged_counts_are_sums() {
        let mut one = Tally::default();
        one.count(Ok("a".to_owned()), Duration::from_micros(5));
        one.count(Err(Failure::Reset), Duration::ZERO);
        one.count_target("10.0.0.1:80".to_owned(), Failure::Reset);
        let mut two = one.clone();
        two.merge(&one);
        assert_eq!((two.answered(), two.failed()), (2, 2));
        assert_eq!(two.targets["10.0.0.1:80"], Causes::from([(Failure::Reset, 2)]));
        assert_eq!(two.latencies, latencies([5, 5]));
    }
}
