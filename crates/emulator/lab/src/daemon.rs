//! Supervises one process of the lab: restarts it when it exits, and injects faults.

use std::fs::OpenOptions;
use std::io;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nearhop_net::Namespace;
use nearhop_runtime::backoff::Backoff;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::Child;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::args;

/// Delay before an exited process is restarted.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));

/// The delay is reset if the process ran for longer than this.
const STEADY: Duration = Duration::from_secs(10);

type Orders = mpsc::Receiver<(Order, oneshot::Sender<Done>)>;

/// The command line of a process, and where it runs.
#[derive(Clone, Debug)]
pub(crate) struct ProcessSpec {
    /// Name in `lab fault` and `lab status`, such as `proxy/node-a1`.
    pub(crate) name: String,
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
    pub(crate) namespace: Namespace,
    pub(crate) log: PathBuf,
}

/// A fault of a process.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// SIGKILL; it stays down.
    Kill,
    /// Starts it if it is down.
    Start,
    /// SIGKILL and a new start at once, with these arguments added; feature gates are merged.
    Restart(Vec<String>),
    /// SIGSTOP.
    Pause,
    /// SIGCONT.
    Resume,
}

/// The state of a process.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// Whether it runs.
    pub phase: Phase,
    /// Number of restarts, after an exit or on request.
    pub restarts: u32,
    /// How it last exited by itself.
    pub last_end: Option<String>,
    /// Its command line after the program.
    pub args: Vec<String>,
    /// The arguments that `lab fault restart` added.
    #[serde(default)]
    pub added_args: Vec<String>,
    /// URL of its health checks and metrics on this machine.
    #[serde(default)]
    pub url: Option<String>,
}

/// Whether a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// It runs.
    Running,
    /// Suspended by SIGSTOP.
    Paused,
    /// Killed on request.
    Killed,
    /// Exited; a restart is due.
    Waiting,
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Killed => "killed",
            Self::Waiting => "waiting",
        })
    }
}

/// The result of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    Obeyed,
    /// The process does not run.
    NotRunning,
}

/// A supervised process. Dropping it kills the process.
#[derive(Debug)]
pub(crate) struct Daemon {
    orders: mpsc::Sender<(Order, oneshot::Sender<Done>)>,
    state: watch::Receiver<State>,
    task: JoinHandle<()>,
}

impl Daemon {
    pub(crate) fn start(spec: ProcessSpec) -> io::Result<Self> {
        let child = spawn(&spec, &[])?;
        let (sender, orders) = mpsc::channel(1);
        let first = State {
            phase: Phase::Running,
            restarts: 0,
            last_end: None,
            args: args::merge(&spec.args, &[]),
            added_args: Vec::new(),
            url: None,
        };
        let (publish, state) = watch::channel(first);
        let supervisor =
            Supervisor { spec, publish, failures: 0, since: Instant::now(), more: Vec::new() };
        Ok(Self { orders: sender, state, task: tokio::spawn(supervisor.run(child, orders)) })
    }

    pub(crate) fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// Returns when the order is executed.
    pub(crate) async fn order(&mut self, order: Order) -> Done {
        let (answer, answered) = oneshot::channel();
        // If the supervisor has ended, the process does not run.
        let _ = self.orders.send((order, answer)).await;
        answered.await.unwrap_or(Done::NotRunning)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Supervisor {
    spec: ProcessSpec,
    publish: watch::Sender<State>,
    /// Restarts in a row after short runs.
    failures: u32,
    /// When the process was started.
    since: Instant,
    /// Added arguments of the last restart.
    more: Vec<String>,
}

enum Event {
    Order(Order, oneshot::Sender<Done>),
    Ended(io::Result<ExitStatus>),
    Due,
    Over,
}

impl Supervisor {
    async fn run(mut self, first: Child, mut orders: Orders) {
        let mut child = Some(first);
        loop {
            match self.next(child.as_mut(), &mut orders).await {
                Event::Order(order, answer) => {
                    // The client may have disconnected.
                    let _ = answer.send(self.obey(order, &mut child).await);
                }
                Event::Ended(end) => {
                    let end =
                        end.map_or_else(|error| error.to_string(), |status| status.to_string());
                    child = None;
                    if self.since.elapsed() > STEADY {
                        self.failures = 0;
                    }
                    self.publish.send_modify(|state| {
                        state.phase = Phase::Waiting;
                        state.last_end = Some(end);
                    });
                }
                Event::Due => {
                    self.failures += 1;
                    child = self.start_again();
                }
                Event::Over => return,
            }
        }
    }

    async fn next(&self, child: Option<&mut Child>, orders: &mut Orders) -> Event {
        let waiting = self.publish.borrow().phase == Phase::Waiting;
        let ended = async {
            match child {
                Some(child) => Event::Ended(child.wait().await),
                None if waiting => {
                    tokio::time::sleep(BACKOFF.delay(self.failures, 0.0)).await;
                    Event::Due
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            order = orders.recv() => {
                order.map_or(Event::Over, |(order, answer)| Event::Order(order, answer))
            }
            event = ended => event,
        }
    }

    async fn obey(&mut self, order: Order, child: &mut Option<Child>) -> Done {
        match order {
            Order::Kill => {
                end(child).await;
                self.publish.send_modify(|state| state.phase = Phase::Killed);
            }
            Order::Restart(more) => {
                end(child).await;
                self.more = more;
                *child = self.start_again();
            }
            Order::Start if child.is_none() => *child = self.start_again(),
            Order::Pause => return self.signal(child.as_ref(), Signal::SIGSTOP, Phase::Paused),
            Order::Start | Order::Resume => {
                return self.signal(child.as_ref(), Signal::SIGCONT, Phase::Running);
            }
        }
        Done::Obeyed
    }

    fn signal(&self, child: Option<&Child>, signal: Signal, phase: Phase) -> Done {
        let pid = child.and_then(Child::id).and_then(|id| i32::try_from(id).ok());
        if pid.is_none_or(|pid| kill(Pid::from_raw(pid), signal).is_err()) {
            return Done::NotRunning;
        }
        self.publish.send_modify(|state| state.phase = phase);
        Done::Obeyed
    }

    fn start_again(&mut self) -> Option<Child> {
        let started = spawn(&self.spec, &self.more);
        self.since = Instant::now();
        self.publish.send_modify(|state| {
            state.args = args::merge(&self.spec.args, &self.more);
            state.added_args.clone_from(&self.more);
        });
        self.publish.send_modify(|state| match &started {
            Ok(_) => {
                state.phase = Phase::Running;
                state.restarts += 1;
            }
            Err(error) => {
                state.phase = Phase::Waiting;
                state.last_end = Some(error.to_string());
            }
        });
        started.ok()
    }
}

async fn end(child: &mut Option<Child>) {
    if let Some(mut child) = child.take() {
        // It may have exited already.
        let _ = child.kill().await;
    }
}

fn spawn(spec: &ProcessSpec, more: &[String]) -> io::Result<Child> {
    let log = OpenOptions::new().create(true).append(true).open(&spec.log)?;
    let mut command: Command = spec.namespace.command(&spec.program);
    // Variables that set flags of `lab up` must not set flags of the lab's processes, and HTTP
    // proxies of the machine cannot reach the lab's addresses.
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_ours(name) || is_proxy(name)) {
        command.env_remove(name);
    }
    command
        .args(args::merge(&spec.args, more))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    tokio::process::Command::from(command).kill_on_drop(true).spawn()
}

fn is_proxy(variable: &std::ffi::OsStr) -> bool {
    let name = variable.to_string_lossy().to_ascii_uppercase();
    matches!(&*name, "HTTPS_PROXY" | "HTTP_PROXY" | "ALL_PROXY" | "NO_PROXY")
}

fn is_ours(variable: &std::ffi::OsStr) -> bool {
    variable.to_str().is_some_and(|name| name.starts_with("NEARHOP_"))
}
