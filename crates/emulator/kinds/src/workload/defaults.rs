//! Defaults of workloads.

use serde_json::{Map, Value, json};

use super::{CRON_JOB_TEMPLATE, TEMPLATE, TEMPLATE_GENERATION};
use crate::json::{at, fill, make, object, text};
use crate::pod::default_template;

pub(crate) fn default_deployment(deployment: &mut Value) {
    default_template(deployment, TEMPLATE);
    let spec = make(deployment, &["spec"]);
    fill(spec, "replicas", 1);
    let strategy = make(spec, &["strategy"]);
    fill(strategy, "type", "RollingUpdate");
    if text(strategy, &["type"]) == "RollingUpdate" {
        let rolling = make(strategy, &["rollingUpdate"]);
        fill(rolling, "maxUnavailable", "25%");
        fill(rolling, "maxSurge", "25%");
    }
    fill(spec, "revisionHistoryLimit", 10);
    fill(spec, "progressDeadlineSeconds", 600);
}

pub(crate) fn default_replica_set(set: &mut Value) {
    default_template(set, TEMPLATE);
    fill(make(set, &["spec"]), "replicas", 1);
}

pub(crate) fn default_daemon_set(daemon_set: &mut Value) {
    default_template(daemon_set, TEMPLATE);
    let spec = make(daemon_set, &["spec"]);
    let strategy = make(spec, &["updateStrategy"]);
    fill(strategy, "type", "RollingUpdate");
    if text(strategy, &["type"]) == "RollingUpdate" {
        let rolling = make(strategy, &["rollingUpdate"]);
        fill(rolling, "maxUnavailable", 1);
        fill(rolling, "maxSurge", 0);
    }
    fill(spec, "revisionHistoryLimit", 10);
    fill(make(daemon_set, &["metadata", "annotations"]), TEMPLATE_GENERATION, "0");
}

pub(crate) fn default_stateful_set(set: &mut Value) {
    default_template(set, TEMPLATE);
    let spec = make(set, &["spec"]);
    fill(spec, "podManagementPolicy", "OrderedReady");
    let strategy = make(spec, &["updateStrategy"]);
    if text(strategy, &["type"]).is_empty() {
        fill(strategy, "type", "RollingUpdate");
        fill(strategy, "rollingUpdate", Map::new());
    }
    if text(strategy, &["type"]) == "RollingUpdate" && at(strategy, &["rollingUpdate"]).is_some() {
        fill(make(strategy, &["rollingUpdate"]), "partition", 0);
    }
    let retention = make(spec, &["persistentVolumeClaimRetentionPolicy"]);
    fill(retention, "whenDeleted", "Retain");
    fill(retention, "whenScaled", "Retain");
    fill(spec, "replicas", 1);
    fill(spec, "revisionHistoryLimit", 10);
    for claim in crate::json::list_mut(spec, &["volumeClaimTemplates"]) {
        fill(make(claim, &["spec"]), "volumeMode", "Filesystem");
        fill(make(claim, &["status"]), "phase", "Pending");
    }
}

/// Selector and labels default to the template's labels.
pub(crate) fn default_replication_controller(controller: &mut Value) {
    default_template(controller, TEMPLATE);
    fill(make(controller, &["spec"]), "replicas", 1);
    let labels = at(controller, &["spec", "template", "metadata", "labels"]).cloned();
    let Some(labels) = labels else { return };
    for path in [["spec", "selector"], ["metadata", "labels"]] {
        fill_map(controller, &path, &labels);
    }
}

pub(crate) fn default_job(job: &mut Value) {
    default_template(job, TEMPLATE);
    let spec = make(job, &["spec"]);
    if at(spec, &["completions"]).is_none() && at(spec, &["parallelism"]).is_none() {
        object(spec).insert("completions".to_owned(), json!(1));
    }
    fill(spec, "parallelism", 1);
    let limit = if at(spec, &["backoffLimitPerIndex"]).is_some() { i32::MAX } else { 6 };
    fill(spec, "backoffLimit", limit);
    fill(spec, "completionMode", "NonIndexed");
    fill(spec, "suspend", false);
    let failed = at(spec, &["podFailurePolicy"]).is_some();
    let replacement = if failed { "Failed" } else { "TerminatingOrFailed" };
    fill(spec, "podReplacementPolicy", replacement);
    fill(spec, "manualSelector", false);
    let labels = at(job, &["spec", "template", "metadata", "labels"]).cloned();
    if let Some(labels) = labels {
        fill_map(job, &["metadata", "labels"], &labels);
    }
}

pub(crate) fn default_cron_job(cron_job: &mut Value) {
    default_template(cron_job, CRON_JOB_TEMPLATE);
    let spec = make(cron_job, &["spec"]);
    fill(spec, "concurrencyPolicy", "Allow");
    fill(spec, "suspend", false);
    fill(spec, "successfulJobsHistoryLimit", 3);
    fill(spec, "failedJobsHistoryLimit", 1);
    object(make(spec, &["jobTemplate"])).entry("metadata").or_insert_with(|| json!({}));
}

/// Sets a map that is absent or empty.
fn fill_map(holder: &mut Value, path: &[&str], with: &Value) {
    let known = at(holder, path).and_then(Value::as_object);
    if known.is_none_or(Map::is_empty) {
        *make(holder, path) = with.clone();
    }
}
