//! The state machine of a Pod. Pure: time is an argument, and actions are values.
//!
//! [`Machine::advance`] derives the next actions from the whole state, so that each event is
//! handled in one place.

mod container;

use jiff::{SignedDuration, Timestamp};

use self::container::ProbesStarted;
pub(crate) use self::container::{Container, ContainerInfo, Ended, RestartPolicy, Role, State};
use super::probe::ProbeKind;

/// A container that ran this long restarts without back-off.
const STABLE_AFTER: SignedDuration = SignedDuration::from_mins(10);
/// The retry interval while a ConfigMap or Secret is missing.
const CONFIG_PAUSE: SignedDuration = SignedDuration::from_secs(2);

/// An action of the worker, which reports its result to the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Start(String),
    /// Runs the preStop hook and sends SIGTERM; the duration is the grace period.
    Stop(String, SignedDuration),
    Kill(String),
    /// Starts these probes.
    Probe(String, Vec<ProbeKind>),
    /// Reports the back-off before a restart.
    BackOff(String, SignedDuration),
}

#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) policy: RestartPolicy,
    pub(crate) containers: Vec<Container>,
    /// terminationGracePeriodSeconds.
    pub(crate) grace: SignedDuration,
    prepared: bool,
    /// Main containers may run.
    begun: bool,
    /// The Pod is terminating, with this deadline.
    ending: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Pending,
    Running,
    Succeeded,
    Failed,
}

impl Phase {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }
}

impl Machine {
    pub(crate) fn new(
        policy: RestartPolicy,
        grace: SignedDuration,
        containers: Vec<ContainerInfo>,
    ) -> Self {
        let early = |description: &ContainerInfo| description.role != Role::Main;
        let waiting =
            if containers.iter().any(early) { "PodInitializing" } else { "ContainerCreating" };
        let containers = containers.into_iter().map(|it| Container::new(it, waiting)).collect();
        Self { policy, containers, grace, prepared: false, begun: false, ending: None }
    }

    pub(crate) fn container(&mut self, name: &str) -> Option<&mut Container> {
        self.containers.iter_mut().find(|container| container.description.name == name)
    }

    /// The sandbox is ready.
    pub(crate) fn prepared(&mut self) {
        self.prepared = true;
    }

    pub(crate) fn is_prepared(&self) -> bool {
        self.prepared
    }

    /// Terminates the Pod within `grace`. A later call can only shorten the time.
    pub(crate) fn end(&mut self, grace: SignedDuration, now: Timestamp) {
        let by = after(now, grace);
        self.ending = Some(self.ending.map_or(by, |earlier| earlier.min(by)));
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.ending.is_some()
    }

    pub(crate) fn started(&mut self, name: &str, id: &str, now: Timestamp) {
        if let Some(container) = self.container(name) {
            container.id = id.to_owned();
            container.state = State::Running { since: now };
        }
    }

    /// The container's program ended, or could not start.
    pub(crate) fn ended(
        &mut self,
        name: &str,
        code: i32,
        signal: Option<i32>,
        why: Failure,
        now: Timestamp,
    ) {
        let Some(container) = self.container(name) else { return };
        let started = match container.state {
            State::Running { since } => Some(since),
            _ => None,
        };
        if started.is_some_and(|since| now.duration_since(since) >= STABLE_AFTER) {
            container.crashes = 0;
        }
        let (reason, message) = match why {
            Failure::None if code == 0 => ("Completed".to_owned(), String::new()),
            Failure::None => ("Error".to_owned(), String::new()),
            Failure::Start(message) => ("StartError".to_owned(), message),
        };
        let id = container.id.clone();
        let ended = Ended { code, signal, reason, message, started, finished: now, id };
        container.state = State::Ended(ended);
        container.not_before = None;
        (container.started, container.ready) = (false, false);
    }

    /// The container cannot start.
    pub(crate) fn start_failed(&mut self, name: &str, error: &StartError, now: Timestamp) {
        if let Some(container) = self.container(name) {
            let (reason, message) = (error.reason.to_owned(), error.message.clone());
            container.state = State::Waiting { reason, message };
            container.not_before = Some(match error.retry {
                Retry::Soon => now + CONFIG_PAUSE,
                Retry::Never => Timestamp::MAX,
            });
        }
    }

    /// The result of a probe has changed.
    pub(crate) fn probed(
        &mut self,
        name: &str,
        kind: ProbeKind,
        healthy: bool,
        now: Timestamp,
    ) -> Vec<Action> {
        let (grace, mut actions) = (self.grace, Vec::new());
        let Some(container) = self.container(name) else { return actions };
        if !matches!(container.state, State::Running { .. }) {
            return actions;
        }
        match (kind, healthy) {
            (ProbeKind::Readiness, healthy) => container.ready = healthy,
            (ProbeKind::Startup, true) => container.started = true,
            (ProbeKind::Liveness, true) => {}
            (ProbeKind::Startup | ProbeKind::Liveness, false) => {
                container.ask_to_end(now, after(now, grace), &mut actions);
            }
        }
        actions
    }

    /// The next actions.
    pub(crate) fn advance(&mut self, now: Timestamp) -> Vec<Action> {
        let mut actions = Vec::new();
        if let Some(by) = self.ending {
            self.terminate_all(now, by, &mut actions);
        } else if self.prepared {
            self.begun = self.early_are_done(now, &mut actions);
            if self.begun {
                self.run_main(now, &mut actions);
            }
            self.settle(&mut actions);
        }
        for container in &mut self.containers {
            container.kill_when_due(now, &mut actions);
        }
        actions
    }

    /// Stops main containers first, because they may need the sidecars.
    fn terminate_all(&mut self, now: Timestamp, by: Timestamp, actions: &mut Vec<Action>) {
        let main_alive = |it: &Container| it.is_alive() && it.description.role != Role::Sidecar;
        let wait = self.containers.iter().any(main_alive);
        for container in &mut self.containers {
            if wait && container.description.role == Role::Sidecar {
                continue;
            }
            container.ask_to_end(now, by, actions);
        }
    }

    /// Starts init containers and sidecars; returns whether main containers may run.
    fn early_are_done(&mut self, now: Timestamp, actions: &mut Vec<Action>) -> bool {
        let policy = self.policy;
        let over = self.is_finished();
        if self.begun {
            self.restart_sidecars(now, actions);
            return true;
        }
        for container in &mut self.containers {
            match (container.description.role, &container.state) {
                (Role::Main, _) => return true,
                (Role::Init, _) if container.succeeded() => {}
                (Role::Sidecar, State::Running { .. }) if container.started => {}
                (_, State::Starting | State::Running { .. }) => return false,
                (_, State::Waiting { .. } | State::Ended(_)) => {
                    if !over && container.restarts_by(policy) {
                        container.start_when_due(now, actions);
                    }
                    return false;
                }
            }
        }
        true
    }

    /// Main containers do not wait for a restarted sidecar.
    fn restart_sidecars(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
        let over = self.is_finished();
        let sidecar = |it: &&mut Container| it.description.role == Role::Sidecar && !it.is_alive();
        for container in self.containers.iter_mut().filter(sidecar).filter(|_| !over) {
            container.start_when_due(now, actions);
        }
    }

    fn run_main(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
        let policy = self.policy;
        let main = |it: &&mut Container| it.description.role == Role::Main && !it.is_alive();
        for container in self.containers.iter_mut().filter(main) {
            if container.restarts_by(policy) {
                container.start_when_due(now, actions);
            }
        }
        // Sidecars stop after the last main container.
        if self.is_finished() {
            self.end(self.grace, now);
            self.terminate_all(now, after(now, self.grace), actions);
        }
    }

    /// Starts probes; without a probe a running container is started and ready.
    fn settle(&mut self, actions: &mut Vec<Action>) {
        for container in &mut self.containers {
            let State::Running { .. } = container.state else { continue };
            let name = || container.description.name.clone();
            if !container.has(ProbeKind::Startup) {
                container.started = true;
            } else if container.asked == ProbesStarted::Nothing {
                container.asked = ProbesStarted::Startup;
                actions.push(Action::Probe(name(), vec![ProbeKind::Startup]));
            }
            if !container.started {
                continue;
            }
            if container.asked != ProbesStarted::Everything {
                container.asked = ProbesStarted::Everything;
                let later = [ProbeKind::Liveness, ProbeKind::Readiness].into_iter();
                let later: Vec<ProbeKind> = later.filter(|kind| container.has(*kind)).collect();
                if !later.is_empty() {
                    actions.push(Action::Probe(name(), later));
                }
            }
            if !container.has(ProbeKind::Readiness) {
                container.ready = true;
            }
        }
    }

    /// No main container runs or will run.
    pub(crate) fn is_finished(&self) -> bool {
        let failed_early = self.containers.iter().any(|it| {
            it.description.role == Role::Init
                && matches!(&it.state, State::Ended(ended) if ended.code != 0)
                && !it.restarts_by(self.policy)
        });
        let main = self.containers.iter().filter(|it| it.description.role == Role::Main);
        let done =
            |it: &Container| matches!(it.state, State::Ended(_)) && !it.restarts_by(self.policy);
        failed_early || main.into_iter().all(done)
    }

    /// No container of the Pod runs.
    pub(crate) fn all_stopped(&self) -> bool {
        !self.containers.iter().any(Container::is_alive)
    }

    /// Whether all init containers have succeeded and all sidecars have started.
    pub(crate) fn is_initialized(&self) -> bool {
        let early = self.containers.iter().filter(|it| it.description.role != Role::Main);
        early.into_iter().all(|it| match it.description.role {
            Role::Sidecar => it.started || matches!(it.state, State::Ended(_)),
            _ => it.succeeded(),
        })
    }

    pub(crate) fn phase(&self) -> Phase {
        let main = || self.containers.iter().filter(|it| it.description.role == Role::Main);
        if self.is_finished() || (self.is_ending() && self.all_stopped()) {
            let failed = self
                .containers
                .iter()
                .any(|it| it.description.role != Role::Sidecar && !it.succeeded());
            return if failed { Phase::Failed } else { Phase::Succeeded };
        }
        let has_run = |it: &Container| {
            matches!(it.state, State::Running { .. } | State::Ended(_)) || it.last.is_some()
        };
        if main().any(has_run) && main().all(|it| has_run(it) || it.state == State::Starting) {
            Phase::Running
        } else {
            Phase::Pending
        }
    }

    /// When to call `advance` without an event.
    pub(crate) fn next_deadline(&self) -> Option<Timestamp> {
        let looks = self.containers.iter().flat_map(|container| {
            let alive = container.is_alive();
            let kill = container.stop.filter(|stop| alive && !stop.killed).map(|it| it.kill_at);
            let start = container.not_before.filter(|_| !alive && self.ending.is_none());
            [kill, start]
        });
        looks.flatten().min()
    }
}

/// A time beyond the range of timestamps is the largest one.
fn after(now: Timestamp, wait: SignedDuration) -> Timestamp {
    now.checked_add(wait).unwrap_or(Timestamp::MAX)
}

/// Why a container ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The program exited.
    None,
    /// The program never started.
    Start(String),
}

/// Why a container cannot start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StartError {
    /// The reason in the container status.
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    pub(crate) retry: Retry,
}

/// Whether to retry the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    Soon,
    Never,
}

#[cfg(test)]
mod tests;
