//! The parent of a command of `kubectl exec`, in the container's PID namespace.
//!
//! It is a subreaper: what the command leaves becomes its child, also after a new session and a double
//! fork. It kills these processes when the command ends, and all of them when the client disconnects:
//! then the agent kills `container exec`, whose end is this process's SIGTERM. A PID namespace for each
//! command would do the same in the kernel, but would hide the container's processes from commands such
//! as `kill 1`. A container that kills this process keeps the rest until it ends.

use std::fs::{self, File};
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _, pipe};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use nearhop_net::program::reap;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::prctl::{set_child_subreaper, set_pdeathsig};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::SignalFd;
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, setsid};
use rustix::io::FdFlags;

use super::{NOT_STARTED, Stage, exec, root};

/// The exit code of a command that this process has killed.
const KILLED: i32 = 128 + Signal::SIGKILL as i32;

/// A pipe between `container exec` and this process. It shows that `container exec` has ended before
/// this process asked for a signal at its end; the parent's number does not, because `container exec`
/// is outside the PID namespace.
#[derive(Debug)]
pub(super) struct Lifeline {
    _inherited: PipeReader,
    /// Closes when `container exec` ends.
    _own: PipeWriter,
}

/// This process, with the number of its end of the pipe before the program's words.
pub(super) fn parent(
    stage: Stage,
    program: &Path,
    words: &[String],
) -> io::Result<(Command, Lifeline)> {
    let (reader, writer) = pipe()?;
    rustix::io::fcntl_setfd(&reader, FdFlags::empty())?;
    let words = [&[reader.as_raw_fd().to_string()], words].concat();
    let command = hidden(stage, program, &words);
    Ok((command, Lifeline { _inherited: reader, _own: writer }))
}

/// The number of this process's end of the pipe.
pub(super) fn lifeline(words: &[String]) -> Option<i32> {
    words.first()?.parse().ok()
}

/// Whether all other ends of a pipe are closed. Closes this end.
fn is_cut(lifeline: i32) -> io::Result<bool> {
    // A number becomes a descriptor only by opening the pipe again.
    let mut options = File::options();
    let again = options.read(true).custom_flags(OFlag::O_NONBLOCK.bits());
    let mut again = again.open(format!("/proc/self/fd/{lifeline}"))?;
    nix::unistd::close(lifeline)?;
    match again.read(&mut [0]) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        read => read.map(|_| true),
    }
}

/// A hidden command of this binary; `words` are the program's, with its name.
fn hidden(stage: Stage, program: &Path, words: &[String]) -> Command {
    let inside = Path::new(root::BINARY).exists();
    let mut command = Command::new(if inside { root::BINARY } else { "/proc/self/exe" });
    command.args(["container", stage.argument()]).arg(program).args(words);
    command
}

/// Starts the command, and returns its exit code when everything that it started has ended.
pub(super) fn main(next: Stage, program: &Path, words: &[String]) -> ExitCode {
    let code = attend(next, program, words).unwrap_or_else(|error| {
        let _unread = writeln!(io::stderr(), "cannot start the command: {error}");
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
    let lifeline = lifeline(words).ok_or(io::ErrorKind::InvalidInput)?;
    if is_cut(lifeline)? {
        return Ok(KILLED);
    }
    let words = &words[1..];
    let child = hidden(next, program, words).spawn()?;
    let main = Pid::from_raw(i32::try_from(child.id()).expect("a positive process id"));
    loop {
        let signal = signals.read_signal()?.map_or(0, |info| info.ssi_signo);
        let killed = signal == Signal::SIGTERM as u32;
        let code = reap(main);
        if code.is_some() || killed {
            end_all();
            return Ok(code.map_or(KILLED, i32::from));
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

#[cfg(test)]
mod tests {
    use std::os::fd::IntoRawFd as _;

    use super::*;

    #[test]
    fn the_end_of_container_exec_before_the_signal_was_set_is_seen() {
        let (reader, writer) = pipe().unwrap();
        let again = reader.try_clone().unwrap();
        assert!(!is_cut(reader.into_raw_fd()).unwrap(), "`container exec` runs");
        drop(writer);
        assert!(is_cut(again.into_raw_fd()).unwrap());
    }
}
