//! Which version of each object that we write is known: what the feed showed, and what our own writes gave back.
//!
//! Our writes go into the world as soon as they are answered, so a plan never starts from a state
//! older than our last write, and nobody has to wait for the feed to catch up. In exchange, what
//! the feed shows late (the state before our write) must not undo them. Pure.

use std::collections::{BTreeMap, BTreeSet};

use nearhop_api::{Meta, Version};
use nearhop_core::Name;

/// Namespace and name of a slice.
pub(crate) type SliceName = (Name, Name);

#[derive(Clone, Debug, PartialEq)]
enum Sight {
    /// Last seen in the feed, which is always in order.
    Fed { uid: Name, version: Version },
    /// Last seen in the answer to our own write; the feed may be behind.
    Written { uid: Name, version: Version },
    /// Deleted by us; the feed may still show it.
    Deleted { uid: Name },
}

/// What is known of all slices, or of all PodLocators, by name.
#[derive(Debug)]
pub(crate) struct Sights<K>(BTreeMap<K, Sight>);

impl<K> Default for Sights<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord + Clone> Sights<K> {
    /// Whether what the feed shows is news; remembers it if so.
    pub(crate) fn feed(&mut self, name: &K, meta: &Meta) -> bool {
        let now = Sight::Fed { uid: meta.uid.clone(), version: meta.version.clone() };
        let news = match self.0.get_mut(name) {
            None | Some(Sight::Fed { .. }) => true,
            // Our own write comes by: the feed has caught up with it, and that is all.
            Some(sight @ Sight::Written { .. }) if sight.version() == Some(&meta.version) => {
                *sight = now;
                return false;
            }
            Some(Sight::Written { version, .. }) => meta.version.is_at_least(version),
            Some(Sight::Deleted { uid }) => *uid != meta.uid,
        };
        if news {
            self.0.insert(name.clone(), now);
        }
        news
    }

    /// Whether a slice that the feed shows as gone is to be taken as gone.
    pub(crate) fn feed_gone(&mut self, name: &K, meta: &Meta) -> bool {
        let gone = match self.0.get(name) {
            None => return true,
            Some(Sight::Fed { uid, .. } | Sight::Deleted { uid }) => *uid == meta.uid,
            // It went after our write, or an earlier life of the name went before it.
            Some(Sight::Written { uid, version }) => {
                *uid == meta.uid || meta.version.is_at_least(version)
            }
        };
        if gone {
            self.0.remove(name);
        }
        gone
    }

    /// Whether the answer to our own write is news: the feed may have been faster.
    pub(crate) fn written(&mut self, name: &K, meta: &Meta) -> bool {
        let news = match self.0.get(name) {
            None | Some(Sight::Deleted { .. }) => true,
            Some(Sight::Fed { uid, version } | Sight::Written { uid, version }) => {
                *uid != meta.uid
                    || (meta.version != *version && !version.is_at_least(&meta.version))
            }
        };
        if news {
            let (uid, version) = (meta.uid.clone(), meta.version.clone());
            self.0.insert(name.clone(), Sight::Written { uid, version });
        }
        news
    }

    /// Notes that we deleted a slice. Says whether it was still known.
    pub(crate) fn deleted(&mut self, name: &K, uid: &Name) -> bool {
        match self.0.get_mut(name) {
            Some(sight @ (Sight::Fed { .. } | Sight::Written { .. })) if sight.uid() == uid => {
                *sight = Sight::Deleted { uid: uid.clone() };
                true
            }
            _ => false,
        }
    }

    /// Completes the names of a list by what we wrote after it, and forgets what is gone.
    pub(crate) fn listed(&mut self, roll: &mut BTreeSet<K>, at: &Version) {
        self.0.retain(|name, sight| {
            let later = match sight {
                Sight::Written { version, .. } => !at.is_at_least(version),
                Sight::Fed { .. } | Sight::Deleted { .. } => false,
            };
            if later {
                roll.insert(name.clone());
            }
            roll.contains(name)
        });
    }

    /// UID and version to base a write on.
    pub(crate) fn get(&self, name: &K) -> Option<(&Name, &Version)> {
        match self.0.get(name)? {
            Sight::Fed { uid, version } | Sight::Written { uid, version } => Some((uid, version)),
            Sight::Deleted { .. } => None,
        }
    }
}

impl Sight {
    fn uid(&self) -> &Name {
        match self {
            Self::Fed { uid, .. } | Self::Written { uid, .. } | Self::Deleted { uid } => uid,
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
        assert!(sights.feed(&name(), &meta("u", "5")));
        assert!(sights.written(&name(), &meta("u", "8")));
        assert!(!sights.feed(&name(), &meta("u", "6")), "the state before our write");
        assert!(!sights.feed(&name(), &meta("u", "8")), "our own write comes by");
        assert!(sights.feed(&name(), &meta("u", "9")), "somebody wrote after us");
    }

    #[test]
    fn the_feed_may_be_faster_than_the_answer() {
        let mut sights = Sights::default();
        assert!(sights.feed(&name(), &meta("u", "9")));
        assert!(!sights.written(&name(), &meta("u", "8")));
        assert!(!sights.written(&name(), &meta("u", "9")));
        assert_eq!(sights.get(&name()).unwrap().1.as_str(), "9");
    }

    #[test]
    fn what_we_deleted_stays_deleted() {
        let mut sights = Sights::default();
        sights.feed(&name(), &meta("u", "5"));
        assert!(sights.deleted(&name(), &Name::from("u")));
        assert!(!sights.feed(&name(), &meta("u", "6")));
        assert!(sights.get(&name()).is_none());
        assert!(sights.feed_gone(&name(), &meta("u", "7")));
        assert!(!sights.deleted(&name(), &Name::from("u")), "the feed was faster");
        assert!(sights.feed(&name(), &meta("v", "9")), "another life of the name");
        assert!(!sights.feed_gone(&name(), &meta("u", "7")), "an earlier life");
    }

    #[test]
    fn versions_that_cannot_be_ordered_wait_for_their_echo() {
        let mut sights = Sights::default();
        assert!(sights.feed(&name(), &meta("u", "abc")));
        assert!(sights.feed(&name(), &meta("u", "aaa")), "the feed is always in order");
        assert!(sights.written(&name(), &meta("u", "xyz")));
        assert!(!sights.feed(&name(), &meta("u", "bbb")));
        assert!(!sights.feed(&name(), &meta("u", "xyz")), "the echo itself is no news");
        assert!(sights.feed(&name(), &meta("u", "bbb")), "but what comes after it is");
    }

    #[test]
    fn a_list_keeps_what_was_written_after_it() {
        let mut sights = Sights::default();
        let other = (Name::from("ns"), Name::from("b-1"));
        sights.feed(&other, &meta("w", "3"));
        sights.written(&name(), &meta("u", "12"));
        let mut roll = BTreeSet::new();
        sights.listed(&mut roll, &Version::from("10"));
        assert_eq!(roll, BTreeSet::from([name()]));
        let mut roll = BTreeSet::new();
        sights.listed(&mut roll, &Version::from("12"));
        assert!(roll.is_empty());
        assert!(sights.get(&name()).is_none());
    }
}
