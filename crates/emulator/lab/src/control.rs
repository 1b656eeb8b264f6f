//! Requests to a running lab: one line of JSON each way on a Unix socket in its directory.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::daemon::{Order, State};
use crate::spec::control_socket;
use crate::world::Cable;

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

/// Sends a request to the lab in this directory.
pub fn ask(state: &Path, request: &Request) -> io::Result<Answer> {
    let mut stream = UnixStream::connect(control_socket(state))?;
    let mut line = serde_json::to_string(request)?;
    line.push('\n');
    stream.write_all(line.as_bytes())?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    if answer.is_empty() {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the lab ended"));
    }
    Ok(serde_json::from_str(&answer)?)
}
