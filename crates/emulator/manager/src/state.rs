//! The cluster state of the manager and the decisions from it. One writer, no I/O; the clock is an
//! argument.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::Pod;

use crate::action::{Action, Plan};
use crate::daemonset::plan_daemons;
use crate::deployment::plan_rollout;
use crate::kind::{Changes, Kind, Object, Objects, WatchBatch};
use crate::namespace::{self, Account, plan_namespace};
use crate::node::{self, GracePeriods};
use crate::object::{self, ObjectKey};
use crate::options::{Controller, Options};
use crate::pod;
use crate::replicaset::plan_replicas;
use crate::scheduler::{self, NodeInfo, Snapshot};
use crate::work::Work;

/// The wall clock of API objects, and the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    pub(crate) wall: Timestamp,
    pub(crate) monotonic: Instant,
}

impl Now {
    pub(crate) fn read() -> Self {
        Self { wall: Timestamp::now(), monotonic: Instant::now() }
    }
}

/// The cached objects and the scheduler's and node controller's own state.
#[derive(Debug)]
pub(crate) struct ClusterState {
    pub(crate) options: Options,
    pub(crate) objects: Objects,
    /// Nodes of Pods that are being bound, by Pod uid, until the watch shows the binding.
    pub(crate) assumed: BTreeMap<String, String>,
    /// The last heartbeat of each node.
    pub(crate) heartbeats: BTreeMap<String, Instant>,
    /// Since when a node that a Pod names is missing.
    pub(crate) absent: BTreeMap<String, Instant>,
    /// The last response of the API server.
    server: Option<Instant>,
}

impl ClusterState {
    pub(crate) fn new(options: Options) -> Self {
        Self {
            options,
            objects: Objects::default(),
            assumed: BTreeMap::new(),
            heartbeats: BTreeMap::new(),
            absent: BTreeMap::new(),
            server: None,
        }
    }

    /// Applies the events of a watch and returns the affected work.
    pub(crate) fn on_watch(&mut self, batch: WatchBatch, now: Instant) -> Vec<Work> {
        let failed = batch.failed();
        let changes = self.objects.on_watch(batch);
        let work = self.affected_work(&changes, now);
        // Only the watches that carry heartbeats restart them; otherwise a watch of another kind
        // that always fails would hide all lost nodes.
        if matches!(failed, Some(Kind::Node | Kind::Lease)) {
            self.reset_heartbeats(now);
        }
        work
    }

    /// Applies the response to an own write.
    pub(crate) fn wrote(&mut self, object: Object, now: Instant) -> Vec<Work> {
        let changes: Changes = self.objects.wrote(object);
        self.affected_work(&changes, now)
    }

    /// Applies the own deletion of an object.
    pub(crate) fn deleted(
        &mut self,
        kind: Kind,
        name: &ObjectKey,
        uid: &str,
        now: Instant,
    ) -> Vec<Work> {
        let changes = self.objects.deleted(kind, name, uid);
        self.affected_work(&changes, now)
    }

    /// The API server responded. After a long silence all heartbeats restart: nodes could not reach
    /// the server either.
    pub(crate) fn server_responded(&mut self, now: Instant) {
        if self.is_server_unresponsive(now) {
            self.reset_heartbeats(now);
        }
        self.server = Some(now);
    }

    fn is_server_unresponsive(&self, now: Instant) -> bool {
        let patience = self.options.node_monitor_grace_period / 2;
        self.server.is_none_or(|last| now.saturating_duration_since(last) > patience)
    }

    /// Restarts all heartbeats after a time in which none could arrive.
    pub(crate) fn reset_heartbeats(&mut self, now: Instant) {
        self.heartbeats.values_mut().for_each(|heartbeats| *heartbeats = now);
    }

    /// Records the bindings that a plan is about to write.
    pub(crate) fn assume(&mut self, plan: &Plan) {
        for action in plan.stages.iter().flatten() {
            if let Action::Bind { uid, node, .. } = action {
                self.assumed.insert(uid.clone(), node.clone());
            }
        }
    }

    fn runs(&self, controller: Controller) -> bool {
        self.options.controllers.has(controller)
    }

    /// The decision for a work item.
    pub(crate) fn plan(&self, work: &Work, now: Now) -> Plan {
        let plan = match work {
            Work::Deployment(name) => self.plan_deployment(name, now),
            Work::ReplicaSet(name) => self.plan_replica_set(name, now),
            Work::DaemonSet(name) => self.plan_daemon_set(name, now),
            Work::Schedule(name) => self.plan_binding(name, now),
            Work::Node(name) => self.plan_node(name, now),
            Work::Pod(name) => self.plan_eviction_check(name, now),
            Work::Namespace(name) => self.plan_namespace(name),
        };
        plan.unwrap_or_default()
    }

    fn plan_deployment(&self, name: &ObjectKey, now: Now) -> Option<Plan> {
        let deployment = self.objects.deployments.get(name)?;
        let sets: Vec<&ReplicaSet> =
            self.objects.replica_sets.within(&name.namespace).map(Arc::as_ref).collect();
        let pods: Vec<&Pod> = self.objects.pods.within(&name.namespace).map(Arc::as_ref).collect();
        let plan = || plan_rollout(deployment, &sets, &pods, now.wall);
        self.runs(Controller::Deployment).then(plan)
    }

    fn plan_replica_set(&self, name: &ObjectKey, now: Now) -> Option<Plan> {
        let set = self.objects.replica_sets.get(name)?;
        if !self.runs(Controller::ReplicaSet) {
            return None;
        }
        let pods: Vec<&Pod> = self.objects.pods.within(&name.namespace).map(Arc::as_ref).collect();
        let owner = object::controller_of(&set.metadata).map(|owner| owner.uid.as_str());
        let sisters = self.objects.replica_sets.within(&name.namespace).filter(|other| {
            other.metadata.uid == set.metadata.uid
                || owner.is_some_and(|uid| object::is_controlled_by(&other.metadata, uid))
        });
        let uids: Vec<&str> = sisters.map(|other| object::uid(&other.metadata)).collect();
        let kin = |pod: &&Pod| {
            let owner = object::controller_of(&pod.metadata);
            owner.is_some_and(|owner| uids.contains(&owner.uid.as_str()))
        };
        let related: Vec<&Pod> = pods.iter().copied().filter(kin).collect();
        Some(plan_replicas(set, &pods, &related, now.wall))
    }

    fn plan_daemon_set(&self, name: &ObjectKey, now: Now) -> Option<Plan> {
        let set = self.objects.daemon_sets.get(name)?;
        let nodes: Vec<_> = self.objects.nodes.all().map(Arc::as_ref).collect();
        let pods: Vec<&Pod> = self.objects.pods.within(&name.namespace).map(Arc::as_ref).collect();
        let plan = || plan_daemons(set, &nodes, &pods, now.wall);
        self.runs(Controller::DaemonSet).then(plan)
    }

    fn plan_binding(&self, name: &ObjectKey, now: Now) -> Option<Plan> {
        let pod = self.objects.pods.get(name)?;
        let known = self.assumed.contains_key(object::uid(&pod.metadata));
        if known || !self.runs(Controller::Scheduler) || !scheduler::is_waiting(pod) {
            return None;
        }
        Some(scheduler::plan(pod, &self.snapshot(), now.wall))
    }

    fn snapshot(&self) -> Snapshot<'_> {
        let mut on: BTreeMap<&str, Vec<&Pod>> = BTreeMap::new();
        for pod in self.objects.pods.all().filter(|pod| !pod::is_terminal(pod)) {
            let assumed = self.assumed.get(object::uid(&pod.metadata)).map(String::as_str);
            let node = Some(pod::node(pod)).filter(|node| !node.is_empty()).or(assumed);
            if let Some(node) = node {
                on.entry(node).or_default().push(pod);
            }
        }
        let info = |node| {
            let node: &Arc<_> = node;
            NodeInfo { node, pods: on.remove(object::name(&node.metadata)).unwrap_or_default() }
        };
        let namespaces = self.objects.namespaces.all();
        Snapshot {
            nodes: self.objects.nodes.all().map(info).collect(),
            services: self.objects.services.all().map(Arc::as_ref).collect(),
            namespaces: namespaces
                .map(|one| (object::name(&one.metadata), one.metadata.labels.as_ref()))
                .collect(),
        }
    }

    fn plan_node(&self, name: &str, now: Now) -> Option<Plan> {
        let node = self.objects.nodes.named(name)?;
        if !self.runs(Controller::NodeLifecycle) {
            return None;
        }
        if self.is_server_unresponsive(now.monotonic) {
            // The API server is unresponsive, so heartbeats cannot arrive.
            return Some(Plan::after(self.options.node_monitor_grace_period / 2));
        }
        let on: Vec<&Pod> = self.pods_on(name).map(Arc::as_ref).collect();
        let heartbeats = self.heartbeats.get(name).copied().unwrap_or(now.monotonic);
        let patience = GracePeriods {
            grace: self.options.node_monitor_grace_period,
            startup: self.options.node_startup_grace_period,
        };
        let silent = now.monotonic.saturating_duration_since(heartbeats);
        Some(node::plan_node_health(node, &on, silent, patience, now.wall))
    }

    pub(crate) fn pods_on<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a Arc<Pod>> {
        self.objects.pods.all().filter(move |pod| pod::node(pod) == node)
    }

    /// Whether a Pod must leave its node.
    fn plan_eviction_check(&self, name: &ObjectKey, now: Now) -> Option<Plan> {
        let pod = self.objects.pods.get(name)?;
        let node = pod::node(pod);
        if node.is_empty() {
            return None;
        }
        match self.objects.nodes.named(node) {
            Some(node) => {
                let plan = || node::plan_eviction(pod, node, now.wall);
                self.runs(Controller::TaintEviction).then(plan)
            }
            None if self.runs(Controller::PodGc) && !pod::is_terminal(pod) => {
                let since = self.absent.get(node).copied().unwrap_or(now.monotonic);
                let absent = now.monotonic.saturating_duration_since(since);
                let quarantine = self.options.node_monitor_grace_period;
                Some(node::plan_orphan(pod, absent, quarantine))
            }
            None => None,
        }
    }

    fn plan_namespace(&self, name: &str) -> Option<Plan> {
        let namespace = self.objects.namespaces.named(name)?;
        let account = if self.runs(Controller::ServiceAccount) {
            let account =
                self.objects.service_accounts.get(&ObjectKey::new(name, namespace::ACCOUNT));
            Account::Managed(account.map(Arc::as_ref))
        } else {
            Account::Ignored
        };
        let map = self.objects.config_maps.get(&ObjectKey::new(name, namespace::ROOT_CA));
        let pem = self.options.root_ca.as_deref().filter(|_| self.runs(Controller::RootCa));
        let authority = pem.map(|pem| (pem, map.map(Arc::as_ref)));
        Some(plan_namespace(namespace, account, authority))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nearhop_feed::watch::Event;

    use super::*;
    use crate::testing;

    fn options() -> Options {
        Options { node_monitor_grace_period: Duration::from_secs(40), ..Options::default() }
    }

    /// Whether the node counts as lost at `at`, given the seconds at which the server responded.
    fn is_lost(server: &[u64], at: u64) -> bool {
        let start = Instant::now();
        let time = |seconds: u64| start + Duration::from_secs(seconds);
        let mut state = ClusterState::new(options());
        state.server_responded(start);
        state.on_watch(WatchBatch::Node(vec![Event::Put(testing::node("n1", "a"))]), start);
        server.iter().for_each(|seconds| state.server_responded(time(*seconds)));
        let now = Now { wall: testing::at(0), monotonic: time(at) };
        !state.plan(&Work::Node("n1".to_owned()), now).stages.is_empty()
    }

    #[test]
    fn only_a_failed_node_or_lease_watch_restarts_heartbeats() {
        for (failed, lost) in [
            (WatchBatch::Pod(vec![Event::Failed]), true),
            (WatchBatch::Node(vec![Event::Failed]), false),
            (WatchBatch::Lease(vec![Event::Failed]), false),
        ] {
            let kind = failed.failed();
            let start = Instant::now();
            let late = start + Duration::from_secs(41);
            let mut state = ClusterState::new(options());
            state.on_watch(WatchBatch::Node(vec![Event::Put(testing::node("n1", "a"))]), start);
            (0..5).for_each(|n| state.server_responded(start + Duration::from_secs(10 * n)));
            state.heartbeats.insert("n1".to_owned(), start);
            state.on_watch(failed, late);
            let now = Now { wall: testing::at(0), monotonic: late };
            let plan = state.plan(&Work::Node("n1".to_owned()), now);
            assert_eq!(!plan.stages.is_empty(), lost, "{kind:?}");
        }
    }

    #[test]
    fn a_node_is_lost_only_while_the_server_responds() {
        assert!(!is_lost(&[10, 20, 30], 39), "the grace period is 40 s");
        assert!(is_lost(&[10, 20, 30, 40], 41));
        assert!(!is_lost(&[10], 41), "the server was unresponsive too");
        assert!(!is_lost(&[10, 50], 51), "the server just recovered: heartbeats restart");
        assert!(is_lost(&[10, 50, 60, 70, 80, 90], 91));
    }
}
