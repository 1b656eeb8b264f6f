//! All objects of one kind, from the watch and from the responses to own writes. Pure.
//!
//! Responses apply at once, and older watch events are ignored. So a slow watch never causes a
//! second create, and no expectations are needed. This relies on the order: `ListStarted` is handled
//! before the list request is sent, so that the list contains all earlier writes, and later writes
//! are recorded here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::Metadata;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use nearhop_feed::watch::Event;
use nearhop_runtime::client::KnownVersions;

use crate::object::{self, ObjectKey};

/// A change of one object: created without `old`, deleted without `new`.
#[derive(Debug)]
pub(crate) struct Change<T> {
    pub(crate) old: Option<Arc<T>>,
    pub(crate) new: Option<Arc<T>>,
}

#[derive(Debug)]
pub(crate) struct Cache<T> {
    items: BTreeMap<ObjectKey, Arc<T>>,
    /// Which watch events and responses are newer than `items`.
    versions: KnownVersions<ObjectKey, Option<String>, u64, Arc<T>>,
    /// The objects of the list in progress.
    listed: Option<BTreeSet<ObjectKey>>,
    synced: bool,
}

impl<T> Default for Cache<T> {
    fn default() -> Self {
        Self {
            items: BTreeMap::new(),
            versions: KnownVersions::default(),
            listed: None,
            synced: false,
        }
    }
}

impl<T: Metadata<Ty = ObjectMeta>> Cache<T> {
    pub(crate) fn get(&self, name: &ObjectKey) -> Option<&Arc<T>> {
        self.items.get(name)
    }

    /// A cluster-scoped object.
    pub(crate) fn named(&self, name: &str) -> Option<&Arc<T>> {
        self.items.get(&ObjectKey::new("", name))
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<T>> {
        self.items.values()
    }

    pub(crate) fn within<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a Arc<T>> {
        let from = self.items.range(ObjectKey::new(namespace, "")..);
        from.take_while(move |(name, _)| name.namespace == namespace).map(|(_, item)| item)
    }

    /// Whether a list has completed.
    pub(crate) fn is_synced(&self) -> bool {
        self.synced
    }

    /// Applies a watch event.
    pub(crate) fn on_watch(&mut self, event: Event<T>) -> Vec<Change<T>> {
        match event {
            Event::ListStarted => {
                self.listed = Some(BTreeSet::new());
                self.versions.start_list();
                Vec::new()
            }
            Event::Put(item) => {
                let item = stored(item);
                let (meta, name) = (item.metadata(), ObjectKey::of(item.metadata()));
                if let Some(listed) = &mut self.listed {
                    listed.insert(name.clone());
                }
                let stamp = (&meta.uid, &object::version(meta));
                let is_new = self.versions.observe(&name, stamp, &item);
                if is_new { self.put(name, item) } else { Vec::new() }
            }
            Event::Listed(version) => self.end_of_list(version.as_str().parse().unwrap_or(0)),
            Event::Gone(item) => {
                let (meta, name) = (item.metadata(), ObjectKey::of(item.metadata()));
                let stamp = (&meta.uid, &object::version(meta));
                let is_gone = self.versions.observe_deleted(&name, stamp);
                if is_gone { self.remove(&name) } else { Vec::new() }
            }
            Event::Failed => Vec::new(),
        }
    }

    /// Applies the response to an own write.
    pub(crate) fn wrote(&mut self, item: T) -> Vec<Change<T>> {
        let (meta, name) = (item.metadata(), ObjectKey::of(item.metadata()));
        let is_new = self.versions.record_write(&name, (&meta.uid, &object::version(meta)));
        if is_new { self.put(name, stored(item)) } else { Vec::new() }
    }

    /// Applies the own deletion of the object with this name and uid.
    pub(crate) fn deleted(&mut self, name: &ObjectKey, uid: &str) -> Vec<Change<T>> {
        let is_new = self.versions.record_delete(name, &Some(uid.to_owned()));
        if is_new { self.remove(name) } else { Vec::new() }
    }

    fn end_of_list(&mut self, version: u64) -> Vec<Change<T>> {
        self.synced = true;
        let mut listed = self.listed.take().unwrap_or_default();
        let again = self.versions.complete_list(&mut listed, &version);
        let lost: Vec<ObjectKey> =
            self.items.keys().filter(|name| !listed.contains(name)).cloned().collect();
        let mut changes: Vec<Change<T>> = lost.iter().flat_map(|name| self.remove(name)).collect();
        for (name, old) in again {
            changes.extend(self.put(name, old.value));
        }
        changes
    }

    fn put(&mut self, name: ObjectKey, new: Arc<T>) -> Vec<Change<T>> {
        let old = self.items.insert(name, Arc::clone(&new));
        vec![Change { old, new: Some(new) }]
    }

    fn remove(&mut self, name: &ObjectKey) -> Vec<Change<T>> {
        let old = self.items.remove(name);
        old.map(|old| Change { old: Some(old), new: None }).into_iter().collect()
    }
}

/// The object without its managedFields, which are never read and about half of it.
fn stored<T: Metadata<Ty = ObjectMeta>>(mut item: T) -> Arc<T> {
    item.metadata_mut().managed_fields = None;
    Arc::new(item)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Pod;

    fn pod(name: &str, uid: &str, version: u64) -> Pod {
        let metadata = ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some("x".to_owned()),
            uid: Some(uid.to_owned()),
            resource_version: Some(version.to_string()),
            ..ObjectMeta::default()
        };
        Pod { metadata, ..Pod::default() }
    }

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new("x", name)
    }

    fn listed(version: &str) -> Event<Pod> {
        Event::Listed(version.into())
    }

    fn names(cache: &Cache<Pod>) -> Vec<(String, u64)> {
        let show = |p: &Arc<Pod>| (p.metadata.name.clone().unwrap(), object::version(&p.metadata));
        cache.within("x").map(show).collect()
    }

    #[test]
    fn own_writes_win_over_older_watch_events() {
        let mut cache = Cache::default();
        assert_eq!(cache.wrote(pod("a", "1", 7)).len(), 1);
        assert!(cache.on_watch(Event::Put(pod("a", "1", 5))).is_empty(), "older");
        assert!(cache.on_watch(Event::Put(pod("a", "1", 7))).is_empty(), "the same");
        assert_eq!(cache.on_watch(Event::Put(pod("a", "1", 9))).len(), 1);
        assert!(
            cache.wrote(pod("a", "1", 8)).is_empty(),
            "the response is older than the watch event"
        );
        assert_eq!(names(&cache), [("a".to_owned(), 9)]);
    }

    #[test]
    fn deleted_objects_do_not_reappear() {
        let mut cache = Cache::default();
        cache.wrote(pod("a", "1", 7));
        assert_eq!(cache.deleted(&key("a"), "1").len(), 1);
        assert!(cache.on_watch(Event::Put(pod("a", "1", 8))).is_empty());
        assert!(cache.wrote(pod("a", "1", 9)).is_empty());
        cache.wrote(pod("b", "3", 9));
        cache.on_watch(Event::ListStarted);
        assert_eq!(cache.deleted(&key("b"), "3").len(), 1);
        assert!(cache.on_watch(Event::Put(pod("b", "3", 9))).is_empty());
        cache.on_watch(listed("9"));
        assert_eq!(
            cache.on_watch(Event::Put(pod("a", "2", 10))).len(),
            1,
            "a new object with that name"
        );
        assert!(cache.on_watch(Event::Gone(pod("a", "1", 11))).is_empty());
        assert_eq!(names(&cache), [("a".to_owned(), 10)]);
        assert_eq!(cache.on_watch(Event::Gone(pod("a", "2", 12))).len(), 1);
        assert!(cache.wrote(pod("a", "2", 11)).is_empty(), "a late response");
    }

    #[test]
    fn relist_restores_objects_that_were_not_deleted() {
        let mut cache = Cache::default();
        cache.wrote(pod("a", "1", 7));
        cache.deleted(&key("a"), "1");
        cache.on_watch(Event::ListStarted);
        assert_eq!(cache.on_watch(Event::Put(pod("a", "1", 7))).len(), 1);
    }

    #[test]
    fn relist_removes_deleted_objects_but_not_newer_own_writes() {
        let mut cache = Cache::default();
        cache.on_watch(Event::Put(pod("old", "1", 1)));
        cache.on_watch(Event::Put(pod("kept", "2", 2)));
        cache.wrote(pod("early", "3", 3));
        cache.on_watch(Event::ListStarted);
        cache.wrote(pod("late", "4", 9));
        assert!(!cache.is_synced());
        cache.on_watch(Event::Put(pod("kept", "2", 2)));
        cache.on_watch(Event::Put(pod("early", "3", 3)));
        let gone = cache.on_watch(listed("3"));
        assert!(cache.is_synced());
        assert_eq!(gone.len(), 1);
        let expected = [("early", 3), ("kept", 2), ("late", 9)];
        assert_eq!(names(&cache), expected.map(|(name, v)| (name.to_owned(), v)));
        cache.on_watch(Event::ListStarted);
        assert_eq!(cache.on_watch(listed("10")).len(), 3, "the next list would contain it");
    }

    #[test]
    fn relist_removes_own_writes_that_were_deleted_meanwhile() {
        let mut cache = Cache::default();
        cache.on_watch(Event::ListStarted);
        cache.wrote(pod("short-lived", "1", 5));
        cache.wrote(pod("late", "2", 9));
        cache.on_watch(Event::Put(pod("other", "3", 7)));
        assert_eq!(
            cache.on_watch(listed("7")).len(),
            1,
            "the newer list does not contain the object"
        );
        assert_eq!(names(&cache), [("late".to_owned(), 9), ("other".to_owned(), 7)]);
    }

    #[test]
    fn relist_wins_even_if_versions_decreased() {
        let mut cache = Cache::default();
        cache.on_watch(Event::Put(pod("a", "1", 100)));
        cache.on_watch(Event::ListStarted);
        assert_eq!(cache.on_watch(Event::Put(pod("a", "1", 50))).len(), 1);
        cache.on_watch(listed("50"));
        assert_eq!(names(&cache), [("a".to_owned(), 50)]);
    }
}
