//! One allocation for equal values: node and zone names, label sets, hints, port lists.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::key::Name;
use crate::labels::Labels;
use crate::model::{ContainerPort, Hints, SlicePort};
use crate::routing::WeightTable;

/// A set of shared values. Unused values are removed when the set has doubled, so that names of
/// deleted nodes do not accumulate.
#[derive(Clone, Debug)]
struct Shared<T> {
    values: BTreeSet<T>,
    sweep_at: usize,
}

impl<T: Ord + Clone> Default for Shared<T> {
    fn default() -> Self {
        Self { values: BTreeSet::new(), sweep_at: 1024 }
    }
}

impl<T: Ord + Clone> Shared<T> {
    fn get(&mut self, value: &T, in_use: impl Fn(&T) -> bool) -> T {
        self.find(value).unwrap_or_else(|| self.add(value.clone(), in_use))
    }

    fn find(&self, value: &T) -> Option<T> {
        self.values.get(value).cloned()
    }

    fn add(&mut self, value: T, in_use: impl Fn(&T) -> bool) -> T {
        if self.values.len() >= self.sweep_at {
            self.values.retain(in_use);
            self.sweep_at = (self.values.len() * 2).max(1024);
        }
        self.values.insert(value.clone());
        value
    }
}

/// The world's interner.
#[derive(Clone, Debug, Default)]
pub(super) struct Interner {
    names: Shared<Name>,
    labels: Shared<Labels>,
    hints: Shared<Arc<Hints>>,
    tables: Shared<Arc<WeightTable>>,
    slice_ports: Shared<Arc<[SlicePort]>>,
    container_ports: Shared<Arc<Vec<ContainerPort>>>,
}

impl Interner {
    pub(super) fn name(&mut self, name: &mut Name) {
        *name = self.names.get(name, Name::is_shared);
    }

    pub(super) fn optional_name(&mut self, name: &mut Option<Name>) {
        if let Some(name) = name {
            self.name(name);
        }
    }

    /// Shares a set of labels; a new set consists of shared names.
    pub(super) fn labels(&mut self, labels: &mut Labels) {
        *labels = self.labels.find(labels).unwrap_or_else(|| {
            let mut share = |name: &Name| self.names.get(name, Name::is_shared);
            let shared = labels.iter().map(|(key, value)| (share(key), share(value))).collect();
            self.labels.add(shared, Labels::is_shared)
        });
    }

    pub(super) fn hints(&mut self, hints: &mut Option<Arc<Hints>>) {
        if let Some(hints) = hints {
            *hints = self.hints.get(hints, |hints| Arc::strong_count(hints) > 1);
        }
    }

    pub(super) fn table(&mut self, table: &mut Arc<WeightTable>) {
        *table = self.tables.get(table, |table| Arc::strong_count(table) > 1);
    }

    pub(super) fn slice_ports(&mut self, ports: &mut Arc<[SlicePort]>) {
        *ports = self.slice_ports.get(ports, |ports| Arc::strong_count(ports) > 1);
    }

    pub(super) fn container_ports(&mut self, ports: &mut Arc<Vec<ContainerPort>>) {
        *ports = self.container_ports.get(ports, |ports| Arc::strong_count(ports) > 1);
    }
}
