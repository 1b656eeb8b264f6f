//! The processes between the agent and a container's program.
//!
//! ```text
//!   agent ── `container sandbox`         creates a Pod's user and network namespaces, and exits
//!   agent ── shim (`container run`)      creates mount, UTS, IPC and PID namespaces; forwards signals
//!              └─ init (`container init`)  process 1: builds the file system, enters the user
//!                                          namespace, drops privileges, executes the program
//!   agent ── `container exec`            enters those namespaces and runs another command
//!              └─ `container terminal`   makes the terminal its own, executes the command
//! ```
//!
//! Each process dies with its parent, so that a killed agent leaves nothing behind.
//! docs/security.md describes what a hostile container can do. Not implemented: limits of memory
//! and CPU.

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
    /// `terminal`: the same with a terminal, inside the container.
    Terminal,
}

impl Stage {
    /// The argument.
    #[must_use]
    pub const fn argument(self) -> &'static str {
        match self {
            Self::Sandbox => "sandbox",
            Self::Run => "run",
            Self::Init => "init",
            Self::Exec => "exec",
            Self::Terminal => "terminal",
        }
    }

    /// Parses the argument.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let all = [Self::Sandbox, Self::Run, Self::Init, Self::Exec, Self::Terminal];
        all.into_iter().find(|stage| stage.argument() == text)
    }
}

/// Runs one of the processes. `file` is the JSON spec; for a terminal the program, with its
/// arguments in `words`; for a sandbox the network's kind.
#[must_use]
pub fn main(stage: Stage, file: &Path, words: &[String]) -> ExitCode {
    close_inherited();
    match stage {
        Stage::Sandbox => sandbox::main(file),
        Stage::Run => shim::main(file),
        Stage::Init => init::main(file),
        Stage::Exec => exec::main(file),
        Stage::Terminal => exec::terminal(file, words),
    }
}

fn read<T: DeserializeOwned>(file: &Path) -> Result<T, String> {
    let failed = |why: &dyn std::fmt::Display| format!("cannot read {}: {why}", file.display());
    let open = File::open(file).map_err(|error| failed(&error))?;
    serde_json::from_reader(BufReader::new(open)).map_err(|error| failed(&error))
}

/// Closes descriptors that the agent inherited: one of a directory would give a container access to
/// the host's files. Only the three standard streams stay open.
fn close_inherited() {
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return };
    let names = open.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let inherited: Vec<i32> = names.filter(|fd| *fd > 2).collect();
    for fd in inherited {
        // The directory's own descriptor is already closed.
        let _gone = nix::unistd::close(fd);
    }
}
