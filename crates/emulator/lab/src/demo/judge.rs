//! Compares measurements with predictions. Pure.

use std::collections::BTreeMap;

use nearhop_core::plan::LoadPlan;
use serde::Serialize;

use super::Scenario;
use crate::drive::{Failure, Tally};

/// A share may differ from its prediction by this part of all connections, …
pub const POINTS: f64 = 0.03;

/// … or by this many standard deviations of a random choice, if that is more. A share predicted as
/// zero must be zero.
pub const SIGMAS: f64 = 4.0;

/// The load of the busiest endpoint may differ by this part of it, or by [`SIGMAS`].
pub const WORST: f64 = 0.15;

/// Shares of all connections, by zone of the client and of the endpoint.
pub type Matrix = BTreeMap<String, BTreeMap<String, f64>>;

/// The measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Measured {
    /// Answered connections.
    pub answered: u64,
    /// Failed connections.
    pub failed: u64,
    /// Failures by kind.
    pub failures: BTreeMap<Failure, u64>,
    /// Shares by zone.
    pub matrix: Matrix,
    /// Share of the answered connections that left their zone.
    pub crossed: f64,
    /// Load of the busiest endpoint, as a multiple of the mean.
    pub worst: f64,
}

/// The result of a scenario.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// Scenario.
    pub scenario: Scenario,
    /// What is set, as in a manifest.
    pub title: &'static str,
    /// Description of the result.
    pub words: String,
    /// The measurement.
    pub measured: Measured,
    /// Core's prediction.
    pub predicted: Predicted,
    /// Whether they agree.
    pub verdict: Verdict,
}

/// Core's prediction.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Predicted {
    /// Shares by zone.
    pub matrix: Matrix,
    /// Share that leaves its zone.
    pub crossed: f64,
    /// Load of the busiest endpoint, as a multiple of the mean.
    pub worst: f64,
}

/// Whether a measurement agrees with its prediction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// It agrees.
    Agrees,
    /// It differs in these points.
    Differs(Vec<String>),
}

impl Measured {
    /// Combines the counts of all clients, each with its zone.
    pub(super) fn of(tallies: &[(String, Tally)], zones: &BTreeMap<String, String>) -> Self {
        let mut all = Tally::default();
        let mut matrix: Matrix = BTreeMap::new();
        for (from, tally) in tallies {
            all.merge(tally);
            let row = matrix.entry(from.clone()).or_default();
            for (pod, answers) in &tally.answers {
                let zone = zones.get(pod).cloned().unwrap_or_else(|| format!("({pod})"));
                *row.entry(zone).or_default() += *answers as f64;
            }
        }
        let answered = all.answered();
        let whole = answered.max(1) as f64;
        matrix.values_mut().flat_map(BTreeMap::values_mut).for_each(|share| *share /= whole);
        let home: f64 = matrix.iter().filter_map(|(zone, row)| row.get(zone)).sum();
        let busiest = all.answers.values().max().copied().unwrap_or(0) as f64;
        Self {
            answered,
            failed: all.failed(),
            failures: all.failures,
            crossed: (1.0 - home).max(0.0),
            worst: busiest / whole,
            matrix,
        }
    }
}

pub(super) fn judge(scenario: Scenario, measured: &Measured, load: &LoadPlan) -> Outcome {
    let matrix = |row: &BTreeMap<nearhop_core::Name, f64>| {
        row.iter().map(|(zone, share)| (zone.to_string(), *share)).collect()
    };
    let predicted = Predicted {
        matrix: load.matrix.iter().map(|(zone, row)| (zone.to_string(), matrix(row))).collect(),
        crossed: load.cross_zone,
        worst: load.worst,
    };
    let mut measured = measured.clone();
    // The mean is over all endpoints, including unused ones.
    measured.worst *= load.endpoints.len() as f64;
    let verdict = compare(&measured, &predicted, load.endpoints.len());
    let words = scenario.words(&measured);
    Outcome { scenario, title: scenario.title(), words, measured, predicted, verdict }
}

fn compare(measured: &Measured, predicted: &Predicted, endpoints: usize) -> Verdict {
    let mut found = Vec::new();
    for (failure, count) in &measured.failures {
        found.push(failure.describe(*count));
    }
    let cells = predicted.matrix.iter().chain(&measured.matrix);
    let mut cells: Vec<(&String, &String)> =
        cells.flat_map(|(from, row)| row.keys().map(move |to| (from, to))).collect();
    cells.sort();
    cells.dedup();
    let share = |matrix: &Matrix, from: &String, to: &String| {
        matrix.get(from).and_then(|row| row.get(to)).copied().unwrap_or(0.0)
    };
    for (from, to) in cells {
        let (got, want) = (share(&measured.matrix, from, to), share(&predicted.matrix, from, to));
        if !share_agrees(got, want, measured.answered) {
            found.push(format!("{from} to {to}: {:.1}% instead of {:.1}%", got * 1e2, want * 1e2));
        }
    }
    if !share_agrees(measured.crossed, predicted.crossed, measured.answered) {
        let (got, want) = (measured.crossed * 1e2, predicted.crossed * 1e2);
        found.push(format!("{got:.1}% crossed instead of {want:.1}%"));
    }
    if !worst_agrees(measured, predicted, endpoints) {
        let (got, want) = (measured.worst, predicted.worst);
        found
            .push(format!("the busiest endpoint has {got:.2} times the mean instead of {want:.2}"));
    }
    if found.is_empty() { Verdict::Agrees } else { Verdict::Differs(found) }
}

fn share_agrees(got: f64, want: f64, connections: u64) -> bool {
    // Shares are sums of floats: less than 1e-9 is zero.
    if want < 1e-9 {
        return got < 1e-9;
    }
    let sigma = (want * (1.0 - want).max(0.0) / connections.max(1) as f64).sqrt();
    (got - want).abs() <= POINTS.max(SIGMAS * sigma)
}

fn worst_agrees(measured: &Measured, predicted: &Predicted, endpoints: usize) -> bool {
    let share = predicted.worst / endpoints.max(1) as f64;
    let expected = (share * measured.answered as f64).max(1.0);
    let allowed = WORST.max(SIGMAS / expected.sqrt());
    (measured.worst - predicted.worst).abs() <= allowed * predicted.worst
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(cells: &[(&str, &str, f64)]) -> Matrix {
        let mut matrix = Matrix::new();
        for (from, to, share) in cells {
            matrix.entry((*from).to_owned()).or_default().insert((*to).to_owned(), *share);
        }
        matrix
    }

    fn predicted() -> Predicted {
        let cells = [("a", "a", 0.5), ("b", "b", 0.4), ("b", "a", 0.1)];
        Predicted { matrix: matrix(&cells), crossed: 0.1, worst: 1.5 }
    }

    fn measured() -> Measured {
        let Predicted { matrix, crossed, worst } = predicted();
        Measured { answered: 4000, matrix, crossed, worst, ..Measured::default() }
    }

    fn differs(measured: &Measured) -> String {
        match compare(measured, &predicted(), 4) {
            Verdict::Agrees => String::new(),
            Verdict::Differs(found) => found.join("; "),
        }
    }

    #[test]
    fn small_differences_agree() {
        assert_eq!(differs(&measured()), "");
        let cells = [("a", "a", 0.52), ("b", "b", 0.39), ("b", "a", 0.09)];
        let close = Measured { matrix: matrix(&cells), crossed: 0.09, worst: 1.65, ..measured() };
        assert_eq!(differs(&close), "");
    }

    #[test]
    fn one_connection_to_an_unexpected_zone_differs() {
        let mut stray = measured();
        stray.matrix.entry("a".to_owned()).or_default().insert("b".to_owned(), 1.0 / 4000.0);
        assert!(differs(&stray).contains("a to b: 0.0% instead of 0.0%"), "{}", differs(&stray));
    }

    #[test]
    fn each_kind_of_difference_is_named() {
        let mut off = measured();
        off.matrix.entry("a".to_owned()).or_default().insert("a".to_owned(), 0.4);
        assert!(differs(&off).contains("a to a: 40.0% instead of 50.0%"));
        let off = Measured { crossed: 0.2, ..measured() };
        assert!(differs(&off).contains("20.0% crossed instead of 10.0%"));
        let off = Measured { worst: 2.0, ..measured() };
        assert!(differs(&off).contains("2.00 times the mean instead of 1.50"));
        let failures = BTreeMap::from([(Failure::Reset, 1)]);
        let off = Measured { failed: 1, failures, ..measured() };
        assert!(differs(&off).contains("1 reset"));
    }

    #[test]
    fn few_connections_have_a_larger_tolerance() {
        let few = Measured { answered: 60, crossed: 0.2, worst: 2.2, ..measured() };
        assert_eq!(differs(&few), "");
    }
}
