//! What is known, shared by those who answer and the one who learns.
//!
//! Readers hold it for a batch of packets, the writer for a batch of changes. So a change is in the
//! next answer, and nothing about the cluster's names is ever cached.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use nearhop_core::answer::{Index, Synced};
use nearhop_core::world::Settings;
use nearhop_core::{Change, World};

/// What is known.
#[derive(Clone, Debug)]
pub struct State {
    /// All objects.
    pub world: World,
    /// The same by address.
    pub index: Index,
    /// Seconds since 1970 of the last change that could be seen.
    pub serial: u32,
    /// Whether everything has arrived.
    pub synced: Synced,
}

impl State {
    /// Nothing is known yet.
    pub fn new(settings: Settings) -> Self {
        let (world, index) = (World::new(settings), Index::default());
        Self { world, index, serial: 0, synced: Synced::No }
    }

    /// Takes in changes; `now` is in seconds since 1970.
    pub fn apply(&mut self, changes: Vec<Change>, now: u32) {
        let namespaces = changes.iter().any(|change| {
            matches!(change, Change::Namespace(_) | Change::NamespaceGone(_) | Change::Only(_))
        });
        let touched = self.world.apply_all(changes);
        self.index.refresh(&self.world, &touched);
        if namespaces || !touched.routes.is_empty() {
            self.serial = now;
        }
    }
}

/// The state that all share. Clones are cheap.
#[derive(Clone, Debug)]
pub struct Shared(Arc<RwLock<State>>);

impl Shared {
    /// Shares a state.
    pub fn new(state: State) -> Self {
        Self(Arc::new(RwLock::new(state)))
    }

    /// To answer from; do not hold it for long.
    pub fn read(&self) -> RwLockReadGuard<'_, State> {
        // A change that panicked half way is better than no answers at all.
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// To change it.
    pub fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.0.write().unwrap_or_else(PoisonError::into_inner));
    }
}
