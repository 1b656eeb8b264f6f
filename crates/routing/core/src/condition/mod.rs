//! The conditions of a Service: its topology request is valid (Accepted), is written to its
//! EndpointSlices (Programmed), and leaves no node without an endpoint (Reachable). The first two
//! are those of KEP-4444 "Status Reporting". Reachable exists only for Services with hard topology
//! keys: no other request can cut a node off.
//!
//! Each plan produces new judgements. Only a change of the status, the reason or the responsible
//! object is a transition and raises an event; a changed number alone does not.

mod accepted;
mod programmed;
mod reachable;

use std::fmt;

use jiff::Timestamp;

use crate::hint::EventKind;
use crate::intent::{IntentDecision, Spelling};
use crate::key::Name;
use crate::model::Service;
use crate::route::Reach;
use crate::slice::SlicePlan;
use accepted::judge_accepted;
use programmed::judge_programmed;
use reachable::judge_reachable;

/// `status` of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    /// The request is fulfilled.
    True,
    /// The request is not fulfilled.
    False,
    /// nearhop cannot tell, because another client writes the EndpointSlices.
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
    /// Do the clients on every node reach an endpoint?
    Reachable,
}

/// Whether another event reports this reason: failures have the event of Kubernetes' own
/// controller, and a request that is not accepted is never programmed.
pub fn is_reported_elsewhere(reason: &str) -> bool {
    matches!(reason, "WriteFailed" | "NodeUnknown" | "NotAccepted")
}

/// Whether this reason is no news, neither when it comes nor when it goes: a Service without a
/// selector or without endpoints is as its user made it.
pub fn is_no_news(reason: &str) -> bool {
    matches!(reason, "NoSelector" | "NoEndpoint" | "NotProgrammed")
}

/// The type of the condition [`Question::Reachable`], without the domain.
pub const REACHABLE: &str = "Reachable";

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
            && self.is_about(&condition.message)
    }

    /// Whether a message names the responsible objects of this judgement, and no others.
    fn is_about(&self, message: &str) -> bool {
        let rest = message.strip_prefix(&*self.responsible);
        rest.is_some_and(|rest| self.responsible.is_empty() || rest.starts_with([':', ';']))
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
/// `reach` is given for a Service with hard topology keys.
pub fn judge(
    domain: &str,
    service: &Service,
    decision: &IntentDecision,
    plan: &SlicePlan,
    writing: &Writing,
    reach: Option<&Reach>,
) -> Vec<Judgement> {
    let Some(spelling) = asked_by(decision) else { return Vec::new() };
    // A default does not apply to a Service without slices.
    if spelling.is_default() && !service.wants_slices() {
        return Vec::new();
    }
    let field = match spelling {
        Spelling::RoutingPreferenceField | Spelling::RoutingPreferenceAnnotation => {
            "RoutingPreference"
        }
        _ => "TrafficDistribution",
    };
    let named = |question: Question| format!("{field}{question:?}");
    let accepted = judge_accepted(service, decision);
    let programmed = judge_programmed(service, decision, plan, writing);
    let mut judgements = vec![
        accepted.into_judgement(Question::Accepted, domain, &named(Question::Accepted)),
        programmed.into_judgement(Question::Programmed, domain, &named(Question::Programmed)),
    ];
    judgements.extend(reach.map(|reach| judge_reach(domain, service, decision, reach)));
    judgements
}

/// Judges what hard topology keys mean for the nodes. It changes with the nodes, also if the plan
/// of the Service does not.
pub fn judge_reach(
    domain: &str,
    service: &Service,
    decision: &IntentDecision,
    reach: &Reach,
) -> Judgement {
    let verdict = judge_reachable(service, decision, reach);
    verdict.into_judgement(Question::Reachable, domain, REACHABLE)
}

/// The request that the conditions describe: the one that decides, else one that does not count.
fn asked_by(decision: &IntentDecision) -> Option<Spelling> {
    if decision.spelling != Spelling::Nowhere {
        return Some(decision.spelling);
    }
    let candidates = decision.passed_over.iter().map(|ignored| ignored.spelling);
    candidates.into_iter().find(|spelling| *spelling <= Spelling::NamespaceDefault)
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

    /// Not fulfilled, and no object is responsible.
    fn no_object(reason: &'static str, message: &str) -> Self {
        Self { status: ConditionStatus::False, ..Self::yes(reason, message) }
    }

    /// nearhop cannot tell. The message starts with the responsible object.
    fn unknown(
        reason: &'static str,
        responsible: impl fmt::Display,
        message: impl fmt::Display,
    ) -> Self {
        Self { status: ConditionStatus::Unknown, ..Self::no(reason, responsible, message) }
    }

    fn into_judgement(self, question: Question, domain: &str, kind: &str) -> Judgement {
        let slash = if domain.is_empty() { "" } else { "/" };
        Judgement {
            question,
            kind: Name::from(format!("{domain}{slash}{kind}")),
            status: self.status,
            reason: self.reason,
            message: self.message,
            responsible: self.responsible,
            event: self.event,
        }
    }

    /// Sets the event of the in-tree controller.
    fn with_event(self, reason: &'static str, text: impl fmt::Display, families: &str) -> Self {
        Self { event: Some((reason, format!("{text}, addressType: {families}"))), ..self }
    }
}
