//! Timeouts and back-off.

use std::time::Duration;

use nearhop_runtime::backoff::Backoff;

/// Timeouts and back-off of a watch.
#[derive(Clone, Debug)]
pub struct Options {
    /// How to list at first, and when a watch cannot be resumed.
    pub lists: Lists,
    /// Objects in one page of a list.
    pub page_size: u32,
    /// A watch without data for this long is closed and resumed. The API server sends a bookmark
    /// about every minute.
    pub stall: Duration,
    /// How long the API server keeps a watch open, give or take 5 %, so that watches that began
    /// together do not end together.
    pub watch_timeout: Duration,
    /// A list without data for this long has failed.
    pub request_timeout: Duration,
    /// The first pause after an error; each further pause is twice as long.
    pub backoff: Duration,
    /// The longest pause, unless the API server asks for a longer pause.
    pub backoff_cap: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            lists: Lists::Streaming,
            page_size: 500,
            stall: Duration::from_secs(150),
            watch_timeout: Duration::from_secs(290),
            request_timeout: Duration::from_secs(30),
            backoff: Duration::from_millis(250),
            backoff_cap: Duration::from_secs(30),
        }
    }
}

impl Options {
    /// How long the next watch may last: [`Self::watch_timeout`] with its jitter.
    pub(super) fn next_watch_timeout(&self) -> Duration {
        self.watch_timeout.mul_f64(rand::random_range(0.95..1.05))
    }

    /// Pauses that grow up to `cap`, of which up to half is removed at random.
    pub(super) fn backoff_up_to(&self, cap: Duration) -> Backoff {
        Backoff { jitter: 0.5, ..Backoff::new(self.backoff, cap.min(self.backoff_cap)) }
    }
}

/// How to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lists {
    /// As the beginning of a watch (KEP-3157): the API server sends one object after
    /// the other from its cache. Falls back to [`Lists::Paged`] if the server rejects it.
    Streaming,
    /// Page by page.
    Paged,
}
