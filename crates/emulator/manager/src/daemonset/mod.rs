//! DaemonSets: one Pod on each matching node. Pure.
//!
//! A required node affinity names the node, and the scheduler binds the Pod, as in Kubernetes. Not
//! implemented: revision history (`kubectl rollout undo daemonset`).

mod status;
#[cfg(test)]
mod tests;
mod update;

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{
    Affinity, Node, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod,
    PodSpec, Toleration,
};

use crate::action::{Action, Deletion, Plan};
use crate::affinity;
use crate::claim;
use crate::kind::Kind;
use crate::object;
use crate::pod;
use crate::taint::{self, NO_EXECUTE, NO_SCHEDULE};

/// The label with the template hash of a Pod.
pub(crate) const REVISION_HASH: &str = "controller-revision-hash";
/// The minimum age of a failed Pod before its replacement, so that a crashing Pod is not recreated
/// in a tight loop.
const FAILED_POD_DELAY: Duration = Duration::from_secs(5);

/// Whether a node gets a Pod, keeps an existing one, or loses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placement {
    Create,
    Keep,
    Remove,
}

/// A DaemonSet with its nodes, and its own Pods by node.
struct DaemonPods<'a> {
    set: &'a DaemonSet,
    hash: String,
    min_ready: i32,
    nodes: BTreeMap<&'a str, Placement>,
    pods: BTreeMap<&'a str, Vec<&'a Pod>>,
    now: Timestamp,
}

/// Plans a DaemonSet, given all nodes and the Pods of its namespace.
#[must_use]
pub(crate) fn plan_daemons(
    set: &DaemonSet,
    nodes: &[&Node],
    pods: &[&Pod],
    now: Timestamp,
) -> Plan {
    let Some(spec) = &set.spec else { return Plan::default() };
    let (owner, pods) = ((Kind::DaemonSet, &set.metadata), pods.iter().copied());
    let own = match claim::resolve(&spec.selector, owner, Kind::Pod, pods) {
        Ok(own) => own,
        Err(changes) => return changes,
    };
    let daemons = DaemonPods::new(set, nodes, &own, now);
    let mut plan = Plan::default();
    if !object::is_deleting(&set.metadata) {
        let mut actions = daemons.manage(&mut plan);
        if actions.is_empty() {
            actions = update::update(&daemons);
        }
        plan.then(actions);
    }
    status::write(&daemons, &mut plan);
    plan
}

impl<'a> DaemonPods<'a> {
    fn new(set: &'a DaemonSet, nodes: &[&'a Node], own: &[&'a Pod], now: Timestamp) -> Self {
        let spec = set.spec.clone().unwrap_or_default();
        let hash = object::hash(&spec.template, None);
        let mut by_node: BTreeMap<&'a str, Vec<&'a Pod>> = BTreeMap::new();
        for pod in own {
            by_node.entry(target(pod)).or_default().push(pod);
        }
        for pods in by_node.values_mut() {
            // The oldest bound Pod first: it is the one to keep.
            pods.sort_by_key(|pod| {
                let unbound = pod::node(pod).is_empty();
                (unbound, pod.metadata.creation_timestamp.clone(), object::name(&pod.metadata))
            });
        }
        let judged = nodes.iter().map(|node| (object::name(&node.metadata), placement(set, node)));
        let min_ready = spec.min_ready_seconds.unwrap_or(0);
        Self { set, hash, min_ready, nodes: judged.collect(), pods: by_node, now }
    }

    fn on(&self, node: &str) -> &[&'a Pod] {
        self.pods.get(node).map(Vec::as_slice).unwrap_or_default()
    }

    fn is_new(&self, pod: &Pod) -> bool {
        object::label(&pod.metadata, REVISION_HASH) == Some(&self.hash)
    }

    fn is_available(&self, pod: &Pod) -> bool {
        pod::is_available(pod, self.min_ready, self.now)
    }

    /// Creates missing Pods and deletes surplus ones.
    fn manage(&self, plan: &mut Plan) -> Vec<Action> {
        let mut actions = Vec::new();
        for (node, place) in &self.nodes {
            let here = self.on(node);
            let (failed, running): (Vec<&Pod>, Vec<&Pod>) = here
                .iter()
                .filter(|pod| !object::is_deleting(&pod.metadata))
                .partition(|pod| pod::is_terminal(pod));
            match place {
                // A terminating Pod still occupies the node; its replacement waits.
                Placement::Create if here.is_empty() => actions.push(self.create(node)),
                Placement::Create | Placement::Keep => {
                    actions.extend(failed.iter().filter_map(|pod| self.delete_failed(pod, plan)));
                    actions.extend(self.surplus(&running).into_iter().map(delete));
                }
                Placement::Remove => actions.extend(running.into_iter().chain(failed).map(delete)),
            }
        }
        // Pending Pods of missing nodes.
        let lost = self.pods.iter().filter(|(node, _)| !self.nodes.contains_key(**node));
        let waiting = lost.flat_map(|(_, pods)| pods).filter(|pod| pod::node(pod).is_empty());
        actions.extend(waiting.filter(|p| !object::is_deleting(&p.metadata)).map(|p| delete(p)));
        actions
    }

    /// All but the oldest Pod; during a surge, all but the oldest of each revision.
    fn surplus<'p>(&self, running: &[&'p Pod]) -> Vec<&'p Pod> {
        if update::surge(self) == 0 {
            return running.iter().skip(1).copied().collect();
        }
        let (new, old): (Vec<&Pod>, Vec<&Pod>) = running.iter().partition(|p| self.is_new(p));
        let mut surplus: Vec<&Pod> = new.iter().chain(&old).copied().collect();
        let kept = [new.first(), old.first()];
        surplus.retain(|pod| !kept.iter().flatten().any(|kept| std::ptr::eq(**kept, *pod)));
        surplus
    }

    fn delete_failed(&self, pod: &Pod, plan: &mut Plan) -> Option<Action> {
        let born = pod.metadata.creation_timestamp.as_ref()?.0;
        let age = Duration::try_from(self.now.duration_since(born)).unwrap_or_default();
        match FAILED_POD_DELAY.checked_sub(age) {
            None | Some(Duration::ZERO) => Some(delete(pod)),
            Some(rest) => {
                plan.requeue_within(rest);
                None
            }
        }
    }

    fn create(&self, node: &str) -> Action {
        let owner = object::owned_by("DaemonSet", &self.set.metadata);
        let template = self.set.spec.as_ref().map(|spec| spec.template.clone());
        let mut pod = pod::from_template(&template.unwrap_or_default(), &self.set.metadata, owner);
        let labels = pod.metadata.labels.get_or_insert_default();
        labels.insert(REVISION_HASH.to_owned(), self.hash.clone());
        if let Some(generation) = self.set.metadata.generation {
            labels.insert("pod-template-generation".to_owned(), generation.to_string());
        }
        let spec = pod.spec.get_or_insert_default();
        pin(spec, node);
        tolerate(spec);
        Action::Create(pod.into())
    }
}

fn delete(pod: &Pod) -> Action {
    Action::delete(Kind::Pod, &pod.metadata, Deletion::Graceful)
}

/// The node that a Pod is bound to or pinned to.
fn target(pod: &Pod) -> &str {
    let bound = pod::node(pod);
    if !bound.is_empty() {
        return bound;
    }
    let affinity = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref());
    let node = affinity.and_then(|affinity| affinity.node_affinity.as_ref());
    let required =
        node.and_then(|n| n.required_during_scheduling_ignored_during_execution.as_ref());
    let terms = required.into_iter().flat_map(|required| &required.node_selector_terms);
    let fields = terms.flat_map(|term| term.match_fields.iter().flatten());
    let named = fields.filter(|field| field.key == "metadata.name" && field.operator == "In");
    named.flat_map(|field| field.values.iter().flatten()).next().map_or("", String::as_str)
}

fn placement(set: &DaemonSet, node: &Node) -> Placement {
    let template = set.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let mut spec = template.cloned().unwrap_or_default();
    let name = object::name(&node.metadata);
    if spec.node_name.as_ref().is_some_and(|wanted| !wanted.is_empty() && wanted != name) {
        return Placement::Remove;
    }
    tolerate(&mut spec);
    if !affinity::allows(&spec, node) {
        return Placement::Remove;
    }
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    let untolerated = |effect: &str| {
        let mut all = taint::taints(node).iter().filter(|taint| taint.effect == effect);
        all.any(|taint| !taint::is_tolerated(taint, tolerations))
    };
    match (untolerated(NO_EXECUTE), untolerated(NO_SCHEDULE)) {
        (true, _) => Placement::Remove,
        (false, true) => Placement::Keep,
        (false, false) => Placement::Create,
    }
}

/// Pins the Pod to a node, and keeps the other requirements of the template.
fn pin(spec: &mut PodSpec, node: &str) {
    let wish = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let affinity: &mut Affinity = spec.affinity.get_or_insert_default();
    let affinity: &mut NodeAffinity = affinity.node_affinity.get_or_insert_default();
    let required: &mut NodeSelector =
        affinity.required_during_scheduling_ignored_during_execution.get_or_insert_default();
    if required.node_selector_terms.is_empty() {
        required.node_selector_terms.push(NodeSelectorTerm::default());
    }
    for term in &mut required.node_selector_terms {
        term.match_fields = Some(vec![wish.clone()]);
    }
}

/// Adds the tolerations that Kubernetes gives to DaemonSet Pods.
fn tolerate(spec: &mut PodSpec) {
    let mut added = vec![
        (taint::NOT_READY, NO_EXECUTE),
        (taint::UNREACHABLE, NO_EXECUTE),
        ("node.kubernetes.io/disk-pressure", NO_SCHEDULE),
        ("node.kubernetes.io/memory-pressure", NO_SCHEDULE),
        ("node.kubernetes.io/pid-pressure", NO_SCHEDULE),
        (taint::UNSCHEDULABLE, NO_SCHEDULE),
    ];
    if spec.host_network == Some(true) {
        added.push(("node.kubernetes.io/network-unavailable", NO_SCHEDULE));
    }
    let tolerations = spec.tolerations.get_or_insert_default();
    for (key, effect) in added {
        tolerations
            .retain(|one| one.key.as_deref() != Some(key) || one.effect.as_deref() != Some(effect));
        tolerations.push(Toleration {
            key: Some(key.to_owned()),
            operator: Some("Exists".to_owned()),
            effect: Some(effect.to_owned()),
            ..Toleration::default()
        });
    }
}
