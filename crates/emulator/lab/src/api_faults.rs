//! The faults of the lab's API server, which the server itself injects.
//!
//! The requests of the lab's own commands (`status`, `drive`, `exec`, `export`) are exempt: they
//! measure and show the effect of a fault, and must not fail by it. kubectl and all processes of the lab are not
//! exempt.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::LabError;
use crate::cluster::{Cluster, USER_AGENT};

const PATH: &str = "/nearhop/faults";

/// A fault to inject.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ApiFault {
    /// Requests fail and are delayed, until [`ApiFault::None`].
    Flaky(Flaky),
    /// Every watch is closed, once.
    DropWatches,
    /// The watch history is dropped, once.
    Compact,
    /// No request fails or is delayed.
    None,
}

/// Failing and delayed requests.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Flaky {
    /// Share of the requests that fail, from 0 to 1.
    pub share: f64,
    /// Their HTTP status.
    pub code: u16,
    /// Delay of every response.
    pub delay: Duration,
}

/// The faults of an API server since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiFaults {
    /// Failing and delayed requests.
    pub flaky: Option<Flaky>,
    /// How often all watches were closed.
    pub watch_drops: u64,
    /// How often the history was dropped.
    pub compactions: u64,
}

/// Injects a fault.
pub async fn inject(cluster: &Cluster, fault: ApiFault) -> Result<(), LabError> {
    cluster.create(PATH, &body(fault)).await.map(drop)
}

fn body(fault: ApiFault) -> Value {
    match fault {
        ApiFault::Flaky(Flaky { share, code, delay }) => json!({
            "answer": {"code": code, "share": share},
            "delayMs": u64::try_from(delay.as_millis()).unwrap_or(u64::MAX),
            "exemptUserAgent": USER_AGENT,
        }),
        ApiFault::DropWatches => json!({"dropWatches": true}),
        ApiFault::Compact => json!({"compact": true}),
        ApiFault::None => json!({}),
    }
}

/// Reads the faults.
pub async fn read(cluster: &Cluster) -> Result<ApiFaults, LabError> {
    Ok(parse(&cluster.get(PATH).await?))
}

fn parse(answer: &Value) -> ApiFaults {
    let faults = &answer["faults"];
    let flaky = Flaky {
        share: faults["answer"]["share"].as_f64().unwrap_or_default(),
        code: faults["answer"]["code"].as_u64().and_then(|c| c.try_into().ok()).unwrap_or(500),
        delay: Duration::from_millis(faults["delayMs"].as_u64().unwrap_or_default()),
    };
    ApiFaults {
        flaky: (flaky.share > 0.0 || !flaky.delay.is_zero()).then_some(flaky),
        watch_drops: answer["watchDrops"].as_u64().unwrap_or_default(),
        compactions: answer["compactions"].as_u64().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_as_they_were_injected() {
        let flaky = Flaky { share: 0.2, code: 429, delay: Duration::from_millis(30) };
        let answer = json!({
            "faults": body(ApiFault::Flaky(flaky)), "watchDrops": 2, "compactions": 1,
        });
        let wanted = ApiFaults { flaky: Some(flaky), watch_drops: 2, compactions: 1 };
        assert_eq!(parse(&answer), wanted);
        assert_eq!(parse(&json!({"faults": body(ApiFault::None)})), ApiFaults::default());
    }
}
