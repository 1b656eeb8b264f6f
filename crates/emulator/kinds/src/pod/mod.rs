//! Pod: defaults, admission, validation, binding, grace period. There is no ServiceAccount
//! admission.

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

use crate::errors::{Errors, Report as _};
use crate::json::{Path, at, carry, fill, int, list, make, push, text};
use crate::names;

pub use bind::{BindError, bind};
pub(crate) use defaults::{default, default_template};
use qos::qos_class;
use spec::{Owner, validate_spec};
pub(crate) use spec::{not_negative, validate_template};
pub(crate) use update::validate_update;

const NO_EXECUTE: &str = "NoExecute";
const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const TOPOLOGY_LABELS: [&str; 2] = ["topology.kubernetes.io/zone", "topology.kubernetes.io/region"];

/// The labels of a node, by its name.
pub(crate) type NodeLabels<'a> = &'a dyn Fn(&str) -> Option<Value>;

/// Sets the status of a new pod and applies admission: tolerations, priority, topology labels.
pub(crate) fn prepare_create(pod: &mut Value, now: &str, node_labels: NodeLabels<'_>) {
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

/// Restores fields that an update may omit, and applies admission.
pub(crate) fn prepare_update(new: &mut Value, old: &Value, node_labels: NodeLabels<'_>) {
    for key in ["priority", "preemptionPolicy"] {
        if at(new, &["spec", key]).is_none() {
            carry(new, old, &["spec", key]);
        }
    }
    add_toleration(new, NOT_READY);
    add_toleration(new, UNREACHABLE);
    add_topology(new, node_labels);
}

/// Restores fields that a status update may omit.
pub(crate) fn prepare_status_update(new: &mut Value, old: &Value) {
    if text(new, &["status", "qosClass"]).is_empty() {
        carry(new, old, &["status", "qosClass"]);
    }
    if int(new, &["status", "observedGeneration"]).unwrap_or_default() == 0 {
        carry(new, old, &["status", "observedGeneration"]);
    }
}

pub(crate) fn validate_create(pod: &Value) -> Errors {
    let mut errors = Vec::new();
    validate_pod(pod, &mut errors);
    if !list(pod, &["spec", "ephemeralContainers"]).is_empty() {
        errors.forbidden("spec.ephemeralContainers", "cannot be set on create");
    }
    if !text(pod, &["spec", "nodeName"]).is_empty()
        && !list(pod, &["spec", "schedulingGates"]).is_empty()
    {
        let detail = "cannot be set until all schedulingGates have been cleared";
        errors.forbidden("spec.nodeName", detail);
    }
    errors
}

pub(crate) fn validate_status_update(new: &Value, old: &Value) -> Errors {
    let mut errors = Vec::new();
    let nominated = text(new, &["status", "nominatedNodeName"]);
    if nominated != text(old, &["status", "nominatedNodeName"]) && !nominated.is_empty() {
        const FIELD: &str = "status.nominatedNodeName";
        errors.invalid_each(FIELD, nominated, names::dns1123_subdomain(nominated));
        if !text(old, &["spec", "nodeName"]).is_empty() {
            errors.forbidden(FIELD, "may not be set on pods that are already bound to a node");
        }
    }
    let class = text(new, &["status", "qosClass"]);
    if class != text(old, &["status", "qosClass"]) {
        errors.invalid("status.qosClass", class, "field is immutable");
    }
    validate_ips(new, old, "podIPs", &mut errors);
    validate_ips(new, old, "hostIPs", &mut errors);
    errors
}

/// The grace period of a deletion in seconds: the requested one, or the pod's; 0 for a pod that is
/// not running.
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

/// The warnings about a new pod.
pub(crate) fn warnings(pod: &Value) -> Vec<String> {
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

/// The warnings about a pod or a template of pods. `prefix` is the path of the template.
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

/// The checks of create and update, except annotations.
fn validate_pod(pod: &Value, errors: &mut Errors) {
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
                errors.invalid(field.child("image"), image, detail);
            }
        }
    }
}

fn validate_ips(new: &Value, old: &Value, key: &str, errors: &mut Errors) {
    let ips: Vec<&str> =
        list(new, &["status", key]).iter().map(|entry| text(entry, &["ip"])).collect();
    let before = list(old, &["status", key]);
    for (index, ip) in ips.iter().enumerate() {
        let known = before.iter().any(|entry| text(entry, &["ip"]) == *ip);
        if !known && ip.parse::<std::net::IpAddr>().is_err() {
            let detail = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
            errors.invalid(format!("status.{key}[{index}]"), ip, detail);
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

/// Pods tolerate a failing node for five minutes by default.
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
    push(pod, &["spec", "tolerations"], toleration);
}

/// A bound pod has the zone and region labels of its node.
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
