//! Removes what the other mode wrote. It starts after this mode's own slices are written, so that
//! every Service has endpoints at all times.

use std::time::{Duration, Instant};

use nearhop_runtime::client::ApiFailure;
use tracing::{info, warn};

use super::{Control, Now};
use crate::leftovers::{Removed, Scope};
use crate::mode::Mode;

/// The pause after a failure.
const PAUSE: Duration = Duration::from_secs(60);

/// The state of the removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sweep {
    /// Nothing is left to remove.
    Done,
    /// It starts as soon as all slices are written.
    Pending,
    /// It is running.
    Running,
    /// It failed; the controller retries it at this time.
    Failed(Instant),
}

impl Sweep {
    /// In `replace` mode the controller watches the leftover slices, and each Service's plan
    /// removes them.
    pub(super) fn new(mode: Mode) -> Self {
        match mode {
            Mode::Labelled => Self::Pending,
            Mode::Replace => Self::Done,
        }
    }

    /// When to retry.
    pub(super) fn retry_at(self) -> Option<Instant> {
        match self {
            Self::Failed(until) => Some(until),
            _ => None,
        }
    }

    /// Whether it is done, or was tried at least once.
    pub(super) fn is_settled(self) -> bool {
        matches!(self, Self::Done | Self::Failed(_))
    }
}

impl Control {
    /// What to remove now.
    pub(crate) fn next_sweep(&mut self, now: Now) -> Option<Scope> {
        let due = match self.sweep {
            Sweep::Pending => true,
            Sweep::Failed(until) => until <= now.instant,
            Sweep::Done | Sweep::Running => false,
        };
        if !due || !self.is_active() || !self.slices.queue.is_idle(now.instant) {
            return None;
        }
        self.sweep = Sweep::Running;
        Some(Scope::OfReplace)
    }

    /// Handles the result.
    pub(crate) fn swept(&mut self, result: Result<Removed, ApiFailure>, now: Now) {
        match result {
            Ok(removed) => {
                self.sweep = Sweep::Done;
                if !removed.is_nothing() {
                    let Removed { annotations, conditions, .. } = removed;
                    info!(annotations, conditions, "removed leftovers of --mode=replace");
                }
            }
            Err(failure) => {
                self.sweep = Sweep::Failed(now.instant + PAUSE);
                warn!(error = %failure, retry = ?PAUSE, "cannot remove leftovers of --mode=replace");
            }
        }
    }
}
