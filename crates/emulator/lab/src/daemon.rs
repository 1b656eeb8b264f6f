//! One process of the lab: kept running, watched, and disturbed on demand.

use std::fs::OpenOptions;
use std::io;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nearhop_net::Namespace;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::Child;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

/// A process that ends by itself is started again after this, the second time in a row after twice
/// as long, and so on.
const FIRST_WAIT: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// One that ran for longer had started well.
const STEADY: Duration = Duration::from_secs(10);

type Inbox = mpsc::Receiver<(Order, oneshot::Sender<Done>)>;

/// What to run, and where.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// As `lab fault` and `lab status` call it: `proxy/node-a1`.
    pub name: String,
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// In whose network.
    pub namespace: Namespace,
    /// Where its output goes.
    pub log: PathBuf,
}

/// What can be done to a process.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// `kill -9`, and it stays down.
    Kill,
    /// Started again, if it is down.
    Start,
    /// `kill -9`, and started again at once, with these arguments after its own.
    Restart(Vec<String>),
    /// Stopped in its tracks: alive, and not answering.
    Pause,
    /// Goes on.
    Resume,
}

/// What a process is doing.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// What it was last told or did.
    pub phase: Phase,
    /// How often it was started again, by order or after it had ended by itself.
    pub restarts: u32,
    /// How it last ended by itself.
    pub last_end: Option<String>,
}

/// Whether it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// It does.
    Running,
    /// It is there, and stands still.
    Paused,
    /// It was killed by order.
    Killed,
    /// It ended by itself, and will be started again.
    Waiting,
}

/// What came of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// It is done.
    Obeyed,
    /// There is no process to do it to.
    NotRunning,
}

/// A handle on a process that is kept running.
#[derive(Debug)]
pub struct Daemon {
    orders: mpsc::Sender<(Order, oneshot::Sender<Done>)>,
    state: watch::Receiver<State>,
    task: JoinHandle<()>,
}

impl Daemon {
    /// Starts it.
    ///
    /// # Errors
    ///
    /// The program cannot be started at all.
    pub fn start(recipe: Recipe) -> io::Result<Self> {
        let child = spawn(&recipe, &[])?;
        let (orders, inbox) = mpsc::channel(1);
        let first = State { phase: Phase::Running, restarts: 0, last_end: None };
        let (publish, state) = watch::channel(first);
        let keeper =
            Keeper { recipe, publish, wait: FIRST_WAIT, since: Instant::now(), more: Vec::new() };
        Ok(Self { orders, state, task: tokio::spawn(keeper.keep(child, inbox)) })
    }

    /// What it is doing.
    #[must_use]
    pub fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// Does something to it, and waits until it is done.
    pub async fn order(&mut self, order: Order) -> Done {
        let (answer, answered) = oneshot::channel();
        // Without a keeper there is no process either.
        let _ = self.orders.send((order, answer)).await;
        answered.await.unwrap_or(Done::NotRunning)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Keeper {
    recipe: Recipe,
    publish: watch::Sender<State>,
    wait: Duration,
    /// Since when the present one runs.
    since: Instant,
    /// Arguments of the last restart.
    more: Vec<String>,
}

enum Event {
    Order(Order, oneshot::Sender<Done>),
    Ended(io::Result<ExitStatus>),
    Due,
    Over,
}

impl Keeper {
    async fn keep(mut self, first: Child, mut inbox: Inbox) {
        let mut child = Some(first);
        loop {
            match self.next(child.as_mut(), &mut inbox).await {
                Event::Order(order, answer) => {
                    // Whoever asked may have gone.
                    let _ = answer.send(self.obey(order, &mut child).await);
                }
                Event::Ended(end) => {
                    let end =
                        end.map_or_else(|error| error.to_string(), |status| status.to_string());
                    child = None;
                    if self.since.elapsed() > STEADY {
                        self.wait = FIRST_WAIT;
                    }
                    self.publish.send_modify(|state| {
                        state.phase = Phase::Waiting;
                        state.last_end = Some(end);
                    });
                }
                Event::Due => {
                    self.wait = (self.wait * 2).min(LONGEST_WAIT);
                    child = self.start_again();
                }
                Event::Over => return,
            }
        }
    }

    async fn next(&self, child: Option<&mut Child>, inbox: &mut Inbox) -> Event {
        let waiting = self.publish.borrow().phase == Phase::Waiting;
        let ended = async {
            match child {
                Some(child) => Event::Ended(child.wait().await),
                None if waiting => {
                    tokio::time::sleep(self.wait).await;
                    Event::Due
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            order = inbox.recv() => {
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
        let started = spawn(&self.recipe, &self.more);
        self.since = Instant::now();
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
        // It may have ended a moment ago.
        let _ = child.kill().await;
    }
}

fn spawn(recipe: &Recipe, more: &[String]) -> io::Result<Child> {
    let log = OpenOptions::new().create(true).append(true).open(&recipe.log)?;
    let mut command: Command = recipe.namespace.command(&recipe.program);
    // Flags have twins in the environment: what was meant for the lab is not meant for its parts.
    // Proxies of the machine's network do not know the addresses of the lab's.
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_ours(name) || is_proxy(name)) {
        command.env_remove(name);
    }
    command.args(&recipe.args).args(more).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    tokio::process::Command::from(command).kill_on_drop(true).spawn()
}

fn is_proxy(variable: &std::ffi::OsStr) -> bool {
    let name = variable.to_string_lossy().to_ascii_uppercase();
    matches!(&*name, "HTTPS_PROXY" | "HTTP_PROXY" | "ALL_PROXY" | "NO_PROXY")
}

fn is_ours(variable: &std::ffi::OsStr) -> bool {
    variable.to_str().is_some_and(|name| name.starts_with("NEARHOP_"))
}
