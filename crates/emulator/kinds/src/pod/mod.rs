//! Pod: what is filled in, what is added at creation, what may change, how it is bound and deleted.
//!
//! Deliberately not here: scheduling and running. The ServiceAccount admission is off, so nothing is
//! added for it.

mod bind;
mod container;
mod defaults;
mod probe;
mod qos;
mod spec;
mod update;
mod volume;

use nearhop_object::FieldError;
use serde_json::{Value, json};

use crate::json::{Path, at, carry, fill, int, list, make, text};
use crate::names;

pub use bind::{BindError, bind};
pub use defaults::{default, default_template};
pub use qos::qos_class;
use spec::{Owner, validate_spec};
pub(crate) use spec::{not_negative, validate_template};
pub use update::validate_update;

const NO_EXECUTE: &str = "NoExecute";
const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const TOPOLOGY_LABELS: [&str; 2] = ["topology.kubernetes.io/zone", "topology.kubernetes.io/region"];

/// The labels of a node, by its name.
pub type NodeLabels<'a> = &'a dyn Fn(&str) -> Option<Value>;

/// Sets the status of a new pod and adds what the server's admission adds: tolerations, priority,
/// and the place of the node it is bound to.
pub fn prepare_create(pod: &mut Value, now: &str, node_labels: NodeLabels<'_>) {
    add_toleration(pod, NOT_READY);
    add_toleration(pod, UNREACHABLE);
    let priority = match text(pod, &["spec", "priorityClassName"]) {
        "system-cluster-critical" => 2_000_000_000_i64,
        "system-node-critical" => 2_000_001_000,
        _ => 0,
    };
    let spec = make(pod, &["spec"]);
    fill(spec, "priority", priority);
    fill(spec, "preemptionPolicy", "PreemptLowerPriority");
    add_topology(pod, node_labels);
    let class = qos_class(pod);
    *make(pod, &["status"]) = json!({"phase": "Pending", "qosClass": class});
    if !list(pod, &["spec", "schedulingGates"]).is_empty() {
        *make(pod, &["status", "conditions"]) = json!([{
            "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
            "lastProbeTime": null, "lastTransitionTime": now,
        }]);
    }
}

/// Keeps what an update may leave out and adds what admission adds.
pub fn prepare_update(new: &mut Value, old: &Value, node_labels: NodeLabels<'_>) {
    for key in ["priority", "preemptionPolicy"] {
        if at(new, &["spec", key]).is_none() {
            carry(new, old, &["spec", key]);
        }
    }
    add_toleration(new, NOT_READY);
    add_toleration(new, UNREACHABLE);
    add_topology(new, node_labels);
}

/// A write of the status does not lose the class of service.
pub fn prepare_status_update(new: &mut Value, old: &Value) {
    if text(new, &["status", "qosClass"]).is_empty() {
        carry(new, old, &["status", "qosClass"]);
    }
    if int(new, &["status", "observedGeneration"]).unwrap_or_default() == 0 {
        carry(new, old, &["status", "observedGeneration"]);
    }
}

/// Checks a new pod.
pub fn validate_create(pod: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    validate_pod(pod, &mut errors);
    if !list(pod, &["spec", "ephemeralContainers"]).is_empty() {
        let detail = "cannot be set on create";
        errors.push(FieldError::forbidden("spec.ephemeralContainers", detail));
    }
    if !text(pod, &["spec", "nodeName"]).is_empty()
        && !list(pod, &["spec", "schedulingGates"]).is_empty()
    {
        let detail = "cannot be set until all schedulingGates have been cleared";
        errors.push(FieldError::forbidden("spec.nodeName", detail));
    }
    errors
}

/// Checks a write of the status.
pub fn validate_status_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let nominated = text(new, &["status", "nominatedNodeName"]);
    if nominated != text(old, &["status", "nominatedNodeName"]) && !nominated.is_empty() {
        const FIELD: &str = "status.nominatedNodeName";
        for text in names::dns1123_subdomain(nominated) {
            errors.push(FieldError::invalid(FIELD, &json!(nominated), &text));
        }
        if !text(old, &["spec", "nodeName"]).is_empty() {
            let detail = "may not be set on pods that are already bound to a node";
            errors.push(FieldError::forbidden(FIELD, detail));
        }
    }
    let class = text(new, &["status", "qosClass"]);
    if class != text(old, &["status", "qosClass"]) {
        errors.push(FieldError::invalid("status.qosClass", &json!(class), "field is immutable"));
    }
    validate_ips(new, old, "podIPs", &mut errors);
    validate_ips(new, old, "hostIPs", &mut errors);
    errors
}

/// The grace period of a deletion in seconds: what was asked for, or what the pod says; none if it
/// runs nowhere.
pub fn grace_period(pod: &Value, asked: Option<i64>) -> i64 {
    let idle = text(pod, &["spec", "nodeName"]).is_empty()
        || matches!(text(pod, &["status", "phase"]), "Succeeded" | "Failed");
    if idle {
        return 0;
    }
    let asked = asked.or_else(|| int(pod, &["spec", "terminationGracePeriodSeconds"]));
    match asked.unwrap_or_default() {
        negative if negative < 0 => 1,
        seconds => seconds,
    }
}

/// What is worth saying about a new pod.
pub fn warnings(pod: &Value) -> Vec<String> {
    let mut warnings = template_warnings(pod, "");
    let complaints = names::dns1123_label(text(pod, &["metadata", "name"]));
    if !complaints.is_empty() {
        warnings.push(format!(
            "metadata.name: this is used in the Pod's hostname, which can result in surprising \
             behavior; a DNS label is recommended: [{}]",
            complaints.join(" ")
        ));
    }
    warnings
}

/// What is worth saying about a pod, or about a template of pods. `prefix` is where the template
/// is: `spec.template.`, or nothing for a pod.
pub(crate) fn template_warnings(template: &Value, prefix: &str) -> Vec<String> {
    let constraints = list(template, &["spec", "topologySpreadConstraints"]).iter().enumerate();
    constraints
        .filter(|(_, constraint)| at(constraint, &["labelSelector"]).is_none())
        .map(|(index, _)| {
            format!(
                "{prefix}spec.topologySpreadConstraints[{index}].labelSelector: \
                 a null labelSelector results in matching no pod"
            )
        })
        .collect()
}

/// The metadata's annotations aside, what holds for a pod on create and update.
fn validate_pod(pod: &Value, errors: &mut Vec<FieldError>) {
    let path = Path::root("spec");
    let spec = pod.get("spec").unwrap_or(&Value::Null);
    validate_spec(spec, &path, Owner::Pod, errors);
    for part in ["containers", "initContainers"] {
        let path = path.child(part);
        for (index, container) in list(spec, &[part]).iter().enumerate() {
            let image = text(container, &["image"]);
            if image.trim() != image {
                let detail = "must not have leading or trailing whitespace";
                let field = path.index(index);
                errors.push(FieldError::invalid(field.child("image"), &json!(image), detail));
            }
        }
    }
}

fn validate_ips(new: &Value, old: &Value, key: &str, errors: &mut Vec<FieldError>) {
    let ips: Vec<&str> =
        list(new, &["status", key]).iter().map(|entry| text(entry, &["ip"])).collect();
    let before = list(old, &["status", key]);
    for (index, ip) in ips.iter().enumerate() {
        let known = before.iter().any(|entry| text(entry, &["ip"]) == *ip);
        if !known && ip.parse::<std::net::IpAddr>().is_err() {
            let detail = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
            errors.push(FieldError::invalid(format!("status.{key}[{index}]"), &json!(ip), detail));
        }
    }
    let dual = match ips.as_slice() {
        [] | [_] => true,
        [first, second] => first.contains(':') != second.contains(':'),
        _ => false,
    };
    if !dual {
        let all: Vec<String> = ips.iter().map(|ip| format!("{{\"IP\":{}}}", json!(ip))).collect();
        let message = format!(
            "Invalid value: [{}]: may specify no more than one IP for each IP family",
            all.join(",")
        );
        let field = format!("status.{key}");
        errors.push(FieldError::new(nearhop_object::FieldErrorKind::Invalid, field, message));
    }
}

/// Pods outlive a failing node for five minutes unless they say otherwise.
fn add_toleration(pod: &mut Value, key: &str) {
    let tolerates = |known: &Value| {
        let (known, effect) = (text(known, &["key"]), text(known, &["effect"]));
        (known.is_empty() || known == key) && matches!(effect, "" | NO_EXECUTE)
    };
    if list(pod, &["spec", "tolerations"]).iter().any(tolerates) {
        return;
    }
    let toleration = json!({
        "key": key, "operator": "Exists", "effect": NO_EXECUTE, "tolerationSeconds": 300,
    });
    match make(pod, &["spec", "tolerations"]) {
        Value::Array(tolerations) => tolerations.push(toleration),
        other => *other = json!([toleration]),
    }
}

/// A bound pod shows the zone and region of its node.
fn add_topology(pod: &mut Value, node_labels: NodeLabels<'_>) {
    let node = text(pod, &["spec", "nodeName"]);
    if node.is_empty() {
        return;
    }
    let Some(labels) = node_labels(node) else { return };
    for key in TOPOLOGY_LABELS {
        if let Some(value) = labels.get(key)
            && at(pod, &["metadata", "labels", key]) != Some(value)
        {
            *make(pod, &["metadata", "labels", key]) = value.clone();
        }
    }
}
