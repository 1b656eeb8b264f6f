//! Requests to a running lab: one line of JSON each way on a Unix socket in its directory.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;

use crate::daemon::{Order, State};
use crate::spec::control_socket;
use crate::world::Cable;

/// How long a lab may take to answer.
const STATUS_LIMIT: Duration = Duration::from_secs(5);

/// How long a fault may take.
const FAULT_LIMIT: Duration = Duration::from_secs(30);

/// A request to a lab.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Request {
    /// Returns the status.
    Status,
    /// Stops the lab.
    Down,
    /// Injects or heals a fault.
    Fault(Fault),
    /// Hands the connection over to a process in this network; `exec` describes what follows.
    Exec(Place),
    /// Runs a program with these arguments and returns its output.
    Run(Place, PathBuf, Vec<String>),
}

/// A fault to inject or heal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Fault {
    /// Of a process, such as `proxy/node-a1` or `controller`.
    Process(String, Order),
    /// Of a node's link.
    Node(String, Cable),
    /// Of a zone's link.
    Zone(String, Cable),
    /// Heals every link and starts every process.
    HealAll,
}

/// Where a program runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Place {
    /// In a node's network namespace.
    Node(String),
    /// In the network outside the cluster.
    External,
    /// In the network of the API server, the controller and the manager.
    ControlPlane,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Node(name) => write!(f, "node/{name}"),
            Self::External => f.write_str("external"),
            Self::ControlPlane => f.write_str("control-plane"),
        }
    }
}

/// A lab's answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// Success.
    Done,
    /// To [`Request::Status`].
    Status(Box<Status>),
    /// To [`Request::Run`].
    Output {
        /// Standard output.
        stdout: String,
        /// Standard error.
        stderr: String,
        /// Exit code; None after a signal.
        code: Option<i32>,
    },
    /// Failure: cause and cure.
    Refused(String),
}

/// The status of a lab.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Name of the lab.
    pub name: String,
    /// Kubeconfig of its API.
    pub kubeconfig: PathBuf,
    /// Directory that keeps its objects when it ends.
    pub data_dir: Option<PathBuf>,
    /// URL of its API on this machine.
    pub server: String,
    /// Seconds since its start.
    pub uptime_seconds: u64,
    /// Seconds without a heartbeat after which a node is not ready; absent if the lab runs no
    /// manager.
    pub node_monitor_grace_period_seconds: Option<f64>,
    /// Feature gates of its processes.
    pub feature_gates: String,
    /// Processes by the names that `lab fault` uses.
    pub processes: BTreeMap<String, State>,
    /// Directory of the processes' logs; it exists while the lab runs.
    pub logs: PathBuf,
    /// Whether the lab is ready.
    pub phase: LabPhase,
    /// Nodes by zone.
    pub zones: BTreeMap<String, Vec<String>>,
    /// Nodes and zones that are cut off: `node/NAME`, `zone/NAME`.
    pub cut: Vec<String>,
}

impl Status {
    /// Number of zones; nodes without a zone are in none.
    pub fn named_zones(&self) -> usize {
        self.zones.keys().filter(|zone| !zone.is_empty()).count()
    }
}

/// Whether a lab is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LabPhase {
    /// Nodes or Pods are not ready yet.
    Starting,
    /// Ready.
    Up,
}

/// Sends a request to the lab in this directory. Fails if the lab does not answer in time.
pub fn ask(state: &Path, request: &Request) -> io::Result<Answer> {
    let limit = match request {
        Request::Status | Request::Down => STATUS_LIMIT,
        Request::Fault(_) | Request::Exec(_) | Request::Run(..) => FAULT_LIMIT,
    };
    exchange(state, request, limit).map_err(|cause| match cause.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            let why = format!("no answer within {} s; is it suspended?", limit.as_secs());
            io::Error::new(io::ErrorKind::TimedOut, why)
        }
        _ => cause,
    })
}

fn exchange(state: &Path, request: &Request, limit: Duration) -> io::Result<Answer> {
    let mut stream = StdStream::connect(control_socket(state))?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    stream.write_all(line_of(request)?.as_bytes())?;
    let mut answer = String::new();
    io::BufRead::read_line(&mut io::BufReader::new(stream), &mut answer)?;
    read(&answer)
}

/// The same without a blocked thread and without a limit: it can be dropped.
pub(crate) async fn send(state: &Path, request: &Request) -> io::Result<Answer> {
    let mut stream = UnixStream::connect(control_socket(state)).await?;
    stream.write_all(line_of(request)?.as_bytes()).await?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).await?;
    read(&answer)
}

fn line_of(request: &Request) -> io::Result<String> {
    Ok(serde_json::to_string(request)? + "\n")
}

fn read(answer: &str) -> io::Result<Answer> {
    if answer.is_empty() {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the lab ended"));
    }
    Ok(serde_json::from_str(answer)?)
}
