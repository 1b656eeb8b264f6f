//! The kinds that hold a template of pods: Deployment, ReplicaSet, DaemonSet, StatefulSet, Job,
//! CronJob, ReplicationController and PodTemplate.

mod defaults;
mod job;
mod rollout;

use nearhop_object::{FieldError, FieldErrorKind, LabelSelector};
use serde_json::{Value, json};

use crate::errors::{Errors, Report as _};
use crate::json::{Path, at, carry, int, list, make, text};
use crate::metadata::{ordered, validate_labels};
use crate::names;
use crate::pod::{self, not_negative, validate_template};

pub(crate) use defaults::{
    default_cron_job, default_daemon_set, default_deployment, default_job, default_replica_set,
    default_replication_controller, default_stateful_set,
};
pub(crate) use job::{prepare_create as prepare_job, validate_cron_job, validate_job};

/// Where a CronJob has its template.
pub(crate) const CRON_JOB_TEMPLATE: &[&str] = &["spec", "jobTemplate", "spec", "template"];
const TEMPLATE: &[&str] = &["spec", "template"];
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

/// A kind that keeps pods running by a selector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    Deployment,
    ReplicaSet,
    DaemonSet,
    StatefulSet,
    ReplicationController,
}

impl Workload {
    fn name(self) -> &'static str {
        match self {
            // A Deployment's messages name its ReplicaSet.
            Self::Deployment | Self::ReplicaSet => "ReplicaSet",
            Self::DaemonSet => "DaemonSet",
            Self::StatefulSet => "StatefulSet",
            Self::ReplicationController => "ReplicationController",
        }
    }
}

/// Sets the template generation of a new DaemonSet.
pub(crate) fn prepare_daemon_set(daemon_set: &mut Value) {
    if template_generation(daemon_set) < 1 {
        set_template_generation(daemon_set, 1);
    }
}

/// Moves the template generation of a DaemonSet with its template.
pub(crate) fn update_daemon_set(new: &mut Value, old: &Value) {
    let before = template_generation(old);
    let changed = at(new, &["spec", "template"]) != at(old, &["spec", "template"]);
    let now = before.saturating_add(i64::from(changed));
    if template_generation(new) != now {
        set_template_generation(new, now);
    }
}

fn template_generation(daemon_set: &Value) -> i64 {
    let text = text(daemon_set, &["metadata", "annotations", TEMPLATE_GENERATION]);
    text.parse().unwrap_or_default()
}

fn set_template_generation(daemon_set: &mut Value, generation: i64) {
    *make(daemon_set, &["metadata", "annotations", TEMPLATE_GENERATION]) =
        json!(generation.to_string());
}

/// The status of a new DaemonSet.
pub(crate) fn daemon_set_status() -> Value {
    json!({
        "currentNumberScheduled": 0, "numberMisscheduled": 0,
        "desiredNumberScheduled": 0, "numberReady": 0,
    })
}

/// Validates a workload, and what an update may change.
pub(crate) fn validate(object: &Value, old: Option<&Value>, workload: Workload) -> Errors {
    let mut errors = Vec::new();
    let spec = object.get("spec").unwrap_or(&Value::Null);
    let path = Path::root("spec");
    if workload == Workload::StatefulSet {
        rollout::validate_stateful_set(spec, &path, &mut errors);
    }
    for key in ["replicas", "minReadySeconds"] {
        not_negative(spec, key, &path, &mut errors);
    }
    validate_selector(spec, workload, &path, &mut errors);
    match workload {
        Workload::Deployment => rollout::validate_deployment(spec, &path, &mut errors),
        Workload::DaemonSet => rollout::validate_daemon_set(spec, &path, &mut errors),
        _ => {}
    }
    match (workload, old) {
        (Workload::ReplicationController, _) | (_, None) => {}
        (Workload::StatefulSet, Some(old)) => {
            validate_stateful_set_update(object, old, &mut errors);
        }
        (_, Some(old)) => immutable_selector(object, old, &mut errors),
    }
    errors
}

/// Validates a status: no count is negative or larger than the total.
pub(crate) fn validate_status(object: &Value) -> Errors {
    let mut errors = Vec::new();
    let path = Path::root("status");
    let status = object.get("status").unwrap_or(&Value::Null);
    for (key, value) in crate::json::entries(object, &["status"]) {
        if value.as_i64().is_some_and(|value| value < 0) {
            not_negative(status, key, &path, &mut errors);
        }
    }
    let Some(replicas) = int(status, &["replicas"]) else { return errors };
    let parts = [
        "fullyLabeledReplicas",
        "updatedReplicas",
        "readyReplicas",
        "currentReplicas",
        "availableReplicas",
    ];
    for key in parts {
        if let Some(value) = int(status, &[key]).filter(|value| *value > replicas) {
            errors.invalid(path.child(key), value, "cannot be greater than status.replicas");
        }
    }
    let ready = int(status, &["readyReplicas"]).unwrap_or_default();
    if let Some(value) = int(status, &["availableReplicas"]).filter(|value| *value > ready) {
        let detail = "cannot be greater than readyReplicas";
        errors.invalid(path.child("availableReplicas"), value, detail);
    }
    errors
}

/// The warnings about a Deployment or ReplicaSet: its name when it is new, and its template.
pub(crate) fn warnings_with_name(object: &Value, old: Option<&Value>) -> Vec<String> {
    let complaints = names::dns1123_label(text(object, &["metadata", "name"]));
    let mut warnings = Vec::new();
    if old.is_none() && !complaints.is_empty() {
        warnings.push(format!(
            "metadata.name: this is used in Pod names and hostnames, which can result in \
             surprising behavior; a DNS label is recommended: [{}]",
            complaints.join(" ")
        ));
    }
    warnings.extend(template_warnings(object, old, TEMPLATE));
    warnings
}

/// The warnings about the template of an object that is new, or whose spec has changed. `place` is
/// the path of the template.
pub(crate) fn template_warnings(
    object: &Value,
    old: Option<&Value>,
    place: &[&str],
) -> Vec<String> {
    let generation = |object| int(object, &["metadata", "generation"]);
    if old.is_some_and(|old| generation(old) == generation(object)) {
        return Vec::new();
    }
    let template = at(object, place).unwrap_or(&Value::Null);
    pod::template_warnings(template, &format!("{}.", place.join(".")))
}

/// The selector is required, and must match the template's labels.
fn validate_selector(spec: &Value, workload: Workload, path: &Path<'_>, errors: &mut Errors) {
    let field = path.child("selector");
    let selector = match at(spec, &["selector"]) {
        None => {
            if workload != Workload::DaemonSet {
                errors.required(field, "");
            }
            LabelSelector::nothing()
        }
        Some(selector) if workload == Workload::ReplicationController => {
            if selector.as_object().is_none_or(serde_json::Map::is_empty) {
                errors.required(field, "");
            }
            let wrapped = json!({"matchLabels": selector});
            LabelSelector::from_json(&wrapped).unwrap_or_else(|_| LabelSelector::nothing())
        }
        Some(selector) => {
            validate_label_selector(selector, &field, errors);
            if let Some(error) = empty_selector(selector, workload, &field) {
                errors.push(error);
            }
            let Ok(read) = LabelSelector::from_json(selector) else {
                errors.push(invalid_selector(selector, &field, "invalid label selector"));
                return;
            };
            read
        }
    };
    let template = path.child("template");
    let Some(object) = at(spec, &["template"]) else {
        errors.required(template, "");
        return;
    };
    // A missing selector is reported above.
    let missing = at(spec, &["selector"]).is_none() && workload != Workload::DaemonSet;
    if !missing && !selector.matches_object(object) {
        let labels = at(object, &["metadata", "labels"]).unwrap_or(&Value::Null);
        let metadata = template.child("metadata");
        let detail = "`selector` does not match template `labels`";
        errors.invalid(metadata.child("labels"), labels, detail);
    }
    validate_template(object, &template, errors);
    validate_running(object, workload, &template, errors);
}

/// The pods of a workload always restart and have no deadline.
fn validate_running(template: &Value, workload: Workload, path: &Path<'_>, errors: &mut Errors) {
    let path = path.child("spec");
    let policy = text(template, &["spec", "restartPolicy"]);
    if policy != "Always" {
        errors.not_supported(path.child("restartPolicy"), policy, &["Always"]);
    }
    if at(template, &["spec", "activeDeadlineSeconds"]).is_some() {
        let detail = format!("activeDeadlineSeconds in {} is not Supported", workload.name());
        errors.forbidden(path.child("activeDeadlineSeconds"), &detail);
    }
}

/// Checks a `metav1.LabelSelector`.
fn validate_label_selector(selector: &Value, path: &Path<'_>, errors: &mut Errors) {
    validate_labels(selector, &["matchLabels"], &path.child("matchLabels"), errors);
    let expressions = path.child("matchExpressions");
    for (index, expression) in list(selector, &["matchExpressions"]).iter().enumerate() {
        let path = expressions.index(index);
        let values = list(expression, &["values"]);
        let operator = text(expression, &["operator"]);
        match operator {
            "In" | "NotIn" if values.is_empty() => {
                let detail = "must be specified when `operator` is 'In' or 'NotIn'";
                errors.required(path.child("values"), detail);
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.forbidden(path.child("values"), detail);
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            _ => errors.invalid(path.child("operator"), operator, "not a valid selector operator"),
        }
        let key = text(expression, &["key"]);
        errors.invalid_each(path.child("key"), key, names::qualified_name(key));
        let field = path.child("values");
        for (index, value) in values.iter().enumerate() {
            let complaints = names::label_value(value.as_str().unwrap_or_default());
            errors.invalid_each(field.index(index), value, complaints);
        }
    }
}

fn empty_selector(selector: &Value, workload: Workload, path: &Path<'_>) -> Option<FieldError> {
    let labels = at(selector, &["matchLabels"]).and_then(Value::as_object);
    let empty = labels.is_none_or(serde_json::Map::is_empty)
        && list(selector, &["matchExpressions"]).is_empty();
    // Messages of a ReplicaSet say "deployment", too.
    let kind = match workload {
        Workload::StatefulSet => "statefulset",
        Workload::DaemonSet => "daemonset",
        _ => "deployment",
    };
    let detail = format!("empty selector is invalid for {kind}");
    empty.then(|| invalid_selector(selector, path, &detail))
}

/// An error with the selector's keys in the order of Kubernetes.
fn invalid_selector(selector: &Value, path: &Path<'_>, detail: &str) -> FieldError {
    let shown = ordered(selector, &["matchLabels", "matchExpressions"]);
    let message = format!("Invalid value: {shown}: {detail}");
    FieldError::new(FieldErrorKind::Invalid, path, message)
}

fn immutable_selector(new: &Value, old: &Value, errors: &mut Errors) {
    let now = at(new, &["spec", "selector"]);
    if now != at(old, &["spec", "selector"]) {
        let spec = Path::root("spec");
        let now = now.unwrap_or(&Value::Null);
        errors.push(invalid_selector(now, &spec.child("selector"), "field is immutable"));
    }
}

fn validate_stateful_set_update(new: &Value, old: &Value, errors: &mut Errors) {
    let (Some(spec), Some(before)) = (new.get("spec"), old.get("spec")) else { return };
    let mut spec = spec.clone();
    let free = [
        "replicas",
        "ordinals",
        "template",
        "updateStrategy",
        "revisionHistoryLimit",
        "persistentVolumeClaimRetentionPolicy",
        "minReadySeconds",
    ];
    for key in free {
        carry(&mut spec, before, &[key]);
    }
    if &spec != before {
        let detail = "updates to statefulset spec for fields other than 'replicas', 'ordinals', \
                      'template', 'updateStrategy', 'revisionHistoryLimit', \
                      'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";
        errors.forbidden("spec", detail);
    }
}
