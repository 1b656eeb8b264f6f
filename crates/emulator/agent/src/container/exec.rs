//! Another command in a running container: `kubectl exec` and exec probes.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, chroot, fchdir, setsid};

use super::{ExecSpec, NOT_STARTED, Stage, TIMED_OUT, init, privileges, read, root};

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
    let path = init::find(first, &spec.env)
        .ok_or_else(|| format!("exec: {first:?}: executable file not found in $PATH"))?;
    let directory = spec.directory.as_deref().unwrap_or(Path::new("/"));
    let mut command = if spec.terminal {
        // The process that controls the terminal must be in the container's PID namespace.
        let inside = Path::new(root::BINARY).exists();
        let mut command = Command::new(if inside { root::BINARY } else { "/proc/self/exe" });
        command.args(["container", Stage::Terminal.argument()]).arg(path).args(&spec.command);
        command
    } else {
        let mut command = Command::new(path);
        command.arg0(first).args(rest);
        command
    };
    command.env_clear().envs(spec.env.iter().cloned());
    if spec.timeout_ms.is_some() {
        command.process_group(0);
    }
    let child = command.current_dir(directory).spawn();
    let child = child.map_err(|error| format!("exec {first:?}: {error}"))?;
    wait(child, spec.timeout_ms.map(Duration::from_millis))
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

/// Makes standard input the controlling terminal, and executes the program.
pub(super) fn terminal(program: &Path, words: &[String]) -> ExitCode {
    let taken = setsid().map_err(std::io::Error::from).and_then(|_| {
        rustix::process::ioctl_tiocsctty(std::io::stdin()).map_err(std::io::Error::from)
    });
    let error = match (taken, words.split_first()) {
        (Ok(()), Some((first, rest))) => Command::new(program).arg0(first).args(rest).exec(),
        (Ok(()), None) => std::io::Error::other("the command is empty"),
        (Err(error), _) => error,
    };
    let _unread = writeln!(std::io::stderr(), "error: exec {}: {error}", program.display());
    ExitCode::from(u8::try_from(NOT_STARTED).expect("an exit code"))
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
