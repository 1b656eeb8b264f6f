//! PodLocators in the world: which exist, which labels they copy, and which ones a change affects.
//!
//! If the gate is off, none of this is maintained, and no Pod is affected.

use std::collections::{BTreeMap, BTreeSet};

use super::{Affected, NodeEntry, PodEntry, Settings, World};
use crate::gate::Gate;
use crate::intent::Intent;
use crate::key::{Name, PodKey, ServiceKey};
use crate::labels::Labels;
use crate::locate::{LabelKeys, LocatorLabels, LocatorPlan, WELL_KNOWN_KEYS, plan_locator};
use crate::model::{Locator, Node, Pod};
use crate::slice::PodOnNode;

/// The labels that PodLocators copy.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Copied {
    /// The gate is off: there are no PodLocators.
    #[default]
    Nothing,
    /// The labels that the operator configured.
    Fixed(LabelKeys),
    /// The well-known keys and the keys that Services name.
    Named {
        /// The number of Services that name each key.
        uses: BTreeMap<Name, usize>,
        /// The resulting keys.
        keys: LabelKeys,
    },
}

impl Copied {
    pub(super) fn new(settings: &Settings) -> Self {
        if !settings.gates.on(Gate::PodLocator) {
            return Self::Nothing;
        }
        match &settings.locator_labels {
            LocatorLabels::All => Self::Fixed(LabelKeys::All),
            LocatorLabels::Only(keys) => Self::Fixed(LabelKeys::Only(keys.clone())),
            LocatorLabels::Topology => {
                let keys = LabelKeys::Only(WELL_KNOWN_KEYS.map(Name::from).into());
                Self::Named { uses: BTreeMap::new(), keys }
            }
        }
    }

    fn keys(&self) -> Option<&LabelKeys> {
        match self {
            Self::Nothing => None,
            Self::Fixed(keys) | Self::Named { keys, .. } => Some(keys),
        }
    }

    /// Whether a Node's change changes the PodLocators of its Pods.
    pub(super) fn node_differs(&self, before: Option<&Node>, now: Option<&Node>) -> bool {
        match (self.keys(), before, now) {
            (None, ..) | (_, None, None) => false,
            (Some(keys), Some(before), Some(now)) => keys.differ(&before.labels, &now.labels),
            _ => true,
        }
    }

    /// Updates the counts after a Service has changed its keys. Returns the keys that are now
    /// copied and were not before, or the reverse.
    fn recount(&mut self, before: &BTreeSet<Name>, now: &BTreeSet<Name>) -> Vec<Name> {
        let Self::Named { uses, keys: LabelKeys::Only(keys) } = self else { return Vec::new() };
        let mut changed = Vec::new();
        for key in now.difference(before) {
            *uses.entry(key.clone()).or_default() += 1;
            if keys.insert(key.clone()) {
                changed.push(key.clone());
            }
        }
        for key in before.difference(now) {
            let left = uses.get_mut(key).expect("it was counted when it came");
            *left -= 1;
            if *left > 0 {
                continue;
            }
            uses.remove(key);
            if !WELL_KNOWN_KEYS.contains(&key.as_str()) && keys.remove(key) {
                changed.push(key.clone());
            }
        }
        changed
    }
}

impl World {
    /// A Pod, with its Node if the Node is known.
    pub fn pod_on_node(&self, key: &PodKey) -> Option<PodOnNode<'_>> {
        self.pod_entry(key).map(|entry| (&entry.pod, entry.node.as_deref()))
    }

    /// All Pods, sorted.
    pub fn pod_keys(&self) -> impl Iterator<Item = &PodKey> {
        self.pods.values().flat_map(|pods| pods.iter()).map(|entry| &entry.pod.key)
    }

    /// The Node labels that PodLocators copy; none if the gate is off.
    pub fn locator_keys(&self) -> Option<&LabelKeys> {
        self.copied.keys()
    }

    /// The operation for a Pod's PodLocator; `Keep` if the gate is off.
    pub fn plan_locator(&self, key: &PodKey) -> LocatorPlan {
        let Some(keys) = self.copied.keys() else { return LocatorPlan::Keep };
        let wanted = self.pod_on_node(key).map(|(pod, node)| plan_locator(pod, node, keys));
        LocatorPlan::between(self.locators.get(key), wanted)
    }

    pub(super) fn put_locator(&mut self, mut locator: Locator) -> Affected {
        self.interner.name(&mut locator.key.namespace);
        self.interner.optional_name(&mut locator.node);
        self.interner.labels(&mut locator.node_labels);
        let key = locator.key.clone();
        if self.locators.put(locator) { self.touch_locator(key) } else { Affected::default() }
    }

    pub(super) fn remove_locator(&mut self, key: &PodKey) -> Affected {
        if self.locators.remove(key) {
            self.touch_locator(key.clone())
        } else {
            Affected::default()
        }
    }

    fn touch_locator(&self, key: PodKey) -> Affected {
        let locators = self.copied.keys().map(|_| key).into_iter().collect();
        Affected { locators, ..Affected::default() }
    }

    /// Marks the PodLocator of a Pod that was created, changed or deleted, if its content changes.
    pub(super) fn touch_located(
        &self,
        before: Option<&Pod>,
        now: Option<&Pod>,
    ) -> BTreeSet<PodKey> {
        let differs = match (before, now) {
            (Some(before), Some(now)) => crate::locate::pod_differs(before, now),
            _ => true,
        };
        let on = self.copied.keys().is_some();
        let pod = now.or(before).filter(|_| on && differs);
        pod.map(|pod| pod.key.clone()).into_iter().collect()
    }

    /// The keys that a Service names, if they decide which labels are copied.
    pub(super) fn named_keys(&self, service: &ServiceKey) -> BTreeSet<Name> {
        let intent = self.services.get(service).map(|entry| &entry.intent.intent);
        match (intent, &self.copied) {
            (Some(Intent::Keys(keys)), Copied::Named { .. }) => keys.keys.iter().cloned().collect(),
            _ => BTreeSet::new(),
        }
    }

    /// Marks the Pods that a Service's new keys affect: Pods on Nodes with labels that are now
    /// copied, or no longer copied.
    pub(super) fn touch_named(
        &mut self,
        service: &ServiceKey,
        before: &BTreeSet<Name>,
    ) -> BTreeSet<PodKey> {
        let changed = self.copied.recount(before, &self.named_keys(service));
        if changed.is_empty() {
            return BTreeSet::new();
        }
        let carries = |labels: &Labels| changed.iter().any(|key| labels.get(key).is_some());
        let concerned =
            |entry: &&NodeEntry| entry.node.as_ref().is_some_and(|n| carries(&n.labels));
        let pods = self.nodes.values().filter(concerned).flat_map(|entry| &entry.pods);
        pods.map(|entry: &std::sync::Arc<PodEntry>| entry.pod.key.clone()).collect()
    }
}
