//! The store: all objects in memory under one growing resourceVersion, a bounded log of changes,
//! and optionally a copy on disk that is written before a change becomes visible.
//!
//! Reads take a short lock and return shared pointers. A write names the version that it replaces;
//! a writer that loses the race computes its object again. A watcher holds only a position in the
//! log, so a slow watcher costs no memory; its position is compacted away in the end.
//!
//! The store keeps no older versions: a list at an older version is the current one with the log
//! undone, as far as the log goes back.

mod commit;
mod disk;
mod log;
mod object;
mod state;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

use commit::Committer;
pub(crate) use commit::{Change, Expect, Write, WriteError};
pub(crate) use log::{Event, EventKind};
pub(crate) use object::{Content, Name, ObjectRef, Stored, type_meta};
use serde_json::Value;
use state::State;
pub(crate) use state::{Changes, Snapshot};
use tokio::sync::watch;

/// Where objects are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Durability {
    /// In memory only.
    Ephemeral,
    /// In this directory.
    Directory(PathBuf),
}

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory cannot be used.
    #[error("cannot use the data directory {0}: {1}; choose another, or correct its permissions")]
    Directory(PathBuf, std::io::Error),
    /// Another process uses it.
    #[error("{0} is in use by another nearhop apiserver; stop it, or choose another --data-dir")]
    InUse(PathBuf),
    /// The file cannot be read.
    #[error("{0}: {1}; move the file away to start empty")]
    Broken(PathBuf, String),
}

/// The values that field selectors read of an object in a storage.
pub(crate) type FieldsOf = fn(&str, &Value) -> Vec<(&'static str, String)>;

/// The requested version is no longer in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Compacted {
    /// The store's version now.
    pub(crate) newest: u64,
}

/// All objects. Cheap to share by `Arc`.
pub(crate) struct Store {
    state: Arc<RwLock<State>>,
    committer: Committer,
    life: String,
}

impl Store {
    /// Opens a store and reads what it holds.
    pub(crate) fn open(
        durability: &Durability,
        history: usize,
        fields_of: FieldsOf,
    ) -> Result<Self, OpenError> {
        let mut state = State::new(history);
        let (disk, life) = match durability {
            Durability::Ephemeral => (None, uuid::Uuid::new_v4().to_string()),
            Durability::Directory(directory) => {
                let mut disk = disk::Disk::open(directory)?;
                let life = disk.load(&mut state, fields_of)?;
                (Some(disk), life)
            }
        };
        let state = Arc::new(RwLock::new(state));
        let committer = Committer::start(Arc::clone(&state), disk);
        Ok(Self { state, committer, life })
    }

    /// An id that differs between stores: continue tokens carry it.
    pub(crate) fn life(&self) -> &str {
        &self.life
    }

    /// Why the disk cannot be written; `None` while it can, or without a disk.
    pub(crate) fn disk_failure(&self) -> Option<String> {
        self.committer.failure()
    }

    /// Whether writes are accepted; if not, the process must restart.
    pub(crate) fn is_running(&self) -> bool {
        self.committer.is_running()
    }

    pub(crate) fn version(&self) -> u64 {
        self.read().version
    }

    pub(crate) fn get(&self, storage: &str, name: &Name) -> Option<Arc<Stored>> {
        self.read().table(storage)?.objects.get(name).cloned()
    }

    /// All objects of a storage, or those of a namespace, in the order of their keys.
    pub(crate) fn list(&self, storage: &str, namespace: Option<&str>) -> Snapshot {
        self.read().list(storage, namespace)
    }

    /// The same at an older version.
    pub(crate) fn list_at(
        &self,
        storage: &str,
        namespace: Option<&str>,
        version: u64,
    ) -> Result<Snapshot, Compacted> {
        self.read().list_at(storage, namespace, version)
    }

    /// The objects that name this uid as their owner.
    pub(crate) fn dependents(&self, uid: &str) -> Vec<ObjectRef> {
        self.read().dependents(uid)
    }

    pub(crate) fn uid_exists(&self, uid: &str) -> bool {
        self.read().uid_exists(uid)
    }

    pub(crate) fn counts(&self) -> Vec<(Arc<str>, usize)> {
        self.read().counts()
    }

    /// Follows a storage: the channel holds the version of its newest change.
    pub(crate) fn subscribe(&self, storage: &str) -> watch::Receiver<u64> {
        if let Some(table) = self.read().table(storage) {
            return table.changed.subscribe();
        }
        self.write_state().table_mut(storage).changed.subscribe()
    }

    pub(crate) fn subscribe_all(&self) -> watch::Receiver<u64> {
        self.read().changed.subscribe()
    }

    /// At most `limit` changes of a storage after a version.
    pub(crate) fn events_after(
        &self,
        storage: &str,
        version: u64,
        limit: usize,
    ) -> Result<Changes, Compacted> {
        self.read().events_after(storage, version, limit)
    }

    /// Wakes the subscribers of a storage without a change.
    pub(crate) fn touch(&self, storage: &str) {
        self.write_state().touch(storage);
    }

    /// Drops the whole log: a watch from an older version must list again.
    pub(crate) fn compact(&self) {
        self.write_state().compact();
    }

    /// Writes all of these, or nothing. They get consecutive versions, in their order.
    pub(crate) async fn write(&self, writes: Vec<Write>) -> Result<Vec<Arc<Stored>>, WriteError> {
        self.committer.write(writes).await
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().expect("no writer panics while it holds the state")
    }

    fn write_state(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().expect("no writer panics while it holds the state")
    }
}
