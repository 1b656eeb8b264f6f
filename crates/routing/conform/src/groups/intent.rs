//! The intent that the annotations of a Service request.

use nearhop_core::Gates;
use nearhop_core::intent::{Intent, IntentContext, IntentDecision, decide_intent};
use nearhop_core::model::Service;
use serde_json::json;

use super::Case;
use crate::check::Check;
use crate::diff::Rule;
use crate::objects::{topology_spec, usual_service};
use crate::read::CaseError;

/// The intent of a Service without defaults of its namespace and the cluster.
pub(super) fn decide(service: &Service, gates: &Gates) -> IntentDecision {
    decide_intent(service, IntentContext { gates, namespace: None, cluster_default: None })
}

/// `hints_enabled`: whether the annotations request Auto.
pub(super) fn hints_enabled(case: &Case<'_>, check: &mut Check<'_>) -> Result<(), CaseError> {
    let service =
        Service { topology: topology_spec(&case.row.get("annotations")?)?, ..usual_service() };
    let decision = decide(&service, &Gates::default());
    check.value(&case.row, Rule::Exact, json!(decision.intent == Intent::Auto))
}
