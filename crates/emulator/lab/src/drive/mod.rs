//! Opens connections to a Service and counts the Pods that answered.
//!
//! ```text
//!   worker   opens connections and counts the answers    (hidden command `lab-drive`)
//!   lookup   resolves a name at one DNS server
//!   hold     opens connections and keeps them open       (hidden command `lab-hold`)
//!   origin   clients and targets, from the cluster's objects
//!   run      runs the workers
//!   report   the counts of all workers, by pod, node and zone (pure)
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

/// The hidden command of workers.
const WORKER: &str = "lab-drive";

/// Why a connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Failure {
    /// The port is closed, or the Service has no endpoints.
    Refused,
    /// The server reset it.
    Reset,
    /// No answer in time.
    TimedOut,
    /// No route.
    Unreachable,
    /// The server closed it without an answer.
    Closed,
    /// The answer is not a hostname.
    NotUnderstood,
    /// The name does not resolve.
    NoSuchName,
    /// A local error, such as no free port.
    Here,
}

impl Failure {
    /// Description for the output.
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

/// The counts of a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Tally {
    /// Answers by Pod name.
    pub answers: BTreeMap<String, u64>,
    /// Failures by kind.
    pub failures: BTreeMap<Failure, u64>,
    /// Microseconds from the first packet to the answer, per answer.
    pub latencies: Vec<u32>,
}

impl Tally {
    pub(crate) fn count(&mut self, outcome: Result<String, Failure>, took: Duration) {
        match outcome {
            Ok(pod) => {
                *self.answers.entry(pod).or_default() += 1;
                self.latencies.push(u32::try_from(took.as_micros()).unwrap_or(u32::MAX));
            }
            Err(failure) => *self.failures.entry(failure).or_default() += 1,
        }
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (pod, count) in &other.answers {
            *self.answers.entry(pod.clone()).or_default() += count;
        }
        for (failure, count) in &other.failures {
            *self.failures.entry(*failure).or_default() += count;
        }
        self.latencies.extend(&other.latencies);
    }

    pub(crate) fn answered(&self) -> u64 {
        self.answers.values().sum()
    }

    pub(crate) fn failed(&self) -> u64 {
        self.failures.values().sum()
    }
}
