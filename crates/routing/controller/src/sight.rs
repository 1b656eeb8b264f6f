//! Which version of each object that we write is known: what the feed showed, and what our own writes gave back.
//!
//! Our writes go into the world as soon as they are answered, so a plan never starts from a state
//! older than our last write, and nobody has to wait for the feed to catch up. In exchange, what
//! the feed shows late (the state before our write) must not undo them. Pure.

use std::collections::{BTreeMap, BTreeSet};

use nearhop_api::{Meta, Version};
use nearhop_core::{Change, Name, ObjectRef};

/// Namespace and name of a slice.
pub(crate) type SliceName = (Name, Name);

#[derive(Clone, Debug, PartialEq)]
enum Sight {
    /// Last seen in the feed, which is always in order.
    Fed { uid: Name, version: Version },
    /// Last seen in the answer to our own write; the feed may be behind.
    Written { uid: Name, version: Version, shown: Option<Box<Shown>> },
    /// Deleted by us; the feed may still show it.
    Deleted { uid: Name, shown: Option<Box<Shown>> },
}

/// What the feed showed of the time before our write. It is passed over, unless a list says that the
/// server does not have our write: it was restored from a backup.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shown {
    uid: Name,
    pub(crate) version: Version,
    pub(crate) change: Change,
}

impl Shown {
    fn new(meta: &Meta, change: &Change) -> Option<Box<Self>> {
        let (uid, version) = (meta.uid.clone(), meta.version.clone());
        Some(Box::new(Self { uid, version, change: change.clone() }))
    }
}

/// What is known of all slices, or of all PodLocators, by name.
#[derive(Debug)]
pub(crate) struct Sights<K> {
    all: BTreeMap<K, Sight>,
    /// The latest version that the feed showed.
    latest: Option<Version>,
}

impl<K> Default for Sights<K> {
    fn default() -> Self {
        Self { all: BTreeMap::new(), latest: None }
    }
}

impl<K: Ord + Clone> Sights<K> {
    /// Whether what the feed shows is news; remembers it if so.
    pub(crate) fn feed(&mut self, name: &K, meta: &Meta, change: &Change) -> bool {
        self.reach(&meta.version);
        let now = Sight::Fed { uid: meta.uid.clone(), version: meta.version.clone() };
        let news = match self.all.get_mut(name) {
            None | Some(Sight::Fed { .. }) => true,
            // Our own write comes by: the feed has caught up with it, and that is all.
            Some(sight @ Sight::Written { .. }) if sight.version() == Some(&meta.version) => {
                *sight = now;
                return false;
            }
            Some(Sight::Written { version, shown, .. }) => {
                let news = meta.version.is_at_least(version);
                if !news {
                    *shown = Shown::new(meta, change);
                }
                news
            }
            Some(Sight::Deleted { uid, shown }) => {
                let news = *uid != meta.uid;
                if !news {
                    *shown = Shown::new(meta, change);
                }
                news
            }
        };
        if news {
            self.all.insert(name.clone(), now);
        }
        news
    }

    /// The feed has come this far.
    fn reach(&mut self, version: &Version) {
        if self.latest.as_ref().is_none_or(|latest| version.is_at_least(latest)) {
            self.latest = Some(version.clone());
        }
    }

    /// Whether a slice that the feed shows as gone is to be taken as gone.
    pub(crate) fn feed_gone(&mut self, name: &K, meta: &Meta) -> bool {
        self.reach(&meta.version);
        let gone = match self.all.get(name) {
            None => return true,
            Some(Sight::Fed { uid, .. } | Sight::Deleted { uid, .. }) => *uid == meta.uid,
            // It went after our write, or an earlier life of the name went before it.
            Some(Sight::Written { uid, version, .. }) => {
                *uid == meta.uid || meta.version.is_at_least(version)
            }
        };
        if gone {
            self.all.remove(name);
        }
        gone
    }

    /// Whether the answer to our own write is news: the feed may have been faster.
    pub(crate) fn written(&mut self, name: &K, meta: &Meta) -> bool {
        let news = match self.all.get(name) {
            None | Some(Sight::Deleted { .. }) => true,
            Some(Sight::Fed { uid, version } | Sight::Written { uid, version, .. }) => {
                *uid != meta.uid
                    || (meta.version != *version && !version.is_at_least(&meta.version))
            }
        };
        if news {
            self.keep(name, meta);
        }
        news
    }

    /// Whether what the server has, where it refused a write based on this version, is news. It does
    /// not have that version: if what it has is older, it was restored from a backup.
    pub(crate) fn found(&mut self, name: &K, base: &Version, meta: &Meta) -> bool {
        let still = self.all.get(name).and_then(Sight::version) == Some(base);
        if !still || meta.version == *base {
            return self.written(name, meta);
        }
        self.keep(name, meta);
        true
    }

    fn keep(&mut self, name: &K, meta: &Meta) {
        let (uid, version) = (meta.uid.clone(), meta.version.clone());
        self.all.insert(name.clone(), Sight::Written { uid, version, shown: None });
    }

    /// Notes that we deleted a slice. Says whether it was still known.
    pub(crate) fn deleted(&mut self, name: &K, uid: &Name) -> bool {
        match self.all.get_mut(name) {
            Some(sight @ (Sight::Fed { .. } | Sight::Written { .. })) if sight.uid() == uid => {
                *sight = Sight::Deleted { uid: uid.clone(), shown: None };
                true
            }
            _ => false,
        }
    }

    /// Completes the names of a list by what we wrote after it, and forgets what is gone. Gives what
    /// counts again, because the server has lost what we wrote.
    ///
    /// A list that is older than what the feed had shown before is one of a server that was restored
    /// from a backup: it has none of the writes after it.
    pub(crate) fn listed(
        &mut self,
        listed: &mut BTreeSet<ObjectRef>,
        reference: impl Fn(&K) -> ObjectRef,
        at: &Version,
    ) -> Vec<Shown> {
        let restored = self.latest.as_ref().is_some_and(|latest| at < latest);
        self.latest = Some(at.clone());
        let mut again = Vec::new();
        self.all.retain(|name, sight| {
            let object = reference(name);
            let (lost, shown) = match sight {
                Sight::Fed { .. } => return listed.contains(&object),
                Sight::Deleted { shown, .. } => (restored, shown),
                Sight::Written { version, shown, .. } => {
                    // Later than our write, and without it, is as good as restored.
                    let lost = restored || at.is_at_least(version);
                    if !lost {
                        listed.insert(object.clone());
                    }
                    (lost, shown)
                }
            };
            if let Some(shown) = shown.take_if(|_| lost && listed.contains(&object)) {
                *sight = Sight::Fed { uid: shown.uid.clone(), version: shown.version.clone() };
                again.push(*shown);
            }
            listed.contains(&object)
        });
        again
    }

    /// UID and version to base a write on.
    pub(crate) fn get(&self, name: &K) -> Option<(&Name, &Version)> {
        match self.all.get(name)? {
            Sight::Fed { uid, version } | Sight::Written { uid, version, .. } => {
                Some((uid, version))
            }
            Sight::Deleted { .. } => None,
        }
    }
}

impl Sight {
    fn uid(&self) -> &Name {
        match self {
            Self::Fed { uid, .. } | Self::Written { uid, .. } | Self::Deleted { uid, .. } => uid,
        }
    }

    fn version(&self) -> Option<&Version> {
        match self {
            Self::Fed { version, .. } | Self::Written { version, .. } => Some(version),
            Self::Deleted { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> SliceName {
        (Name::from("ns"), Name::from("a-1"))
    }

    fn reference(name: &SliceName) -> ObjectRef {
        ObjectRef::Slice(name.0.clone(), name.1.clone())
    }

    fn slice() -> Change {
        Change::Gone(reference(&name()))
    }

    fn meta(uid: &str, version: &str) -> Meta {
        Meta {
            uid: Name::from(uid),
            version: Version::from(version),
            generation: 1,
            conditions: Vec::new(),
        }
    }

    #[test]
    fn the_feed_cannot_undo_a_write() {
        let mut sights = Sights::default();
        assert!(sights.feed(&name(), &meta("u", "5"), &slice()));
        assert!(sights.written(&name(), &meta("u", "8")));
        assert!(!sights.feed(&name(), &meta("u", "6"), &slice()), "the state before our write");
        assert!(!sights.feed(&name(), &meta("u", "8"), &slice()), "our own write comes by");
        assert!(sights.feed(&name(), &meta("u", "9"), &slice()), "somebody wrote after us");
    }

    #[test]
    fn the_feed_may_be_faster_than_the_answer() {
        let mut sights = Sights::default();
        assert!(sights.feed(&name(), &meta("u", "9"), &slice()));
        assert!(!sights.written(&name(), &meta("u", "8")));
        assert!(!sights.written(&name(), &meta("u", "9")));
        assert_eq!(sights.get(&name()).unwrap().1.as_str(), "9");
    }

    #[test]
    fn what_we_deleted_stays_deleted() {
        let mut sights = Sights::default();
        sights.feed(&name(), &meta("u", "5"), &slice());
        assert!(sights.deleted(&name(), &Name::from("u")));
        assert!(!sights.feed(&name(), &meta("u", "6"), &slice()));
        assert!(sights.get(&name()).is_none());
        assert!(sights.feed_gone(&name(), &meta("u", "7")));
        assert!(!sights.deleted(&name(), &Name::from("u")), "the feed was faster");
        assert!(sights.feed(&name(), &meta("v", "9"), &slice()), "another life of the name");
        assert!(!sights.feed_gone(&name(), &meta("u", "7")), "an earlier life");
    }

    #[test]
    fn versions_that_cannot_be_ordered_wait_for_their_echo() {
        let mut sights = Sights::default();
        assert!(sights.feed(&name(), &meta("u", "abc"), &slice()));
        assert!(sights.feed(&name(), &meta("u", "aaa"), &slice()), "the feed is always in order");
        assert!(sights.written(&name(), &meta("u", "xyz")));
        assert!(!sights.feed(&name(), &meta("u", "bbb"), &slice()));
        assert!(!sights.feed(&name(), &meta("u", "xyz"), &slice()), "the echo itself is no news");
        assert!(sights.feed(&name(), &meta("u", "bbb"), &slice()), "but what comes after it is");
    }

    #[test]
    fn a_list_keeps_what_was_written_after_it() {
        let mut sights = Sights::default();
        let other = (Name::from("ns"), Name::from("b-1"));
        sights.feed(&other, &meta("w", "3"), &slice());
        sights.written(&name(), &meta("u", "12"));
        let mut listed = BTreeSet::new();
        sights.listed(&mut listed, reference, &Version::from("10"));
        assert_eq!(listed, BTreeSet::from([reference(&name())]));
        let mut listed = BTreeSet::new();
        sights.listed(&mut listed, reference, &Version::from("12"));
        assert!(listed.is_empty());
        assert!(sights.get(&name()).is_none());
    }

    /// A list of a server that was restored, and what it shows counts, whatever we wrote.
    #[test]
    fn what_a_restored_server_has_lost_is_not_known_any_more() {
        let gone = (Name::from("ns"), Name::from("gone"));
        let made = (Name::from("ns"), Name::from("made"));
        let mut sights = Sights::default();
        sights.feed(&name(), &meta("u", "50"), &slice());
        sights.feed(&gone, &meta("g", "60"), &slice());
        sights.feed(&(Name::from("ns"), Name::from("other")), &meta("o", "90"), &slice());
        assert!(sights.written(&name(), &meta("u", "100")));
        assert!(sights.written(&made, &meta("m", "101")));
        assert!(sights.deleted(&gone, &Name::from("g")));
        // The list of the restored server, one object after the other.
        assert!(!sights.feed(&name(), &meta("u", "50"), &slice()));
        assert!(!sights.feed(&gone, &meta("g", "60"), &slice()));
        let mut listed = BTreeSet::from([reference(&name()), reference(&gone)]);
        let again = sights.listed(&mut listed, reference, &Version::from("70"));
        assert_eq!(again.len(), 2, "what it shows counts again: {again:?}");
        assert_eq!(
            listed,
            BTreeSet::from([reference(&name()), reference(&gone)]),
            "and what it lost is gone"
        );
        assert_eq!(sights.get(&name()).unwrap().1.as_str(), "50");
        assert_eq!(sights.get(&gone).unwrap().1.as_str(), "60");
        assert!(sights.get(&made).is_none());
        assert!(sights.feed(&name(), &meta("u", "71"), &slice()), "and life goes on");
    }

    /// The same where the versions have already caught up with our write.
    #[test]
    fn a_later_list_without_our_write_says_that_it_is_lost() {
        let mut sights = Sights::default();
        sights.feed(&name(), &meta("u", "50"), &slice());
        sights.written(&name(), &meta("u", "55"));
        assert!(!sights.feed(&name(), &meta("u", "50"), &slice()));
        let again = sights.listed(
            &mut BTreeSet::from([reference(&name())]),
            reference,
            &Version::from("60"),
        );
        assert_eq!(again.len(), 1);
        assert_eq!(sights.get(&name()).unwrap().1.as_str(), "50");
    }

    #[test]
    fn after_a_conflict_the_server_is_right_even_with_an_older_version() {
        let mut sights = Sights::default();
        sights.feed(&name(), &meta("u", "90"), &slice());
        sights.written(&name(), &meta("u", "100"));
        assert!(!sights.found(&name(), &Version::from("95"), &meta("u", "96")), "older than known");
        assert!(sights.found(&name(), &Version::from("100"), &meta("u", "50")));
        assert_eq!(sights.get(&name()).unwrap().1.as_str(), "50");
        assert!(sights.written(&name(), &meta("u", "61")), "and can be written again");
    }
}
