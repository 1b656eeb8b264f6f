//! The counts of all workers, by Pod, node and zone.

use std::collections::BTreeMap;

use serde::Serialize;

use super::origin::{EXTERNAL, Places};
use super::{Failure, Tally};

/// The result of a drive.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// All connections.
    pub connections: u64,
    /// Answered connections.
    pub answered: u64,
    /// Share of the answered connections that left their zone, 0 to 1.
    pub cross_zone: f64,
    /// Answers by zone of the client and of the Pod.
    pub matrix: BTreeMap<String, BTreeMap<String, u64>>,
    /// Answers by Pod.
    pub pods: BTreeMap<String, Answered>,
    /// Answers by node.
    pub nodes: BTreeMap<String, u64>,
    /// Failures by kind.
    pub failures: BTreeMap<Failure, u64>,
    /// Latencies; None without answers.
    pub latency: Option<Latency>,
}

/// The answers of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answered {
    /// Node; empty if the API has no such Pod.
    pub node: String,
    /// Zone; empty if the node has none.
    pub zone: String,
    /// Number of answers.
    pub answers: u64,
}

/// Percentiles, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Latency {
    /// Median.
    pub p50_us: u32,
    /// 90th percentile.
    pub p90_us: u32,
    /// 99th percentile.
    pub p99_us: u32,
    /// Maximum.
    pub max_us: u32,
}

/// Combines the counts of all workers, each with its client's zone.
pub(super) fn report(tallies: &[(String, Tally)], places: &Places) -> Report {
    let mut all = Tally::default();
    let mut matrix: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    let mut pods: BTreeMap<String, Answered> = BTreeMap::new();
    let mut nodes: BTreeMap<String, u64> = BTreeMap::new();
    let mut crossed = 0;
    for (from, tally) in tallies {
        all.merge(tally);
        let row = matrix.entry(from.clone()).or_default();
        for (pod, answers) in &tally.answers {
            let place = places.pods.get(pod).cloned();
            // External clients and unknown Pods have no zone to cross.
            let away = from != EXTERNAL && place.as_ref().is_some_and(|(_, zone)| zone != from);
            crossed += if away { *answers } else { 0 };
            let (node, zone) = place.unwrap_or_default();
            *row.entry(zone.clone()).or_default() += answers;
            *nodes.entry(node.clone()).or_default() += answers;
            let own = pods.entry(pod.clone()).or_default();
            *own = Answered { node, zone, answers: own.answers + answers };
        }
    }
    let answered = all.answered();
    Report {
        connections: answered + all.failed(),
        answered,
        cross_zone: crossed as f64 / answered.max(1) as f64,
        matrix,
        pods,
        nodes,
        latency: percentiles(all.latencies),
        failures: all.failures,
    }
}

fn percentiles(mut latencies: Vec<u32>) -> Option<Latency> {
    latencies.sort_unstable();
    let last = latencies.len().checked_sub(1)?;
    // Nearest-rank percentile.
    let at = |percent: usize| latencies[(latencies.len() * percent).div_ceil(100).max(1) - 1];
    let (p50_us, p90_us, p99_us) = (at(50), at(90), at(99));
    Some(Latency { p50_us, p90_us, p99_us, max_us: latencies[last] })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn tally(answers: &[(&str, u64)], refused: u64) -> Tally {
        let mut tally = Tally::default();
        for (pod, count) in answers {
            for n in 0..*count {
                tally.count(Ok((*pod).to_owned()), Duration::from_micros(n + 1));
            }
        }
        for _ in 0..refused {
            tally.count(Err(Failure::Refused), Duration::ZERO);
        }
        tally
    }

    #[test]
    fn answers_are_grouped_by_zone_node_and_pod() {
        let place = |node: &str, zone: &str| (node.to_owned(), zone.to_owned());
        let pods = [("a-0", place("n1", "a")), ("b-0", place("n2", "b"))];
        let pods = pods.map(|(pod, place)| (pod.to_owned(), place)).into();
        let places = Places { pods, ..Places::default() };
        let tallies = [
            ("a".to_owned(), tally(&[("a-0", 3), ("b-0", 1)], 0)),
            ("b".to_owned(), tally(&[("b-0", 4), ("gone", 2)], 5)),
        ];
        let report = report(&tallies, &places);
        assert_eq!((report.connections, report.answered), (15, 10));
        assert_eq!(report.matrix["a"], BTreeMap::from([("a".into(), 3), ("b".into(), 1)]));
        assert!(
            (report.cross_zone - 0.1).abs() < 1e-9,
            "`gone` has no zone: {}",
            report.cross_zone
        );
        assert_eq!(
            report.pods["b-0"],
            Answered { node: "n2".into(), zone: "b".into(), answers: 5 }
        );
        assert_eq!(report.nodes[""], 2, "the node of `gone` is unknown");
        assert_eq!(report.failures, BTreeMap::from([(Failure::Refused, 5)]));
    }

    #[test]
    fn percentiles_are_measured_values() {
        assert_eq!(percentiles(Vec::new()), None);
        let latency = percentiles((1..=200).rev().collect()).expect("the list has latencies");
        assert_eq!((latency.p50_us, latency.p90_us), (100, 180));
        assert_eq!((latency.p99_us, latency.max_us), (198, 200));
        let one = percentiles(vec![7]).expect("the list has a latency");
        assert_eq!((one.p50_us, one.max_us), (7, 7));
    }
}
