//! `pods/binding`: assigns a pod to a node, once.

use serde_json::{Value, json};

use super::{NodeLabels, add_topology};
use crate::errors::{Errors, Report as _};
use crate::json::{at, carry, entries, list, make, text};

/// Why a pod cannot be bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindError {
    /// The Binding is invalid: 422 on `Binding`.
    Invalid(Errors),
    /// The pod cannot be bound (now): 409 on `pods/binding` with this reason.
    Conflict(String),
}

/// Binds a pod to the node that a Binding names. `now` is the time of the condition.
pub fn bind(
    pod: &mut Value,
    binding: &Value,
    now: &str,
    node_labels: NodeLabels<'_>,
) -> Result<(), BindError> {
    let errors = validate(binding);
    if !errors.is_empty() {
        return Err(BindError::Invalid(errors));
    }
    if let Some(reason) = refusal(pod) {
        return Err(BindError::Conflict(reason));
    }
    *make(pod, &["spec", "nodeName"]) = json!(text(binding, &["target", "name"]));
    carry(pod, &Value::Null, &["status", "nominatedNodeName"]);
    for part in ["annotations", "labels"] {
        for (key, value) in entries(binding, &["metadata", part]) {
            *make(pod, &["metadata", part, key]) = value.clone();
        }
    }
    if text(binding, &["target", "kind"]) == "Node" {
        add_topology(pod, node_labels);
    }
    set_scheduled(pod, now);
    Ok(())
}

fn validate(binding: &Value) -> Errors {
    let mut errors = Vec::new();
    let kind = text(binding, &["target", "kind"]);
    if !matches!(kind, "" | "Node") {
        errors.not_supported("target.kind", kind, &["Node", "<empty>"]);
    }
    if text(binding, &["target", "name"]).is_empty() {
        errors.required("target.name", "");
    }
    errors
}

fn refusal(pod: &Value) -> Option<String> {
    let name = text(pod, &["metadata", "name"]);
    let node = text(pod, &["spec", "nodeName"]);
    if !text(pod, &["metadata", "deletionTimestamp"]).is_empty() {
        Some(format!("pod {name} is being deleted, cannot be assigned to a host"))
    } else if !node.is_empty() {
        Some(format!("pod {name} is already assigned to node {node:?}"))
    } else if !list(pod, &["spec", "schedulingGates"]).is_empty() {
        Some(format!("pod {name} has non-empty .spec.schedulingGates"))
    } else {
        None
    }
}

fn set_scheduled(pod: &mut Value, now: &str) {
    let mut condition = json!({
        "type": "PodScheduled", "status": "True", "lastProbeTime": null,
        "lastTransitionTime": now,
    });
    let Value::Array(conditions) = make(pod, &["status", "conditions"]) else {
        *make(pod, &["status", "conditions"]) = json!([condition]);
        return;
    };
    let known = conditions.iter_mut().find(|known| text(known, &["type"]) == "PodScheduled");
    match known {
        Some(known) => {
            if text(known, &["status"]) == "True"
                && let Some(since) = at(known, &["lastTransitionTime"])
            {
                condition["lastTransitionTime"] = since.clone();
            }
            *known = condition;
        }
        None => conditions.push(condition),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-01-01T00:00:00Z";

    fn zone(name: &str) -> Option<Value> {
        (name == "n1").then(|| json!({"topology.kubernetes.io/zone": "zone-a", "x": "y"}))
    }

    #[test]
    fn a_pod_is_bound_once() {
        let mut pod = json!({"metadata": {"name": "bind"}, "status": {"phase": "Pending"}});
        let binding = json!({"target": {"kind": "Node", "name": "n1"}});
        assert_eq!(bind(&mut pod, &binding, NOW, &zone), Ok(()));
        let bound = json!({
            "metadata": {"name": "bind", "labels": {"topology.kubernetes.io/zone": "zone-a"}},
            "spec": {"nodeName": "n1"},
            "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled",
                "status": "True", "lastProbeTime": null, "lastTransitionTime": NOW}]}});
        assert_eq!(pod, bound);
        let reason = "pod bind is already assigned to node \"n1\"".to_owned();
        assert_eq!(bind(&mut pod, &binding, NOW, &zone), Err(BindError::Conflict(reason)));
    }

    #[test]
    fn only_nodes_are_valid_targets() {
        let binding = json!({"target": {"kind": "Pod"}});
        let Err(BindError::Invalid(errors)) = bind(&mut json!({}), &binding, NOW, &zone) else {
            panic!("the binding must be invalid");
        };
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        let kind =
            "target.kind: Unsupported value: \"Pod\": supported values: \"Node\", \"<empty>\"";
        assert_eq!(texts, [kind, "target.name: Required value"]);
    }
}
