//! Deployments: which ReplicaSets must exist, and their sizes. Pure.
//!
//! The steps are those of Kubernetes, with one stricter rule: a rollout waits until each of its
//! ReplicaSets has acted on its new size. Until then the status may count Pods that are about to be
//! deleted, and a step could violate maxSurge or maxUnavailable.

mod revision;
mod rolling;
mod scale;
mod status;
#[cfg(test)]
mod tests;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use nearhop_runtime::client::EventType;
use serde_json::json;

use crate::action::{Action, Deletion, Plan};
use crate::claim;
use crate::kind::Kind;
use crate::object::{self, Round, scaled};
use crate::pod;

pub(crate) const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
pub(crate) const MAX: &str = "deployment.kubernetes.io/max-replicas";
pub(crate) const TEMPLATE_HASH: &str = "pod-template-hash";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Strategy {
    RollingUpdate,
    Recreate,
}

/// A Deployment with its own ReplicaSets.
struct Rollout<'a> {
    deployment: &'a Deployment,
    strategy: Strategy,
    replicas: i32,
    max_surge: i32,
    max_unavailable: i32,
    /// The set with the Deployment's template.
    new: Option<&'a ReplicaSet>,
    /// The other sets, oldest first.
    old: Vec<&'a ReplicaSet>,
    /// Names of ReplicaSets in the namespace.
    taken: Vec<&'a str>,
    now: Timestamp,
}

/// Plans a Deployment, given the ReplicaSets and Pods of its namespace.
#[must_use]
pub(crate) fn plan_rollout(
    deployment: &Deployment,
    sets: &[&ReplicaSet],
    pods: &[&Pod],
    now: Timestamp,
) -> Plan {
    let Some(spec) = &deployment.spec else { return Plan::default() };
    let (owner, all) = ((Kind::Deployment, &deployment.metadata), sets.iter().copied());
    let own = match claim::resolve(&spec.selector, owner, Kind::ReplicaSet, all) {
        Ok(own) => own,
        Err(changes) => return changes,
    };
    let mut rollout = Rollout::new(deployment, own, now);
    rollout.taken = sets.iter().map(|set| object::name(&set.metadata)).collect();
    if object::is_deleting(&deployment.metadata) {
        return rollout.with_status(Plan::default(), status::Progress::Untouched);
    }
    if let Some(first) = revision::sync(&rollout) {
        return first.into();
    }
    if deployment.spec.as_ref().and_then(|spec| spec.paused) == Some(true) {
        let mut plan = Plan::default();
        plan.then(scale::proportional(&rollout));
        plan.then(rollout.cleanup());
        return rollout.with_status(plan, status::Progress::Untouched);
    }
    if scale::is_needed(&rollout) {
        let mut plan = Plan::default();
        plan.then(scale::proportional(&rollout));
        return rollout.with_status(plan, status::Progress::Untouched);
    }
    match rollout.strategy {
        Strategy::RollingUpdate => rollout.roll(),
        Strategy::Recreate => rollout.recreate(pods),
    }
}

impl<'a> Rollout<'a> {
    fn new(deployment: &'a Deployment, mut sets: Vec<&'a ReplicaSet>, now: Timestamp) -> Self {
        sets.sort_by_key(|set| {
            (set.metadata.creation_timestamp.clone(), object::name(&set.metadata))
        });
        let spec = deployment.spec.as_ref();
        let replicas = spec.and_then(|spec| spec.replicas).unwrap_or(1);
        let strategy = spec.and_then(|spec| spec.strategy.as_ref());
        let kind = match strategy.and_then(|strategy| strategy.type_.as_deref()) {
            Some("Recreate") => Strategy::Recreate,
            _ => Strategy::RollingUpdate,
        };
        let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
        let (max_surge, max_unavailable) = match kind {
            Strategy::Recreate => (0, 0),
            Strategy::RollingUpdate => resolve_bounds(
                rolling.and_then(|rolling| rolling.max_surge.as_ref()),
                rolling.and_then(|rolling| rolling.max_unavailable.as_ref()),
                replicas,
            ),
        };
        let new = spec.and_then(|spec| revision::find_new(&spec.template, &sets));
        let uid = |set: &ReplicaSet| object::uid(&set.metadata).to_owned();
        sets.retain(|set| new.is_none_or(|new| uid(new) != uid(set)));
        Self {
            deployment,
            strategy: kind,
            replicas,
            max_surge,
            max_unavailable,
            new,
            old: sets,
            taken: Vec::new(),
            now,
        }
    }

    fn all(&self) -> impl Iterator<Item = &'a ReplicaSet> {
        self.old.iter().copied().chain(self.new)
    }

    fn min_available(&self) -> i32 {
        self.replicas.saturating_sub(self.max_unavailable)
    }

    fn most(&self) -> i32 {
        self.replicas.saturating_add(self.max_surge)
    }

    /// The largest size of a set within maxSurge. `None` if unknown, because another set may still
    /// have surplus Pods.
    fn room_for(&self, set: Option<&ReplicaSet>) -> Option<i32> {
        let uid = set.map(|set| object::uid(&set.metadata));
        let mut others = self.all().filter(|other| uid != Some(object::uid(&other.metadata)));
        let taken = others
            .try_fold(0_i32, |sum, set| is_settled(set).then(|| sum.saturating_add(wanted(set))))?;
        Some(self.most().saturating_sub(taken))
    }

    fn roll(&self) -> Plan {
        let Some(new) = self.new else { return self.create_new(self.room_for(None).unwrap_or(0)) };
        let mut plan = Plan::default();
        if !self.all().all(is_settled) {
            // Their statuses are outdated.
        } else if let Some(count) = rolling::scale_new(self, new) {
            plan.then(self.resize(new, count));
        } else {
            let down = rolling::scale_old(self, new);
            plan.then(down.iter().flat_map(|(set, count)| self.resize(set, *count)));
        }
        if plan.stages.is_empty() && status::is_complete(self, self.deployment.status.as_ref()) {
            plan.then(self.cleanup());
        }
        self.with_status(plan, status::Progress::Estimated)
    }

    fn recreate(&self, pods: &[&Pod]) -> Plan {
        let mut plan = Plan::default();
        let large = self.old.iter().filter(|set| wanted(set) > 0);
        plan.then(large.flat_map(|set| self.resize(set, 0)));
        if !plan.stages.is_empty() || self.old_pods_run(pods) {
            return self.with_status(plan, status::Progress::Estimated);
        }
        let Some(new) = self.new else { return self.create_new(self.replicas) };
        if wanted(new) != self.replicas {
            plan.then(self.resize(new, self.replicas));
        } else if status::is_complete(self, self.deployment.status.as_ref()) {
            plan.then(self.cleanup());
        }
        self.with_status(plan, status::Progress::Estimated)
    }

    /// Whether a Pod of an old set may still run, even if it is terminating.
    fn old_pods_run(&self, pods: &[&Pod]) -> bool {
        let of_old = |pod: &&&Pod| {
            let owner = object::controller_of(&pod.metadata);
            owner.is_some_and(|owner| {
                self.old.iter().any(|set| object::uid(&set.metadata) == owner.uid)
            })
        };
        self.old.iter().any(|set| actual(set) > 0 || !is_settled(set))
            || pods.iter().filter(of_old).any(|pod| !pod::is_terminal(pod))
    }

    fn create_new(&self, room: i32) -> Plan {
        let count = room.clamp(0, self.replicas.max(0));
        let set = revision::new_set(self, count);
        let name = object::name(&set.metadata).to_owned();
        if self.taken.contains(&name.as_str()) {
            // A hash collision or a foreign set; the next collision count yields another name.
            return status::count_collision(self.deployment).into();
        }
        let mut plan = Plan::from(Action::Create(set.into()));
        if count > 0 {
            plan.then([self.scaling_event("up", &name, 0, count)]);
        }
        self.with_status(plan, status::Progress::Created(name))
    }

    /// Scales a set, unless it already has the size and the annotations.
    fn resize(&self, set: &ReplicaSet, count: i32) -> Vec<Action> {
        let before = wanted(set);
        let annotated = revision::replicas_annotations(self);
        let known = |(key, value): (&String, &serde_json::Value)| {
            object::annotation(&set.metadata, key) == value.as_str()
        };
        let is_annotated = annotated.as_object().is_some_and(|all| all.iter().all(known));
        if before == count && is_annotated {
            return Vec::new();
        }
        let body = json!({
            "metadata": { "annotations": annotated },
            "spec": { "replicas": count },
        });
        let mut actions = vec![Action::patch(Kind::ReplicaSet, &set.metadata, body)];
        if before != count {
            let way = if before < count { "up" } else { "down" };
            let name = object::name(&set.metadata);
            actions.push(self.scaling_event(way, name, before, count));
        }
        actions
    }

    fn scaling_event(&self, way: &str, set: &str, from: i32, to: i32) -> Action {
        let message = format!("Scaled {way} replica set {set} from {from} to {to}");
        let (meta, by) = (&self.deployment.metadata, "deployment-controller");
        Action::event(Kind::Deployment, meta, by, EventType::Normal, "ScalingReplicaSet", message)
    }

    /// Deletes old sets beyond revisionHistoryLimit.
    fn cleanup(&self) -> Vec<Action> {
        let limit = self.deployment.spec.as_ref().and_then(|spec| spec.revision_history_limit);
        let Some(limit) = limit.and_then(|limit| usize::try_from(limit).ok()) else {
            return Vec::new();
        };
        let alive = |set: &&ReplicaSet| !object::is_deleting(&set.metadata);
        let mut sets: Vec<&ReplicaSet> = self.old.iter().copied().filter(alive).collect();
        // The sort is stable: sets of the same revision stay oldest first.
        sets.sort_by_key(|set| revision::of(&set.metadata));
        let surplus = sets.len().saturating_sub(limit);
        let idle = |set: &&&ReplicaSet| wanted(set) == 0 && actual(set) == 0 && is_settled(set);
        let delete =
            |set: &&ReplicaSet| Action::delete(Kind::ReplicaSet, &set.metadata, Deletion::Graceful);
        sets[..surplus].iter().filter(idle).map(delete).collect()
    }

    fn with_status(&self, mut plan: Plan, progress: status::Progress) -> Plan {
        status::write(self, &mut plan, &progress);
        plan
    }
}

/// `spec.replicas` of a set.
fn wanted(set: &ReplicaSet) -> i32 {
    set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

/// `status.replicas` of a set.
fn actual(set: &ReplicaSet) -> i32 {
    set.status.as_ref().map_or(0, |status| status.replicas)
}

/// Whether a set has acted on its current size.
fn is_settled(set: &ReplicaSet) -> bool {
    let observed = set.status.as_ref().and_then(|status| status.observed_generation);
    observed >= set.metadata.generation
}

/// How many available Pods of a set remain after it has scaled.
fn available(set: &ReplicaSet) -> i32 {
    let available = set.status.as_ref().and_then(|status| status.available_replicas);
    available.unwrap_or(0).min(wanted(set))
}

/// maxSurge and maxUnavailable as numbers. With both zero a rollout would never finish.
fn resolve_bounds(
    surge: Option<&IntOrString>,
    unavailable: Option<&IntOrString>,
    replicas: i32,
) -> (i32, i32) {
    let quarter = IntOrString::String("25%".to_owned());
    let surge = scaled(surge.unwrap_or(&quarter), replicas, Round::Up).max(0);
    let unavailable = scaled(unavailable.unwrap_or(&quarter), replicas, Round::Down).max(0);
    let unavailable = if surge == 0 && unavailable == 0 { 1 } else { unavailable };
    (surge, unavailable.min(replicas))
}
