//! What changed, in order, as far back as it is kept.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::Compacted;
use super::object::Stored;

/// One change of one object.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) kind: EventKind,
    /// The object after the change; for a deletion its last state, with the deletion's version.
    pub(crate) object: Arc<Stored>,
    /// The object before the change.
    pub(crate) previous: Option<Arc<Stored>>,
    /// The watch frame that most watchers get, made once.
    frame: OnceLock<Bytes>,
}

/// What happened to an object.
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

    /// The frame, made by the first watcher that needs it and shared by the others. All callers for
    /// one storage must make the same frame.
    pub(crate) fn frame(&self, make: impl FnOnce() -> Bytes) -> Bytes {
        self.frame.get_or_init(make).clone()
    }
}

/// The log of one storage.
#[derive(Debug)]
pub(super) struct Log {
    events: VecDeque<Arc<Event>>,
    /// Changes up to this version are gone.
    compacted: u64,
    most: usize,
    bytes: usize,
}

/// The log of one storage keeps at most this much text alive, however few changes that are.
const MOST_BYTES: usize = 64 * 1024 * 1024;

impl Log {
    pub(super) fn new(compacted: u64, most: usize) -> Self {
        Self { events: VecDeque::new(), compacted, most, bytes: 0 }
    }

    pub(super) fn push(&mut self, event: Event) {
        self.bytes += event.object.len();
        while self.events.len() >= self.most.max(1) || self.bytes > MOST_BYTES {
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
