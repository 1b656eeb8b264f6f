//! The Services that select a Pod, found by a label index instead of a search over all Services.

use std::collections::{BTreeMap, BTreeSet};

use crate::key::{Name, ServiceKey};
use crate::labels::Labels;
use crate::model::Pod;

/// Services by one pair of their selector. A Service selects a Pod only if the Pod has that pair.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Selectors {
    by_pair: BTreeMap<(Name, Name, Name), BTreeSet<Name>>,
    /// Services with an empty selector select every Pod of their namespace.
    everything: BTreeMap<Name, BTreeSet<Name>>,
}

impl Selectors {
    pub(super) fn insert(&mut self, service: &ServiceKey, selector: &Labels) {
        self.names(&service.namespace, selector).insert(service.name.clone());
    }

    pub(super) fn remove(&mut self, service: &ServiceKey, selector: &Labels) {
        let names = self.names(&service.namespace, selector);
        names.remove(&service.name);
        if !names.is_empty() {
            return;
        }
        match selector.iter().next() {
            None => drop(self.everything.remove(&service.namespace)),
            Some((key, value)) => {
                let pair = (service.namespace.clone(), key.clone(), value.clone());
                self.by_pair.remove(&pair);
            }
        }
    }

    fn names(&mut self, namespace: &Name, selector: &Labels) -> &mut BTreeSet<Name> {
        match selector.iter().next() {
            None => self.everything.entry(namespace.clone()).or_default(),
            Some((key, value)) => {
                let pair = (namespace.clone(), key.clone(), value.clone());
                self.by_pair.entry(pair).or_default()
            }
        }
    }

    /// Services that may select a Pod, by the indexed pair. The caller must check the whole
    /// selector.
    pub(super) fn candidates(&self, pod: &Pod) -> BTreeSet<ServiceKey> {
        let namespace = &pod.key.namespace;
        let by_label = pod.labels.iter().filter_map(|(key, value)| {
            self.by_pair.get(&(namespace.clone(), key.clone(), value.clone()))
        });
        let names = by_label.chain(self.everything.get(namespace)).flatten();
        names.map(|name| ServiceKey { namespace: namespace.clone(), name: name.clone() }).collect()
    }
}
