//! What is to be done about a pod: its containers' states, what happened, and what follows. Pure:
//! time is an argument, and actions are values.
//!
//! [`Machine::advance`] looks at the whole state each time and says what is missing, so that no
//! event has to be handled in two places.

use jiff::{SignedDuration, Timestamp};

use super::probe::ProbeKind;

/// A container that ran this long starts without waiting again.
const WELL: SignedDuration = SignedDuration::from_mins(10);
const FIRST_BACKOFF: SignedDuration = SignedDuration::from_secs(10);
const LONGEST_BACKOFF: SignedDuration = SignedDuration::from_mins(5);
/// How long a missing ConfigMap or Secret is waited for before the next look.
const CONFIG_PAUSE: SignedDuration = SignedDuration::from_secs(2);

/// When a container starts, and what its end means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Before the others, to its end.
    Init,
    /// Before the others, and beside them.
    Sidecar,
    /// What the pod is for.
    Main,
}

/// What happens to a container that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

/// What the machine has to know of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Description {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) probes: Vec<ProbeKind>,
}

/// How a container's run ended.
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
    /// It has never been started, or will not be before something changes.
    Waiting {
        reason: String,
        message: String,
    },
    /// Its processes are being started.
    Starting,
    Running {
        since: Timestamp,
    },
    Ended(Ended),
}

/// The end of a container that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stop {
    kill_at: Timestamp,
    killed: bool,
}

/// Which probes a run of a container has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Nothing,
    Startup,
    Everything,
}

/// One container of the pod.
#[derive(Clone, Debug)]
pub(crate) struct Container {
    pub(crate) description: Description,
    pub(crate) state: State,
    pub(crate) last: Option<Ended>,
    pub(crate) restarts: i32,
    pub(crate) id: String,
    /// Its startup probe, if any, has succeeded.
    pub(crate) started: bool,
    pub(crate) ready: bool,
    stop: Option<Stop>,
    asked: Asked,
    /// Ends in a row that were followed by a restart.
    crashes: u32,
    /// Not started before this.
    not_before: Option<Timestamp>,
}

/// What is to be done. Whoever does it tells the machine what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Start(String),
    /// Ask it to end: the hook that it has for that, and TERM. It has until the time is over.
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

impl Container {
    fn new(description: Description, waiting: &str) -> Self {
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
            asked: Asked::Nothing,
            crashes: 0,
            not_before: None,
        }
    }

    pub(crate) fn is_alive(&self) -> bool {
        matches!(self.state, State::Starting | State::Running { .. })
    }

    /// It waits for its next start after an end.
    pub(crate) fn backs_off(&self, now: Timestamp) -> Option<SignedDuration> {
        let waits = matches!(self.state, State::Ended(_));
        let until = self.not_before.filter(|until| waits && *until > now)?;
        let State::Ended(ended) = &self.state else { return None };
        Some(until.duration_since(ended.finished))
    }

    fn has(&self, kind: ProbeKind) -> bool {
        self.description.probes.contains(&kind)
    }

    fn succeeded(&self) -> bool {
        matches!(&self.state, State::Ended(ended) if ended.code == 0)
    }

    fn restarts_by(&self, policy: RestartPolicy) -> bool {
        let State::Ended(ended) = &self.state else { return true };
        match (self.description.role, policy) {
            (Role::Sidecar, _) => true,
            (Role::Init, RestartPolicy::Never) | (Role::Main, RestartPolicy::Never) => false,
            (Role::Init, _) | (Role::Main, RestartPolicy::OnFailure) => ended.code != 0,
            (Role::Main, RestartPolicy::Always) => true,
        }
    }

    fn begin(&mut self) -> Action {
        if let State::Ended(ended) = &self.state {
            self.last = Some(ended.clone());
            self.restarts += 1;
            self.crashes += 1;
        }
        self.state = State::Starting;
        self.not_before = None;
        (self.started, self.ready, self.stop, self.asked) = (false, false, None, Asked::Nothing);
        Action::Start(self.description.name.clone())
    }

    /// Starts it when it may; says so if it has to wait.
    fn start_when_due(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
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

    fn ask_to_end(&mut self, now: Timestamp, by: Timestamp, actions: &mut Vec<Action>) {
        if !self.is_alive() {
            return;
        }
        match &mut self.stop {
            None => {
                let grace = by.duration_since(now).max(SignedDuration::ZERO);
                actions.push(Action::Stop(self.description.name.clone(), grace));
                self.stop = Some(Stop { kill_at: by, killed: false });
            }
            // Later wishes shorten the time and never lengthen it.
            Some(stop) => stop.kill_at = stop.kill_at.min(by),
        }
    }

    fn kill_when_due(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
        let alive = self.is_alive();
        if let Some(stop) = self.stop.as_mut().filter(|stop| alive && !stop.killed)
            && stop.kill_at <= now
        {
            stop.killed = true;
            actions.push(Action::Kill(self.description.name.clone()));
        }
    }
}

/// How long to wait before the start after this many restarts: none, 10 s, 20 s, ... 5 min.
fn backoff(crashes: u32) -> SignedDuration {
    match crashes.checked_sub(1) {
        None => SignedDuration::ZERO,
        Some(doublings) => (FIRST_BACKOFF * (1 << doublings.min(10))).min(LONGEST_BACKOFF),
    }
}

impl Machine {
    pub(crate) fn new(
        policy: RestartPolicy,
        grace: SignedDuration,
        containers: Vec<Description>,
    ) -> Self {
        let early = |description: &Description| description.role != Role::Main;
        let waiting =
            if containers.iter().any(early) { "PodInitializing" } else { "ContainerCreating" };
        let containers = containers.into_iter().map(|it| Container::new(it, waiting)).collect();
        Self { policy, containers, grace, prepared: false, ending: None }
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
        let by = now + grace;
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
        if started.is_some_and(|since| now.duration_since(since) >= WELL) {
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
    pub(crate) fn hindered(&mut self, name: &str, hindrance: &Hindrance, now: Timestamp) {
        if let Some(container) = self.container(name) {
            let (reason, message) = (hindrance.reason.to_owned(), hindrance.message.clone());
            container.state = State::Waiting { reason, message };
            container.not_before = Some(match hindrance.hope {
                Hope::Soon => now + CONFIG_PAUSE,
                Hope::Never => Timestamp::MAX,
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
                container.ask_to_end(now, now + grace, &mut actions);
            }
        }
        actions
    }

    /// What is to be done now.
    pub(crate) fn advance(&mut self, now: Timestamp) -> Vec<Action> {
        let mut actions = Vec::new();
        if let Some(by) = self.ending {
            self.wind_up(now, by, &mut actions);
        } else if self.prepared {
            if self.early_are_done(now, &mut actions) {
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
    fn wind_up(&mut self, now: Timestamp, by: Timestamp, actions: &mut Vec<Action>) {
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
        let over = self.is_over();
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

    fn run_main(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
        let policy = self.policy;
        let main = |it: &&mut Container| it.description.role == Role::Main && !it.is_alive();
        for container in self.containers.iter_mut().filter(main) {
            if container.restarts_by(policy) {
                container.start_when_due(now, actions);
            }
        }
        // Nobody is left whom sidecars could serve.
        if self.is_over() {
            self.end(self.grace, now);
            self.wind_up(now, now + self.grace, actions);
        }
    }

    /// Containers without a probe are what the probe would say; the others are asked.
    fn settle(&mut self, actions: &mut Vec<Action>) {
        for container in &mut self.containers {
            let State::Running { .. } = container.state else { continue };
            let name = || container.description.name.clone();
            if !container.has(ProbeKind::Startup) {
                container.started = true;
            } else if container.asked == Asked::Nothing {
                container.asked = Asked::Startup;
                actions.push(Action::Probe(name(), vec![ProbeKind::Startup]));
            }
            if !container.started {
                continue;
            }
            if container.asked != Asked::Everything {
                container.asked = Asked::Everything;
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
    pub(crate) fn is_over(&self) -> bool {
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
    pub(crate) fn is_still(&self) -> bool {
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
        if self.is_over() || (self.is_ending() && self.is_still()) {
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
    pub(crate) fn next_look(&self) -> Option<Timestamp> {
        let looks = self.containers.iter().flat_map(|container| {
            let alive = container.is_alive();
            let kill = container.stop.filter(|stop| alive && !stop.killed).map(|it| it.kill_at);
            let start = container.not_before.filter(|_| !alive && self.ending.is_none());
            [kill, start]
        });
        looks.flatten().min()
    }
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
pub(crate) struct Hindrance {
    /// Kubernetes' word for it.
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    pub(crate) hope: Hope,
}

/// Whether it is worth trying again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hope {
    Soon,
    Never,
}

#[cfg(test)]
mod tests;
