//! Specs for the container processes (JSON files) and their reports (JSON lines).

use std::path::PathBuf;

use rustix::fs::{Gid, Uid};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct ContainerSpec {
    pub(crate) hostname: String,
    /// An empty directory to mount the root on temporarily.
    pub(crate) root: PathBuf,
    /// The path of the Pod's user namespace.
    pub(crate) user_namespace: PathBuf,
    pub(crate) identity: Identity,
    /// A copy of this binary, if the Pod's user may not read the original.
    pub(crate) binary: Option<PathBuf>,
    /// Files that are copied to the container's `/etc`.
    pub(crate) files: Vec<EtcFile>,
    /// Volume mounts, in order.
    pub(crate) mounts: Vec<Mount>,
    pub(crate) program: Program,
    pub(crate) env: Vec<(String, String)>,
    /// The working directory; created if missing.
    pub(crate) directory: Option<PathBuf>,
}

/// The host user and group of a Pod's root.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Identity {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl Identity {
    pub(crate) fn current() -> Self {
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
pub(crate) struct EtcFile {
    pub(crate) source: PathBuf,
    pub(crate) name: String,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Mount {
    pub(crate) volume: PathBuf,
    /// The `subPath`; empty for the whole volume.
    pub(crate) sub_path: PathBuf,
    /// The absolute path in the container.
    pub(crate) target: PathBuf,
    pub(crate) access: Access,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) enum Access {
    Read,
    Write,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) enum Program {
    /// A command of the host, with its arguments.
    Host(Vec<String>),
    /// A built-in image: its short name and arguments.
    BuiltIn(String, Vec<String>),
}

/// The spec of another command in a container.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct ExecSpec {
    /// The container's first process in the agent's `/proc`.
    pub(crate) pid: u32,
    pub(crate) identity: Identity,
    pub(crate) command: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) directory: Option<PathBuf>,
    /// Whether standard input becomes the controlling terminal.
    pub(crate) terminal: bool,
    pub(crate) timeout_ms: Option<u64>,
}

/// A report of the container processes.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) enum Report {
    /// The program is about to start.
    Started {
        /// The process id in the agent's `/proc`.
        pid: u32,
    },
    /// The program could not start.
    Failed { why: String },
    Ended {
        /// The exit code, or 128 plus the signal number.
        code: i32,
        signal: Option<i32>,
    },
}

/// The exit code of a command that was killed after its timeout.
pub(crate) const TIMED_OUT: i32 = 124;

/// The exit code of a command that could not start.
pub(crate) const NOT_STARTED: i32 = 127;
