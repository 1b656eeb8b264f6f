//! The state of the cluster in the server: one writer, many readers.
//!
//! Readers lock it for a batch of packets, the writer for a batch of changes. So the next answer
//! shows a change, and answers for cluster names are never cached.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use nearhop_core::answer::{Index, Synced};
use nearhop_core::world::Settings;
use nearhop_core::{Change, Object, ObjectRef, World};

/// The state of the cluster in the server.
#[derive(Clone, Debug)]
pub struct State {
    /// All objects.
    pub world: World,
    /// Services by address.
    pub index: Index,
    /// SOA serial: seconds since 1970 of the last change that an answer can show.
    pub serial: u32,
    /// Whether all initial lists are complete.
    pub synced: Synced,
}

impl State {
    /// Without objects.
    pub fn new(settings: Settings) -> Self {
        let (world, index) = (World::new(settings), Index::default());
        Self { world, index, serial: 0, synced: Synced::No }
    }

    /// Applies changes; `now` is in seconds since 1970.
    pub fn apply(&mut self, changes: Vec<Change>, now: u32) {
        let namespaces = changes.iter().any(|change| {
            matches!(
                change,
                Change::Put(Object::Namespace(_))
                    | Change::Gone(ObjectRef::Namespace(_))
                    | Change::Listed(..)
            )
        });
        let touched = self.world.apply_all(changes);
        self.index.refresh(&self.world, &touched);
        if namespaces || !touched.routes.is_empty() {
            self.serial = now;
        }
    }
}

/// The state that all threads share. Clones are cheap.
#[derive(Clone, Debug)]
pub struct Shared(Arc<RwLock<State>>);

impl Shared {
    /// Shares a state.
    pub fn new(state: State) -> Self {
        Self(Arc::new(RwLock::new(state)))
    }

    /// Locks the state for reading. The writer waits until the guard is dropped.
    pub fn read(&self) -> RwLockReadGuard<'_, State> {
        // After a panic during a change, answers from the partly changed state beat no answers.
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state.
    pub fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.0.write().unwrap_or_else(PoisonError::into_inner));
    }
}
