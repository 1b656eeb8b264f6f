//! Status: when to write the conditions and events of a Service, and the result.

use std::time::Duration;

use nearhop_core::ServiceKey;
use nearhop_runtime::client::ApiFailure;
use tracing::{debug, warn};

use super::{Control, NUMBERS_DELAY, Now, STATUS_DELAY};
use crate::status::write::StatusOutcome;
use crate::status::{Due, StatusWrite};
use crate::throttle::{FORBIDDEN_PAUSE, retry};

impl Control {
    pub(super) fn enqueue_status(&mut self, key: &ServiceKey, now: Now) {
        self.status.queue.add(key, now.instant + STATUS_DELAY);
    }

    pub(super) fn enqueue_due(&mut self, key: &ServiceKey, due: Due, now: Now) {
        let delay = match due {
            Due::Never => return,
            Due::Soon => STATUS_DELAY,
            Due::Later => NUMBERS_DELAY,
        };
        self.status.queue.add(key, now.instant + delay);
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

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use jiff::Timestamp;
    use nearhop_core::world::Settings;
    use nearhop_runtime::backoff::Backoff;
    use nearhop_runtime::metrics::Metrics;

    use super::*;
    use crate::control::Choices;
    use crate::mode::Mode;

    #[test]
    fn a_recovered_server_ends_the_backoff_of_statuses() {
        let choices = Choices {
            mode: Mode::Replace,
            settings: Settings::default(),
            workers: 8,
            batch_period: Duration::ZERO,
            condition_domain: String::new(),
            started: Timestamp::UNIX_EPOCH,
            backoff: Backoff::new(Duration::from_secs(60), Duration::from_secs(60)),
        };
        let mut control = Control::new(choices, &Metrics::new());
        let now = Now { instant: Instant::now(), time: Timestamp::UNIX_EPOCH };
        let [a, b] = ["a", "b"].map(|name| ServiceKey::new("ns", name));
        for key in [&a, &b] {
            control.status.queue.add(key, now.instant);
            assert_eq!(control.status.queue.take(now.instant).as_ref(), Some(key));
        }
        let outcome = |key: &ServiceKey, result| {
            let (service, unsent) = (key.clone(), Vec::new());
            StatusOutcome { service, meta: None, unsent, result }
        };
        let (what, message) = (String::new(), String::new());
        let failure = ApiFailure::Unavailable { what, code: 503, message, retry_after: None };
        control.wrote_status(outcome(&a, Err(failure)), now);
        assert_eq!(control.status.queue.take(now.instant), None, "it waits for its back-off");
        control.wrote_status(outcome(&b, Ok(())), now);
        assert_eq!(control.status.queue.take(now.instant), Some(a));
    }
}
