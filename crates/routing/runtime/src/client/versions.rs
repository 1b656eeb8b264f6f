//! Remembers the version of each object that this process writes, from the watch or from the
//! replies to its own writes. Pure.
//!
//! A reply counts at once, so that a plan never starts from a state older than the last own write
//! and never waits for the watch. The watch may show the state before an own write afterwards: that
//! must not undo the write.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug, PartialEq)]
enum Known<U, V, T> {
    /// Last seen in the watch, which is always in order.
    Watched { uid: U, version: V },
    /// Last seen in the reply to an own write; the watch may be behind.
    Written { uid: U, version: V, outdated: Option<Box<Outdated<U, V, T>>> },
    /// Deleted by this process; the watch may still show it.
    Deleted { uid: U, outdated: Option<Box<Outdated<U, V, T>>> },
}

impl<U, V, T> Known<U, V, T> {
    /// UID and version, unless it is deleted.
    fn current(&self) -> Option<(&U, &V)> {
        match self {
            Self::Watched { uid, version } | Self::Written { uid, version, .. } => {
                Some((uid, version))
            }
            Self::Deleted { .. } => None,
        }
    }
}

/// A state from before an own write that the watch showed after it. It is ignored, unless a list
/// shows that the server lost the write because it was restored from a backup.
#[derive(Clone, Debug, PartialEq)]
pub struct Outdated<U, V, T> {
    uid: U,
    /// The version that the watch showed.
    pub version: V,
    /// What the watch showed.
    pub value: T,
}

/// The known versions of all objects of a kind: `K` is an object's name, `U` a UID, `V` a
/// resourceVersion and `T` what the watch showed.
///
/// Where two versions cannot be ordered (`partial_cmp` is None), one counts as newer only if they
/// are equal.
///
/// ```
/// # use nearhop_runtime::client::KnownVersions;
/// let mut known: KnownVersions<&str, &str, u64, ()> = KnownVersions::default();
/// assert!(known.observe(&"web", (&"uid", &5), &()));
/// assert!(known.record_write(&"web", (&"uid", &8)), "the reply to an own write");
/// assert!(!known.observe(&"web", (&"uid", &6), &()), "the watch is behind");
/// assert_eq!(known.get(&"web"), Some((&"uid", &8)), "the base of the next write");
/// ```
#[derive(Debug)]
pub struct KnownVersions<K, U, V, T> {
    all: BTreeMap<K, Known<U, V, T>>,
    /// The latest version that the watch showed.
    latest: Option<V>,
}

impl<K, U, V, T> Default for KnownVersions<K, U, V, T> {
    fn default() -> Self {
        Self { all: BTreeMap::new(), latest: None }
    }
}

/// Not `>=`: versions that cannot be ordered may still be equal.
fn is_at_least<V: PartialOrd>(version: &V, other: &V) -> bool {
    version == other || version.partial_cmp(other) == Some(Ordering::Greater)
}

impl<K: Ord + Clone, U: Clone + PartialEq, V: Clone + PartialOrd, T: Clone>
    KnownVersions<K, U, V, T>
{
    /// Whether what the watch shows is new; remembers it if so.
    pub fn observe(&mut self, name: &K, (uid, version): (&U, &V), value: &T) -> bool {
        self.advance(version);
        let watched = Known::Watched { uid: uid.clone(), version: version.clone() };
        let outdated = || {
            let (uid, version) = (uid.clone(), version.clone());
            Some(Box::new(Outdated { uid, version, value: value.clone() }))
        };
        match self.all.get_mut(name) {
            // The watch shows an own write: it has caught up.
            Some(known @ Known::Written { .. })
                if known.current().is_some_and(|(_, written)| written == version) =>
            {
                *known = watched;
                return false;
            }
            Some(Known::Written { version: written, outdated: old, .. })
                if !is_at_least(version, written) =>
            {
                *old = outdated();
                return false;
            }
            Some(Known::Deleted { uid: deleted, outdated: old }) if deleted == uid => {
                *old = outdated();
                return false;
            }
            _ => {}
        }
        self.all.insert(name.clone(), watched);
        true
    }

    fn advance(&mut self, version: &V) {
        if self.latest.as_ref().is_none_or(|latest| is_at_least(version, latest)) {
            self.latest = Some(version.clone());
        }
    }

    /// Whether an object that the watch shows as deleted is deleted.
    pub fn observe_deleted(&mut self, name: &K, (uid, version): (&U, &V)) -> bool {
        self.advance(version);
        let deleted = match self.all.get(name) {
            None => return true,
            Some(Known::Watched { uid: known, .. } | Known::Deleted { uid: known, .. }) => {
                known == uid
            }
            // Deleted after the own write; or an earlier object of this name, deleted before it.
            Some(Known::Written { uid: known, version: written, .. }) => {
                known == uid || is_at_least(version, written)
            }
        };
        if deleted {
            self.all.remove(name);
        }
        deleted
    }

    /// Whether the reply to an own write is new: the watch may have shown the write before, and
    /// perhaps also that the object is deleted.
    pub fn record_write(&mut self, name: &K, (uid, version): (&U, &V)) -> bool {
        let new = match self.all.get(name) {
            Some(Known::Deleted { uid: deleted, .. }) => deleted != uid,
            Some(Known::Watched { uid: known, version: at })
            | Some(Known::Written { uid: known, version: at, .. }) => {
                known != uid || !is_at_least(at, version)
            }
            None => self.latest.as_ref().is_none_or(|latest| !is_at_least(latest, version)),
        };
        if new {
            self.insert(name, uid, version);
        }
        new
    }

    /// Records the server's state after a conflict of a write based on version `base`, and returns
    /// whether it is new. The server does not have `base` any more: if its state is older, it was
    /// restored from a backup.
    pub fn record_conflict(&mut self, name: &K, base: &V, (uid, version): (&U, &V)) -> bool {
        let unchanged = self.get(name).is_some_and(|(_, known)| known == base);
        if !unchanged || version == base {
            return self.record_write(name, (uid, version));
        }
        self.insert(name, uid, version);
        true
    }

    fn insert(&mut self, name: &K, uid: &U, version: &V) {
        let (uid, version) = (uid.clone(), version.clone());
        self.all.insert(name.clone(), Known::Written { uid, version, outdated: None });
    }

    /// Records that this process deleted an object. Returns whether the object was still known.
    pub fn record_delete(&mut self, name: &K, uid: &U) -> bool {
        match self.all.get_mut(name) {
            Some(known) if known.current().is_some_and(|(current, _)| current == uid) => {
                *known = Known::Deleted { uid: uid.clone(), outdated: None };
                true
            }
            _ => false,
        }
    }

    /// Expects a list that is not requested yet: it shows all writes that are recorded here, so
    /// [`complete_list`](Self::complete_list) keeps only writes that follow. Optional; without it
    /// the versions decide.
    pub fn start_list(&mut self) {
        self.latest = None;
        self.all.retain(|_, known| match known {
            Known::Written { uid, version, .. } => {
                *known = Known::Watched { uid: uid.clone(), version: version.clone() };
                true
            }
            Known::Watched { .. } => true,
            Known::Deleted { .. } => false,
        });
    }

    /// Adds own writes that are newer than a list to its names, and forgets objects that it shows
    /// to be deleted. Returns the states that are valid again, because the server lost an own
    /// write, by name.
    ///
    /// A list that is older than what the watch showed before comes from a server that was restored
    /// from a backup: it has none of the later writes.
    pub fn complete_list(
        &mut self,
        names: &mut BTreeSet<K>,
        at: &V,
    ) -> Vec<(K, Outdated<U, V, T>)> {
        let restored = self.latest.as_ref().is_some_and(|latest| at < latest);
        self.latest = Some(at.clone());
        let mut again = Vec::new();
        self.all.retain(|name, known| {
            let (lost, outdated) = match known {
                Known::Watched { .. } => return names.contains(name),
                Known::Deleted { outdated, .. } => (restored, outdated),
                Known::Written { version, outdated, .. } => {
                    // A list that is newer than the write but does not contain it also shows that
                    // the write is lost.
                    let lost = restored || is_at_least(at, version);
                    if !lost {
                        names.insert(name.clone());
                    }
                    (lost, outdated)
                }
            };
            if let Some(old) = outdated.take_if(|_| lost && names.contains(name)) {
                *known = Known::Watched { uid: old.uid.clone(), version: old.version.clone() };
                again.push((name.clone(), *old));
            }
            names.contains(name)
        });
        again
    }

    /// The UID and version to base a write on.
    pub fn get(&self, name: &K) -> Option<(&U, &V)> {
        self.all.get(name)?.current()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Versions = KnownVersions<&'static str, &'static str, u64, ()>;

    #[test]
    fn a_late_watch_event_does_not_undo_a_write() {
        let mut known = Versions::default();
        assert!(known.observe(&"a", (&"u", &5), &()));
        assert!(known.record_write(&"a", (&"u", &8)));
        assert!(!known.observe(&"a", (&"u", &6), &()), "the state before the write");
        assert!(!known.observe(&"a", (&"u", &8), &()), "the write itself");
        assert!(known.observe(&"a", (&"u", &9), &()), "another client wrote later");
    }

    #[test]
    fn a_late_reply_does_not_undo_a_watch_event() {
        let mut known = Versions::default();
        assert!(known.observe(&"a", (&"u", &9), &()));
        assert!(!known.record_write(&"a", (&"u", &8)));
        assert!(!known.record_write(&"a", (&"u", &9)));
        assert_eq!(known.get(&"a"), Some((&"u", &9)));
        assert!(known.observe_deleted(&"a", (&"u", &10)));
        assert!(!known.record_write(&"a", (&"u", &9)), "the watch showed that it is deleted");
        assert!(known.record_write(&"a", (&"v", &11)), "a new object of this name");
    }

    #[test]
    fn a_deleted_object_stays_deleted() {
        let mut known = Versions::default();
        known.observe(&"a", (&"u", &5), &());
        assert!(known.record_delete(&"a", &"u"));
        assert!(!known.observe(&"a", (&"u", &6), &()));
        assert!(!known.record_write(&"a", (&"u", &6)), "a late reply");
        assert!(known.get(&"a").is_none());
        assert!(known.observe_deleted(&"a", (&"u", &7)));
        assert!(!known.record_delete(&"a", &"u"), "the watch reported the deletion first");
        assert!(known.observe(&"a", (&"v", &9), &()), "a new object with this name");
        assert!(!known.observe_deleted(&"a", (&"u", &7)), "the event is about the earlier object");
    }

    #[test]
    fn events_are_ignored_until_the_watch_shows_an_unordered_write() {
        #[derive(Clone, Debug, PartialEq)]
        struct Opaque(&'static str);
        impl PartialOrd for Opaque {
            fn partial_cmp(&self, _: &Self) -> Option<std::cmp::Ordering> {
                None
            }
        }
        let mut known = KnownVersions::default();
        assert!(known.observe(&"a", (&"u", &Opaque("abc")), &()));
        assert!(known.observe(&"a", (&"u", &Opaque("aaa")), &()), "watch events arrive in order");
        assert!(known.record_write(&"a", (&"u", &Opaque("xyz"))));
        assert!(!known.observe(&"a", (&"u", &Opaque("bbb")), &()));
        assert!(!known.observe(&"a", (&"u", &Opaque("xyz")), &()), "the write itself");
        assert!(known.observe(&"a", (&"u", &Opaque("bbb")), &()), "events after the write are new");
    }

    #[test]
    fn a_list_keeps_later_writes() {
        let mut known = Versions::default();
        known.observe(&"b", (&"w", &3), &());
        known.record_write(&"a", (&"u", &12));
        let mut names = BTreeSet::new();
        known.complete_list(&mut names, &10);
        assert_eq!(names, BTreeSet::from(["a"]));
        let mut names = BTreeSet::new();
        known.complete_list(&mut names, &12);
        assert!(names.is_empty());
        assert!(known.get(&"a").is_none());
    }

    #[test]
    fn an_expected_list_overrides_earlier_writes() {
        let mut known = Versions::default();
        known.record_write(&"a", (&"u", &100));
        known.record_write(&"b", (&"w", &101));
        known.record_delete(&"b", &"w");
        known.start_list();
        assert!(known.observe(&"a", (&"u", &50), &()) && known.observe(&"b", (&"w", &51), &()));
        known.record_write(&"late", (&"l", &60));
        let mut names = BTreeSet::from(["a", "b"]);
        assert!(known.complete_list(&mut names, &55).is_empty());
        assert_eq!(names, BTreeSet::from(["a", "b", "late"]));
    }

    #[test]
    fn a_list_discards_writes_that_a_restored_server_lost() {
        let mut known = Versions::default();
        known.observe(&"a", (&"u", &50), &());
        known.observe(&"gone", (&"g", &60), &());
        known.observe(&"other", (&"o", &90), &());
        assert!(known.record_write(&"a", (&"u", &100)));
        assert!(known.record_write(&"made", (&"m", &101)));
        assert!(known.record_delete(&"gone", &"g"));
        // The list of the restored server, object by object.
        assert!(!known.observe(&"a", (&"u", &50), &()));
        assert!(!known.observe(&"gone", (&"g", &60), &()));
        let mut names = BTreeSet::from(["a", "gone"]);
        let again = known.complete_list(&mut names, &70);
        assert_eq!(again.len(), 2, "both listed objects are accepted again: {again:?}");
        assert_eq!(names, BTreeSet::from(["a", "gone"]), "the lost object is removed");
        assert_eq!(known.get(&"a"), Some((&"u", &50)));
        assert_eq!(known.get(&"gone"), Some((&"g", &60)));
        assert!(known.get(&"made").is_none());
        assert!(known.observe(&"a", (&"u", &71), &()));
    }

    /// The restored server has already reached a higher version than the lost write.
    #[test]
    fn a_newer_list_discards_a_missing_write() {
        let mut known = Versions::default();
        known.observe(&"a", (&"u", &50), &());
        known.record_write(&"a", (&"u", &55));
        assert!(!known.observe(&"a", (&"u", &50), &()));
        assert_eq!(known.complete_list(&mut BTreeSet::from(["a"]), &60).len(), 1);
        assert_eq!(known.get(&"a"), Some((&"u", &50)));
    }

    #[test]
    fn a_conflict_restores_an_older_server_version() {
        let mut known = Versions::default();
        known.observe(&"a", (&"u", &90), &());
        known.record_write(&"a", (&"u", &100));
        assert!(
            !known.record_conflict(&"a", &95, (&"u", &96)),
            "the conflict is older than the known version"
        );
        assert!(known.record_conflict(&"a", &100, (&"u", &50)));
        assert_eq!(known.get(&"a"), Some((&"u", &50)));
        assert!(known.record_write(&"a", (&"u", &61)), "a later write is accepted");
    }
}
