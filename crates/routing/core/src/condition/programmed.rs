//! Programmed: whether the EndpointSlices carry the request.

use std::collections::BTreeSet;

use super::{Verdict, Writing};
use crate::hint::auto::AutoRefusal;
use crate::hint::capacity::some_of;
use crate::hint::{AUTO_DISABLED, AUTO_ENABLED, HintOutcome, HintRefusal};
use crate::intent::{Intent, IntentDecision};
use crate::key::{Family, Name};
use crate::model::{Service, ServiceType};
use crate::slice::{HintedSlices, SlicePlan};

pub(super) fn judge_programmed(
    service: &Service,
    decision: &IntentDecision,
    plan: &SlicePlan,
    writing: &Writing,
) -> Verdict {
    if service.service_type == ServiceType::ExternalName {
        let message = "a Service of type ExternalName has no endpoints to choose from";
        return Verdict::no("NotRouted", "spec.type", message);
    }
    if service.selector.is_none() {
        let message = "absent, so nearhop writes no EndpointSlices for this Service; nodes follow \
                       the hints in those that another client writes";
        return Verdict::unknown("NoSelector", "spec.selector", message);
    }
    if let Writing::Failed { responsible, message } = writing {
        return Verdict::no("WriteFailed", responsible, message);
    }
    if decision.intent == Intent::Default {
        return Verdict::no_object(
            "NotAccepted",
            "ignored, see Accepted; traffic goes to all endpoints",
        );
    }
    let refused = plan.outcome.iter().find_map(|(family, outcome)| judge_outcome(*family, outcome));
    if let Some(verdict) = refused {
        return verdict;
    }
    if let Some(missing) = plan.missing_nodes.first() {
        let left_out = format!("{} of its Pods left out: {missing}", plan.missing_nodes.len());
        return Verdict::no("NodeUnknown", &missing.subject, left_out);
    }
    match &decision.intent {
        Intent::Spread | Intent::Default => {
            Verdict::yes("NoHintsNeeded", "no hints are needed; traffic goes to all endpoints")
        }
        Intent::Auto => {
            let families: Vec<&str> = plan.outcome.keys().map(|family| family.as_str()).collect();
            let enabled = "Topology Aware Hints has been enabled";
            let written = describe_written("zone hints", plan.hinted);
            let verdict = Verdict::yes("HintsWritten", written);
            verdict.with_event(AUTO_ENABLED, enabled, &families.join(", "))
        }
        Intent::SameZone => {
            Verdict::yes("HintsWritten", describe_written("zone hints", plan.hinted))
        }
        Intent::SameNode => {
            Verdict::yes("HintsWritten", describe_written("node and zone hints", plan.hinted))
        }
        Intent::Keys(keys) => {
            let what = format!("routing annotation with the keys [{keys}]");
            Verdict::yes("HintsWritten", describe_written(&what, plan.hinted))
        }
        Intent::Balanced(max) => {
            let what = format!("routing annotation with zone weights (max overload {max})");
            Verdict::yes("HintsWritten", describe_written(&what, plan.hinted))
        }
    }
}

fn describe_written(what: &str, hinted: HintedSlices) -> String {
    let HintedSlices { slices, endpoints } = hinted;
    if endpoints == 0 {
        return format!(
            "no endpoint is ready; {what} will be written with the first ready endpoint"
        );
    }
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    format!(
        "{what} written to {slices} EndpointSlice{} ({endpoints} endpoint{})",
        plural(slices),
        plural(endpoints)
    )
}

/// Why the hints of a family are not as requested.
fn judge_outcome(family: Family, outcome: &HintOutcome) -> Option<Verdict> {
    let refusal = match outcome {
        HintOutcome::NotAsked | HintOutcome::Written => return None,
        HintOutcome::Partial { without, nodes } => {
            let (count, verb) =
                if *without == 1 { ("endpoint", "has") } else { ("endpoints", "have") };
            let message = format!(
                "{without} ready {count} {verb} no zone, so proxies ignore all hints and traffic \
                 goes to all endpoints; label {} with topology.kubernetes.io/zone",
                some_of(nodes)
            );
            return Some(Verdict::no("EndpointsWithoutZone", responsible_nodes(nodes), message));
        }
        HintOutcome::Refused(refusal) => refusal,
    };
    let verdict = match refusal {
        HintRefusal::Auto(AutoRefusal::NoShares(why)) => {
            Verdict::no("InsufficientNodeInformation", responsible_nodes(why.nodes()), why)
        }
        HintRefusal::Auto(why @ AutoRefusal::TooFewEndpoints { .. }) => {
            Verdict::no("TooFewEndpoints", "endpoints", why)
        }
        HintRefusal::Auto(why @ AutoRefusal::Overload { .. }) => {
            Verdict::no("OverloadThreshold", "endpoints", why)
        }
        HintRefusal::EndpointsWithoutZone(nodes) => {
            Verdict::no("EndpointsWithoutZone", responsible_nodes(nodes), refusal)
        }
        HintRefusal::RoutingTooLong => {
            Verdict::no("AnnotationTooLong", "nearhop.dev/routing", refusal)
        }
        HintRefusal::NoCapacity => {
            Verdict::no("InsufficientNodeInformation", responsible_nodes(&[]), refusal)
        }
    };
    Some(match refusal {
        HintRefusal::Auto(why) => verdict.with_event(AUTO_DISABLED, why, family.as_str()),
        _ => verdict,
    })
}

/// The names of the nodes if they are few. If many nodes have no zone, the message must not depend
/// on the nodes of a Service's Pods.
fn responsible_nodes(nodes: &[Name]) -> String {
    const FEW: usize = 3;
    let names: BTreeSet<&Name> = nodes.iter().collect();
    if names.is_empty() || names.len() > FEW {
        return "nodes".to_owned();
    }
    let names: Vec<&str> = names.into_iter().map(Name::as_str).collect();
    format!("nodes {}", names.join(", "))
}
