//! The parent of a command of `kubectl exec`, in the container's PID namespace.
//!
//! It is a subreaper: what the command leaves becomes its child, also after a new session and a double
//! fork. It kills these processes when the command ends, and all of them when the client disconnects:
//! then the agent kills `container exec`, whose end is this process's SIGTERM. A PID namespace for each
//! command would do the same in the kernel, but would hide the container's processes from commands such
//! as `kill 1`. A container that kills this process keeps the rest until it ends.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use nix::errno::Errno;
use nix::sys::prctl::{set_child_subreaper, set_pdeathsig};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::SignalFd;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, setsid};

use super::{NOT_STARTED, Stage, exec, root};

/// A hidden command of this binary; `words` are the program's, with its name.
pub(super) fn hidden(stage: Stage, program: &Path, words: &[String]) -> Command {
    let inside = Path::new(root::BINARY).exists();
    let mut command = Command::new(if inside { root::BINARY } else { "/proc/self/exe" });
    command.args(["container", stage.argument()]).arg(program).args(words);
    command
}

/// Starts the command, and returns its exit code when everything that it started has ended.
pub(super) fn main(next: Stage, program: &Path, words: &[String]) -> ExitCode {
    let code = attend(next, program, words).unwrap_or_else(|error| {
        eprintln!("cannot start the command: {error}");
        NOT_STARTED
    });
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}

fn attend(next: Stage, program: &Path, words: &[String]) -> io::Result<i32> {
    set_child_subreaper(true)?;
    // Before the command starts, so that no signal is lost.
    let signals = SigSet::all();
    signals.thread_block()?;
    let signals = SignalFd::new(&signals)?;
    set_pdeathsig(Signal::SIGTERM)?;
    let child = hidden(next, program, words).spawn()?;
    let main = Pid::from_raw(i32::try_from(child.id()).expect("a positive process id"));
    loop {
        let signal = signals.read_signal()?.map_or(0, |info| info.ssi_signo);
        let killed = signal == Signal::SIGTERM as u32;
        let code = reap(main);
        if code.is_some() || killed {
            end_all();
            return Ok(code.unwrap_or(128 + Signal::SIGKILL as i32));
        }
    }
}

/// Reaps processes that have ended; returns the exit code of the command.
fn reap(main: Pid) -> Option<i32> {
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) if pid == main => return Some(code),
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == main => {
                return Some(128 + signal as i32);
            }
            Ok(WaitStatus::StillAlive) | Err(_) => return None,
            Ok(_) => {}
        }
    }
}

/// Kills all children, and those that become children meanwhile.
fn end_all() {
    loop {
        for child in children() {
            // It may have ended.
            let _ended = kill(child, Signal::SIGKILL);
        }
        if waitpid(None, None) == Err(Errno::ECHILD) {
            return;
        }
    }
}

/// The children of this process. The kernel's own list of them is not in every kernel.
fn children() -> Vec<Pid> {
    let me = std::process::id();
    let names = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = names.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| parent_of(*pid) == Some(me)).map(Pid::from_raw).collect()
}

/// The parent is the second field after the name, which is in parentheses and may contain anything.
fn parent_of(pid: i32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Executes the program as the leader of a new session, which standard input controls if that is a
/// terminal.
pub(super) fn execute(stage: Stage, program: &Path, words: &[String]) -> ExitCode {
    let Some((first, rest)) = words.split_first() else { return ExitCode::FAILURE };
    let code = match lead(stage) {
        Ok(()) => {
            let error = Command::new(program).arg0(first).args(rest).exec();
            exec::report(&program.to_string_lossy(), &error)
        }
        Err(error) => exec::report(first, &error),
    };
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}

fn lead(stage: Stage) -> io::Result<()> {
    setsid()?;
    if stage == Stage::Terminal {
        rustix::process::ioctl_tiocsctty(io::stdin())?;
    }
    Ok(SigSet::empty().thread_set_mask()?)
}
