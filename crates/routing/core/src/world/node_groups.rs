//! Nodes in groups, by the values of the label keys that hard topology keys name.
//!
//! Thousands of nodes have a few zones or racks. With the groups, the judgement of a Service costs
//! a look at each group, not at each node, and the change of a Node is a move between two groups.
//! A change of other labels, or a heartbeat, moves nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::key::{Name, ServiceKey};
use crate::labels::Labels;
use crate::model::Node;

/// The values of some keys on a node, in the order of the keys.
pub(crate) type Values = Vec<Option<Name>>;

/// The groups for one list of keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Groups {
    nodes: BTreeMap<Values, BTreeSet<Name>>,
}

impl Groups {
    /// Groups the nodes by the values of `keys`.
    pub(crate) fn new<'a>(keys: &[Name], nodes: impl Iterator<Item = &'a Arc<Node>>) -> Self {
        let mut groups = Self::default();
        for node in nodes {
            groups.insert(values(keys, &node.labels), &node.name);
        }
        groups
    }

    /// The groups, sorted by value. No group is empty.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Values, &BTreeSet<Name>)> {
        self.nodes.iter()
    }

    fn insert(&mut self, values: Values, node: &Name) {
        self.nodes.entry(values).or_default().insert(node.clone());
    }

    fn remove(&mut self, values: &Values, node: &Name) {
        if let Some(nodes) = self.nodes.get_mut(values) {
            nodes.remove(node);
            if nodes.is_empty() {
                self.nodes.remove(values);
            }
        }
    }
}

fn values(keys: &[Name], labels: &Labels) -> Values {
    keys.iter().map(|key| labels.get(key).cloned()).collect()
}

/// The groups for each list of hard keys, and the Services that have the list.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeGroups {
    by_keys: BTreeMap<Arc<[Name]>, Listed>,
    of_service: BTreeMap<ServiceKey, Arc<[Name]>>,
    /// Lists whose groups changed since they were last taken.
    changed: BTreeSet<Arc<[Name]>>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Listed {
    services: BTreeSet<ServiceKey>,
    groups: Groups,
}

impl PartialEq for NodeGroups {
    fn eq(&self, other: &Self) -> bool {
        self.by_keys == other.by_keys
    }
}

impl NodeGroups {
    /// Sets the hard keys of a Service, if it has any.
    pub(super) fn set_keys<'a>(
        &mut self,
        service: &ServiceKey,
        keys: Option<&[Name]>,
        nodes: impl Iterator<Item = &'a Arc<Node>>,
    ) {
        if self.of_service.get(service).map(AsRef::as_ref) == keys {
            return;
        }
        if let Some(before) = self.of_service.remove(service)
            && let Some(listed) = self.by_keys.get_mut(&before)
        {
            listed.services.remove(service);
            if listed.services.is_empty() {
                self.by_keys.remove(&before);
                self.changed.remove(&before);
            }
        }
        let Some(keys) = keys else { return };
        let shared = match self.by_keys.get_key_value(keys) {
            Some((shared, _)) => shared.clone(),
            None => {
                let shared: Arc<[Name]> = keys.into();
                let listed = Listed { groups: Groups::new(keys, nodes), ..Listed::default() };
                self.by_keys.insert(shared.clone(), listed);
                shared
            }
        };
        let listed = self.by_keys.get_mut(&shared).expect("it was found or inserted above");
        listed.services.insert(service.clone());
        self.of_service.insert(service.clone(), shared);
    }

    /// Moves a node to the groups of its new labels.
    pub(super) fn move_node(&mut self, before: Option<&Node>, now: Option<&Node>) {
        for (keys, listed) in &mut self.by_keys {
            let of = |node: Option<&Node>| node.map(|node| values(keys, &node.labels));
            let (was, is) = (of(before), of(now));
            if was == is {
                continue;
            }
            if let Some((node, values)) = before.zip(was) {
                listed.groups.remove(&values, &node.name);
            }
            if let Some((node, values)) = now.zip(is) {
                listed.groups.insert(values, &node.name);
            }
            self.changed.insert(keys.clone());
        }
    }

    /// The Services whose groups changed since the last call.
    pub(super) fn take_changed(&mut self) -> impl Iterator<Item = &ServiceKey> {
        let changed = std::mem::take(&mut self.changed).into_iter();
        changed.filter_map(|keys| self.by_keys.get(&keys)).flat_map(|listed| &listed.services)
    }

    /// The hard keys of a Service, with the groups of nodes.
    pub(super) fn of(&self, service: &ServiceKey) -> Option<(&[Name], &Groups)> {
        let keys = self.of_service.get(service)?;
        Some((keys, &self.by_keys.get(keys)?.groups))
    }
}
