//! Connections, counted by who answered.
//!
//! ```text
//!   worker   opens connections where it runs, and tallies them   (hidden command `lab-drive`)
//!   lookup   asks one name server, where a client has none of its own
//!   hold     opens connections and keeps them open               (hidden command `lab-hold`)
//!   origin   where connections are to come from, and to whom     (from the cluster's objects)
//!   run      sends the workers out, and waits for them
//!   report   the tallies of all origins, by pod, node and zone   (pure)
//! ```

pub mod hold;
mod lookup;
pub mod origin;
pub mod report;
pub mod run;
pub mod worker;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The hidden command that is a worker.
pub const WORKER: &str = "lab-drive";

/// How a connection can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Failure {
    /// Nobody listens, or the Service has no endpoints.
    Refused,
    /// It was open, and the other side cut it.
    Reset,
    /// Nothing came back in time.
    TimedOut,
    /// There is no way there.
    Unreachable,
    /// It was closed before an answer came.
    Closed,
    /// The answer is not that of an HTTP server that says who it is.
    NotUnderstood,
    /// The name was not found.
    NoSuchName,
    /// Something on this side, such as no free port.
    Here,
}

impl Failure {
    /// In plain words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Reset => "reset",
            Self::TimedOut => "timed out",
            Self::Unreachable => "unreachable",
            Self::Closed => "closed without an answer",
            Self::NotUnderstood => "answered, but not with a hostname",
            Self::NoSuchName => "name without addresses",
            Self::Here => "failed on the client's side",
        }
    }
}

/// What became of some connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Tally {
    /// Answers by the name of the Pod.
    pub answers: BTreeMap<String, u64>,
    /// Failures by kind.
    pub failures: BTreeMap<Failure, u64>,
    /// Microseconds from the first packet to the answer, one for each answer.
    pub latencies: Vec<u32>,
}

impl Tally {
    /// Counts one connection.
    pub fn count(&mut self, outcome: Result<String, Failure>, took: Duration) {
        match outcome {
            Ok(pod) => {
                *self.answers.entry(pod).or_default() += 1;
                self.latencies.push(u32::try_from(took.as_micros()).unwrap_or(u32::MAX));
            }
            Err(failure) => *self.failures.entry(failure).or_default() += 1,
        }
    }

    /// Adds another one.
    pub fn merge(&mut self, other: &Self) {
        for (pod, count) in &other.answers {
            *self.answers.entry(pod.clone()).or_default() += count;
        }
        for (failure, count) in &other.failures {
            *self.failures.entry(*failure).or_default() += count;
        }
        self.latencies.extend(&other.latencies);
    }

    /// How many were answered.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.answers.values().sum()
    }

    /// How many were not.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failures.values().sum()
    }
}
