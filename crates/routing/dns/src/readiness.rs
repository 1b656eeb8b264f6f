//! Whether this server should be asked: `/ready`.
//!
//! Ready is who has everything and listens, and who has heard of the API server not too long ago.
//! Who is not still answers from what it knows: that is better than nothing, but another replica
//! may know more.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nearhop_feed::{Feed, Status};
use nearhop_runtime::health::Health;

/// Whether this server should be asked. Clones share it.
#[derive(Clone)]
pub struct Readiness {
    max_staleness: Duration,
    stage: Arc<Mutex<Stage>>,
    health: Health,
}

/// How far the server is.
enum Stage {
    /// It has not asked for anything yet.
    Starting,
    /// It waits until everything has arrived.
    Listing(Arc<Feed>),
    /// It answers.
    Serving(Arc<Feed>),
    /// It answers, but not for long.
    Stopping,
}

impl Readiness {
    /// Not ready yet. After `max_staleness` without a word from the API server it is not ready any
    /// more; never, where that is zero.
    pub fn new(max_staleness: Duration) -> Self {
        let stage = Arc::new(Mutex::new(Stage::Starting));
        Self { max_staleness, stage, health: Health::new() }
    }

    /// Whether the process works at all: its loop turns.
    pub fn health(&self) -> &Health {
        &self.health
    }

    pub(crate) fn listing(&self, feed: &Arc<Feed>) {
        *self.lock() = Stage::Listing(feed.clone());
    }

    pub(crate) fn serving(&self, feed: &Arc<Feed>) {
        *self.lock() = Stage::Serving(feed.clone());
    }

    pub(crate) fn stopping(&self) {
        *self.lock() = Stage::Stopping;
    }

    /// Whether it is ready; if not, why.
    ///
    /// # Errors
    /// It is not.
    pub fn report(&self, now: Instant) -> Result<(), String> {
        match &*self.lock() {
            Stage::Starting => Err("starting".to_owned()),
            Stage::Stopping => Err("stopping".to_owned()),
            Stage::Listing(feed) => Err(describe_missing(&feed.status())),
            Stage::Serving(feed) => judge(&feed.status(), self.max_staleness, now),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Stage> {
        // It is replaced whole.
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn describe_missing(statuses: &[Status]) -> String {
    let missing = statuses.iter().filter(|status| status.lists == 0).map(|status| {
        let why = status.error.as_ref().map(|error| format!(" ({error})")).unwrap_or_default();
        format!("{}{why}", status.kind)
    });
    format!("kubernetes: waiting for {}", missing.collect::<Vec<_>>().join(", "))
}

fn judge(statuses: &[Status], max: Duration, now: Instant) -> Result<(), String> {
    if max.is_zero() {
        return Ok(());
    }
    let stale = statuses.iter().filter_map(|status| {
        let age = now.saturating_duration_since(status.last_contact?);
        let why = status.error.as_deref().unwrap_or("the watch is silent");
        let (kind, seconds) = (status.kind, age.as_secs());
        (age > max).then(|| format!("kubernetes: nothing heard of {kind} for {seconds} s ({why}); answers are as of then"))
    });
    let stale: Vec<String> = stale.collect();
    if stale.is_empty() { Ok(()) } else { Err(stale.join("\n")) }
}

#[cfg(test)]
mod tests {
    use nearhop_feed::Kind;

    use super::*;

    #[test]
    fn silence_is_named_with_its_kind_and_its_length() {
        let now = Instant::now() + Duration::from_secs(1000);
        let heard = |kind, ago| Status {
            kind,
            last_contact: Some(now - Duration::from_secs(ago)),
            lists: 1,
            watches: 1,
            stalls: 0,
            panics: 0,
            error: (ago > 100).then(|| "connection refused".to_owned()),
        };
        let statuses = [heard(Kind::Services, 30), heard(Kind::Nodes, 400)];
        let five = Duration::from_secs(300);
        assert_eq!(judge(&statuses[..1], five, now), Ok(()));
        assert_eq!(judge(&statuses, Duration::ZERO, now), Ok(()), "as CoreDNS does");
        assert_eq!(
            judge(&statuses, five, now),
            Err("kubernetes: nothing heard of nodes for 400 s (connection refused); answers are as \
                 of then"
                .to_owned())
        );
    }

    #[test]
    fn who_starts_is_not_ready() {
        let readiness = Readiness::new(Duration::ZERO);
        assert_eq!(readiness.report(Instant::now()), Err("starting".to_owned()));
        readiness.stopping();
        assert_eq!(readiness.report(Instant::now()), Err("stopping".to_owned()));
    }
}
