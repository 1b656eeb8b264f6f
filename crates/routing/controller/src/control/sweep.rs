//! When what the other mode left behind is removed: after this mode's own slices are written, so that
//! nobody is without endpoints in between.

use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::{Acting, Control, Now};
use crate::call::Failure;
use crate::leftovers::{Removed, Scope};
use crate::mode::Mode;

/// After a failure, so long.
const PAUSE: Duration = Duration::from_secs(60);

/// What is to be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sweep {
    /// Nothing (any more).
    Done,
    /// It is to be removed as soon as nothing else is to be written.
    Wanted,
    /// It is being removed.
    Running,
    /// It could not be removed, and is tried again then.
    Failed(Instant),
}

impl Sweep {
    /// In `replace` mode the leftovers are slices that are watched, and go with each Service's plan.
    pub(super) fn new(mode: Mode) -> Self {
        match mode {
            Mode::Labelled => Self::Wanted,
            Mode::Replace => Self::Done,
        }
    }

    /// When to try again.
    pub(super) fn retry_at(self) -> Option<Instant> {
        match self {
            Self::Failed(until) => Some(until),
            _ => None,
        }
    }

    /// Whether it was done, or at least tried.
    pub(super) fn is_settled(self) -> bool {
        matches!(self, Self::Done | Self::Failed(_))
    }
}

impl Control {
    /// What is to be removed now, if anything.
    pub(crate) fn next_sweep(&mut self, now: Now) -> Option<Scope> {
        let due = match self.sweep {
            Sweep::Wanted => true,
            Sweep::Failed(until) => until <= now.instant,
            Sweep::Done | Sweep::Running => false,
        };
        let free =
            self.acting == Acting::Yes && self.is_synced() && self.queue.is_idle(now.instant);
        if !due || !free {
            return None;
        }
        self.sweep = Sweep::Running;
        Some(Scope::OfReplace)
    }

    /// Takes in how it ended.
    pub(crate) fn swept(&mut self, result: Result<Removed, Failure>, now: Now) {
        match result {
            Ok(removed) => {
                self.sweep = Sweep::Done;
                if !removed.is_nothing() {
                    let Removed { annotations, conditions, .. } = removed;
                    info!(annotations, conditions, "removed what --mode=replace had left");
                }
            }
            Err(failure) => {
                self.sweep = Sweep::Failed(now.instant + PAUSE);
                warn!("what --mode=replace left cannot be removed yet: {failure}");
            }
        }
    }
}
