//! The status of a watch, for readiness checks and metrics.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use nearhop_runtime::lock;

/// The status of a watch.
#[derive(Clone, Debug)]
pub struct Status {
    /// The resource.
    pub resource: &'static str,
    /// When the API server last sent data. After a panic it does not change until a list is
    /// complete.
    pub last_contact: Option<Instant>,
    /// Complete lists.
    pub lists: u64,
    /// Watches that the API server accepted, including streaming lists.
    pub watches: u64,
    /// Watches closed because they were silent for too long.
    pub stalls: u64,
    /// Watches that ended with a panic.
    pub panics: u64,
    /// The present error.
    pub error: Option<String>,
}

/// Reads the status of a watch.
#[derive(Clone, Debug)]
pub(crate) struct StatusReader(pub(super) SharedStatus);

impl StatusReader {
    pub(crate) fn read(&self) -> Status {
        self.0.lock().status.clone()
    }
}

/// The status that a task writes and others read.
#[derive(Clone, Debug)]
pub(crate) struct SharedStatus(Arc<Mutex<Entry>>);

#[derive(Debug)]
struct Entry {
    status: Status,
    /// Whether the task panicked and no list is complete since then.
    panicked: bool,
}

impl SharedStatus {
    pub(crate) fn new(resource: &'static str) -> Self {
        let (lists, watches, stalls, panics) = (0, 0, 0, 0);
        let status =
            Status { resource, last_contact: None, lists, watches, stalls, panics, error: None };
        Self(Arc::new(Mutex::new(Entry { status, panicked: false })))
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

    /// Each change is one assignment, so that the value is usable even after a panic.
    fn lock(&self) -> MutexGuard<'_, Entry> {
        lock(&self.0)
    }
}
