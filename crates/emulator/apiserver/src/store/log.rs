//! The log of changes, oldest first, bounded in number and size.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::Compacted;
use super::object::Stored;

#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) kind: EventKind,
    /// The object after the change; for a deletion its last state, with the deletion's version.
    pub(crate) object: Arc<Stored>,
    /// The object before the change.
    pub(crate) previous: Option<Arc<Stored>>,
    /// The frame of plain watches, encoded once.
    frame: OnceLock<Bytes>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    Added,
    Modified,
    Deleted,
}

impl EventKind {
    /// As a watch frame spells it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

impl Event {
    pub(crate) fn new(kind: EventKind, object: Arc<Stored>, previous: Option<Arc<Stored>>) -> Self {
        Self { kind, object, previous, frame: OnceLock::new() }
    }

    pub(crate) fn version(&self) -> u64 {
        self.object.version
    }

    /// The frame. The first watcher encodes it, the others share it; all callers of one storage
    /// must encode the same frame.
    pub(crate) fn frame(&self, make: impl FnOnce() -> Bytes) -> Bytes {
        self.frame.get_or_init(make).clone()
    }
}

#[derive(Debug)]
pub(super) struct Log {
    events: VecDeque<Arc<Event>>,
    /// Changes up to this version are dropped.
    compacted: u64,
    max_events: usize,
    bytes: usize,
}

/// The size limit of the log of one storage.
const MAX_BYTES: usize = 64 * 1024 * 1024;

impl Log {
    pub(super) fn new(compacted: u64, max_events: usize) -> Self {
        Self { events: VecDeque::new(), compacted, max_events, bytes: 0 }
    }

    pub(super) fn push(&mut self, event: Event) {
        self.bytes += event.object.len();
        while self.events.len() >= self.max_events.max(1) || self.bytes > MAX_BYTES {
            let Some(gone) = self.events.pop_front() else { break };
            self.bytes -= gone.object.len();
            self.compacted = gone.version();
        }
        self.events.push_back(Arc::new(event));
    }

    pub(super) fn compact(&mut self, version: u64) {
        self.events.clear();
        self.bytes = 0;
        self.compacted = version;
    }

    /// The changes after a version, oldest first.
    pub(super) fn after(
        &self,
        version: u64,
        newest: u64,
    ) -> Result<impl Iterator<Item = &Arc<Event>>, Compacted> {
        if version < self.compacted {
            return Err(Compacted { newest });
        }
        let first = self.events.partition_point(|event| event.version() <= version);
        Ok(self.events.range(first..))
    }
}
