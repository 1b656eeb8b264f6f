//! Named checks: each part of a process says how it is, the admin port tells others.
//!
//! Nobody is asked: a check holds what it was last told, so that a part that hangs cannot make the
//! probe hang as well.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a failing check means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The process is beyond help and is to be restarted. Counts for readiness, too.
    Live,
    /// The process does not serve yet, or not any more.
    Ready,
}

#[derive(Debug)]
struct Entry {
    purpose: Purpose,
    state: Result<(), String>,
}

type Entries = BTreeMap<String, Entry>;

/// All checks of a process. Clones are cheap and share them.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<Mutex<Entries>>);

/// One part's way to say how it is.
#[derive(Clone, Debug)]
pub struct Check {
    name: String,
    health: Health,
}

/// How the checks of a purpose stand, in the order of their names.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Report(Vec<(String, Result<(), String>)>);

impl Health {
    /// No checks: healthy.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a check, which fails with "not yet" until it is told otherwise. A name that is there
    /// already starts anew.
    pub fn check(&self, name: &str, purpose: Purpose) -> Check {
        let entry = Entry { purpose, state: Err("not yet".to_owned()) };
        self.entries().insert(name.to_owned(), entry);
        Check { name: name.to_owned(), health: self.clone() }
    }

    pub(crate) fn report(&self, purpose: Purpose) -> Report {
        let counts = |entry: &Entry| purpose == Purpose::Ready || entry.purpose == Purpose::Live;
        let entries = self.entries();
        let counted = entries.iter().filter(|(_, entry)| counts(entry));
        Report(counted.map(|(name, entry)| (name.clone(), entry.state.clone())).collect())
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        // Entries are replaced whole: a panic elsewhere leaves none half written.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Check {
    /// Says how the part is from now on: an error is the reason, for people.
    pub fn set(&self, state: Result<(), String>) {
        if let Some(entry) = self.health.entries().get_mut(&self.name) {
            entry.state = state;
        }
    }
}

impl Report {
    pub(crate) fn is_ok(&self) -> bool {
        self.0.iter().all(|(_, state)| state.is_ok())
    }

    /// As Kubernetes' own components list their checks.
    pub(crate) fn list(&self, path: &str) -> String {
        let mut text = String::new();
        for (name, state) in &self.0 {
            text += &match state {
                Ok(()) => format!("[+]{name} ok\n"),
                Err(why) => format!("[-]{name} failed: {why}\n"),
            };
        }
        let outcome = if self.is_ok() { "passed" } else { "failed" };
        text + path + " check " + outcome + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_needs_more_than_life() {
        let health = Health::new();
        assert!(health.report(Purpose::Ready).is_ok());
        let loop_ = health.check("loop", Purpose::Live);
        let synced = health.check("synced", Purpose::Ready);
        assert!(!health.report(Purpose::Live).is_ok(), "not yet");
        loop_.set(Ok(()));
        assert!(health.report(Purpose::Live).is_ok());
        assert_eq!(
            health.report(Purpose::Ready).list("readyz"),
            "[+]loop ok\n[-]synced failed: not yet\nreadyz check failed\n"
        );
        synced.set(Ok(()));
        assert_eq!(health.report(Purpose::Live).list("livez"), "[+]loop ok\nlivez check passed\n");
        synced.set(Err("watch is broken".to_owned()));
        assert!(!health.report(Purpose::Ready).is_ok());
    }
}
