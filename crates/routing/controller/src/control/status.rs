//! Status: when to write the conditions and events of a Service, and the result.

use std::time::Duration;

use nearhop_core::ServiceKey;
use nearhop_runtime::client::ApiFailure;
use tracing::{debug, warn};

use super::{Control, Now, STATUS_DELAY};
use crate::status::StatusWrite;
use crate::status::write::StatusOutcome;
use crate::throttle::{FORBIDDEN_PAUSE, retry};

impl Control {
    pub(super) fn enqueue_status(&mut self, key: &ServiceKey, now: Now) {
        self.status.queue.add(key, now.instant + STATUS_DELAY);
    }

    /// Takes the next status to write if no slices wait for a worker: slices have priority.
    pub(crate) fn next_status(&mut self, now: Now) -> Option<StatusWrite> {
        if !self.is_active() || self.slices.queue.has_fresh(now.instant) {
            return None;
        }
        loop {
            let key = self.status.queue.take(now.instant)?;
            if let Some(write) = self.status.statuses.take_write(&key, now.time) {
                return Some(write);
            }
            self.status.queue.succeed(&key);
        }
    }

    /// Handles the result of a status write.
    pub(crate) fn wrote_status(&mut self, outcome: StatusOutcome, now: Now) {
        let StatusOutcome { service: key, meta, unsent, result } = outcome;
        if let Some(meta) = meta {
            self.status.statuses.record_write(&key, &meta);
        }
        self.status.statuses.put_back(&key, unsent);
        let Err(failure) = result else {
            self.status.queue.succeed(&key);
            self.note_server_success(now);
            return;
        };
        let backoff = self.backoff(&failure);
        let forbidden = matches!(failure, ApiFailure::Forbidden { .. });
        if forbidden {
            self.status.throttle.forbidden_until = Some(now.instant + FORBIDDEN_PAUSE);
        }
        if forbidden && self.status.throttle.may_warn(now.instant) {
            warn!(error = %failure, retry = ?FORBIDDEN_PAUSE, "conditions and events not written");
        } else {
            debug!(service = %key, error = %failure, "conditions and events not written");
        }
        let least = if forbidden { FORBIDDEN_PAUSE } else { Duration::ZERO };
        retry(&mut self.status.queue, &key, &failure, (backoff, least), now.instant);
    }
}
