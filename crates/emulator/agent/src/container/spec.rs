//! Specs for the container processes (JSON files) and their reports (JSON lines).

use std::path::PathBuf;

use rustix::fs::{Gid, Uid};
use serde::{Deserialize, Serialize};

/// The spec of a container.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct ContainerSpec {
    /// The hostname.
    pub hostname: String,
    /// An empty directory to mount the root on temporarily.
    pub root: PathBuf,
    /// The path of the Pod's user namespace.
    pub user_namespace: PathBuf,
    /// The host user of the Pod's root.
    pub identity: Identity,
    /// A copy of this binary, if the Pod's user may not read the original.
    pub binary: Option<PathBuf>,
    /// Files that are copied to the container's `/etc`.
    pub files: Vec<EtcFile>,
    /// Volume mounts, in order.
    pub mounts: Vec<Mount>,
    /// The program.
    pub program: Program,
    /// The environment.
    pub env: Vec<(String, String)>,
    /// The working directory; created if missing.
    pub directory: Option<PathBuf>,
}

/// The host user and group of a Pod's root.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Identity {
    /// The user id.
    pub uid: u32,
    /// The group id.
    pub gid: u32,
}

impl Identity {
    /// The current user.
    #[must_use]
    pub fn current() -> Self {
        let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
        Self { uid: user.as_raw(), gid: group.as_raw() }
    }

    pub(crate) fn user(self) -> Uid {
        Uid::from_raw(self.uid)
    }

    pub(crate) fn group(self) -> Gid {
        Gid::from_raw(self.gid)
    }
}

/// A file that is copied to the container's `/etc`.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct EtcFile {
    /// The path on the node.
    pub source: PathBuf,
    /// The file name in `/etc`.
    pub name: String,
}

/// A volume mount.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Mount {
    /// The volume's path on the node.
    pub volume: PathBuf,
    /// The `subPath`; empty for the whole volume.
    pub sub_path: PathBuf,
    /// The absolute path in the container.
    pub target: PathBuf,
    /// Read-only or writable.
    pub access: Access,
}

/// The access of a mount.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum Access {
    /// Read-only.
    Read,
    /// Writable.
    Write,
}

/// The program of a container.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum Program {
    /// A command of the host, with its arguments.
    Host(Vec<String>),
    /// A built-in image: its short name and arguments.
    BuiltIn(String, Vec<String>),
}

/// The spec of another command in a container.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct ExecSpec {
    /// The container's first process in the agent's `/proc`.
    pub pid: u32,
    /// The host user of the Pod's root.
    pub identity: Identity,
    /// The command and its arguments.
    pub command: Vec<String>,
    /// The environment.
    pub env: Vec<(String, String)>,
    /// The working directory.
    pub directory: Option<PathBuf>,
    /// Whether standard input becomes the controlling terminal.
    pub terminal: bool,
    /// The timeout in milliseconds.
    pub timeout_ms: Option<u64>,
}

/// A report of the container processes.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum Report {
    /// The program is about to start.
    Started {
        /// The process id in the agent's `/proc`.
        pid: u32,
    },
    /// The program could not start.
    Failed {
        /// The error.
        why: String,
    },
    /// The program has ended.
    Ended {
        /// The exit code, or 128 plus the signal number.
        code: i32,
        /// The signal that ended it.
        signal: Option<i32>,
    },
}

/// The exit code of a command that was killed after its timeout.
pub const TIMED_OUT: i32 = 124;

/// The exit code of a command that could not start.
pub const NOT_STARTED: i32 = 127;
