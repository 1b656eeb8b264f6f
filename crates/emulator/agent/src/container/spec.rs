//! What a container's processes are told, as files of JSON, and what they tell in return, as lines
//! of JSON. Values only.

use std::path::PathBuf;

use rustix::fs::{Gid, Uid};
use serde::{Deserialize, Serialize};

/// What becomes a container.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct ContainerSpec {
    /// What the container calls its host.
    pub hostname: String,
    /// An empty directory, on which the container's root is mounted for a moment.
    pub root: PathBuf,
    /// The pod's user namespace.
    pub user_namespace: PathBuf,
    /// Who the pod's root is outside of that namespace.
    pub identity: Identity,
    /// This binary, if the pod's user may not read the one that runs.
    pub binary: Option<PathBuf>,
    /// Files of the pod's that each container has a copy of.
    pub files: Vec<EtcFile>,
    /// Files and directories of the pod's, in the order in which they are mounted.
    pub mounts: Vec<Mount>,
    /// What runs.
    pub program: Program,
    /// All of its environment.
    pub env: Vec<(String, String)>,
    /// Where it starts; made if it is not there.
    pub directory: Option<PathBuf>,
}

/// The user and the group that the root of a pod's user namespace is for everybody else.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Identity {
    /// The user's number.
    pub uid: u32,
    /// The group's number.
    pub gid: u32,
}

impl Identity {
    /// The present user's.
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

/// A file that the container has a copy of, in memory.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct EtcFile {
    /// Where it is on the node.
    pub source: PathBuf,
    /// Its name in the container's `/etc`.
    pub name: String,
}

/// A file or a directory that the container sees elsewhere.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Mount {
    /// Where the volume is on the node.
    pub volume: PathBuf,
    /// Which part of it: empty for all of it.
    pub sub_path: PathBuf,
    /// Where the container sees it: an absolute path.
    pub target: PathBuf,
    /// Whether the container may change it.
    pub access: Access,
}

/// What a container may do with a mount.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum Access {
    /// Read it.
    Read,
    /// Change it.
    Write,
}

/// What a container runs.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum Program {
    /// A program of the host's, with its arguments.
    Host(Vec<String>),
    /// One that this binary plays: the image's short name, and arguments.
    BuiltIn(String, Vec<String>),
}

/// A further command in a running container.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct ExecSpec {
    /// The container's first process, as `/proc` calls it.
    pub pid: u32,
    /// Who the pod's root is outside of its user namespace.
    pub identity: Identity,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// All of its environment.
    pub env: Vec<(String, String)>,
    /// Where it starts.
    pub directory: Option<PathBuf>,
    /// Whether its standard input is a terminal that it is to own.
    pub terminal: bool,
    /// After this many milliseconds it is killed.
    pub timeout_ms: Option<u64>,
}

/// What the agent learns of a container.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum Report {
    /// Its program is about to run, as this process in `/proc`.
    Started {
        /// The process.
        pid: u32,
    },
    /// There will be no program.
    Failed {
        /// What failed.
        why: String,
    },
    /// The program ended.
    Ended {
        /// With this exit code, or 128 and the signal's number.
        code: i32,
        /// By this signal.
        signal: Option<i32>,
    },
}

/// The exit code of a command in a container that was killed because its time was over.
pub const TIMED_OUT: i32 = 124;

/// The exit code of a command that could not be started.
pub const NOT_STARTED: i32 = 127;
