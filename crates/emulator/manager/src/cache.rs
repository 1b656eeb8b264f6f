//! All objects of one kind, from the watch and from the responses to own writes. Pure.
//!
//! Responses apply at once, and older watch events are ignored. So a slow watch never causes a
//! second create, and no expectations are needed. This relies on the order: `ListStarted` is handled
//! before the list request is sent, so that the list contains all earlier writes, and later writes
//! are recorded here.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use k8s_openapi::Metadata;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use nearhop_feed::watch::Event;

use crate::object::{self, ObjectKey};

/// More deletions than a late event can lag behind.
const MAX_DELETED_UIDS: usize = 8192;

/// A change of one object: created without `old`, deleted without `new`.
#[derive(Debug)]
pub(crate) struct Change<T> {
    pub(crate) old: Option<Arc<T>>,
    pub(crate) new: Option<Arc<T>>,
}

#[derive(Debug)]
pub(crate) struct Cache<T> {
    items: BTreeMap<ObjectKey, Arc<T>>,
    /// The objects of the list in progress.
    listed: Option<BTreeSet<ObjectKey>>,
    /// Own writes since the list request.
    own: BTreeSet<ObjectKey>,
    /// Uids of deleted objects; late events about them are ignored.
    deleted_uids: BTreeSet<String>,
    deletion_order: VecDeque<String>,
    synced: bool,
}

impl<T> Default for Cache<T> {
    fn default() -> Self {
        Self {
            items: BTreeMap::new(),
            listed: None,
            own: BTreeSet::new(),
            deleted_uids: BTreeSet::new(),
            deletion_order: VecDeque::new(),
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
                self.own.clear();
                // The new list is authoritative about deletions.
                self.deleted_uids.clear();
                self.deletion_order.clear();
                Vec::new()
            }
            Event::Put(item) => {
                let name = ObjectKey::of(item.metadata());
                // A list is authoritative even if versions decreased, as after a restored backup;
                // only own writes since the request may be newer.
                let wins = match &mut self.listed {
                    Some(listed) => {
                        listed.insert(name.clone());
                        !self.own.contains(&name)
                    }
                    None => false,
                };
                if wins || self.is_newer(item.metadata()) { self.put(item) } else { Vec::new() }
            }
            Event::Listed(version) => self.end_of_list(version.as_str().parse().unwrap_or(0)),
            Event::Gone(item) => self.deleted(object::uid(item.metadata())),
            Event::Failed => Vec::new(),
        }
    }

    /// Applies the response to an own write.
    pub(crate) fn wrote(&mut self, item: T) -> Vec<Change<T>> {
        if !self.is_newer(item.metadata()) {
            return Vec::new();
        }
        self.own.insert(ObjectKey::of(item.metadata()));
        self.put(item)
    }

    /// Applies the deletion of the object with this uid.
    pub(crate) fn deleted(&mut self, uid: &str) -> Vec<Change<T>> {
        if self.deleted_uids.insert(uid.to_owned()) {
            self.deletion_order.push_back(uid.to_owned());
        }
        if self.deletion_order.len() > MAX_DELETED_UIDS
            && let Some(forgotten) = self.deletion_order.pop_front()
        {
            self.deleted_uids.remove(&forgotten);
        }
        let found = self.items.iter().find(|(_, item)| object::uid(item.metadata()) == uid);
        let Some(name) = found.map(|(name, _)| name.clone()) else { return Vec::new() };
        self.remove(&name).into_iter().collect()
    }

    fn end_of_list(&mut self, version: u64) -> Vec<Change<T>> {
        self.synced = true;
        let listed = self.listed.take().unwrap_or_default();
        // An own write that the list should contain but does not is already deleted, and no watch
        // event will follow. A newer one came after the list.
        let after = |name: &ObjectKey, item: &T| {
            self.own.contains(name) && object::version(item.metadata()) > version
        };
        let lost: Vec<ObjectKey> = self
            .items
            .iter()
            .filter(|(name, item)| !listed.contains(*name) && !after(name, item))
            .map(|(name, _)| name.clone())
            .collect();
        lost.iter().filter_map(|name| self.remove(name)).collect()
    }

    fn is_newer(&self, meta: &ObjectMeta) -> bool {
        if self.deleted_uids.contains(object::uid(meta)) {
            return false;
        }
        let Some(known) = self.items.get(&ObjectKey::of(meta)).map(|item| item.metadata()) else {
            return true;
        };
        object::version(meta) > object::version(known)
    }

    fn put(&mut self, mut item: T) -> Vec<Change<T>> {
        let meta = item.metadata_mut();
        if self.deleted_uids.contains(object::uid(meta)) {
            return Vec::new();
        }
        // Never read, and about half of an object.
        meta.managed_fields = None;
        let name = ObjectKey::of(meta);
        let new = Arc::new(item);
        let old = self.items.insert(name, Arc::clone(&new));
        vec![Change { old, new: Some(new) }]
    }

    fn remove(&mut self, name: &ObjectKey) -> Option<Change<T>> {
        let old = self.items.remove(name)?;
        Some(Change { old: Some(old), new: None })
    }
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
        assert_eq!(cache.deleted("1").len(), 1);
        assert!(cache.on_watch(Event::Put(pod("a", "1", 8))).is_empty());
        assert!(cache.wrote(pod("a", "1", 9)).is_empty());
        cache.on_watch(Event::ListStarted);
        cache.deleted("1");
        assert!(cache.on_watch(Event::Put(pod("a", "1", 9))).is_empty());
        cache.on_watch(listed("9"));
        assert_eq!(
            cache.on_watch(Event::Put(pod("a", "2", 10))).len(),
            1,
            "a new object with that name"
        );
        assert!(cache.on_watch(Event::Gone(pod("a", "1", 11))).is_empty());
        assert_eq!(names(&cache), [("a".to_owned(), 10)]);
    }

    #[test]
    fn relist_restores_objects_that_were_not_deleted() {
        let mut cache = Cache::default();
        cache.wrote(pod("a", "1", 7));
        cache.deleted("1");
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
