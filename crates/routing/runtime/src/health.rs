//! Named health checks: the parts of a process set their state, and the admin port reports it.
//!
//! A check stores the last state that its part set. A probe only reads that state, so a part that
//! hangs cannot block the probe. A loop reports each iteration to its [`Heartbeat`]: when the loop
//! hangs, the reports stop and its check fails.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::Instant;

use crate::lock;

/// A loop without an iteration for this long counts as stuck.
const STUCK: Duration = Duration::from_secs(30);

/// A loop iterates at least this often, even without events: see [`Heartbeat::turn`].
const TURN: Duration = Duration::from_secs(2);

/// What a failing check means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The process cannot recover and must be restarted. Counts for readiness, too.
    Live,
    /// The process does not serve yet, or no longer.
    Ready,
}

#[derive(Debug)]
struct Entry {
    purpose: Purpose,
    state: State,
}

#[derive(Debug)]
enum State {
    /// The state that the part set last.
    Set(Result<(), String>),
    /// The state follows from the iterations of a loop.
    Loop(Heartbeat),
}

impl Entry {
    fn state(&self) -> Result<(), String> {
        match &self.state {
            State::Set(state) => state.clone(),
            State::Loop(heartbeat) => heartbeat.state(),
        }
    }
}

type Entries = BTreeMap<String, Entry>;

/// All checks of a process. Clones are cheap and share them.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<Mutex<Entries>>);

/// Sets the state of one check.
#[derive(Clone, Debug)]
pub struct Check {
    name: String,
    health: Health,
}

/// Reports the iterations of a loop. Clones belong to the same loop.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    last: Arc<Mutex<Instant>>,
}

impl Heartbeat {
    /// Reports an iteration.
    pub fn beat(&self) {
        *lock(&self.last) = Instant::now();
    }

    /// Waits for the loop's next event and reports iterations meanwhile, so that a loop without
    /// events does not count as stuck. The loop itself polls the event's future, so a loop that
    /// hangs reports nothing.
    pub async fn turn<T>(&self, event: impl Future<Output = T>) -> T {
        let mut event = std::pin::pin!(event);
        loop {
            self.beat();
            if let Ok(event) = tokio::time::timeout(TURN, &mut event).await {
                return event;
            }
        }
    }

    fn state(&self) -> Result<(), String> {
        let age = lock(&self.last).elapsed();
        if age <= STUCK {
            return Ok(());
        }
        Err(format!("the loop hangs: no iteration for {} s", age.as_secs()))
    }
}

/// The state of all checks of a purpose, sorted by name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Report(Vec<(String, Result<(), String>)>);

impl Health {
    /// Without checks, which counts as healthy.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a check. It fails with "not yet" until its part sets its state. A check with the same
    /// name is replaced.
    pub fn check(&self, name: &str, purpose: Purpose) -> Check {
        let entry = Entry { purpose, state: State::Set(Err("not yet".to_owned())) };
        self.entries().insert(name.to_owned(), entry);
        Check { name: name.to_owned(), health: self.clone() }
    }

    /// Adds a check of a loop, for [`Purpose::Live`]: it fails after 30 s without an iteration.
    pub fn heartbeat(&self, name: &str) -> Heartbeat {
        let heartbeat = Heartbeat { last: Arc::new(Mutex::new(Instant::now())) };
        let entry = Entry { purpose: Purpose::Live, state: State::Loop(heartbeat.clone()) };
        self.entries().insert(name.to_owned(), entry);
        heartbeat
    }

    /// Whether the process is alive, for a caller with its own probe format. The error lists the
    /// checks.
    pub fn live(&self) -> Result<(), String> {
        let report = self.report(Purpose::Live);
        if report.is_ok() { Ok(()) } else { Err(report.list("livez")) }
    }

    pub(crate) fn report(&self, purpose: Purpose) -> Report {
        let counts = |entry: &Entry| purpose == Purpose::Ready || entry.purpose == Purpose::Live;
        let entries = self.entries();
        let counted = entries.iter().filter(|(_, entry)| counts(entry));
        Report(counted.map(|(name, entry)| (name.clone(), entry.state())).collect())
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        lock(&self.0)
    }
}

impl Check {
    /// Adds a check of a loop next to this check: see [`Health::heartbeat`].
    pub fn heartbeat(&self, name: &str) -> Heartbeat {
        self.health.heartbeat(name)
    }

    /// Sets the state of the part; an error contains the reason, for users.
    pub fn set(&self, state: Result<(), String>) {
        if let Some(entry) = self.health.entries().get_mut(&self.name) {
            entry.state = State::Set(state);
        }
    }
}

impl Report {
    pub(crate) fn is_ok(&self) -> bool {
        self.0.iter().all(|(_, state)| state.is_ok())
    }

    /// The list of checks, in the format of Kubernetes' own components.
    pub(crate) fn list(&self, path: &str) -> String {
        let mut text = String::new();
        for (name, state) in &self.0 {
            text += &match state {
                Ok(()) => format!("[+]{name} ok\n"),
                Err(why) => format!("[-]{name} failed: {why}\n"),
            };
        }
        let outcome = if self.is_ok() { "passed" } else { "failed" };
        text + path + " check " + outcome + "\n"
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, sleep};

    use super::*;

    #[test]
    fn readiness_requires_live_and_ready_checks() {
        let health = Health::new();
        assert!(health.report(Purpose::Ready).is_ok());
        let loop_ = health.check("loop", Purpose::Live);
        let synced = health.check("synced", Purpose::Ready);
        assert!(!health.report(Purpose::Live).is_ok(), "the check has no state yet");
        loop_.set(Ok(()));
        assert!(health.report(Purpose::Live).is_ok());
        assert_eq!(
            health.report(Purpose::Ready).list("readyz"),
            "[+]loop ok\n[-]synced failed: not yet\nreadyz check failed\n"
        );
        synced.set(Ok(()));
        assert_eq!(health.report(Purpose::Live).list("livez"), "[+]loop ok\nlivez check passed\n");
        synced.set(Err("watch is broken".to_owned()));
        assert!(!health.report(Purpose::Ready).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_hangs_fails_the_live_check() {
        let health = Health::new();
        let _stuck = health.heartbeat("loop");
        advance(STUCK).await;
        assert!(health.live().is_ok(), "the creation of the check counts as an iteration");
        advance(Duration::from_secs(1)).await;
        let list = health.live().unwrap_err();
        assert!(
            list.starts_with("[-]loop failed: the loop hangs: no iteration for 31 s"),
            "{list}"
        );
        assert!(!health.report(Purpose::Ready).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_without_events_passes_the_live_check() {
        let health = Health::new();
        let heartbeat = health.heartbeat("loop");
        let turning =
            tokio::spawn(async move { heartbeat.turn(std::future::pending::<()>()).await });
        sleep(STUCK * 2).await;
        assert!(health.live().is_ok());
        turning.abort();
        sleep(STUCK * 2).await;
        assert!(health.live().is_err(), "the check of an ended loop still passes");
    }
}
