//! The task that owns a Pod: it receives events, asks the state machine for actions, and performs
//! them.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod, PodCondition, PodStatus};
use nearhop_runtime::client::EventType;
use nearhop_runtime::supervise;
use nix::sys::signal::Signal;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::sleep;

use super::context::{Context, ExecTarget};
use super::describe::machine;
use super::event::{ContainerRun, Event};
use super::launch::Launch;
use super::machine::{Action, Failure, Machine, StartError};
use super::probe::{self, ProbeKind};
use super::prober::{self, Prober};
use super::sandbox::{self, PodSandbox};
use super::view::{self, StatusContext};
use super::volumes::SetupError;
use crate::container::Report;
use crate::status::{PodKey, StatusUpdate};

/// The pause before the agent retries to create a sandbox.
const SANDBOX_RETRY: Duration = Duration::from_secs(2);

/// The current run of a container.
#[derive(Debug)]
struct LiveRun {
    attempt: u32,
    id: String,
    signals: mpsc::UnboundedSender<i32>,
    exec: Option<ExecTarget>,
    probes: Vec<(ProbeKind, AbortHandle)>,
}

#[derive(Debug)]
enum SandboxState {
    /// Not created yet, or to be retried.
    None,
    /// The creation failed; a retry is scheduled.
    Failed,
    Creating,
    Ready(Arc<PodSandbox>),
    /// The network and the address were released.
    Released,
}

/// The state of the Pod object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lifecycle {
    Active,
    /// The object has a deletion timestamp; the agent deletes it at the end.
    Terminating,
    /// The object is gone.
    Removed,
}

pub(crate) struct Worker {
    context: Arc<Context>,
    pod: Arc<Pod>,
    key: PodKey,
    machine: Machine,
    sandbox: SandboxState,
    lifecycle: Lifecycle,
    status_context: StatusContext,
    live: BTreeMap<String, LiveRun>,
    attempts: BTreeMap<String, u32>,
    conditions: Vec<PodCondition>,
    written: Option<PodStatus>,
    finished: bool,
    events: mpsc::UnboundedSender<Event>,
}

/// Starts the task of a Pod.
pub(crate) fn start(context: Arc<Context>, pod: Arc<Pod>) -> mpsc::UnboundedSender<Event> {
    let (sender, receiver) = mpsc::unbounded_channel();
    let worker = Worker::new(context, pod, sender.clone());
    supervise::spawn(format!("worker of {}", worker.key.what()), worker.run(receiver));
    sender
}

fn is_final(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

impl Worker {
    fn new(context: Arc<Context>, pod: Arc<Pod>, events: mpsc::UnboundedSender<Event>) -> Self {
        let status = pod.status.clone().unwrap_or_default();
        let status_context = StatusContext {
            node_addresses: context.options.addresses.clone(),
            pod_addresses: Vec::new(),
            since: Some(status.start_time.map_or_else(Timestamp::now, |time| time.0)),
        };
        Self {
            key: PodKey::of(&pod),
            machine: machine(&pod),
            sandbox: SandboxState::None,
            lifecycle: Lifecycle::Active,
            status_context,
            live: BTreeMap::new(),
            attempts: BTreeMap::new(),
            conditions: status.conditions.unwrap_or_default(),
            written: None,
            finished: false,
            context,
            pod,
            events,
        }
    }

    async fn run(mut self, mut events: mpsc::UnboundedReceiver<Event>) {
        self.context.registry.put(&self.pod, &[]);
        if is_final(&self.pod) {
            return self.wait_for_removal(events).await;
        }
        self.check_deletion();
        loop {
            self.step();
            if self.lifecycle == Lifecycle::Removed && self.is_cleaned_up() {
                break;
            }
            tokio::select! {
                event = events.recv() => match event {
                    Some(event) => self.take(event),
                    None => break,
                },
                () = until(self.machine.next_deadline()) => {}
            }
        }
        self.context.registry.remove(&self.pod);
        let _not_there = fs::remove_dir_all(self.context.directory(&self.key.uid));
    }

    /// Waits for the deletion of a Pod that had finished before this agent started.
    async fn wait_for_removal(self, mut events: mpsc::UnboundedReceiver<Event>) {
        let mut pod = Arc::clone(&self.pod);
        loop {
            if pod.metadata.deletion_timestamp.is_some() {
                let status = pod.status.clone().unwrap_or_default();
                self.context.writer.send(self.key.clone(), StatusUpdate::Last(Box::new(status)));
            }
            match events.recv().await {
                Some(Event::Changed(changed)) => pod = changed,
                Some(Event::Gone) | None => break,
                Some(_) => {}
            }
        }
        self.context.registry.remove(&self.pod);
        let _not_there = fs::remove_dir_all(self.context.directory(&self.key.uid));
    }

    /// Whether nothing of the Pod is left on the node.
    fn is_cleaned_up(&self) -> bool {
        self.machine.all_stopped()
            && matches!(
                self.sandbox,
                SandboxState::None | SandboxState::Failed | SandboxState::Released
            )
    }

    fn take(&mut self, event: Event) {
        let now = Timestamp::now();
        match event {
            Event::Changed(pod) => {
                if self.is_overwritten_by(&pod) {
                    self.written = None;
                }
                self.pod = pod;
                self.context.registry.put(&self.pod, &self.status_context.pod_addresses);
                self.check_deletion();
            }
            Event::Gone => {
                self.lifecycle = Lifecycle::Removed;
                self.machine.end(SignedDuration::ZERO, now);
            }
            Event::SandboxDone(made) => self.sandbox_done(made),
            Event::RetrySandbox => {
                if let SandboxState::Failed = self.sandbox {
                    self.sandbox = SandboxState::None;
                }
            }
            Event::StartFailed(run, error) if self.is_current(&run) => {
                self.start_failed(&run, &error, now);
            }
            Event::Started(run, exec) if self.is_current(&run) => self.started(&run, exec, now),
            Event::Report(run, report) if self.is_current(&run) => self.ended(&run, report, now),
            Event::Probed(run, kind, result) if self.is_current(&run) => {
                self.probed(&run, kind, result, now);
            }
            Event::HookDone(run) if self.is_current(&run) => {
                self.signal(&run.container, Signal::SIGTERM);
            }
            // Events of earlier runs.
            Event::StartFailed(..) | Event::Started(..) | Event::Report(..) => {}
            Event::Probed(..) | Event::HookDone(..) => {}
        }
    }

    /// Whether another component has changed the Ready condition: the node controller marks the
    /// Pods of a lost node as not ready. An outdated object costs one more patch.
    fn is_overwritten_by(&self, pod: &Pod) -> bool {
        let ready = |status: Option<&PodStatus>| {
            let conditions = status?.conditions.as_ref()?;
            conditions.iter().find(|one| one.type_ == "Ready").map(|one| one.status.clone())
        };
        let there = ready(pod.status.as_ref());
        there.is_some() && self.written.is_some() && there != ready(self.written.as_ref())
    }

    fn is_current(&self, run: &ContainerRun) -> bool {
        self.live.get(&run.container).is_some_and(|live| live.attempt == run.attempt)
    }

    fn check_deletion(&mut self) {
        if self.pod.metadata.deletion_timestamp.is_none() {
            return;
        }
        let seconds = self.pod.metadata.deletion_grace_period_seconds.unwrap_or(30).max(0);
        self.machine.end(SignedDuration::from_secs(seconds), Timestamp::now());
        if self.lifecycle == Lifecycle::Active {
            self.lifecycle = Lifecycle::Terminating;
            let beats = |kind: &ProbeKind| *kind != ProbeKind::Readiness;
            for live in self.live.values_mut() {
                for (_, probe) in live.probes.iter().filter(|(kind, _)| beats(kind)) {
                    probe.abort();
                }
            }
        }
    }

    fn sandbox_done(&mut self, made: Result<PodSandbox, SetupError>) {
        self.sandbox = match made {
            Ok(sandbox) => {
                self.status_context.pod_addresses.clone_from(&sandbox.addresses);
                self.context.registry.put(&self.pod, &sandbox.addresses);
                self.machine.prepared();
                SandboxState::Ready(Arc::new(sandbox))
            }
            Err(SetupError::Retryable(why)) => {
                self.context.emit_event(&self.pod, None, EventType::Warning, "FailedMount", why);
                let events = self.events.clone();
                tokio::spawn(async move {
                    sleep(SANDBOX_RETRY).await;
                    events.send(Event::RetrySandbox)
                });
                SandboxState::Failed
            }
            Err(SetupError::Permanent(why)) => {
                self.context.emit_event(&self.pod, None, EventType::Warning, "FailedMount", why);
                SandboxState::Released
            }
        };
    }

    fn start_failed(&mut self, run: &ContainerRun, error: &StartError, now: Timestamp) {
        self.live.remove(&run.container);
        let message = format!("Error: {}", error.message);
        self.emit_event(&run.container, EventType::Warning, "Failed", message);
        self.machine.start_failed(&run.container, error, now);
    }

    fn started(&mut self, run: &ContainerRun, exec: ExecTarget, now: Timestamp) {
        let Some(live) = self.live.get_mut(&run.container) else { return };
        live.exec = Some(exec.clone());
        let id = live.id.clone();
        self.machine.started(&run.container, &id, now);
        self.context.registry.update(&self.pod, &run.container, |view| view.exec = Some(exec));
        let message = format!("Started container {}", run.container);
        self.emit_event(&run.container, EventType::Normal, "Started", message);
    }

    fn ended(&mut self, run: &ContainerRun, report: Report, now: Timestamp) {
        let (code, signal, why) = match report {
            Report::Ended { code, signal } => (code, signal, Failure::None),
            Report::Failed { why } => {
                self.emit_event(
                    &run.container,
                    EventType::Warning,
                    "Failed",
                    format!("Error: {why}"),
                );
                (128, None, Failure::Start(why))
            }
            Report::Started { .. } => return,
        };
        if let Some(live) = self.live.remove(&run.container) {
            live.probes.iter().for_each(|(_, probe)| probe.abort());
        }
        self.context.registry.update(&self.pod, &run.container, |view| view.exec = None);
        self.machine.ended(&run.container, code, signal, why, now);
    }

    fn probed(
        &mut self,
        run: &ContainerRun,
        kind: ProbeKind,
        result: probe::ProbeResult,
        now: Timestamp,
    ) {
        if let Some(why) = result.failure {
            let message = format!("{} probe failed: {why}", kind.name());
            self.emit_event(&run.container, EventType::Warning, "Unhealthy", message);
        }
        let Some(healthy) = result.change else { return };
        if kind == ProbeKind::Startup
            && let Some(live) = self.live.get(&run.container)
        {
            live.probes.iter().for_each(|(_, probe)| probe.abort());
        }
        for action in self.machine.probed(&run.container, kind, healthy, now) {
            let Action::Stop(name, grace) = action else { continue };
            let probe = kind.name().to_lowercase();
            let message = format!("Container {name} failed {probe} probe, will be restarted");
            self.emit_event(&name, EventType::Normal, "Killing", message);
            self.stop(&name, grace);
        }
    }

    /// Performs the next actions and publishes the status.
    fn step(&mut self) {
        if let (SandboxState::None, Lifecycle::Active) = (&self.sandbox, self.lifecycle) {
            self.sandbox = SandboxState::Creating;
            let making = sandbox::make(Arc::clone(&self.context), Arc::clone(&self.pod));
            let events = self.events.clone();
            tokio::spawn(async move { events.send(Event::SandboxDone(making.await)) });
        }
        let actions = self.machine.advance(Timestamp::now());
        self.act(actions);
        let over = self.lifecycle != Lifecycle::Active || self.machine.is_finished();
        if over && self.machine.all_stopped() {
            self.release_sandbox();
        }
        self.publish();
    }

    /// Releases the sandbox.
    fn release_sandbox(&mut self) {
        // Released once it is created.
        if let SandboxState::Creating = self.sandbox {
            return;
        }
        if let SandboxState::Ready(sandbox) =
            std::mem::replace(&mut self.sandbox, SandboxState::Released)
        {
            let context = Arc::clone(&self.context);
            tokio::task::spawn_blocking(move || sandbox.disconnect(&context));
        }
    }

    fn publish(&mut self) {
        if self.lifecycle == Lifecycle::Removed || self.finished {
            return;
        }
        let now = Timestamp::now();
        let status =
            view::status(&self.pod, &self.machine, &self.status_context, &self.conditions, now);
        self.conditions.clone_from(status.conditions.as_ref().unwrap_or(&Vec::new()));
        if self.lifecycle == Lifecycle::Terminating && self.is_cleaned_up() {
            self.finished = true;
            self.context.writer.send(self.key.clone(), StatusUpdate::Last(Box::new(status)));
        } else if self.written.as_ref() != Some(&status) {
            self.written = Some(status.clone());
            self.context.writer.send(self.key.clone(), StatusUpdate::Patch(Box::new(status)));
        }
    }

    fn act(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Start(name) => self.start(&name),
                Action::Stop(name, grace) => {
                    let message = format!("Stopping container {name}");
                    self.emit_event(&name, EventType::Normal, "Killing", message);
                    self.stop(&name, grace);
                }
                Action::Kill(name) => self.signal(&name, Signal::SIGKILL),
                Action::Probe(name, kinds) => self.probe(&name, &kinds),
                Action::BackOff(name, wait) => self.back_off(&name, wait),
            }
        }
    }

    fn object(&self, name: &str) -> Option<Container> {
        let spec = self.pod.spec.as_ref()?;
        let mut all = spec.init_containers.iter().flatten().chain(&spec.containers);
        all.find(|container| container.name == name).cloned()
    }

    fn start(&mut self, name: &str) {
        let (SandboxState::Ready(sandbox), Some(container)) = (&self.sandbox, self.object(name))
        else {
            return;
        };
        let attempt = self.attempts.entry(name.to_owned()).and_modify(|it| *it += 1).or_insert(0);
        let run = ContainerRun { container: name.to_owned(), attempt: *attempt };
        let (signals, received) = mpsc::unbounded_channel();
        let id =
            format!("nearhop://{:032x}{:032x}", rand::random::<u128>(), rand::random::<u128>());
        let live = LiveRun { attempt: *attempt, id, signals, exec: None, probes: Vec::new() };
        let launch = Launch {
            context: Arc::clone(&self.context),
            pod: Arc::clone(&self.pod),
            sandbox: Arc::clone(sandbox),
            container,
            run,
            events: self.events.clone(),
            signals: received,
        };
        self.live.insert(name.to_owned(), live);
        supervise::spawn("container launch", launch.go());
    }

    fn signal(&self, name: &str, signal: Signal) {
        if let Some(live) = self.live.get(name) {
            // The container may just have ended.
            let _ended = live.signals.send(signal as i32);
        }
    }

    fn stop(&mut self, name: &str, grace: SignedDuration) {
        let hook = self.object(name).and_then(|it| it.lifecycle).and_then(|it| it.pre_stop);
        let Some(live) = self.live.get(name) else { return };
        if grace == SignedDuration::ZERO {
            return self.signal(name, Signal::SIGKILL);
        }
        let run = ContainerRun { container: name.to_owned(), attempt: live.attempt };
        match (hook, live.exec.clone()) {
            (Some(hook), Some(exec)) => {
                let (context, events) = (Arc::clone(&self.context), self.events.clone());
                let patience = grace.unsigned_abs();
                tokio::spawn(async move {
                    prober::run_hook(&context, &exec, &hook, patience).await;
                    events.send(Event::HookDone(run))
                });
            }
            _ => self.signal(name, Signal::SIGTERM),
        }
    }

    fn probe(&mut self, name: &str, kinds: &[ProbeKind]) {
        let Some(container) = self.object(name) else { return };
        let address = self.status_context.pod_addresses.first().copied();
        let Some(live) = self.live.get_mut(name) else { return };
        let Some(exec) = &live.exec else { return };
        for kind in kinds {
            let Some(probe) = probe::of(&container, *kind) else { continue };
            let prober = Prober {
                context: Arc::clone(&self.context),
                run: ContainerRun { container: name.to_owned(), attempt: live.attempt },
                kind: *kind,
                action: probe::action(&container, probe),
                probe: probe.clone(),
                address,
                exec: exec.clone(),
                events: self.events.clone(),
            };
            live.probes.push((*kind, supervise::spawn("prober", prober.go()).abort_handle()));
        }
    }

    fn back_off(&self, name: &str, wait: SignedDuration) {
        self.context.registry.update(&self.pod, name, |view| view.restarting = true);
        let named = |it: &&super::machine::Container| it.description.name == name;
        if let Some(container) = self.machine.containers.iter().find(named) {
            let message = view::backoff_message(&self.pod, container, wait.as_secs());
            self.emit_event(name, EventType::Warning, "BackOff", message);
        }
    }

    fn emit_event(
        &self,
        container: &str,
        event_type: EventType,
        reason: &'static str,
        message: String,
    ) {
        self.context.emit_event(&self.pod, Some(container), event_type, reason, message);
    }
}

async fn until(time: Option<Timestamp>) {
    match time {
        Some(time) => {
            let left = time.duration_since(Timestamp::now()).max(SignedDuration::ZERO);
            sleep(left.unsigned_abs()).await;
        }
        None => std::future::pending().await,
    }
}
