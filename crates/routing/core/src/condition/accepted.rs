//! Accepted: whether the request is valid, where it comes from, and which requests do not count.

use super::Verdict;
use crate::intent::{Accepted, IntentDecision, NO_PREFERENCE, PassedOver, Spelling};
use crate::model::Service;

pub(super) fn judge_accepted(service: &Service, decision: &IntentDecision) -> Verdict {
    let origin = |spelling: Spelling| spelling.origin(&service.key.namespace);
    let ignored = decision.ignored(&service.key);
    let explain = |spelling: Spelling| {
        let problem = decision.problem_of(spelling);
        problem.map_or_else(String::new, |problem| format!("{}; {}", problem.cause, problem.cure))
    };
    let verdict = match &decision.accepted {
        Accepted::UnknownValue(spelling) => {
            Verdict::no("UnsupportedValue", origin(*spelling), explain(*spelling))
        }
        Accepted::Conflict(spelling, _) => {
            Verdict::no("Conflict", origin(*spelling), explain(*spelling))
        }
        Accepted::Yes => match gate_off(decision) {
            Some((spelling, message)) => {
                Verdict::no("FeatureGateDisabled", origin(spelling), message)
            }
            None => Verdict::yes("Accepted", describe_value(service, decision)),
        },
    };
    // The sentence of the request that the verdict is about is in the message already.
    let others = ignored
        .iter()
        .filter(|text| verdict.responsible.is_empty() || !text.starts_with(&*verdict.responsible));
    let others: String = others.map(|text| format!("; {text}")).collect();
    Verdict { message: verdict.message + &others, ..verdict }
}

/// The gate that leaves a Service without a request.
fn gate_off(decision: &IntentDecision) -> Option<(Spelling, String)> {
    if decision.spelling != Spelling::Nowhere {
        return None;
    }
    decision.passed_over.iter().find_map(|ignored| match ignored.why {
        PassedOver::GateOff(gate) => {
            let message = format!("the feature gate {gate} is off; the value is ignored");
            Some((ignored.spelling, message))
        }
        _ => None,
    })
}

fn describe_value(service: &Service, decision: &IntentDecision) -> String {
    let IntentDecision { spelling, value, .. } = decision;
    let origin = spelling.origin(&service.key.namespace);
    if spelling.is_default() {
        return format!(
            "{value} from {origin}; {NO_PREFERENCE} in spec.trafficDistribution opts out"
        );
    }
    if *value == NO_PREFERENCE {
        return format!("{origin} is {value}; no default of the Namespace or the cluster applies");
    }
    format!("{origin} is {value}")
}
