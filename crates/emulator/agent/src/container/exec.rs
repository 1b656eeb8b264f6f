//! Another command in a running container: `kubectl exec` and exec probes.
//!
//! Of `kubectl exec` nothing stays behind: `attend` is the parent of the command and ends what it
//! leaves. A probe has a time limit instead, and its process group ends with it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use nearhop_net::program::NotExecuted;
use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, chroot, fchdir};

use super::{ExecSpec, NOT_STARTED, Stage, TIMED_OUT, attend, init, privileges, read};

/// The polling interval of a command with a timeout.
const GLANCE: Duration = Duration::from_millis(5);

pub(super) fn main(file: &Path) -> ExitCode {
    let code = run(file).unwrap_or_else(|why| {
        let _unread = writeln!(std::io::stderr(), "error: {why}");
        NOT_STARTED
    });
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}

fn run(file: &Path) -> Result<i32, String> {
    let spec: ExecSpec = read(file)?;
    // The spec is no longer needed.
    let _not_ours = std::fs::remove_file(file);
    privileges::hide()?;
    privileges::give_streams(spec.identity);
    let user = enter(spec.pid).map_err(|error| format!("cannot enter the container: {error}"))?;
    privileges::enter_user_namespace(&user)?;
    privileges::restrict()?;
    let (first, rest) = spec.command.split_first().ok_or("the command is empty")?;
    let Some(path) = init::find(first, &spec.env) else {
        return Ok(report(first, &io::Error::from_raw_os_error(Errno::ENOENT as i32)));
    };
    let directory = spec.directory.as_deref().unwrap_or(Path::new("/"));
    let timeout = spec.timeout_ms.map(Duration::from_millis);
    let (mut command, _lifeline) = match timeout {
        None => {
            let stage = if spec.terminal { Stage::AttendTerminal } else { Stage::Attend };
            let (command, lifeline) = attend::parent(stage, &path, &spec.command)
                .map_err(|error| format!("cannot make a pipe: {error}"))?;
            (command, Some(lifeline))
        }
        Some(_) => {
            let mut command = Command::new(&path);
            command.arg0(first).args(rest).process_group(0);
            (command, None)
        }
    };
    command.env_clear().envs(spec.env.iter().cloned());
    std::env::set_current_dir(directory)
        .map_err(|error| format!("workingDir {}: {error}", directory.display()))?;
    match command.spawn() {
        Ok(child) => wait(child, timeout),
        Err(error) => Ok(report(&path.to_string_lossy(), &error)),
    }
}

/// Reports that a program could not be executed; returns the exit code.
pub(super) fn report(program: &str, error: &io::Error) -> i32 {
    let NotExecuted { code, message } = NotExecuted::explain(program, None, error);
    let _unread = writeln!(io::stderr(), "{message}");
    code.into()
}

/// Enters all namespaces but the network, which the process is already in. Returns the user
/// namespace, which must come last: a process in it may enter no other.
fn enter(pid: u32) -> std::io::Result<File> {
    let of = |name: &str| File::open(format!("/proc/{pid}/ns/{name}"));
    let (mnt, uts, ipc, own) = (of("mnt")?, of("uts")?, of("ipc")?, of("pid")?);
    let user = of("user")?;
    let root = OpenOptions::new()
        .read(true)
        .custom_flags(nix::fcntl::OFlag::O_DIRECTORY.bits())
        .open(format!("/proc/{pid}/root"))?;
    setns(own, CloneFlags::CLONE_NEWPID)?;
    setns(uts, CloneFlags::CLONE_NEWUTS)?;
    setns(ipc, CloneFlags::CLONE_NEWIPC)?;
    setns(mnt, CloneFlags::CLONE_NEWNS)?;
    fchdir(root)?;
    chroot(".")?;
    Ok(user)
}

fn wait(mut child: Child, timeout: Option<Duration>) -> Result<i32, String> {
    let failed = |error: std::io::Error| format!("cannot wait for the command: {error}");
    let Some(timeout) = timeout else { return Ok(code(child.wait().map_err(failed)?)) };
    let deadline = Instant::now() + timeout;
    loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            return Ok(code(status));
        }
        if Instant::now() >= deadline {
            kill_group(&child).map_err(failed)?;
            child.wait().map_err(failed)?;
            return Ok(TIMED_OUT);
        }
        std::thread::sleep(GLANCE);
    }
}

/// Kills the whole process group: leftovers of a periodic probe would accumulate.
fn kill_group(child: &Child) -> std::io::Result<()> {
    let group = i32::try_from(child.id()).expect("a positive process id");
    Ok(killpg(Pid::from_raw(group), Signal::SIGKILL)?)
}

fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
}
