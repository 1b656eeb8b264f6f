//! The store's memory: one table per storage. Locking and disk are elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use tokio::sync::watch;

use super::Compacted;
use super::log::{Event, EventKind, Log};
use super::object::{Content, Name, ObjectRef, Stored};

/// All objects, and their indexes.
#[derive(Default)]
pub(super) struct State {
    pub(super) version: u64,
    /// The newest version of an earlier process, or of the last compaction.
    loaded: u64,
    tables: BTreeMap<Arc<str>, Table>,
    uids: BTreeSet<Box<str>>,
    dependents: BTreeMap<Box<str>, BTreeSet<ObjectRef>>,
    pub(super) changed: watch::Sender<u64>,
    history: usize,
}

pub(super) struct Table {
    pub(super) objects: BTreeMap<Name, Arc<Stored>>,
    log: Log,
    pub(super) changed: watch::Sender<u64>,
}

/// Objects as they were at one version.
pub(crate) struct Snapshot {
    pub(crate) version: u64,
    pub(crate) objects: Vec<Arc<Stored>>,
}

/// Changes of a storage; there are no others up to `upto`.
pub(crate) struct Changes {
    pub(crate) events: Vec<Arc<Event>>,
    pub(crate) upto: u64,
}

impl State {
    pub(super) fn new(history: usize) -> Self {
        Self { history, ..Self::default() }
    }

    /// Adds an object that an earlier process stored.
    pub(super) fn load(&mut self, storage: &str, object: Stored) {
        self.index(storage, &object);
        let object = Arc::new(object);
        self.table_mut(storage).objects.insert(object.name.clone(), object);
    }

    /// All objects are loaded; the next version follows this one.
    pub(super) fn loaded(&mut self, version: u64) {
        self.version = version;
        self.loaded = version;
        for table in self.tables.values_mut() {
            table.log.compact(version);
        }
    }

    pub(super) fn table(&self, storage: &str) -> Option<&Table> {
        self.tables.get(storage)
    }

    pub(super) fn table_mut(&mut self, storage: &str) -> &mut Table {
        let (loaded, history) = (self.loaded, self.history);
        self.tables.entry(storage.into()).or_insert_with(|| Table {
            objects: BTreeMap::new(),
            log: Log::new(loaded, history),
            changed: watch::Sender::new(0),
        })
    }

    /// Puts an object at a version. The version must be the next one.
    pub(super) fn put(
        &mut self,
        storage: &str,
        name: Name,
        version: u64,
        content: Arc<Content>,
    ) -> Arc<Stored> {
        let object = Arc::new(Stored::new(version, name, content));
        let table = self.table_mut(storage);
        let previous = table.objects.insert(object.name.clone(), Arc::clone(&object));
        let kind = if previous.is_some() { EventKind::Modified } else { EventKind::Added };
        table.log.push(Event::new(kind, Arc::clone(&object), previous.clone()));
        if let Some(previous) = previous {
            self.unindex(storage, &previous);
        }
        self.index(storage, &object);
        self.advance(version);
        object
    }

    /// Removes an object at a version. The version must be the next one.
    pub(super) fn remove(
        &mut self,
        storage: &str,
        name: &Name,
        version: u64,
    ) -> Option<Arc<Stored>> {
        let table = self.table_mut(storage);
        let previous = table.objects.remove(name)?;
        let last = Arc::new(previous.at_version(version));
        let previous_state = Some(Arc::clone(&previous));
        table.log.push(Event::new(EventKind::Deleted, Arc::clone(&last), previous_state));
        self.unindex(storage, &previous);
        self.advance(version);
        Some(last)
    }

    /// Wakes the subscribers of these storages, and those of all storages.
    pub(super) fn announce<'a>(&self, storages: impl Iterator<Item = &'a str>) {
        for storage in storages {
            if let Some(table) = self.tables.get(storage) {
                table.changed.send_replace(self.version);
            }
        }
        self.changed.send_replace(self.version);
    }

    pub(super) fn list(&self, storage: &str, namespace: Option<&str>) -> Snapshot {
        let objects = match (self.tables.get(storage), namespace) {
            (None, _) => Vec::new(),
            (Some(table), None) => table.objects.values().cloned().collect(),
            (Some(table), Some(namespace)) => table.within(namespace).cloned().collect(),
        };
        Snapshot { version: self.version, objects }
    }

    pub(super) fn list_at(
        &self,
        storage: &str,
        namespace: Option<&str>,
        version: u64,
    ) -> Result<Snapshot, Compacted> {
        let Some(table) = self.tables.get(storage) else {
            if version < self.loaded {
                return Err(Compacted { newest: self.version });
            }
            return Ok(Snapshot { version, objects: Vec::new() });
        };
        // The first change after the version has the object at the version.
        let mut before: BTreeMap<&Name, Option<&Arc<Stored>>> = BTreeMap::new();
        for event in table.log.after(version, self.version)? {
            before.entry(&event.object.name).or_insert(event.previous.as_ref());
        }
        let mut snapshot = self.list(storage, namespace);
        snapshot.version = version;
        snapshot.objects.retain(|object| !before.contains_key(&object.name));
        let inside = |name: &Name| namespace.is_none_or(|namespace| &*name.namespace == namespace);
        let undone = before.into_iter().filter(|(name, _)| inside(name));
        snapshot.objects.extend(undone.filter_map(|(_, object)| object.cloned()));
        snapshot.objects.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(snapshot)
    }

    pub(super) fn events_after(
        &self,
        storage: &str,
        version: u64,
        limit: usize,
    ) -> Result<Changes, Compacted> {
        let events: Vec<Arc<Event>> = match self.tables.get(storage) {
            Some(table) => table.log.after(version, self.version)?.take(limit).cloned().collect(),
            None if version < self.loaded => return Err(Compacted { newest: self.version }),
            None => Vec::new(),
        };
        let upto = match events.last() {
            Some(last) if events.len() == limit => last.version(),
            _ => self.version.max(version),
        };
        Ok(Changes { events, upto })
    }

    pub(super) fn compact(&mut self) {
        let version = self.version;
        self.loaded = version;
        for table in self.tables.values_mut() {
            table.log.compact(version);
            // Watchers end now, not at the next change.
            table.changed.send_replace(version);
        }
    }

    pub(super) fn touch(&mut self, storage: &str) {
        let version = self.version;
        self.table_mut(storage).changed.send_replace(version);
    }

    pub(super) fn dependents(&self, uid: &str) -> Vec<ObjectRef> {
        self.dependents.get(uid).into_iter().flatten().cloned().collect()
    }

    pub(super) fn uid_exists(&self, uid: &str) -> bool {
        self.uids.contains(uid)
    }

    /// Every object, with the storage that it is in.
    pub(super) fn all(&self) -> Vec<(Arc<str>, Arc<Stored>)> {
        let pair = |storage, object| (Arc::clone(storage), Arc::clone(object));
        let tables = self.tables.iter();
        tables
            .flat_map(|(name, table)| table.objects.values().map(move |o| pair(name, o)))
            .collect()
    }

    pub(super) fn counts(&self) -> Vec<(Arc<str>, usize)> {
        self.tables.iter().map(|(name, table)| (Arc::clone(name), table.objects.len())).collect()
    }

    fn advance(&mut self, version: u64) {
        debug_assert!(version > self.version, "versions only grow");
        self.version = version;
    }

    fn index(&mut self, storage: &str, object: &Stored) {
        self.uids.insert(object.content.uid.clone());
        for owner in &object.content.owners {
            let dependent = reference(storage, object);
            self.dependents.entry(owner.clone()).or_default().insert(dependent);
        }
    }

    fn unindex(&mut self, storage: &str, object: &Stored) {
        self.uids.remove(&object.content.uid);
        for owner in &object.content.owners {
            if let Some(dependents) = self.dependents.get_mut(owner) {
                dependents.remove(&reference(storage, object));
                if dependents.is_empty() {
                    self.dependents.remove(owner);
                }
            }
        }
    }
}

impl Table {
    fn within(&self, namespace: &str) -> impl Iterator<Item = &Arc<Stored>> {
        let from = Name::new(namespace, "");
        self.objects
            .range((Bound::Included(from), Bound::Unbounded))
            .take_while(move |(name, _)| &*name.namespace == namespace)
            .map(|(_, object)| object)
    }
}

fn reference(storage: &str, object: &Stored) -> ObjectRef {
    ObjectRef { storage: storage.into(), name: object.name.clone() }
}
