//! Job and CronJob: the generated selector, and validation.

use serde_json::Value;

use crate::errors::{Errors, Report as _};
use crate::json::{Path, at, fill, is_true, make, text};
use crate::names;
use crate::pod::{not_negative, validate_template};

const COUNTS: [&str; 7] = [
    "parallelism",
    "completions",
    "activeDeadlineSeconds",
    "backoffLimit",
    "ttlSecondsAfterFinished",
    "backoffLimitPerIndex",
    "maxFailedIndexes",
];
const FIXED: [&str; 6] = [
    "selector",
    "completionMode",
    "podFailurePolicy",
    "backoffLimitPerIndex",
    "managedBy",
    "successPolicy",
];

/// A Job without manualSelector selects its pods by its uid, which must be set.
pub(crate) fn prepare_create(job: &mut Value) {
    if is_true(job, &["spec", "manualSelector"]) {
        return;
    }
    let name = text(job, &["metadata", "name"]).to_owned();
    let uid = text(job, &["metadata", "uid"]).to_owned();
    let labels = make(job, &["spec", "template", "metadata", "labels"]);
    for key in ["job-name", "batch.kubernetes.io/job-name"] {
        fill(labels, key, name.as_str());
    }
    for key in ["controller-uid", "batch.kubernetes.io/controller-uid"] {
        fill(labels, key, uid.as_str());
    }
    let selected = make(job, &["spec", "selector", "matchLabels"]);
    fill(selected, "batch.kubernetes.io/controller-uid", uid);
}

pub(crate) fn validate_job(job: &Value, old: Option<&Value>) -> Errors {
    let mut errors = Vec::new();
    let path = Path::root("spec");
    validate_spec(job.get("spec").unwrap_or(&Value::Null), &path, &mut errors);
    let Some(old) = old else { return errors };
    for key in FIXED {
        errors.immutable(path.child(key), at(job, &["spec", key]), at(old, &["spec", key]));
    }
    errors
}

pub(crate) fn validate_cron_job(cron_job: &Value) -> Errors {
    let mut errors = Vec::new();
    let path = Path::root("spec");
    let spec = cron_job.get("spec").unwrap_or(&Value::Null);
    let name = text(cron_job, &["metadata", "name"]);
    if name.len() > 52 {
        errors.invalid("metadata.name", name, "must be no more than 52 characters");
    }
    if text(spec, &["schedule"]).is_empty() {
        errors.required(path.child("schedule"), "");
    }
    not_negative(spec, "startingDeadlineSeconds", &path, &mut errors);
    let policy = text(spec, &["concurrencyPolicy"]);
    let supported = ["Allow", "Forbid", "Replace"];
    errors.supported(path.child("concurrencyPolicy"), policy, &supported);
    let template = path.child("jobTemplate");
    let job = at(spec, &["jobTemplate", "spec"]).unwrap_or(&Value::Null);
    validate_spec(job, &template.child("spec"), &mut errors);
    for key in ["successfulJobsHistoryLimit", "failedJobsHistoryLimit"] {
        not_negative(spec, key, &path, &mut errors);
    }
    errors
}

fn validate_spec(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    for key in COUNTS {
        not_negative(spec, key, path, errors);
    }
    if let Some(manager) = at(spec, &["managedBy"]).and_then(Value::as_str)
        && names::qualified_name(manager).is_empty()
        && !manager.contains('/')
    {
        let detail = "must be a domain-prefixed path (such as \"acme.io/foo\")";
        errors.invalid(path.child("managedBy"), manager, detail);
    }
    if let Some(mode) = at(spec, &["completionMode"]).and_then(Value::as_str) {
        let supported = ["NonIndexed", "Indexed"];
        errors.supported(path.child("completionMode"), mode, &supported);
        if mode == "Indexed" && at(spec, &["completions"]).is_none() {
            errors.required(path.child("completions"), "when completion mode is Indexed");
        }
    }
    let template = path.child("template");
    let object = at(spec, &["template"]).unwrap_or(&Value::Null);
    validate_template(object, &template, errors);
    let pod = template.child("spec");
    let field = pod.child("restartPolicy");
    match text(object, &["spec", "restartPolicy"]) {
        "" | "Always" => errors.required(field, "valid values: \"OnFailure\", \"Never\""),
        other => errors.supported(field, other, &["OnFailure", "Never"]),
    }
}
