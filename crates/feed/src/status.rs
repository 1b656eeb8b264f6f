//! How each kind is doing, for readiness and metrics. Whether that is good enough is for others
//! to say.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::kind::Kind;

/// How one kind is doing.
#[derive(Clone, Debug)]
pub struct Status {
    /// The kind.
    pub kind: Kind,
    /// When the server last sent anything.
    pub last_contact: Option<Instant>,
    /// Lists that were read to their end.
    pub lists: u64,
    /// Watches that the server accepted, streaming lists among them.
    pub watches: u64,
    /// Watches that fell silent and were given up.
    pub stalls: u64,
    /// What is wrong now.
    pub error: Option<String>,
}

/// Where a task writes how it is doing.
#[derive(Clone, Debug)]
pub(crate) struct Board(Arc<Mutex<Status>>);

impl Board {
    pub(crate) fn new(kind: Kind) -> Self {
        let (lists, watches, stalls) = (0, 0, 0);
        let status = Status { kind, last_contact: None, lists, watches, stalls, error: None };
        Self(Arc::new(Mutex::new(status)))
    }

    pub(crate) fn read(&self) -> Status {
        self.lock().clone()
    }

    pub(crate) fn contact(&self) {
        self.lock().last_contact = Some(Instant::now());
    }

    pub(crate) fn listed(&self) {
        let mut status = self.lock();
        status.lists += 1;
        status.error = None;
    }

    pub(crate) fn watching(&self) {
        let mut status = self.lock();
        status.watches += 1;
        status.error = None;
    }

    pub(crate) fn stalled(&self) {
        self.lock().stalls += 1;
    }

    pub(crate) fn failed(&self, error: &str) {
        self.lock().error = Some(error.to_owned());
    }

    /// Single assignments leave nothing half done, so a panic elsewhere does no harm.
    fn lock(&self) -> MutexGuard<'_, Status> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
