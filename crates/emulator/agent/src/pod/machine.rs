//! What is to be done about a pod: its containers' states, what happened, and what follows. Pure:
//! time is an argument, and actions are values.
//!
//! [`Machine::advance`] looks at the whole state each time and says what is missing, so that no
//! event has to be handled in two places.

mod container;

use jiff::{SignedDuration, Timestamp};

use self::container::ProbesStarted;
pub(crate) use self::container::{Container, ContainerInfo, Ended, RestartPolicy, Role, State};
use super::probe::ProbeKind;

/// A container that ran this long starts without waiting again.
const STABLE_AFTER: SignedDuration = SignedDuration::from_mins(10);
/// How long a missing ConfigMap or Secret is waited for before the next look.
const CONFIG_PAUSE: SignedDuration = SignedDuration::from_secs(2);

/// What is to be done. Whoever does it tells the machine what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Start(String),
    /// HttpRequest it to end: the hook that it has for that, and TERM. It has until the time is over.
    Stop(String, SignedDuration),
    Kill(String),
    /// Begin these probes.
    Probe(String, Vec<ProbeKind>),
    /// Tell that it waits before it starts again.
    BackOff(String, SignedDuration),
}

/// A pod's containers.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) policy: RestartPolicy,
    pub(crate) containers: Vec<Container>,
    /// How long containers may take to end.
    pub(crate) grace: SignedDuration,
    prepared: bool,
    /// Main containers have been allowed to run.
    begun: bool,
    /// The pod is to end, at the latest by then.
    ending: Option<Timestamp>,
}

/// Where a pod is in its life.
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

    /// Volumes and network are there.
    pub(crate) fn prepared(&mut self) {
        self.prepared = true;
    }

    pub(crate) fn is_prepared(&self) -> bool {
        self.prepared
    }

    /// The pod is to end within this time. A later wish may only shorten it.
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

    /// A program's end, or that it could not be started.
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

    /// A container cannot be started as things are.
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

    /// What a probe found, when that has changed.
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

    /// What is to be done now.
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

    /// Main containers first, so that what they need is there until their end.
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

    /// Whether main containers may run; starts what comes before them.
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

    /// Beside main containers, which do not wait for them a second time.
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
        // Nobody is left whom sidecars could serve.
        if self.is_finished() {
            self.end(self.grace, now);
            self.terminate_all(now, after(now, self.grace), actions);
        }
    }

    /// Containers without a probe are what the probe would say; the others are asked.
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

    /// No main container runs, and none will.
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

    /// Nothing of the pod runs any more.
    pub(crate) fn all_stopped(&self) -> bool {
        !self.containers.iter().any(Container::is_alive)
    }

    /// Whether all init containers have done what they are for.
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

    /// When to look again although nothing happened.
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

/// PodUsers may name more seconds than there is time: that is as long as there is.
fn after(now: Timestamp, wait: SignedDuration) -> Timestamp {
    now.checked_add(wait).unwrap_or(Timestamp::MAX)
}

/// Why a container has ended without a program's doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The program ended by itself.
    None,
    /// There never was a program.
    Start(String),
}

/// Why a container cannot be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StartError {
    /// Kubernetes' word for it.
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    pub(crate) retry: Retry,
}

/// Whether it is worth trying again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    Soon,
    Never,
}

#[cfg(test)]
mod tests;
