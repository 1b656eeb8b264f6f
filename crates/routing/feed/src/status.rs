//! How each kind is doing, for readiness and metrics. Whether that is good enough is for others
//! to say.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use nearhop_core::Kind;

/// How one kind is doing.
#[derive(Clone, Debug)]
pub struct Status {
    /// The kind.
    pub kind: Kind,
    /// When the server last sent anything. After a panic it stands still until a list has been taken
    /// in.
    pub last_contact: Option<Instant>,
    /// Lists that were read to their end.
    pub lists: u64,
    /// Watches that the server accepted, streaming lists among them.
    pub watches: u64,
    /// Watches that fell silent and were given up.
    pub stalls: u64,
    /// Watches that ended with a panic.
    pub panics: u64,
    /// What is wrong now.
    pub error: Option<String>,
}

/// Where a task writes how it is doing.
#[derive(Clone, Debug)]
pub(crate) struct SharedStatus(Arc<Mutex<Entry>>);

#[derive(Debug)]
struct Entry {
    status: Status,
    /// Whether a task panicked and no list has been taken in since.
    panicked: bool,
}

impl SharedStatus {
    pub(crate) fn new(kind: Kind) -> Self {
        let (lists, watches, stalls, panics) = (0, 0, 0, 0);
        let status =
            Status { kind, last_contact: None, lists, watches, stalls, panics, error: None };
        Self(Arc::new(Mutex::new(Entry { status, panicked: false })))
    }

    pub(crate) fn read(&self) -> Status {
        self.lock().status.clone()
    }

    pub(crate) fn contact(&self) {
        let mut entry = self.lock();
        if !entry.panicked {
            entry.status.last_contact = Some(Instant::now());
        }
    }

    pub(crate) fn listed(&self) {
        let mut entry = self.lock();
        entry.panicked = false;
        entry.status.last_contact = Some(Instant::now());
        entry.status.lists += 1;
        entry.status.error = None;
    }

    pub(crate) fn watching(&self) {
        let mut entry = self.lock();
        entry.status.watches += 1;
        if !entry.panicked {
            entry.status.error = None;
        }
    }

    pub(crate) fn stalled(&self) {
        self.lock().status.stalls += 1;
    }

    pub(crate) fn failed(&self, error: &str) {
        self.lock().status.error = Some(error.to_owned());
    }

    pub(crate) fn panicked(&self, error: &str) {
        let mut entry = self.lock();
        entry.panicked = true;
        entry.status.panics += 1;
        entry.status.error = Some(error.to_owned());
    }

    /// Single assignments leave nothing half done, so a panic elsewhere does no harm.
    fn lock(&self) -> MutexGuard<'_, Entry> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
