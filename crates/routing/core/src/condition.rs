//! The conditions of a Service: its topology request is valid (Accepted), and is written to its
//! EndpointSlices (Programmed). KEP-4444 "Status Reporting"; the proxy reports Honored.
//!
//! Each plan produces new judgements. Only a change of the status, the reason or the responsible
//! object is a transition and raises an event; a changed number alone does not.

use std::collections::BTreeSet;
use std::fmt;

use jiff::Timestamp;

use crate::gate::Gate;
use crate::hint::auto::AutoRefusal;
use crate::hint::capacity::some_of;
use crate::hint::{AUTO_DISABLED, AUTO_ENABLED, EventKind, HintOutcome, HintRefusal};
use crate::intent::{Accepted, Intent, IntentDecision, PassedOver, Spelling};
use crate::key::{Family, Name};
use crate::model::{Service, ServiceType};
use crate::problem::Problem;
use crate::slice::SlicePlan;

/// `status` of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    /// The request is fulfilled.
    True,
    /// The request is not fulfilled.
    False,
    /// Unknown. nearhop never writes it, but other programs may.
    Unknown,
}

impl ConditionStatus {
    /// The value in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }

    /// Parses the value in the API.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::True, Self::False, Self::Unknown].into_iter().find(|status| status.as_str() == text)
    }
}

/// A condition in a Service's status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// `type`.
    pub kind: Name,
    /// `status`.
    pub status: ConditionStatus,
    /// `reason`.
    pub reason: Name,
    /// `message`.
    pub message: Name,
    /// `observedGeneration`.
    pub observed_generation: i64,
    /// `lastTransitionTime`.
    pub since: Option<Timestamp>,
}

/// Which condition a judgement is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Question {
    /// Is the request valid?
    Accepted,
    /// Do the EndpointSlices contain it?
    Programmed,
}

/// The outcome for one condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// The question.
    pub question: Question,
    /// `type` of the condition.
    pub kind: Name,
    /// Whether the request is fulfilled.
    pub status: ConditionStatus,
    /// `reason`.
    pub reason: &'static str,
    /// `message`; names the responsible object.
    pub message: String,
    /// The responsible object or field, as in the message; empty if the status is True.
    pub responsible: String,
    /// Reason and message of the event, if they differ from the condition's: for Auto they are
    /// those of the in-tree controller.
    pub event: Option<(&'static str, String)>,
}

impl Judgement {
    /// Whether a condition in a status has the same content; numbers may differ.
    pub fn agrees_with(&self, condition: &Condition) -> bool {
        condition.kind == self.kind
            && condition.status == self.status
            && condition.reason == self.reason
            && condition.message.contains(&self.responsible)
    }

    /// Whether two judgements have the same content; numbers may differ.
    pub fn same_as(&self, other: &Self) -> bool {
        (&self.kind, self.status, self.reason, &self.responsible)
            == (&other.kind, other.status, other.reason, &other.responsible)
    }

    /// `type` of its event.
    pub fn event_kind(&self) -> EventKind {
        match self.status {
            ConditionStatus::True => EventKind::Normal,
            _ => EventKind::Warning,
        }
    }

    /// The condition to write. It keeps the transition time if the status stays the same.
    pub fn condition(
        &self,
        seen: Option<&Condition>,
        generation: i64,
        now: Timestamp,
    ) -> Condition {
        let same = seen.filter(|seen| seen.status == self.status);
        Condition {
            kind: self.kind.clone(),
            status: self.status,
            reason: Name::from(self.reason),
            message: Name::from(self.message.as_str()),
            observed_generation: generation,
            since: same.and_then(|seen| seen.since).or(Some(now)),
        }
    }
}

/// The result of writing a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Writing {
    /// The slices are written as planned.
    Done,
    /// The slices are not written as planned.
    Failed {
        /// What prevents the write, without numbers or times that change.
        responsible: String,
        /// The full message.
        message: String,
    },
}

/// Judges a Service with a topology request. A Service without a request has no conditions.
pub fn judge(
    domain: &str,
    service: &Service,
    decision: &IntentDecision,
    plan: &SlicePlan,
    writing: &Writing,
) -> Vec<Judgement> {
    let Some(spelling) = asked_by(decision) else { return Vec::new() };
    // A default does not apply to a Service without slices.
    if spelling >= Spelling::NamespaceDefault && !service.wants_slices() {
        return Vec::new();
    }
    let field = match spelling {
        Spelling::RoutingPreferenceField | Spelling::RoutingPreferenceAnnotation => {
            "RoutingPreference"
        }
        _ => "TrafficDistribution",
    };
    let slash = if domain.is_empty() { "" } else { "/" };
    let make = |question: Question, verdict: Verdict| Judgement {
        question,
        kind: Name::from(format!("{domain}{slash}{field}{question:?}")),
        status: verdict.status,
        reason: verdict.reason,
        message: verdict.message,
        responsible: verdict.responsible,
        event: verdict.event,
    };
    vec![
        make(Question::Accepted, judge_accepted(decision)),
        make(Question::Programmed, judge_programmed(service, decision, plan, writing)),
    ]
}

/// The request that the conditions describe: the one that decides, else one that does not count.
fn asked_by(decision: &IntentDecision) -> Option<Spelling> {
    if decision.spelling != Spelling::Nowhere {
        return Some(decision.spelling);
    }
    let own = decision.passed_over.iter().map(|(spelling, _)| *spelling);
    own.into_iter().find(|spelling| *spelling < Spelling::NamespaceDefault)
}

struct Verdict {
    status: ConditionStatus,
    reason: &'static str,
    message: String,
    responsible: String,
    event: Option<(&'static str, String)>,
}

impl Verdict {
    fn yes(reason: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self {
            status: ConditionStatus::True,
            reason,
            message,
            responsible: String::new(),
            event: None,
        }
    }

    /// The message starts with the responsible object.
    fn no(
        reason: &'static str,
        responsible: impl fmt::Display,
        message: impl fmt::Display,
    ) -> Self {
        let responsible = responsible.to_string();
        let message = format!("{responsible}: {message}");
        Self { status: ConditionStatus::False, reason, message, responsible, event: None }
    }

    /// Sets the event of the in-tree controller.
    fn with_event(self, reason: &'static str, text: impl fmt::Display, families: &str) -> Self {
        Self { event: Some((reason, format!("{text}, addressType: {families}"))), ..self }
    }
}

fn judge_accepted(decision: &IntentDecision) -> Verdict {
    let story = |spelling: Spelling| {
        let about = |problem: &&Problem| *problem.field == *spelling.field();
        let problem = decision.problems.iter().find(about);
        problem.map_or_else(String::new, |problem| format!("{}; {}", problem.cause, problem.cure))
    };
    match &decision.accepted {
        Accepted::UnknownValue(spelling) => {
            return Verdict::no("UnsupportedValue", spelling.field(), story(*spelling));
        }
        Accepted::Conflict(spelling, _) => {
            return Verdict::no("Conflict", spelling.field(), story(*spelling));
        }
        Accepted::Yes => {}
    }
    if decision.spelling == Spelling::Nowhere
        && let Some((spelling, gate)) = gate_off(decision)
    {
        let message = format!("the feature gate {gate} is off; the value is ignored");
        return Verdict::no("FeatureGateDisabled", spelling.field(), message);
    }
    Verdict::yes("Accepted", format!("{} is {}", decision.spelling.field(), decision.value))
}

fn gate_off(decision: &IntentDecision) -> Option<(Spelling, Gate)> {
    decision.passed_over.iter().find_map(|(spelling, why)| match why {
        PassedOver::GateOff(gate) => Some((*spelling, *gate)),
        _ => None,
    })
}

fn judge_programmed(
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
        let message = "absent, so nearhop writes no EndpointSlices and no hints for this Service";
        return Verdict::no("NoSelector", "spec.selector", message);
    }
    if let Writing::Failed { responsible, message } = writing {
        return Verdict::no("WriteFailed", responsible, message);
    }
    if decision.intent == Intent::Default {
        let message = "there is no valid request to program; all endpoints are used";
        return Verdict::no("NotAccepted", "Accepted is False", message);
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
        Intent::Auto => {
            let families: Vec<&str> = plan.outcome.keys().map(|family| family.as_str()).collect();
            let enabled = "Topology Aware Hints has been enabled";
            Verdict::yes("HintsWritten", "the EndpointSlices have hints for Auto").with_event(
                AUTO_ENABLED,
                enabled,
                &families.join(", "),
            )
        }
        Intent::Spread => Verdict::yes("NoHintsNeeded", "all endpoints are used, as requested"),
        intent => {
            Verdict::yes("HintsWritten", format!("the EndpointSlices have hints for {intent}"))
        }
    }
}

/// Why the hints of a family are not as requested.
fn judge_outcome(family: Family, outcome: &HintOutcome) -> Option<Verdict> {
    let refusal = match outcome {
        HintOutcome::NotAsked | HintOutcome::Written => return None,
        HintOutcome::Partial { without, nodes } => {
            let message = format!(
                "{without} ready endpoints have no zone, so no hints are used; \
                 label {} with topology.kubernetes.io/zone",
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
