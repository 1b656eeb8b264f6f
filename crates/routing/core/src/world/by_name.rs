//! A map of objects by name that does not store the name twice.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::key::Name;

/// An object with a name.
pub(super) trait Named {
    fn name(&self) -> &Name;
}

/// Compares by name only.
#[derive(Debug)]
struct Entry<T>(Arc<T>);

impl<T> Clone for Entry<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Named> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0.name() == other.0.name()
    }
}

impl<T: Named> Eq for Entry<T> {}

impl<T: Named> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.name().cmp(other.0.name())
    }
}

impl<T: Named> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T: Named> Borrow<Name> for Entry<T> {
    fn borrow(&self) -> &Name {
        self.0.name()
    }
}

/// A map from name to object that costs one pointer per object.
#[derive(Clone, Debug)]
pub(super) struct ByName<T>(BTreeSet<Entry<T>>);

impl<T> Default for ByName<T> {
    fn default() -> Self {
        Self(BTreeSet::new())
    }
}

impl<T: PartialEq> PartialEq for ByName<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0.iter().map(|entry| &entry.0).eq(other.0.iter().map(|entry| &entry.0))
    }
}

impl<T: Named> ByName<T> {
    pub(super) fn get(&self, name: &Name) -> Option<&Arc<T>> {
        self.0.get(name).map(|entry| &entry.0)
    }

    pub(super) fn insert(&mut self, object: Arc<T>) {
        self.0.replace(Entry(object));
    }

    pub(super) fn remove(&mut self, name: &Name) -> Option<Arc<T>> {
        self.0.take(name).map(|entry| entry.0)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<T>> {
        self.0.iter().map(|entry| &entry.0)
    }
}

/// Inserts an object into a list sorted by name. Lists grow by a quarter, because there are two per
/// Service and node, and most are short.
pub(super) fn insert_sorted<T: Named>(list: &mut Vec<Arc<T>>, object: Arc<T>) {
    match list.binary_search_by(|probe| probe.name().cmp(object.name())) {
        Ok(at) => list[at] = object,
        Err(at) => {
            if list.len() == list.capacity() {
                list.reserve_exact(list.len() / 4 + 1);
            }
            list.insert(at, object);
        }
    }
}

/// Removes an object from a list sorted by name.
pub(super) fn remove_sorted<T: Named>(list: &mut Vec<Arc<T>>, name: &Name) {
    if let Ok(at) = list.binary_search_by(|probe| probe.name().cmp(name)) {
        list.remove(at);
    }
}
