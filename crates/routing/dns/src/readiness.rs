//! Readiness for `/ready`.
//!
//! The server is ready when it listens, all initial lists are complete and the API server has sent
//! something recently. A server that is not ready still answers from what it knows; another replica
//! may know more.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use nearhop_feed::{Feed, Status};
use nearhop_runtime::health::Health;
use nearhop_runtime::lock;

/// Readiness of the server. Clones share it.
#[derive(Clone)]
pub struct Readiness {
    max_staleness: Duration,
    stage: Arc<Mutex<Stage>>,
    health: Health,
}

enum Stage {
    Starting,
    /// Waiting for the initial lists.
    Listing(Arc<Feed>),
    Serving(Arc<Feed>),
    /// Still answering, after a shutdown request.
    Stopping,
}

impl Readiness {
    /// The server stops being ready after `max_staleness` without the API server; zero means never.
    pub fn new(max_staleness: Duration) -> Self {
        let stage = Arc::new(Mutex::new(Stage::Starting));
        Self { max_staleness, stage, health: Health::new() }
    }

    /// Liveness: whether the main loop runs.
    pub fn health(&self) -> &Health {
        &self.health
    }

    pub(crate) fn set_listing(&self, feed: &Arc<Feed>) {
        *self.lock() = Stage::Listing(feed.clone());
    }

    pub(crate) fn set_serving(&self, feed: &Arc<Feed>) {
        *self.lock() = Stage::Serving(feed.clone());
    }

    pub(crate) fn set_stopping(&self) {
        *self.lock() = Stage::Stopping;
    }

    /// Err says why the server is not ready.
    pub fn report(&self, now: Instant) -> Result<(), String> {
        match &*self.lock() {
            Stage::Starting => Err("starting".to_owned()),
            Stage::Stopping => Err("stopping".to_owned()),
            Stage::Listing(feed) => Err(describe_missing(&feed.status())),
            Stage::Serving(feed) => check_staleness(&feed.status(), self.max_staleness, now),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Stage> {
        // The stage is always replaced whole.
        lock(&self.stage)
    }
}

fn describe_missing(statuses: &[Status]) -> String {
    let missing = statuses.iter().filter(|status| status.lists == 0).map(|status| {
        let why = status.error.as_ref().map(|error| format!(" ({error})")).unwrap_or_default();
        format!("{}{why}", status.resource)
    });
    format!("kubernetes: waiting for {}", missing.collect::<Vec<_>>().join(", "))
}

fn check_staleness(statuses: &[Status], max: Duration, now: Instant) -> Result<(), String> {
    if max.is_zero() {
        return Ok(());
    }
    let stale = statuses.iter().filter_map(|status| {
        let age = now.saturating_duration_since(status.last_contact?);
        let why = status.error.as_deref().unwrap_or("the watch receives no data");
        let (kind, seconds) = (status.resource, age.as_secs());
        (age > max).then(|| {
            format!("kubernetes: no {kind} event for {seconds} s ({why}); answers are stale")
        })
    });
    let stale: Vec<String> = stale.collect();
    if stale.is_empty() { Ok(()) } else { Err(stale.join("\n")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_watches_are_reported_with_kind_and_age() {
        let now = Instant::now() + Duration::from_secs(1000);
        let status = |resource, ago| Status {
            resource,
            last_contact: Some(now - Duration::from_secs(ago)),
            lists: 1,
            watches: 1,
            stalls: 0,
            panics: 0,
            error: (ago > 100).then(|| "connection refused".to_owned()),
        };
        let statuses = [status("services", 30), status("nodes", 400)];
        let five = Duration::from_secs(300);
        assert_eq!(check_staleness(&statuses[..1], five, now), Ok(()));
        assert_eq!(check_staleness(&statuses, Duration::ZERO, now), Ok(()), "0 disables the check");
        assert_eq!(
            check_staleness(&statuses, five, now),
            Err("kubernetes: no nodes event for 400 s (connection refused); answers are stale"
                .to_owned())
        );
    }

    #[test]
    fn not_ready_while_starting_and_stopping() {
        let readiness = Readiness::new(Duration::ZERO);
        assert_eq!(readiness.report(Instant::now()), Err("starting".to_owned()));
        readiness.set_stopping();
        assert_eq!(readiness.report(Instant::now()), Err("stopping".to_owned()));
    }
}
