//! The work that a change affects. Pure.

use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::Metadata;
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};

use crate::cache::Change;
use crate::kind::Changes;
use crate::object::{self, ObjectKey, name};
use crate::pod;
use crate::scheduler;
use crate::state::ClusterState;
use crate::taint;
use crate::work::Work;

impl ClusterState {
    /// The work that these changes affect.
    pub(crate) fn affected_work(&mut self, changes: &Changes, now: Instant) -> Vec<Work> {
        match changes {
            Changes::Node(all) => all.iter().flat_map(|one| self.node_affects(one, now)).collect(),
            Changes::Pod(all) => all.iter().flat_map(|one| self.pod_affects(one, now)).collect(),
            Changes::Lease(all) => {
                all.iter().for_each(|one| self.lease_renewed(one, now));
                Vec::new()
            }
            Changes::Service(all) => {
                // Services influence only the spreading of future Pods.
                tracing::trace!(count = all.len(), "Services changed");
                Vec::new()
            }
            Changes::Namespace(all) => {
                metas(all).map(|meta| Work::Namespace(name(meta).into())).collect()
            }
            Changes::ServiceAccount(all) => within(all),
            Changes::ConfigMap(all) => within(all),
            Changes::Deployment(all) => keys(all).map(Work::Deployment).collect(),
            Changes::ReplicaSet(all) => {
                all.iter().flat_map(|one| self.replica_set_affects(one)).collect()
            }
            Changes::DaemonSet(all) => keys(all).map(Work::DaemonSet).collect(),
        }
    }

    fn lease_renewed(&mut self, change: &Change<Lease>, now: Instant) {
        let renewed = |lease: &Option<Arc<Lease>>| {
            let spec = lease.as_ref().and_then(|lease| lease.spec.as_ref());
            spec.and_then(|spec| spec.renew_time.clone())
        };
        if let Some(new) = &change.new
            && renewed(&change.old) != renewed(&change.new)
        {
            self.heartbeats.insert(name(&new.metadata).to_owned(), now);
        }
    }

    fn node_affects(&mut self, change: &Change<Node>, now: Instant) -> Vec<Work> {
        let Some(node) = change.new.as_ref().or(change.old.as_ref()) else { return Vec::new() };
        let node_name = name(&node.metadata).to_owned();
        match (&change.old, &change.new) {
            (_, None) => {
                self.heartbeats.remove(&node_name);
                self.absent.insert(node_name.clone(), now);
            }
            (None, Some(_)) => {
                self.heartbeats.entry(node_name.clone()).or_insert(now);
                self.absent.remove(&node_name);
            }
            (Some(old), Some(new)) => {
                if heartbeat_of(new).is_some() && heartbeat_of(old) != heartbeat_of(new) {
                    self.heartbeats.insert(node_name.clone(), now);
                }
                if scheduling_fields(old) == scheduling_fields(new) {
                    return Vec::new();
                }
            }
        }
        let mut work = vec![Work::Node(node_name.clone())];
        let sets = self.objects.daemon_sets.all();
        work.extend(sets.map(|set| Work::DaemonSet(ObjectKey::of(&set.metadata))));
        work.extend(self.pods_on(&node_name).map(|pod| Work::Pod(ObjectKey::of(&pod.metadata))));
        work.extend(self.waiting());
        work
    }

    /// All Pods that wait for a node: the change may make them schedulable.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = Work> {
        self.waiting_if(|_| true)
    }

    fn waiting_if(&self, affected: fn(&Pod) -> bool) -> impl Iterator<Item = Work> {
        let all = self.objects.pods.all();
        let waiting = all.filter(move |pod| scheduler::is_waiting(pod) && affected(pod));
        waiting.map(|pod| Work::Schedule(ObjectKey::of(&pod.metadata)))
    }

    fn pod_affects(&mut self, change: &Change<Pod>, now: Instant) -> Vec<Work> {
        let mut work = Vec::new();
        if let Some(old) = &change.old
            && change.new.as_ref().is_none_or(|new| !pod::node(new).is_empty())
        {
            self.assumed.remove(object::uid(&old.metadata));
        }
        if let Some(new) = &change.new {
            let node = pod::node(new);
            if !node.is_empty() {
                self.assumed.remove(object::uid(&new.metadata));
                if self.objects.nodes.named(node).is_none() {
                    self.absent.entry(node.to_owned()).or_insert(now);
                }
                work.push(Work::Pod(ObjectKey::of(&new.metadata)));
            } else if scheduler::is_waiting(new) {
                work.push(Work::Schedule(ObjectKey::of(&new.metadata)));
            }
        }
        if frees_resources(change) {
            work.extend(self.waiting());
        } else if becomes_bound(change) {
            work.extend(self.waiting_if(scheduler::depends_on_other_pods));
        }
        for pod in change.old.iter().chain(&change.new) {
            self.owners_of(pod, change.new.is_none(), &mut work);
        }
        work.dedup();
        work
    }

    /// The sets that own this Pod or may adopt it.
    fn owners_of(&self, pod: &Pod, gone: bool, work: &mut Vec<Work>) {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let Some(owner) = object::controller_of(&pod.metadata) else {
            let takes = |wanted: &LabelSelector| {
                let selector = object::workload_selector(wanted);
                object::selects(selector.as_ref(), pod.metadata.labels.as_ref())
            };
            let sets = self.objects.replica_sets.within(namespace);
            let sets = sets.filter(|s| s.spec.as_ref().is_some_and(|spec| takes(&spec.selector)));
            work.extend(sets.map(|set| Work::ReplicaSet(ObjectKey::of(&set.metadata))));
            let sets = self.objects.daemon_sets.within(namespace);
            let sets = sets.filter(|s| s.spec.as_ref().is_some_and(|spec| takes(&spec.selector)));
            work.extend(sets.map(|set| Work::DaemonSet(ObjectKey::of(&set.metadata))));
            return;
        };
        let key = ObjectKey::new(namespace, &owner.name);
        match owner.kind.as_str() {
            "ReplicaSet" => {
                // A Deployment with the strategy Recreate waits for its last old Pod.
                if gone || pod::is_terminal(pod) {
                    let set = self.objects.replica_sets.get(&key);
                    work.extend(set.and_then(|set| deployment_of(set)));
                }
                work.push(Work::ReplicaSet(key));
            }
            "DaemonSet" => work.push(Work::DaemonSet(key)),
            _ => {}
        }
    }

    fn replica_set_affects(&self, change: &Change<ReplicaSet>) -> Vec<Work> {
        let mut work = Vec::new();
        for set in change.old.iter().chain(&change.new) {
            work.extend(deployment_of(set));
        }
        let Some(set) = change.new.as_ref() else { return work };
        work.push(Work::ReplicaSet(ObjectKey::of(&set.metadata)));
        if object::controller_of(&set.metadata).is_none() {
            let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
            let takers = self.objects.deployments.within(namespace).filter(|deployment| {
                let wanted = deployment.spec.as_ref().map(|spec| &spec.selector);
                let selector = wanted.and_then(object::selector);
                object::selects(selector.as_ref(), set.metadata.labels.as_ref())
            });
            work.extend(takers.map(|taker| Work::Deployment(ObjectKey::of(&taker.metadata))));
        }
        work.dedup();
        work
    }
}

fn deployment_of(set: &ReplicaSet) -> Option<Work> {
    let owner = object::controller_of(&set.metadata).filter(|owner| owner.kind == "Deployment")?;
    let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
    Some(Work::Deployment(ObjectKey::new(namespace, &owner.name)))
}

fn metas<T: Metadata<Ty = ObjectMeta>>(changes: &[Change<T>]) -> impl Iterator<Item = &ObjectMeta> {
    let objects = changes.iter().filter_map(|change| change.new.as_ref().or(change.old.as_ref()));
    objects.map(|object| object.metadata())
}

fn keys<T: Metadata<Ty = ObjectMeta>>(changes: &[Change<T>]) -> impl Iterator<Item = ObjectKey> {
    metas(changes).map(ObjectKey::of)
}

fn within<T: Metadata<Ty = ObjectMeta>>(changes: &[Change<T>]) -> Vec<Work> {
    metas(changes).filter_map(|meta| meta.namespace.clone()).map(Work::Namespace).collect()
}

/// Whether a Pod freed resources or stopped blocking another one by anti-affinity.
fn frees_resources(change: &Change<Pod>) -> bool {
    let Some(old) = change.old.as_ref().filter(|old| !pod::node(old).is_empty()) else {
        return false;
    };
    change.new.as_ref().is_none_or(|new| {
        pod::is_terminal(new) && !pod::is_terminal(old)
            || object::is_deleting(&new.metadata) != object::is_deleting(&old.metadata)
            || new.metadata.labels != old.metadata.labels
    })
}

/// Whether a Pod was just bound: Pods with affinity or spread constraints may become schedulable.
fn becomes_bound(change: &Change<Pod>) -> bool {
    let is_there = |pod: &Option<Arc<Pod>>| {
        pod.as_ref().is_some_and(|pod| !pod::node(pod).is_empty() && pod::is_active(pod))
    };
    is_there(&change.new) && !is_there(&change.old)
}

/// The node's own Ready condition; `None` if the manager wrote it.
fn heartbeat_of(node: &Node) -> Option<&NodeCondition> {
    taint::condition(node, "Ready").filter(|ready| ready.status != "Unknown")
}

/// The fields of a node that influence decisions, without heartbeat times.
fn scheduling_fields(node: &Node) -> impl PartialEq {
    let status = node.status.clone().unwrap_or_default();
    let conditions = status.conditions.unwrap_or_default();
    let conditions: Vec<(String, String)> =
        conditions.into_iter().map(|condition| (condition.type_, condition.status)).collect();
    (
        node.metadata.labels.clone(),
        object::is_deleting(&node.metadata),
        node.spec.clone(),
        status.allocatable,
        conditions,
    )
}

#[cfg(test)]
mod tests {
    use nearhop_feed::watch::Event;
    use serde_json::json;

    use super::*;
    use crate::kind::WatchBatch;
    use crate::options::Options;
    use crate::testing;

    fn pod_with(name: &str, field: &str, value: serde_json::Value) -> Pod {
        let mut pod = serde_json::to_value(testing::pod(name, "")).unwrap();
        pod["spec"][field] = value;
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn a_bound_pod_requeues_pods_with_affinity_or_spread_constraints() {
        let selector = json!({ "matchLabels": { "app": "web" } });
        let term = json!([{ "topologyKey": "zone", "labelSelector": selector }]);
        let spread = json!([{ "topologyKey": "zone", "maxSkew": 1, "labelSelector": selector,
                              "whenUnsatisfiable": "DoNotSchedule" }]);
        let friends = |kind: &str| json!({ kind: { "requiredDuringSchedulingIgnoredDuringExecution": term } });
        let now = Instant::now();
        let mut state = ClusterState::new(Options::default());
        for pod in [
            pod_with("friend", "affinity", friends("podAffinity")),
            pod_with("loner", "affinity", friends("podAntiAffinity")),
            pod_with("spread", "topologySpreadConstraints", spread),
            testing::pod("plain", ""),
            testing::pod("p", ""),
        ] {
            state.on_watch(WatchBatch::Pod(vec![Event::Put(pod)]), now);
        }
        let mut bound = testing::pod("p", "n1");
        bound.metadata.resource_version = Some("2".to_owned());
        let work = state.on_watch(WatchBatch::Pod(vec![Event::Put(bound.clone())]), now);
        let called: Vec<&str> = work
            .iter()
            .filter_map(|work| match work {
                Work::Schedule(name) => Some(name.name.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(called, ["friend", "spread"], "the other Pods do not depend on the bound Pod");
        bound.metadata.resource_version = Some("3".to_owned());
        let work = state.on_watch(WatchBatch::Pod(vec![Event::Put(bound)]), now);
        assert!(
            !work.iter().any(|work| matches!(work, Work::Schedule(_))),
            "the Pod was already bound"
        );
    }
}
