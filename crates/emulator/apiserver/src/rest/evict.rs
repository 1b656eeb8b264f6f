//! eviction: a deletion that PodDisruptionBudgets can refuse.
//!
//! No controller updates the status of budgets here, so each eviction counts the healthy Pods.

use std::sync::Arc;

use nearhop_kinds::options::DeleteOptions;
use nearhop_object::selector::LabelSelector;
use serde_json::Value;

use super::delete::delete_object;
use super::subresource::plain_success;
use super::write::options_error;
use super::{Request, body, read};
use crate::api::Api;
use crate::builtin::BUDGETS;
use crate::http::Reply;
use crate::status::ApiError;
use crate::store::Content;

/// Deletes a Pod if the budgets that cover it allow it.
pub(super) async fn evict(api: &Arc<Api>, request: &Request) -> Result<Reply, ApiError> {
    let eviction = body::decode(request, "Eviction")?.value;
    check_eviction(&eviction, request.key().name)?;
    let pod = read::find(api, request)?;
    if is_running(&pod.content) {
        check_budgets(api, request, &pod.content)?;
    }
    let deletion = DeleteOptions::parse(&eviction["deleteOptions"], request.query.pairs())
        .map_err(options_error)?;
    delete_object(api, &request.key(), &deletion).await?;
    Ok(Reply::json(201, &plain_success()))
}

fn check_eviction(eviction: &Value, name: &str) -> Result<(), ApiError> {
    let kind = eviction["kind"].as_str().unwrap_or("Eviction");
    let named = eviction["metadata"]["name"].as_str().unwrap_or(name);
    if kind != "Eviction" {
        return Err(ApiError::bad_request(format!("an Eviction was expected, not a {kind}")));
    }
    if named != name {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({named}) does not match the name on the URL ({name})"
        )));
    }
    Ok(())
}

/// Budgets protect running Pods.
fn is_running(pod: &Content) -> bool {
    let phase = pod.field("status.phase").unwrap_or_default();
    !pod.deleting && !matches!(phase, "Pending" | "Succeeded" | "Failed")
}

fn check_budgets(api: &Api, request: &Request, pod: &Content) -> Result<(), ApiError> {
    let namespace = request.namespace.as_deref();
    for budget in api.store.list(&BUDGETS.storage, namespace).objects {
        let budget = budget.to_value("");
        let Ok(selector) = LabelSelector::from_json(&budget["spec"]["selector"]) else { continue };
        if !selector.matches(|key| pod.label(key)) {
            continue;
        }
        let pods = api.store.list(&request.resource.storage, namespace).objects;
        let covered: Vec<Value> = pods
            .iter()
            .filter(|other| selector.matches(|key| other.content.label(key)))
            .map(|other| other.to_value(""))
            .collect();
        let healthy = covered.iter().filter(|pod| is_ready(pod)).count() as i64;
        let needed = fewest_healthy(&budget["spec"], covered.len() as i64);
        if healthy - 1 < needed {
            let name = budget["metadata"]["name"].as_str().unwrap_or_default();
            return Err(ApiError::budget(needed, healthy, name));
        }
    }
    Ok(())
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
}

/// How many of `all` Pods must stay healthy.
fn fewest_healthy(spec: &Value, all: i64) -> i64 {
    match (spec.get("minAvailable"), spec.get("maxUnavailable")) {
        (Some(fewest), _) => share_of(fewest, all),
        (None, Some(most)) => (all - share_of(most, all)).max(0),
        (None, None) => 0,
    }
}

/// A number, or a percentage rounded up.
fn share_of(value: &Value, all: i64) -> i64 {
    let percent = value.as_str().and_then(|text| text.strip_suffix('%')?.parse::<i64>().ok());
    match percent {
        Some(percent) => (all * percent.clamp(0, 100) + 99) / 100,
        None => value.as_i64().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_disruption_budget_needs_enough_healthy_pods() {
        assert_eq!(fewest_healthy(&json!({"minAvailable": 2}), 3), 2);
        assert_eq!(fewest_healthy(&json!({"minAvailable": "50%"}), 3), 2);
        assert_eq!(fewest_healthy(&json!({"maxUnavailable": 1}), 3), 2);
        assert_eq!(fewest_healthy(&json!({"maxUnavailable": "100%"}), 3), 0);
    }
}
