//! ReplicaSets: adoption, scaling and status. Pure.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetStatus};
use k8s_openapi::api::core::v1::Pod;

use crate::action::{Action, Deletion, Plan};
use crate::claim;
use crate::kind::Kind;
use crate::object::{self, unless_zero};
use crate::pod::{self, Availability};

/// The most Pods to create or delete at once, to protect the server from a wrong number.
const BURST: usize = 500;

/// Plans a ReplicaSet, given the Pods of its namespace. `related` are the Pods of all ReplicaSets
/// of the same owner: Pods that share a node are deleted first.
#[must_use]
pub(crate) fn plan_replicas(
    set: &ReplicaSet,
    pods: &[&Pod],
    related: &[&Pod],
    now: Timestamp,
) -> Plan {
    let Some(spec) = &set.spec else { return Plan::default() };
    let alive = pods.iter().copied().filter(|pod| !pod::is_terminal(pod));
    let owner = (Kind::ReplicaSet, &set.metadata);
    let own = match claim::resolve(&spec.selector, owner, Kind::Pod, alive) {
        Ok(own) => own,
        Err(changes) => return changes,
    };
    let (active, leaving): (Vec<&Pod>, Vec<&Pod>) =
        own.into_iter().partition(|pod| pod::is_active(pod));
    let mut plan = Plan::default();
    let mut actions = Vec::new();
    if !object::is_deleting(&set.metadata) {
        actions.extend(resize(set, &active, related, now));
    }
    let status = write_status(set, &active, leaving.len(), &mut plan, now);
    if let Some(Action::Delete { .. }) = actions.first() {
        // The status reports the size that the set has acted on. Deployments rely on it, so surplus
        // Pods must be deleted first.
        plan.then(actions);
        plan.then(status);
    } else {
        plan.then(actions.into_iter().chain(status));
    }
    plan
}

fn resize(set: &ReplicaSet, active: &[&Pod], related: &[&Pod], now: Timestamp) -> Vec<Action> {
    let Some(spec) = &set.spec else { return Vec::new() };
    let wanted = usize::try_from(spec.replicas.unwrap_or(1)).unwrap_or(0);
    if active.len() < wanted {
        let Some(template) = &spec.template else { return Vec::new() };
        let owner = object::owned_by("ReplicaSet", &set.metadata);
        let pod = pod::from_template(template, &set.metadata, owner);
        let missing = (wanted - active.len()).min(BURST);
        return (0..missing).map(|_| Action::Create(pod.clone().into())).collect();
    }
    let surplus = (active.len() - wanted).min(BURST);
    let available = |pod: &Pod| pod::is_available(pod, spec.min_ready_seconds.unwrap_or(0), now);
    let ranked = rank(active, related, available);
    let delete = |pod: &Pod| Action::delete(Kind::Pod, &pod.metadata, Deletion::Graceful);
    ranked.into_iter().take(surplus).map(delete).collect()
}

/// Pods in the order of deletion, as in Kubernetes: unassigned, pending, not ready, low deletion
/// cost, sharing a node, ready for a short time, restarted often, young. In addition, unavailable
/// Pods come before available ones, on which a rollout counts.
fn rank<'a>(
    active: &[&'a Pod],
    related: &[&Pod],
    available: impl Fn(&Pod) -> bool,
) -> Vec<&'a Pod> {
    let mut on_node: BTreeMap<&str, usize> = BTreeMap::new();
    for pod in related.iter().filter(|pod| pod::is_active(pod)) {
        *on_node.entry(pod::node(pod)).or_default() += 1;
    }
    let mut ranked = active.to_vec();
    ranked.sort_by_cached_key(|pod| {
        let phase = match pod::phase(pod) {
            "Pending" | "" => 0,
            "Unknown" => 1,
            _ => 2,
        };
        let doubled = on_node.get(pod::node(pod)).copied().unwrap_or(0);
        (
            (!pod::node(pod).is_empty(), phase, pod::is_ready(pod), available(pod)),
            deletion_cost(pod),
            Reverse(doubled),
            Reverse(pod::ready_since(pod)),
            Reverse(restarts(pod)),
            Reverse(pod.metadata.creation_timestamp.clone()),
            object::uid(&pod.metadata).to_owned(),
        )
    });
    ranked
}

fn deletion_cost(pod: &Pod) -> i32 {
    let cost = object::annotation(&pod.metadata, "controller.kubernetes.io/pod-deletion-cost");
    cost.and_then(|cost| cost.parse().ok()).unwrap_or(0)
}

fn restarts(pod: &Pod) -> i32 {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    statuses.into_iter().flatten().map(|status| status.restart_count).max().unwrap_or(0)
}

fn write_status(
    set: &ReplicaSet,
    active: &[&Pod],
    leaving: usize,
    plan: &mut Plan,
    now: Timestamp,
) -> Option<Action> {
    let spec = set.spec.as_ref()?;
    let template = spec.template.as_ref().and_then(|template| template.metadata.as_ref());
    let labels = template.and_then(|meta| meta.labels.clone()).unwrap_or_default();
    let (mut labelled, mut ready, mut available) = (0, 0, 0);
    for pod in active {
        labelled += i32::from(object::has_labels(&pod.metadata, &labels));
        match pod::availability(pod, spec.min_ready_seconds.unwrap_or(0), now) {
            Availability::NotReady => {}
            Availability::In(rest) => {
                ready += 1;
                plan.requeue_within(rest);
            }
            Availability::Available => {
                ready += 1;
                available += 1;
            }
        }
    }
    let count = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    let old = set.status.clone().unwrap_or_default();
    let status = ReplicaSetStatus {
        replicas: count(active.len()),
        fully_labeled_replicas: unless_zero(labelled),
        ready_replicas: unless_zero(ready),
        available_replicas: unless_zero(available),
        terminating_replicas: Some(count(leaving)),
        observed_generation: set.metadata.generation,
        conditions: old.conditions.clone(),
    };
    let written = ReplicaSet { status: Some(status.clone()), ..set.clone() };
    (status != old).then(|| Action::PutStatus(written.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, at};

    fn set(replicas: i32) -> ReplicaSet {
        testing::replica_set("web", replicas)
    }

    fn owned(set: &ReplicaSet, name: &str, node: &str, ready: Option<i64>) -> Pod {
        let mut pod = testing::owned_pod("ReplicaSet", &set.metadata, name, node);
        if let Some(since) = ready {
            testing::set_ready(&mut pod, true, at(since));
        }
        pod
    }

    fn deleted(plan: &Plan) -> Vec<String> {
        let name = |action: &Action| match action {
            Action::Delete { name, .. } => Some(name.name.clone()),
            _ => None,
        };
        plan.actions().filter_map(name).collect()
    }

    fn created(plan: &Plan) -> usize {
        plan.actions().filter(|action| matches!(action, Action::Create(_))).count()
    }

    #[test]
    fn missing_pods_are_created_from_the_template() {
        let set = set(3);
        let pod = owned(&set, "a", "n1", None);
        let plan = plan_replicas(&set, &[&pod], &[&pod], at(0));
        assert_eq!(created(&plan), 2);
        let Some(Action::Create(crate::kind::Object::Pod(made))) = plan.actions().next() else {
            panic!("{plan:?}")
        };
        assert_eq!(made.metadata.generate_name.as_deref(), Some("web-"));
        assert!(object::is_controlled_by(&made.metadata, object::uid(&set.metadata)));
        assert_eq!(object::label(&made.metadata, "app"), Some("web"));
    }

    #[test]
    fn finished_and_terminating_pods_are_replaced_and_not_deleted_again() {
        let set = set(2);
        let mut failed = owned(&set, "failed", "n1", None);
        failed.status.get_or_insert_default().phase = Some("Failed".to_owned());
        let mut ending = owned(&set, "ending", "n1", Some(1));
        ending.metadata.deletion_timestamp = Some(object::time(at(5)));
        let plan = plan_replicas(&set, &[&failed, &ending], &[], at(9));
        assert_eq!((created(&plan), deleted(&plan)), (2, vec![]));
    }

    #[test]
    fn pods_are_deleted_in_kubernetes_order() {
        let set = set(0);
        let pending = owned(&set, "pending", "n1", None);
        let mut running = owned(&set, "running", "n2", None);
        running.status.get_or_insert_default().phase = Some("Running".to_owned());
        let pods = [
            owned(&set, "old", "n1", Some(10)),
            owned(&set, "young", "n2", Some(50)),
            owned(&set, "unassigned", "", None),
            owned(&set, "doubled", "n3", Some(5)),
            running,
            pending,
        ];
        let mut related: Vec<&Pod> = pods.iter().collect();
        let more = [owned(&set, "x", "n3", Some(5)), owned(&set, "y", "n3", Some(5))];
        related.extend(&more);
        let refs: Vec<&Pod> = pods.iter().collect();
        let ranked = rank(&refs, &related, pod::is_ready);
        let order: Vec<&str> = ranked.iter().map(|pod| object::name(&pod.metadata)).collect();
        assert_eq!(order, ["unassigned", "pending", "running", "doubled", "young", "old"]);
    }

    #[test]
    fn deletion_cost_ranks_before_sharing_a_node() {
        let set = set(1);
        let mut cheap = owned(&set, "cheap", "n1", Some(1));
        let cost = [("controller.kubernetes.io/pod-deletion-cost".to_owned(), "-5".to_owned())];
        cheap.metadata.annotations = Some(cost.into());
        let pods = [owned(&set, "a", "n2", Some(9)), owned(&set, "b", "n2", Some(9)), cheap];
        let refs: Vec<&Pod> = pods.iter().collect();
        let ranked = rank(&refs, &refs, pod::is_ready);
        assert_eq!(object::name(&ranked[0].metadata), "cheap");
    }

    #[test]
    fn unavailable_pods_are_deleted_before_available_ones() {
        let set = set(2);
        let pods = [
            owned(&set, "a", "n2", Some(0)),
            owned(&set, "b", "n2", Some(0)),
            owned(&set, "late", "n1", Some(9)),
        ];
        let refs: Vec<&Pod> = pods.iter().collect();
        let ranked = rank(&refs, &refs, |pod| pod::is_available(pod, 5, at(10)));
        assert_eq!(object::name(&ranked[0].metadata), "late");
    }

    #[test]
    fn adoption_and_release_precede_scaling() {
        let set = set(1);
        let mut stray = owned(&set, "stray", "n1", None);
        stray.metadata.owner_references = None;
        let mut runaway = owned(&set, "runaway", "n1", None);
        runaway.metadata.labels = None;
        let plan = plan_replicas(&set, &[&stray, &runaway], &[], at(0));
        let [Action::Adopt(owner, ..), Action::Patch(..)] = &plan.stages[0][..] else {
            panic!("{plan:?}")
        };
        assert_eq!((owner.kind, owner.uid.as_str()), (Kind::ReplicaSet, "uid-web"));
        assert_eq!(plan.stages.len(), 1, "{plan:?}");
    }

    #[test]
    fn the_status_counts_and_requeues_for_min_ready_seconds() {
        let mut set = set(3);
        set.spec.as_mut().unwrap().min_ready_seconds = Some(10);
        set.metadata.generation = Some(4);
        let pods = [
            owned(&set, "a", "n1", Some(0)),
            owned(&set, "b", "n1", Some(5)),
            owned(&set, "c", "n1", None),
        ];
        let refs: Vec<&Pod> = pods.iter().collect();
        let plan = plan_replicas(&set, &refs, &refs, at(12));
        assert_eq!(plan.requeue_after, Some(std::time::Duration::from_secs(3)));
        let Some(Action::PutStatus(crate::kind::Object::ReplicaSet(written))) =
            plan.actions().next()
        else {
            panic!("{plan:?}")
        };
        let status = written.status.clone().unwrap();
        assert_eq!(status.replicas, 3);
        assert_eq!((status.ready_replicas, status.available_replicas), (Some(2), Some(1)));
        assert_eq!(status.observed_generation, Some(4));
        let second = plan_replicas(written, &refs, &refs, at(12));
        assert_eq!(second.actions().count(), 0, "nothing is written twice");
    }

    #[test]
    fn a_terminating_set_creates_no_pods() {
        let mut set = set(3);
        set.metadata.deletion_timestamp = Some(object::time(at(1)));
        assert_eq!(created(&plan_replicas(&set, &[], &[], at(2))), 0);
    }
}
