//! The processes between the agent and a container's program.
//!
//! ```text
//!   agent ── `container sandbox`         makes a pod's user and network namespaces, and ends
//!   agent ── shim (`container run`)      new mount, UTS, IPC and PID namespaces; waits, forwards
//!              └─ init (`container init`)  process 1 of them: builds the file system, enters the
//!                                          user namespace, gives its privileges up, then becomes the
//!                                          program
//!   agent ── `container exec`            enters those namespaces, runs one more command there
//!              └─ `container terminal`   takes the terminal there, then becomes the command
//! ```
//!
//! Each dies with its parent, so that an agent that is killed leaves nothing behind. A container is
//! to be harmless whatever it runs: docs/security.md says what that means. Deliberately not here:
//! limits of memory and CPU.

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

pub use self::spec::{
    Access, ContainerSpec, EtcFile, ExecSpec, Identity, Mount, NOT_STARTED, Program, Report,
    TIMED_OUT,
};

/// Which of the processes to be: the first argument of the hidden command `container`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// `sandbox`: the namespaces of a pod.
    Sandbox,
    /// `run`: the shim.
    Run,
    /// `init`: process 1 of the container.
    Init,
    /// `exec`: one more command.
    Exec,
    /// `terminal`: the same with a terminal, inside.
    Terminal,
}

impl Stage {
    /// The argument that stands for it.
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

    /// Reads the argument.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let all = [Self::Sandbox, Self::Run, Self::Init, Self::Exec, Self::Terminal];
        all.into_iter().find(|stage| stage.argument() == text)
    }
}

/// Is one of the processes, with the file that says what to do; with a terminal, the program's file
/// and its words; for namespaces, the word for the network.
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
    let failed = |why: &dyn std::fmt::Display| format!("read {}: {why}", file.display());
    let open = File::open(file).map_err(|error| failed(&error))?;
    serde_json::from_reader(BufReader::new(open)).map_err(|error| failed(&error))
}

/// Closes what whoever started the agent left open: a descriptor of a directory would lead a
/// container to the host's files. All that these processes are given are their three streams.
fn close_inherited() {
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return };
    let names = open.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let inherited: Vec<i32> = names.filter(|fd| *fd > 2).collect();
    for fd in inherited {
        // The listing's own is closed by now.
        let _gone = nix::unistd::close(fd);
    }
}
