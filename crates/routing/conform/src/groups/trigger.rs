//! The trigger time: the time of the oldest change that is not published yet.

use jiff::Timestamp;
use nearhop_core::PodKey;
use nearhop_core::model::{Pod, Service};
use nearhop_core::slice::TriggerTimes;
use serde_json::json;

use super::Case;
use crate::check::Check;
use crate::diff::Rule;
use crate::objects::usual_service;
use crate::read::{CaseError, Field};

/// The time 0 of cases. It is not the epoch, because a zero time means unset.
const ORIGIN: i64 = 1_700_000_000;

/// `trigger_time`: a Service and its Pods, observed several times.
pub(super) fn observe(case: &Case<'_>, check: &mut Check<'_>) -> Result<(), CaseError> {
    let mut times = TriggerTimes::default();
    for step in case.row.get("steps")?.required()?.list()? {
        if step.get("forget_service")?.flag()? {
            times.forget(&usual_service().key);
            continue;
        }
        let created = time(&step.get("service")?)?;
        let service = Service { created, ..usual_service() };
        let pods = step.get("pods")?.entries()?;
        let pods = pods.into_iter().map(|(name, since)| {
            let ready_since = time(&since)?.map(Into::into);
            Ok(Pod { ready_since, ..Pod::new(PodKey::new("test", name)) })
        });
        let pods: Vec<Pod> = pods.collect::<Result<_, _>>()?;
        let found = times.observe(&service, &pods).map(|time| time.as_second() - ORIGIN);
        if step.has("expect") {
            check.value(&step, Rule::Exact, json!(found))?;
        }
    }
    Ok(())
}

fn time(field: &Field<'_>) -> Result<Option<Timestamp>, CaseError> {
    /// A thousand years: the maximum distance from `ORIGIN`.
    const FAR: i64 = 31_556_952_000;
    if field.is_null() {
        return Ok(None);
    }
    let seconds = ORIGIN + field.whole(-FAR, FAR)?;
    let time = Timestamp::from_second(seconds);
    time.map(Some).map_err(|error| field.error(error.to_string()))
}
