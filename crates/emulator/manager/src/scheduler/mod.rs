//! Which node a pod gets, or why none. Pure.
//!
//! What a pod *requires* is kept or refused with a reason, never passed over. What it prefers is
//! kept for nodes; preferences between pods are not: spreading by owner does what most of them ask.

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

use crate::action::{Action, Plan, Severity};
use crate::kind::Kind;
use crate::object::{self, Labels, ObjectKey, time};
use crate::pod;

/// The name under which pods ask for this scheduler.
pub(crate) const NAME: &str = "default-scheduler";

/// Whatever a pod waits for and no event told of is found out this soon.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// All that a decision needs to know.
#[derive(Debug, Default)]
pub(crate) struct Snapshot<'a> {
    /// All nodes, with the pods that run there or will.
    pub(crate) nodes: Vec<NodeInfo<'a>>,
    /// All Services.
    pub(crate) services: Vec<&'a Service>,
    /// Labels of namespaces.
    pub(crate) namespaces: BTreeMap<&'a str, Option<&'a Labels>>,
}

/// A node and its pods.
#[derive(Debug)]
pub(crate) struct NodeInfo<'a> {
    /// The node.
    pub(crate) node: &'a Node,
    /// Pods that are bound to it or about to be, and that have not ended.
    pub(crate) pods: Vec<&'a Pod>,
}

/// Why a pod gets no node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FitError {
    /// The pod asks for something that nobody here can give; the text names the field.
    Unsupported(String),
    /// No node fits: how many there are, and how many for which reason.
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

/// Whether this scheduler is to find a node for the pod.
pub(crate) fn is_waiting(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    pod::node(pod).is_empty()
        && pod::is_active(pod)
        && spec.scheduler_name.as_deref().unwrap_or(NAME) == NAME
        && spec.scheduling_gates.as_ref().is_none_or(Vec::is_empty)
}

/// The node for a pod.
///
/// # Errors
/// No node fits.
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

/// What is to be done about a pod that waits for a node.
pub(crate) fn plan(pod: &Pod, snapshot: &Snapshot<'_>, now: Timestamp) -> Plan {
    let event = |severity, reason, message| {
        Action::event(Kind::Pod, &pod.metadata, NAME, severity, reason, message)
    };
    match schedule(pod, snapshot) {
        Ok(node) => {
            let name = ObjectKey::of(&pod.metadata);
            let message = format!("Successfully assigned {name} to {node}");
            let uid = object::uid(&pod.metadata).to_owned();
            let mut plan = Plan::from(Action::Bind { pod: name, uid, node });
            plan.then([event(Severity::Normal, "Scheduled", message)]);
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
                plan.then([event(Severity::Warning, "FailedScheduling", message)]);
            }
            plan
        }
    }
}

/// The pod, saying that it has no node and why.
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
