//! The state of one container. Pure.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use nearhop_runtime::backoff::Backoff;

use super::super::probe::ProbeKind;
use super::Action;

const BACKOFF: Backoff = Backoff::new(Duration::from_secs(10), Duration::from_secs(300));

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Runs to completion before the others.
    Init,
    /// Starts before the main containers and runs beside them.
    Sidecar,
    Main,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

/// The static data of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContainerInfo {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) probes: Vec<ProbeKind>,
}

/// The end of a container's run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) signal: Option<i32>,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) started: Option<Timestamp>,
    pub(crate) finished: Timestamp,
    pub(crate) id: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Never started, or blocked by a start error.
    Waiting {
        reason: String,
        message: String,
    },
    Starting,
    Running {
        since: Timestamp,
    },
    Ended(Ended),
}

/// A requested stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stop {
    pub(super) kill_at: Timestamp,
    pub(super) killed: bool,
}

/// The probes that have been started for the current run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbesStarted {
    Nothing,
    Startup,
    Everything,
}

#[derive(Clone, Debug)]
pub(crate) struct Container {
    pub(crate) description: ContainerInfo,
    pub(crate) state: State,
    pub(crate) last: Option<Ended>,
    pub(crate) restarts: i32,
    pub(crate) id: String,
    /// The startup probe has succeeded, or there is none.
    pub(crate) started: bool,
    pub(crate) ready: bool,
    pub(super) stop: Option<Stop>,
    pub(super) asked: ProbesStarted,
    /// Consecutive restarts.
    pub(super) crashes: u32,
    /// The earliest start.
    pub(super) not_before: Option<Timestamp>,
}

impl Container {
    pub(super) fn new(description: ContainerInfo, waiting: &str) -> Self {
        let state = State::Waiting { reason: waiting.to_owned(), message: String::new() };
        Self {
            description,
            state,
            last: None,
            restarts: 0,
            id: String::new(),
            started: false,
            ready: false,
            stop: None,
            asked: ProbesStarted::Nothing,
            crashes: 0,
            not_before: None,
        }
    }

    pub(crate) fn is_alive(&self) -> bool {
        matches!(self.state, State::Starting | State::Running { .. })
    }

    /// The back-off of a container that has ended, while it lasts.
    pub(crate) fn backs_off(&self, now: Timestamp) -> Option<SignedDuration> {
        let waits = matches!(self.state, State::Ended(_));
        let until = self.not_before.filter(|until| waits && *until > now)?;
        let State::Ended(ended) = &self.state else { return None };
        Some(until.duration_since(ended.finished))
    }

    pub(super) fn has(&self, kind: ProbeKind) -> bool {
        self.description.probes.contains(&kind)
    }

    pub(super) fn succeeded(&self) -> bool {
        matches!(&self.state, State::Ended(ended) if ended.code == 0)
    }

    pub(super) fn restarts_by(&self, policy: RestartPolicy) -> bool {
        let State::Ended(ended) = &self.state else { return true };
        match (self.description.role, policy) {
            (Role::Sidecar, _) => true,
            (Role::Init, RestartPolicy::Never) | (Role::Main, RestartPolicy::Never) => false,
            (Role::Init, _) | (Role::Main, RestartPolicy::OnFailure) => ended.code != 0,
            (Role::Main, RestartPolicy::Always) => true,
        }
    }

    pub(super) fn begin(&mut self) -> Action {
        if let State::Ended(ended) = &self.state {
            self.last = Some(ended.clone());
            self.restarts += 1;
            self.crashes += 1;
        }
        self.state = State::Starting;
        self.not_before = None;
        (self.started, self.ready, self.stop, self.asked) =
            (false, false, None, ProbesStarted::Nothing);
        Action::Start(self.description.name.clone())
    }

    /// Starts the container when its back-off is over; reports a new back-off.
    pub(super) fn start_when_due(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
        if let (State::Ended(ended), None) = (&self.state, self.not_before) {
            let wait = backoff(self.crashes);
            self.not_before = Some(ended.finished + wait);
            if wait > SignedDuration::ZERO {
                actions.push(Action::BackOff(self.description.name.clone(), wait));
            }
        }
        if self.not_before.is_none_or(|due| due <= now) {
            actions.push(self.begin());
        }
    }

    pub(super) fn ask_to_end(&mut self, now: Timestamp, by: Timestamp, actions: &mut Vec<Action>) {
        if !self.is_alive() {
            return;
        }
        match &mut self.stop {
            None => {
                let grace = by.duration_since(now).max(SignedDuration::ZERO);
                actions.push(Action::Stop(self.description.name.clone(), grace));
                self.stop = Some(Stop { kill_at: by, killed: false });
            }
            // Later requests can only shorten the time.
            Some(stop) => stop.kill_at = stop.kill_at.min(by),
        }
    }

    pub(super) fn kill_when_due(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
        let alive = self.is_alive();
        if let Some(stop) = self.stop.as_mut().filter(|stop| alive && !stop.killed)
            && stop.kill_at <= now
        {
            stop.killed = true;
            actions.push(Action::Kill(self.description.name.clone()));
        }
    }
}

/// The restart back-off: none, 10 s, 20 s, ... 5 min.
fn backoff(crashes: u32) -> SignedDuration {
    let wait = crashes.checked_sub(1).map_or(Duration::ZERO, |earlier| BACKOFF.delay(earlier, 0.0));
    SignedDuration::try_from(wait).expect("five minutes at most")
}
