//! Node health, taints, and the eviction of Pods. Pure.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, NodeCondition, Pod, PodCondition, Taint};
use nearhop_runtime::client::EventType;
use serde_json::json;

use crate::action::{Action, Deletion, Plan};
use crate::kind::Kind;
use crate::object::{self, time};
use crate::pod;
use crate::taint::{self, NO_EXECUTE, NO_SCHEDULE, NOT_READY, UNREACHABLE, UNSCHEDULABLE};

const BY: &str = "node-controller";

/// Taints by condition: type, status, key.
const BY_CONDITION: [(&str, &str, &str); 6] = [
    ("Ready", "False", NOT_READY),
    ("Ready", "Unknown", UNREACHABLE),
    ("MemoryPressure", "True", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
    ("NetworkUnavailable", "True", "node.kubernetes.io/network-unavailable"),
];
/// Conditions that only the kubelet reports.
const REPORTED: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];
/// How long Pods without a matching toleration stay on a lost node, as the API's defaults set it.
const DEFAULT_TOLERATION: Duration = Duration::from_secs(300);

/// How long a node may miss heartbeats.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GracePeriods {
    /// A node that has reported before.
    pub(crate) grace: Duration,
    /// A node that has never reported.
    pub(crate) startup: Duration,
}

/// Plans the conditions and taints of a node without heartbeat for `silent`, and the readiness of
/// its Pods.
#[must_use]
pub(crate) fn plan_node_health(
    node: &Node,
    pods: &[&Pod],
    silent: Duration,
    patience: GracePeriods,
    now: Timestamp,
) -> Plan {
    let mut plan = Plan::default();
    if object::is_deleting(&node.metadata) {
        return plan;
    }
    let ready = taint::condition(node, "Ready");
    let limit = if ready.is_some() { patience.grace } else { patience.startup };
    let lost = silent >= limit;
    if !lost {
        plan.requeue_within(limit - silent);
    } else if ready.is_none_or(|ready| ready.status != "Unknown") {
        let message = format!("Node {} status is now: NodeNotReady", object::name(&node.metadata));
        plan.then([Action::PutStatus(with_unknown_conditions(node, now).into())]);
        let (meta, reason) = (&node.metadata, "NodeNotReady");
        plan.then([Action::event(Kind::Node, meta, BY, EventType::Normal, reason, message)]);
        // Taints and Pods follow once the status is written.
        return plan;
    }
    plan.then(sync_taints(node, now));
    if ready.is_some_and(|ready| ready.status == "Unknown") {
        plan.then(pods.iter().filter(|pod| pod::is_ready(pod)).map(|pod| not_ready(pod, now)));
    }
    plan
}

/// The node with its conditions set to Unknown.
fn with_unknown_conditions(node: &Node, now: Timestamp) -> Node {
    let mut node = node.clone();
    let conditions = node.status.get_or_insert_default().conditions.get_or_insert_default();
    for kind in REPORTED {
        let old = conditions.iter_mut().find(|condition| condition.type_ == kind);
        match old {
            Some(old) if old.status == "Unknown" => {}
            Some(old) => {
                old.status = "Unknown".to_owned();
                old.reason = Some("NodeStatusUnknown".to_owned());
                old.message = Some("Kubelet stopped posting node status.".to_owned());
                old.last_transition_time = Some(time(now));
            }
            None => conditions.push(NodeCondition {
                type_: kind.to_owned(),
                status: "Unknown".to_owned(),
                reason: Some("NodeStatusNeverUpdated".to_owned()),
                message: Some("Kubelet never posted node status.".to_owned()),
                last_transition_time: Some(time(now)),
                last_heartbeat_time: node.metadata.creation_timestamp.clone(),
            }),
        }
    }
    node
}

/// Synchronizes the taints that follow from the node's state. Other NoExecute taints without
/// `timeAdded` get the current time, from which tolerationSeconds counts.
fn sync_taints(node: &Node, now: Timestamp) -> Option<Action> {
    let wanted = implied(node);
    let ours = |taint: &Taint| {
        taint.key == UNSCHEDULABLE && taint.effect == NO_SCHEDULE
            || BY_CONDITION.iter().any(|(.., key)| taint.key == *key)
                && (taint.effect == NO_SCHEDULE
                    || taint.effect == NO_EXECUTE
                        && [NOT_READY, UNREACHABLE].contains(&&*taint.key))
    };
    let same = |a: &Taint, b: &Taint| a.key == b.key && a.effect == b.effect;
    let old = taint::taints(node);
    let mut new: Vec<Taint> = old
        .iter()
        .filter(|taint| !ours(taint) || wanted.iter().any(|wanted| same(wanted, taint)))
        .cloned()
        .collect();
    for mut taint in wanted {
        if !new.iter().any(|known| same(known, &taint)) {
            taint.time_added = Some(time(now));
            new.push(taint);
        }
    }
    for taint in new.iter_mut().filter(|taint| taint.effect == NO_EXECUTE) {
        taint.time_added.get_or_insert_with(|| time(now));
    }
    if new == old {
        return None;
    }
    let body = json!({ "spec": { "taints": new } });
    Some(Action::patch(Kind::Node, &node.metadata, body))
}

/// The taints that follow from the node's state.
fn implied(node: &Node) -> Vec<Taint> {
    let mut wanted = Vec::new();
    if taint::is_cordoned(node) {
        wanted.push(taint::taint(UNSCHEDULABLE, NO_SCHEDULE));
    }
    for (kind, status, key) in BY_CONDITION {
        if taint::condition(node, kind).is_some_and(|condition| condition.status == status) {
            wanted.push(taint::taint(key, NO_SCHEDULE));
            if kind == "Ready" {
                wanted.push(taint::taint(key, NO_EXECUTE));
            }
        }
    }
    wanted
}

/// Sets the Ready condition of a Pod on a lost node to False.
fn not_ready(pod: &Pod, now: Timestamp) -> Action {
    let mut pod = pod.clone();
    let all: &mut Vec<PodCondition> =
        pod.status.get_or_insert_default().conditions.get_or_insert_default();
    for condition in all.iter_mut().filter(|condition| condition.type_ == "Ready") {
        condition.status = "False".to_owned();
        condition.last_transition_time = Some(time(now));
    }
    Action::PutStatus(pod.into())
}

/// How long a Pod may stay on its node despite the NoExecute taints; `None` without limit.
#[must_use]
pub(crate) fn eviction_delay(pod: &Pod, node: &Node, now: Timestamp) -> Option<Duration> {
    if object::is_deleting(&pod.metadata) {
        return None;
    }
    let tolerations = taint::tolerations(pod);
    let driving = taint::taints(node).iter().filter(|taint| taint.effect == NO_EXECUTE);
    let rest = |taint: &Taint| -> Option<Duration> {
        let mut matching = tolerations.iter().filter(|one| taint::tolerates(one, taint)).peekable();
        let patience = match matching.peek() {
            None if [NOT_READY, UNREACHABLE].contains(&taint.key.as_str()) => DEFAULT_TOLERATION,
            None => Duration::ZERO,
            // A toleration without tolerationSeconds lasts for ever; otherwise the shortest counts.
            Some(_) => {
                let seconds = matching.filter_map(|one| one.toleration_seconds).min()?;
                Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
            }
        };
        let since = taint.time_added.as_ref().map_or(now, |added| added.0);
        let stood = now.duration_since(since).max(SignedDuration::ZERO);
        let stood = Duration::try_from(stood).unwrap_or_default();
        Some(patience.saturating_sub(stood))
    };
    driving.filter_map(rest).min()
}

/// Plans the eviction of a Pod by NoExecute taints.
pub(crate) fn plan_eviction(pod: &Pod, node: &Node, now: Timestamp) -> Plan {
    match eviction_delay(pod, node, now) {
        None => Plan::default(),
        Some(Duration::ZERO) => {
            let name = object::ObjectKey::of(&pod.metadata);
            let mut plan = Plan::from(Action::delete(Kind::Pod, &pod.metadata, Deletion::Graceful));
            let message = format!("Marking for deletion Pod {name}");
            plan.then([Action::event(
                Kind::Pod,
                &pod.metadata,
                "taint-eviction-controller",
                EventType::Normal,
                "TaintManagerEviction",
                message,
            )]);
            plan
        }
        Some(rest) => Plan::after(rest),
    }
}

/// Plans the deletion of a Pod whose node has been missing for `absent`.
pub(crate) fn plan_orphan(pod: &Pod, absent: Duration, quarantine: Duration) -> Plan {
    match quarantine.checked_sub(absent) {
        None | Some(Duration::ZERO) => {
            Action::delete(Kind::Pod, &pod.metadata, Deletion::Forced).into()
        }
        Some(rest) => Plan::after(rest),
    }
}

#[cfg(test)]
mod tests;
