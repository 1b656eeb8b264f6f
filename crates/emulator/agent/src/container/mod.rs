//! The processes between the agent and a container's program.
//!
//! ```text
//!   agent ── `container sandbox`         creates a Pod's user and network namespaces, and exits
//!   agent ── shim (`container run`)      creates mount, UTS, IPC and PID namespaces; forwards signals
//!              └─ init (`container init`)  process 1: builds the file system, enters the user
//!                                          namespace, drops privileges, executes the program
//!   agent ── `container exec`            enters those namespaces and runs another command
//!              └─ `container attend`     ends what the command leaves
//!                   └─ `container command` or `terminal`  leads a session, executes the command
//! ```
//!
//! Each process dies with its parent, so that a killed agent leaves nothing behind.
//! docs/security.md describes what a hostile container can do. Not implemented: limits of memory
//! and CPU.

mod attend;
mod beneath;
mod devices;
mod exec;
mod init;
mod mounts;
mod privileges;
mod root;
pub(crate) mod sandbox;
mod shim;
mod spec;

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::process::ExitCode;

use serde::de::DeserializeOwned;

pub(crate) use self::spec::{
    Access, ContainerSpec, EtcFile, ExecSpec, Identity, Mount, NOT_STARTED, Program, Report,
    TIMED_OUT,
};

/// The first argument of the hidden command `container`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// `sandbox`: creates the namespaces of a Pod.
    Sandbox,
    /// `run`: the shim.
    Run,
    /// `init`: process 1 of the container.
    Init,
    /// `exec`: runs another command.
    Exec,
    /// `attend`: starts the command inside the container, and ends what it leaves.
    Attend,
    /// `attend-terminal`: the same with a terminal.
    AttendTerminal,
    /// `command`: executes the command.
    Command,
    /// `terminal`: the same with a terminal.
    Terminal,
}

impl Stage {
    const ALL: [Self; 8] = [
        Self::Sandbox,
        Self::Run,
        Self::Init,
        Self::Exec,
        Self::Attend,
        Self::AttendTerminal,
        Self::Command,
        Self::Terminal,
    ];

    /// The argument.
    #[must_use]
    pub const fn argument(self) -> &'static str {
        match self {
            Self::Sandbox => "sandbox",
            Self::Run => "run",
            Self::Init => "init",
            Self::Exec => "exec",
            Self::Attend => "attend",
            Self::AttendTerminal => "attend-terminal",
            Self::Command => "command",
            Self::Terminal => "terminal",
        }
    }

    /// Parses the argument.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|stage| stage.argument() == text)
    }
}

/// Runs one of the processes. `file` is the JSON spec; inside a container the program,
/// with its arguments in `words`; for a sandbox the network's kind.
#[must_use]
pub fn main(stage: Stage, file: &Path, words: &[String]) -> ExitCode {
    let lifeline = match stage {
        Stage::Attend | Stage::AttendTerminal => attend::lifeline(words),
        _ => None,
    };
    close_inherited(lifeline);
    match stage {
        Stage::Sandbox => sandbox::main(file),
        Stage::Run => shim::main(file),
        Stage::Init => init::main(file),
        Stage::Exec => exec::main(file),
        Stage::Attend => attend::main(Stage::Command, file, words),
        Stage::AttendTerminal => attend::main(Stage::Terminal, file, words),
        Stage::Command | Stage::Terminal => attend::execute(stage, file, words),
    }
}

fn read<T: DeserializeOwned>(file: &Path) -> Result<T, String> {
    let failed = |why: &dyn std::fmt::Display| format!("cannot read {}: {why}", file.display());
    let open = File::open(file).map_err(|error| failed(&error))?;
    serde_json::from_reader(BufReader::new(open)).map_err(|error| failed(&error))
}

/// Closes descriptors that the agent inherited: one of a directory would give a container access to
/// the host's files. Only the three standard streams stay open, and `kept`.
fn close_inherited(kept: Option<i32>) {
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return };
    let names = open.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let inherited: Vec<i32> = names.filter(|fd| *fd > 2 && Some(*fd) != kept).collect();
    for fd in inherited {
        // The directory's own descriptor is already closed.
        let _gone = nix::unistd::close(fd);
    }
}
