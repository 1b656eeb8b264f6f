//! Chooses a node for a Pod, or reports why none fits. Pure.
//!
//! Required constraints are enforced; unsupported ones are rejected with a reason. Preferred node
//! affinity counts; preferred Pod affinity does not, because Pods of one owner are spread anyway.

mod filter;
mod pod_constraints;
mod score;
#[cfg(test)]
mod tests;

pub(crate) use self::pod_constraints::depends_on_other_pods;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, PodCondition, Service};
use nearhop_runtime::client::EventType;

use crate::action::{Action, Plan};
use crate::kind::Kind;
use crate::object::{self, Labels, ObjectKey, time};
use crate::pod;

/// The scheduler name of Pods for this scheduler.
pub(crate) const NAME: &str = "default-scheduler";

/// How often an unschedulable Pod is retried without an event.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// The inputs of a decision.
#[derive(Debug, Default)]
pub(crate) struct Snapshot<'a> {
    /// All nodes with their bound and assumed Pods.
    pub(crate) nodes: Vec<NodeInfo<'a>>,
    pub(crate) services: Vec<&'a Service>,
    pub(crate) namespaces: BTreeMap<&'a str, Option<&'a Labels>>,
}

/// A node with its Pods.
#[derive(Debug)]
pub(crate) struct NodeInfo<'a> {
    pub(crate) node: &'a Node,
    /// Bound and assumed Pods that have not finished.
    pub(crate) pods: Vec<&'a Pod>,
}

/// Why a Pod is unschedulable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FitError {
    /// The Pod uses an unsupported field, which the text names.
    Unsupported(String),
    /// No node fits: the number of nodes, and the number of nodes per reason.
    Nodes(usize, BTreeMap<String, usize>),
}

impl fmt::Display for FitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported(text) => f.write_str(text),
            Self::Nodes(0, _) => f.write_str("no nodes available to schedule pods"),
            Self::Nodes(nodes, reasons) => {
                let mut parts: Vec<String> =
                    reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
                parts.sort();
                write!(f, "0/{nodes} nodes are available: {}.", parts.join(", "))
            }
        }
    }
}

/// Whether the Pod waits for this scheduler.
pub(crate) fn is_waiting(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    pod::node(pod).is_empty()
        && pod::is_active(pod)
        && spec.scheduler_name.as_deref().unwrap_or(NAME) == NAME
        && spec.scheduling_gates.as_ref().is_none_or(Vec::is_empty)
}

/// The best node for a Pod, or why none fits.
pub(crate) fn schedule(pod: &Pod, snapshot: &Snapshot<'_>) -> Result<String, FitError> {
    filter::check_supported(pod)?;
    let wishes = filter::Requirements::of(pod, snapshot);
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    let mut fitting = Vec::new();
    for info in &snapshot.nodes {
        let why = wishes.refusals(info);
        if why.is_empty() {
            fitting.push(info);
        }
        for reason in why {
            *reasons.entry(reason).or_default() += 1;
        }
    }
    let best = score::best(pod, &fitting, snapshot);
    best.map(|info| object::name(&info.node.metadata).to_owned())
        .ok_or(FitError::Nodes(snapshot.nodes.len(), reasons))
}

/// Plans the binding of a Pod, or its PodScheduled condition.
pub(crate) fn plan(pod: &Pod, snapshot: &Snapshot<'_>, now: Timestamp) -> Plan {
    let event = |event_type, reason, message| {
        Action::event(Kind::Pod, &pod.metadata, NAME, event_type, reason, message)
    };
    match schedule(pod, snapshot) {
        Ok(node) => {
            let name = ObjectKey::of(&pod.metadata);
            let message = format!("Successfully assigned {name} to {node}");
            let uid = object::uid(&pod.metadata).to_owned();
            let mut plan = Plan::from(Action::Bind { pod: name, uid, node });
            plan.then([event(EventType::Normal, "Scheduled", message)]);
            plan
        }
        Err(unfit) => {
            let mut plan = Plan::default();
            if matches!(unfit, FitError::Nodes(..)) {
                plan.requeue_within(RETRY_INTERVAL);
            }
            let message = unfit.to_string();
            let known = pod::condition(pod, "PodScheduled");
            if !known.is_some_and(|known| {
                known.status == "False" && known.message.as_deref() == Some(&message)
            }) {
                plan.then([Action::PutStatus(refused(pod, &message, now).into())]);
                plan.then([event(EventType::Warning, "FailedScheduling", message)]);
            }
            plan
        }
    }
}

/// The Pod with the condition PodScheduled=False.
fn refused(pod: &Pod, message: &str, now: Timestamp) -> Pod {
    let mut pod = pod.clone();
    let conditions = pod.status.get_or_insert_default().conditions.get_or_insert_default();
    let old = conditions.iter().position(|condition| condition.type_ == "PodScheduled");
    let old = old.map(|index| conditions.remove(index)).filter(|old| old.status == "False");
    conditions.push(PodCondition {
        type_: "PodScheduled".to_owned(),
        status: "False".to_owned(),
        reason: Some("Unschedulable".to_owned()),
        message: Some(message.to_owned()),
        last_transition_time: old.and_then(|o| o.last_transition_time).or(Some(time(now))),
        ..PodCondition::default()
    });
    pod
}
