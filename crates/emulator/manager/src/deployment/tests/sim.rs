//! A simulated cluster: a Deployment, its sets and Pods, and steps in any order. The decisions are
//! the real ones; statuses lag as the steps order it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::action::{Action, Plan};
use crate::deployment::{Rollout, plan_rollout};
use crate::kind::{Kind, Object};
use crate::object;
use crate::pod;
use crate::replicaset::plan_replicas;
use crate::testing::{self, at};

/// A step of the simulation.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// Reconciles the Deployment.
    Deployment,
    /// Reconciles one of its sets.
    Set(usize),
    /// Plans one of its sets; `End` applies the plan.
    Begin(usize),
    /// Applies the pending plan.
    End,
    Ready(usize),
    Unready(usize),
    /// A Pod fails.
    Fail(usize),
    /// A terminating Pod disappears.
    Remove(usize),
    Tick,
    Roll(u8),
    Scale(i32),
    Pause(bool),
}

pub(super) struct Sim {
    pub(super) deployment: Deployment,
    pub(super) sets: BTreeMap<String, ReplicaSet>,
    pub(super) pods: BTreeMap<String, Pod>,
    /// The pending plan of a set, with the set's generation at that time.
    running: Option<(String, Option<i64>, Plan)>,
    now: i64,
    made: usize,
}

impl Sim {
    pub(super) fn new(replicas: i32, surge: &Value, unavailable: &Value, min_ready: i32) -> Self {
        let mut deployment: Deployment = serde_json::from_value(json!({
            "metadata": {},
            "spec": {
                "replicas": replicas,
                "minReadySeconds": min_ready,
                "selector": { "matchLabels": { "app": "web" } },
                "strategy": {
                    "type": "RollingUpdate",
                    "rollingUpdate": { "maxSurge": surge, "maxUnavailable": unavailable },
                },
                "template": testing::template("web"),
            },
        }))
        .unwrap();
        deployment.metadata = testing::meta("web");
        Self {
            deployment,
            sets: BTreeMap::new(),
            pods: BTreeMap::new(),
            running: None,
            now: 0,
            made: 0,
        }
    }

    pub(super) fn time(&self) -> Timestamp {
        at(self.now)
    }

    fn rollout(&self) -> Rollout<'_> {
        Rollout::new(&self.deployment, self.sets.values().collect(), self.time())
    }

    /// The most Pods that may exist.
    pub(super) fn most(&self) -> usize {
        let rollout = self.rollout();
        usize::try_from(rollout.replicas + rollout.max_surge).unwrap()
    }

    /// The fewest Pods that must be available.
    pub(super) fn least(&self) -> usize {
        usize::try_from(self.rollout().min_available()).unwrap()
    }

    pub(super) fn active(&self) -> usize {
        self.pods.values().filter(|pod| pod::is_active(pod)).count()
    }

    pub(super) fn available(&self) -> usize {
        let min_ready = self.deployment.spec.as_ref().unwrap().min_ready_seconds.unwrap_or(0);
        let counts =
            |pod: &&Pod| pod::is_active(pod) && pod::is_available(pod, min_ready, self.time());
        self.pods.values().filter(counts).count()
    }

    pub(super) fn plan(&self) -> Plan {
        let sets: Vec<&ReplicaSet> = self.sets.values().collect();
        let pods: Vec<&Pod> = self.pods.values().collect();
        plan_rollout(&self.deployment, &sets, &pods, self.time())
    }

    fn plan_set(&self, name: &str) -> Plan {
        let pods: Vec<&Pod> = self.pods.values().collect();
        plan_replicas(&self.sets[name], &pods, &pods, self.time())
    }

    /// Runs a step; returns whether it changed anything.
    pub(super) fn step(&mut self, step: &Step) -> bool {
        match step {
            Step::Deployment => {
                let plan = self.plan();
                self.apply(plan)
            }
            Step::Set(index) => {
                let Some(name) = pick(&self.sets, *index) else { return false };
                // A set is never reconciled twice at a time.
                if self.running.as_ref().is_some_and(|(running, ..)| *running == name) {
                    return false;
                }
                let plan = self.plan_set(&name);
                self.apply(plan)
            }
            Step::Begin(index) => {
                let Some(name) = pick(&self.sets, *index) else { return false };
                if self.running.is_none() {
                    let plan = self.plan_set(&name);
                    self.running = Some((name.clone(), self.sets[&name].metadata.generation, plan));
                }
                false
            }
            Step::End => self.end(),
            Step::Ready(index) => self.set_ready(*index, true),
            Step::Unready(index) => self.set_ready(*index, false),
            Step::Fail(index) => {
                let Some(name) = pick(&self.pods, *index) else { return false };
                let pod = self.pods.get_mut(&name).unwrap();
                pod.status.get_or_insert_default().phase = Some("Failed".to_owned());
                true
            }
            Step::Remove(index) => {
                let Some(name) = pick(&self.pods, *index) else { return false };
                let leaving = object::is_deleting(&self.pods[&name].metadata);
                leaving && self.pods.remove(&name).is_some()
            }
            Step::Tick => {
                self.now += 3;
                true
            }
            Step::Roll(image) => self.change(|spec| {
                let container = &mut spec.template.spec.as_mut().unwrap().containers[0];
                container.image = Some(format!("v{image}"));
            }),
            Step::Scale(replicas) => self.change(|spec| spec.replicas = Some(*replicas)),
            Step::Pause(paused) => self.change(|spec| spec.paused = Some(*paused)),
        }
    }

    fn end(&mut self) -> bool {
        let Some((name, generation, mut plan)) = self.running.take() else { return false };
        let Some(set) = self.sets.get(&name) else { return false };
        if set.metadata.generation != generation {
            // The status update is bound to the version that was read.
            plan.stages.iter_mut().for_each(|stage| {
                stage.retain(|action| !matches!(action, Action::PutStatus(_)));
            });
        }
        self.apply(plan)
    }

    fn change(
        &mut self,
        change: impl FnOnce(&mut k8s_openapi::api::apps::v1::DeploymentSpec),
    ) -> bool {
        change(self.deployment.spec.as_mut().unwrap());
        *self.deployment.metadata.generation.as_mut().unwrap() += 1;
        true
    }

    fn set_ready(&mut self, index: usize, ready: bool) -> bool {
        let now = self.time();
        let Some(name) = pick(&self.pods, index) else { return false };
        let pod = self.pods.get_mut(&name).unwrap();
        if !pod::is_active(pod) || pod::is_ready(pod) == ready {
            return false;
        }
        testing::set_ready(pod, ready, now);
        true
    }

    /// Runs all steps in turn until nothing changes.
    pub(super) fn settle(&mut self, mut after: impl FnMut(&Self)) {
        for _ in 0..400 {
            let mut busy = false;
            let mut go = |sim: &mut Self, step: &Step| {
                let done = sim.step(step);
                after(sim);
                busy |= done;
            };
            go(self, &Step::End);
            go(self, &Step::Deployment);
            (0..self.sets.len()).for_each(|index| go(self, &Step::Set(index)));
            (0..self.pods.len()).for_each(|index| go(self, &Step::Ready(index)));
            (0..self.pods.len()).rev().for_each(|index| go(self, &Step::Remove(index)));
            let waits = self.plan().requeue_after.is_some()
                || self.sets.keys().any(|name| self.plan_set(name).requeue_after.is_some());
            self.step(&Step::Tick);
            if !busy && !waits {
                return;
            }
        }
        panic!("no convergence: {:?}", self.plan());
    }

    fn apply(&mut self, plan: Plan) -> bool {
        let mut any = false;
        for action in plan.stages.into_iter().flatten() {
            any |= !matches!(action, Action::EmitEvent(..));
            self.perform(action);
        }
        any
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Create(Object::ReplicaSet(set)) => {
                let mut set = *set;
                self.finish(&mut set.metadata);
                let name = object::name(&set.metadata).to_owned();
                assert!(self.sets.insert(name, set).is_none(), "a set is created once");
            }
            Action::Create(Object::Pod(pod)) => {
                let mut pod = *pod;
                self.finish(&mut pod.metadata);
                pod.spec.get_or_insert_default().node_name = Some(format!("n{}", self.made % 3));
                self.pods.insert(object::name(&pod.metadata).to_owned(), pod);
            }
            Action::PutStatus(Object::ReplicaSet(set)) => {
                let known = self.sets.get_mut(object::name(&set.metadata)).unwrap();
                known.status = set.status;
            }
            Action::PutStatus(Object::Deployment(deployment)) => {
                self.deployment.status = deployment.status;
            }
            Action::Patch(Kind::ReplicaSet, name, body) => {
                let set = self.sets.get_mut(&name.name).unwrap();
                let before = set.spec.clone();
                *set = merged(set, &body);
                if set.spec != before {
                    *set.metadata.generation.as_mut().unwrap() += 1;
                }
            }
            Action::Patch(Kind::Deployment, _, body) => {
                self.deployment = merged(&self.deployment, &body);
            }
            Action::Delete { kind: Kind::ReplicaSet, name, .. } => {
                let gone = self.sets.remove(&name.name).unwrap();
                let uid = object::uid(&gone.metadata).to_owned();
                let orphan = |pod: &&Pod| object::is_controlled_by(&pod.metadata, &uid);
                assert_eq!(
                    self.pods.values().filter(orphan).filter(|p| pod::is_active(p)).count(),
                    0
                );
            }
            Action::Delete { kind: Kind::Pod, name, .. } => {
                let now = object::time(self.time());
                if let Some(pod) = self.pods.get_mut(&name.name) {
                    pod.metadata.deletion_timestamp = Some(now);
                }
            }
            Action::EmitEvent(..) => {}
            other => panic!("unexpected action: {other:?}"),
        }
    }

    /// Fields that the server sets on a new object.
    fn finish(&mut self, meta: &mut ObjectMeta) {
        self.made += 1;
        if let Some(prefix) = &meta.generate_name {
            meta.name = Some(format!("{prefix}{}", self.made));
        }
        meta.uid = Some(format!("uid-{}", self.made));
        meta.resource_version = Some(self.made.to_string());
        meta.generation = Some(1);
        meta.creation_timestamp = Some(object::time(self.time()));
    }
}

fn pick<T>(all: &BTreeMap<String, T>, index: usize) -> Option<String> {
    all.keys().nth(index % all.len().max(1)).cloned()
}

fn merged<T: Serialize + DeserializeOwned>(object: &T, patch: &Value) -> T {
    let mut value = serde_json::to_value(object).unwrap();
    json_patch::merge(&mut value, patch);
    serde_json::from_value(value).unwrap()
}
