//! Injected faults, for tests and the lab. Off unless the server starts with them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use nearhop_kinds::Verb;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use crate::status::ApiError;

/// The body of `/nearhop/faults`. Each member is optional; an absent one switches its fault off.
/// `compact`, `dropWatches` and `restart` happen once, and alone switch nothing off.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Faults {
    pub(crate) compact: bool,
    pub(crate) drop_watches: bool,
    pub(crate) restart: bool,
    answer: Option<AnswerFault>,
    /// Several at once; shares add up.
    answers: Vec<AnswerFault>,
    /// `answer`, `answers`, `timeout` and `delayMs` apply only to clients whose User-Agent has this
    /// prefix, so that a test can exempt itself.
    user_agent: String,
    /// They do not apply to clients whose User-Agent has this prefix; empty exempts no client.
    exempt_user_agent: String,
    /// Faults apply only to requests whose path with query contains this.
    path: String,
    /// Faults apply to watches, too, when they begin.
    watches: bool,
    timeout: Option<ShareFault>,
    delay_ms: u64,
}

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct AnswerFault {
    code: u16,
    share: f64,
}

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct ShareFault {
    share: f64,
}

/// A request that times out waits this long; clients give up earlier.
const HOLD: Duration = Duration::from_secs(60);
const LONGEST_DELAY_MS: u64 = 60_000;

impl Faults {
    pub(crate) fn parse(body: &[u8]) -> Result<Self, String> {
        let members: Map<String, Value> =
            serde_json::from_slice(body).map_err(|error| error.to_string())?;
        let faults: Self =
            serde_json::from_value(members.into()).map_err(|error| error.to_string())?;
        let timeout = faults.timeout.as_ref().map(|timeout| timeout.share);
        let shares: Vec<f64> = faults.answers().map(|answer| answer.share).chain(timeout).collect();
        let sum: f64 = faults.answers().map(|answer| answer.share).sum();
        if sum > 1.0 || shares.iter().any(|share| !(0.0..=1.0).contains(share)) {
            return Err("share: must be from 0 to 1, also all together".to_owned());
        }
        let wrong = |code: &u16| !matches!(code, 403 | 409 | 422 | 429 | 500);
        if let Some(code) = faults.answers().map(|answer| answer.code).find(wrong) {
            return Err(format!("answer.code: {code}: must be 403, 409, 422, 429 or 500"));
        }
        if faults.delay_ms > LONGEST_DELAY_MS {
            return Err(format!("delayMs: must be at most {LONGEST_DELAY_MS}"));
        }
        Ok(faults)
    }

    /// Whether it has only faults that happen once: then the current faults stay.
    fn is_momentary(&self) -> bool {
        let &Self { compact, drop_watches, restart, .. } = self;
        let once = Self { compact, drop_watches, restart, ..Self::default() };
        (compact || drop_watches || restart) && *self == once
    }

    fn answers(&self) -> impl Iterator<Item = &AnswerFault> {
        self.answer.iter().chain(&self.answers)
    }

    fn exempts(&self, user_agent: &str) -> bool {
        !self.exempt_user_agent.is_empty() && user_agent.starts_with(&self.exempt_user_agent)
    }

    fn applies_to(&self, asked: &FaultTarget<'_>) -> bool {
        *self != Self::default()
            && asked.user_agent.starts_with(&self.user_agent)
            && !self.exempts(asked.user_agent)
            && asked.path_and_query.contains(&self.path)
            && (self.watches || asked.verb != Verb::Watch)
    }
}

/// The properties of a request that faults match.
pub(crate) struct FaultTarget<'a> {
    pub(crate) user_agent: &'a str,
    pub(crate) path_and_query: &'a str,
    pub(crate) verb: Verb,
}

#[derive(Default)]
pub(crate) struct ActiveFaults {
    faults: RwLock<Faults>,
    /// The number of times that all watches were dropped.
    drops: watch::Sender<u64>,
    /// The number of times that the history was compacted.
    compactions: AtomicU64,
}

impl ActiveFaults {
    pub(crate) fn set(&self, faults: Faults) {
        if faults.drop_watches {
            self.drop_watches();
        }
        if faults.compact {
            self.compactions.fetch_add(1, Ordering::Relaxed);
        }
        if !faults.is_momentary() {
            *self.faults.write().unwrap_or_else(PoisonError::into_inner) = faults;
        }
    }

    pub(crate) fn drop_watches(&self) {
        self.drops.send_modify(|count| *count += 1);
    }

    /// The current faults, and how often those happened that happen once.
    pub(crate) fn describe(&self) -> Value {
        let faults = self.faults.read().unwrap_or_else(PoisonError::into_inner).clone();
        json!({
            "faults": faults,
            "watchDrops": *self.drops.borrow(),
            "compactions": self.compactions.load(Ordering::Relaxed),
        })
    }

    /// Changes when all watches must end.
    pub(crate) fn drops(&self) -> watch::Receiver<u64> {
        self.drops.subscribe()
    }

    pub(crate) async fn inject(&self, asked: FaultTarget<'_>) -> Result<(), ApiError> {
        let faults = self.faults.read().unwrap_or_else(PoisonError::into_inner).clone();
        if !faults.applies_to(&asked) {
            return Ok(());
        }
        if faults.delay_ms > 0 {
            tokio::time::sleep(Duration::from_millis(faults.delay_ms)).await;
        }
        let hit = |share: f64| rand::random::<f64>() < share;
        if faults.timeout.as_ref().is_some_and(|fault| hit(fault.share)) {
            tokio::time::sleep(HOLD).await;
            return Err(ApiError::timeout("injected fault: timeout"));
        }
        let mut chance = rand::random::<f64>();
        for fault in faults.answers() {
            if chance < fault.share {
                return Err(ApiError::injected(fault.code));
            }
            chance -= fault.share;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_apply_to_matching_requests() {
        let some = r#"{"answers":[{"code":403,"share":1.0}],"userAgent":"a","path":"/status"}"#;
        let all = r#"{"answer":{"code":422,"share":1.0},"watches":true}"#;
        let most = r#"{"delayMs":5,"exemptUserAgent":"nearhop-lab/"}"#;
        for (faults, user_agent, path_and_query, verb, applies) in [
            (some, "a/1", "/api/v1/services/x/status?force=true", Verb::Patch, true),
            (some, "b/1", "/api/v1/services/x/status", Verb::Patch, false),
            (some, "a/1", "/api/v1/services/x", Verb::Patch, false),
            (some, "a/1", "/api/v1/services/x/status", Verb::Watch, false),
            (all, "", "/api/v1/services?watch=1", Verb::Watch, true),
            (most, "kubectl/1", "/", Verb::Get, true),
            (most, "nearhop-lab/1", "/", Verb::Get, false),
            ("{}", "", "/", Verb::Get, false),
        ] {
            let asked = FaultTarget { user_agent, path_and_query, verb };
            let found = Faults::parse(faults.as_bytes()).unwrap().applies_to(&asked);
            assert_eq!(found, applies, "{faults} {user_agent} {path_and_query}");
        }
    }

    #[test]
    fn malformed_faults_are_refused() {
        for good in [
            r#"{"answer":{"code":409,"share":0.5}}"#,
            "{}",
            r#"{"answers":[{"code":409,"share":0.05},{"code":500,"share":0.05}],"userAgent":"a"}"#,
        ] {
            assert!(Faults::parse(good.as_bytes()).is_ok(), "{good}");
        }
        for bad in [
            r#"{"answer":{"code":200,"share":0.5}}"#,
            r#"{"answer":{"code":409,"share":1.5}}"#,
            r#"{"delayMs":99999999}"#,
            r#"{"answers":[{"code":409,"share":0.6},{"code":500,"share":0.6}]}"#,
            r#"{"nonsense":1}"#,
            "[]",
        ] {
            assert!(Faults::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
