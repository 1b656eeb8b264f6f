//! The status of a Deployment: counts, and the conditions Available and Progressing, which `kubectl
//! rollout status` reads. Pure.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::{
    Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet, ReplicaSetStatus,
};

use super::{Rollout, wanted};
use crate::action::{Action, Plan};
use crate::object::{self, time, unless_zero};

const AVAILABLE: &str = "NewReplicaSetAvailable";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";
const PAUSED: &str = "DeploymentPaused";

/// How a plan affects the condition Progressing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// No rollout step: scaled, paused or deleted.
    Untouched,
    /// A rollout is in progress or complete.
    Estimated,
    /// The plan creates the ReplicaSet of this name.
    Created(String),
}

/// Adds the status update to a plan, if the status changes.
pub(super) fn write(rollout: &Rollout<'_>, plan: &mut Plan, progress: &Progress) {
    let deployment = rollout.deployment;
    let old = deployment.status.clone().unwrap_or_default();
    let mut status = count(rollout, &old);
    set_available(rollout, &mut status);
    set_progressing(rollout, &old, &mut status, progress);
    copy_failures(rollout, &mut status);
    // Without a rollout the deadline has no effect, and a requeue would repeat for ever.
    if *progress != Progress::Untouched
        && let Some(rest) = deadline(rollout, &status)
    {
        plan.requeue_within(rest);
    }
    if status != old {
        let written = Deployment { status: Some(status), ..deployment.clone() };
        plan.then([Action::PutStatus(written.into())]);
    }
}

/// Increments the collision count, which changes the name of the next ReplicaSet.
pub(super) fn count_collision(deployment: &Deployment) -> Action {
    let mut written = deployment.clone();
    let status = written.status.get_or_insert_default();
    status.collision_count = Some(status.collision_count.unwrap_or(0).saturating_add(1));
    Action::PutStatus(written.into())
}

/// Whether all replicas are updated and available.
pub(super) fn is_complete(rollout: &Rollout<'_>, status: Option<&DeploymentStatus>) -> bool {
    let Some(status) = status else { return false };
    let all = |count: Option<i32>| count.unwrap_or(0) == rollout.replicas;
    all(status.updated_replicas)
        && all(status.replicas)
        && all(status.available_replicas)
        && status.observed_generation >= rollout.deployment.metadata.generation
}

fn count(rollout: &Rollout<'_>, old: &DeploymentStatus) -> DeploymentStatus {
    let sum = |of: fn(&ReplicaSetStatus) -> i32| -> i32 {
        object::sum(rollout.all().filter_map(|set| set.status.as_ref()).map(of))
    };
    let available = sum(|status| status.available_replicas.unwrap_or(0));
    let wanted = object::sum(rollout.all().map(wanted));
    let updated = rollout.new.and_then(|new| new.status.as_ref()).map_or(0, |s| s.replicas);
    DeploymentStatus {
        observed_generation: rollout.deployment.metadata.generation,
        replicas: unless_zero(sum(|status| status.replicas)),
        updated_replicas: unless_zero(updated),
        ready_replicas: unless_zero(sum(|status| status.ready_replicas.unwrap_or(0))),
        available_replicas: unless_zero(available),
        unavailable_replicas: unless_zero(wanted.saturating_sub(available).max(0)),
        terminating_replicas: Some(sum(|status| status.terminating_replicas.unwrap_or(0))),
        collision_count: old.collision_count,
        conditions: old.conditions.clone(),
    }
}

fn set_available(rollout: &Rollout<'_>, status: &mut DeploymentStatus) {
    let enough = status.available_replicas.unwrap_or(0) >= rollout.min_available();
    let (is, reason, message) = if enough {
        ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
    } else {
        ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
    };
    set(status, rollout.now, "Available", is, reason, message.to_owned());
}

fn set_progressing(
    rollout: &Rollout<'_>,
    old: &DeploymentStatus,
    status: &mut DeploymentStatus,
    progress: &Progress,
) {
    let spec = rollout.deployment.spec.as_ref();
    if !has_deadline(rollout) {
        remove(status, "Progressing");
        return;
    }
    let now = rollout.now;
    let reason = find(old, "Progressing").and_then(|found| found.reason.clone());
    let reason = reason.as_deref();
    let paused = spec.and_then(|spec| spec.paused) == Some(true);
    if paused != (reason == Some(PAUSED)) && reason != Some(TIMED_OUT) {
        let (why, text) = if paused {
            (PAUSED, "Deployment is paused")
        } else {
            ("DeploymentResumed", "Deployment is resumed")
        };
        if paused || reason == Some(PAUSED) {
            set(status, now, "Progressing", "Unknown", why, text.to_owned());
        }
    }
    match progress {
        Progress::Untouched => {}
        Progress::Created(name) => {
            let text = format!("Created new replica set \"{name}\"");
            set(status, now, "Progressing", "True", "NewReplicaSetCreated", text);
        }
        Progress::Estimated => estimate(rollout, old, status, reason),
    }
}

fn estimate(
    rollout: &Rollout<'_>,
    old: &DeploymentStatus,
    status: &mut DeploymentStatus,
    reason: Option<&str>,
) {
    if status.replicas == status.updated_replicas && reason == Some(AVAILABLE) {
        return;
    }
    let now = rollout.now;
    let subject = match rollout.new {
        Some(new) => format!("ReplicaSet \"{}\"", object::name(&new.metadata)),
        None => format!("Deployment \"{}\"", object::name(&rollout.deployment.metadata)),
    };
    if is_complete(rollout, Some(status)) {
        let text = format!("{subject} has successfully progressed.");
        set(status, now, "Progressing", "True", AVAILABLE, text);
    } else if has_progressed(old, status) {
        let since = find(status, "Progressing").filter(|found| found.status == "True");
        let since = since.and_then(|found| found.last_transition_time.clone());
        // Progress restarts the deadline even if status and reason are the same.
        remove(status, "Progressing");
        let text = format!("{subject} is progressing.");
        set(status, now, "Progressing", "True", "ReplicaSetUpdated", text);
        if let (Some(since), Some(found)) = (since, find_mut(status, "Progressing")) {
            found.last_transition_time = Some(since);
        }
    } else if find(status, "Progressing").is_none() {
        let text = format!("Found new replica set of {subject}");
        set(status, now, "Progressing", "True", "FoundNewReplicaSet", text);
    } else if deadline(rollout, status) == Some(Duration::ZERO) {
        let text = format!("{subject} has timed out progressing.");
        set(status, now, "Progressing", "False", TIMED_OUT, text);
    }
}

fn has_progressed(old: &DeploymentStatus, new: &DeploymentStatus) -> bool {
    let outdated = |status: &DeploymentStatus| {
        status.replicas.unwrap_or(0).saturating_sub(status.updated_replicas.unwrap_or(0))
    };
    new.updated_replicas > old.updated_replicas
        || outdated(new) < outdated(old)
        || new.ready_replicas > old.ready_replicas
        || new.available_replicas > old.available_replicas
}

fn has_deadline(rollout: &Rollout<'_>) -> bool {
    let spec = rollout.deployment.spec.as_ref();
    let deadline = spec.and_then(|spec| spec.progress_deadline_seconds).unwrap_or(600);
    deadline != i32::MAX
}

/// The time left until the progress deadline; `None` without a rollout or a deadline.
fn deadline(rollout: &Rollout<'_>, status: &DeploymentStatus) -> Option<Duration> {
    let spec = rollout.deployment.spec.as_ref();
    let seconds = spec.and_then(|spec| spec.progress_deadline_seconds).unwrap_or(600);
    let found = find(status, "Progressing").filter(|_| has_deadline(rollout))?;
    let reason = found.reason.as_deref().unwrap_or_default();
    if [AVAILABLE, TIMED_OUT, PAUSED].contains(&reason) {
        return None;
    }
    let from = found.last_update_time.as_ref()?.0;
    let stood = rollout.now.duration_since(from);
    let rest = SignedDuration::from_secs(i64::from(seconds)) - stood;
    Some(Duration::try_from(rest).unwrap_or(Duration::ZERO))
}

/// Copies the ReplicaFailure condition of a ReplicaSet.
fn copy_failures(rollout: &Rollout<'_>, status: &mut DeploymentStatus) {
    let failure = |set: &ReplicaSet| {
        let all = set.status.as_ref().and_then(|status| status.conditions.as_ref());
        all.into_iter().flatten().find(|found| found.type_ == "ReplicaFailure").cloned()
    };
    let newest_first = rollout.new.into_iter().chain(rollout.old.iter().rev().copied());
    let Some(found) = newest_first.filter_map(failure).next() else {
        remove(status, "ReplicaFailure");
        return;
    };
    let reason = found.reason.unwrap_or_default();
    let text = found.message.unwrap_or_default();
    set(status, rollout.now, "ReplicaFailure", &found.status, &reason, text);
}

fn find<'a>(status: &'a DeploymentStatus, kind: &str) -> Option<&'a DeploymentCondition> {
    status.conditions.iter().flatten().find(|found| found.type_ == kind)
}

fn find_mut<'a>(
    status: &'a mut DeploymentStatus,
    kind: &str,
) -> Option<&'a mut DeploymentCondition> {
    status.conditions.iter_mut().flatten().find(|found| found.type_ == kind)
}

fn remove(status: &mut DeploymentStatus, kind: &str) {
    if let Some(all) = &mut status.conditions {
        all.retain(|found| found.type_ != kind);
    }
}

/// Sets a condition, unless it already has this status and reason.
fn set(
    status: &mut DeploymentStatus,
    now: Timestamp,
    kind: &str,
    is: &str,
    reason: &str,
    message: String,
) {
    let old = find(status, kind);
    if old.is_some_and(|old| old.status == is && old.reason.as_deref() == Some(reason)) {
        return;
    }
    let since = old.filter(|old| old.status == is).and_then(|old| old.last_transition_time.clone());
    let condition = DeploymentCondition {
        type_: kind.to_owned(),
        status: is.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_update_time: Some(time(now)),
        last_transition_time: since.or_else(|| Some(time(now))),
    };
    remove(status, kind);
    status.conditions.get_or_insert_default().push(condition);
}
