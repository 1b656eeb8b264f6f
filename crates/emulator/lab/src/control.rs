//! Questions and orders to a running lab: one line of JSON each way on a socket in its directory.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::daemon::{Order, State};
use crate::spec::control_socket;
use crate::world::Cable;

/// What can be asked of a lab.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Request {
    /// What there is and how it does.
    Status,
    /// Ends it.
    Down,
    /// Disturbs or mends something.
    Fault(Fault),
    /// Runs a program with these arguments somewhere, and answers with its output.
    Run(Place, PathBuf, Vec<String>),
}

/// What can be done to a lab.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Fault {
    /// Does something to a process: `proxy/node-a1`, `controller`.
    Process(String, Order),
    /// Cuts or heals a node.
    Node(String, Cable),
    /// Cuts or heals a zone.
    Zone(String, Cable),
    /// Heals every cable and starts every process.
    HealAll,
}

/// Where something runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Place {
    /// On a node, beside its Pods.
    Node(String),
    /// Outside of the cluster, on its network.
    External,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Node(name) => write!(f, "node/{name}"),
            Self::External => f.write_str("external"),
        }
    }
}

/// What a lab answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// It is done.
    Done,
    /// To [`Request::Status`].
    Status(Box<Status>),
    /// To [`Request::Run`].
    Output {
        /// Its standard output.
        stdout: String,
        /// Its standard error.
        stderr: String,
        /// Its exit code; none if a signal ended it.
        code: Option<i32>,
    },
    /// It cannot be done; why, and the cure.
    Refused(String),
}

/// A lab as it stands.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Its name.
    pub name: String,
    /// How to reach its API.
    pub kubeconfig: PathBuf,
    /// The processes, by the names that `lab fault` knows.
    pub processes: BTreeMap<String, State>,
    /// Where the processes' logs are.
    pub logs: PathBuf,
    /// Whether everything that was asked for is there.
    pub phase: LabPhase,
    /// Nodes by zone.
    pub zones: BTreeMap<String, Vec<String>>,
    /// What is cut: `node/NAME`, `zone/NAME`.
    pub cut: Vec<String>,
}

/// How far a lab is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LabPhase {
    /// Nodes or Pods are still on their way.
    Starting,
    /// It is ready.
    Up,
}

/// Asks the lab in this directory.
///
/// # Errors
///
/// Nobody answers there.
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
