//! The shim of a container: it creates the namespaces, forwards signals and reports the program's
//! end.
//!
//! Its standard input is a socket to the agent, which sends signal numbers and receives reports.
//! When the agent ends, the shim kills the container.

use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};

use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::PidfdFlags;

use super::{Report, Stage};

/// The socket at standard input.
pub(super) fn socket() -> std::io::Result<UnixStream> {
    Ok(UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?))
}

/// Sends a report; ignored if the agent has ended.
pub(super) fn report(socket: &mut UnixStream, report: &Report) {
    let mut line = serde_json::to_vec(report).unwrap_or_default();
    line.push(b'\n');
    let _agent_is_gone = socket.write_all(&line);
}

pub(super) fn main(file: &Path) -> ExitCode {
    let Ok(mut socket) = socket() else { return ExitCode::FAILURE };
    let ended = match start(file) {
        Ok(child) => attend(child, &mut socket),
        Err(why) => Report::Failed { why },
    };
    report(&mut socket, &ended);
    ExitCode::SUCCESS
}

fn start(file: &Path) -> Result<Child, String> {
    set_pdeathsig(Signal::SIGKILL)
        .map_err(|errno| format!("cannot set the parent-death signal: {errno}"))?;
    let own = CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWUTS
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWPID;
    unshare(own).map_err(|errno| format!("cannot create the container's namespaces: {errno}"))?;
    let mut command = Command::new("/proc/self/exe");
    command.args(["container", Stage::Init.argument()]).arg(file).stdin(Stdio::inherit());
    command.spawn().map_err(|error| format!("cannot start the container's first process: {error}"))
}

/// Forwards signals until the child has ended.
///
/// Single-threaded: a process that has unshared its PID namespace cannot create threads.
fn attend(mut child: Child, socket: &mut UnixStream) -> Report {
    let failed = |what: &str, error: &dyn std::fmt::Display| Report::Failed {
        why: format!("{what}: {error}"),
    };
    let process = Pid::from_raw(i32::try_from(child.id()).expect("a positive process id"));
    let handle =
        rustix::process::pidfd_open(rustix::process::Pid::from_child(&child), PidfdFlags::empty());
    let handle = match handle {
        Ok(handle) => handle,
        Err(error) => return failed("cannot watch the program", &error),
    };
    let mut agent = Some(socket);
    loop {
        let mut watched = vec![PollFd::new(&handle, PollFlags::IN)];
        watched.extend(agent.as_ref().map(|socket| PollFd::new(*socket, PollFlags::IN)));
        let polled = poll(&mut watched, None);
        let has_ended = !watched[0].revents().is_empty();
        let has_mail = watched.get(1).is_some_and(|it| !it.revents().is_empty());
        drop(watched);
        if polled.is_ok() && has_ended {
            return child
                .wait()
                .map_or_else(|error| failed("cannot wait for the program", &error), ended);
        }
        if has_mail && agent.as_mut().is_none_or(|socket| !forward(socket, process)) {
            agent = None;
        }
    }
}

/// Forwards signal numbers, one per line. Returns false after the agent has ended and the program
/// is killed.
fn forward(socket: &mut UnixStream, process: Pid) -> bool {
    let mut buffer = [0; 64];
    let read = socket.read(&mut buffer).unwrap_or(0);
    // The agent writes whole, short lines.
    for line in String::from_utf8_lossy(&buffer[..read]).lines() {
        let signal = line.parse().ok().and_then(|number: i32| Signal::try_from(number).ok());
        // The program may have ended.
        let _ended = signal.map(|signal| kill(process, signal));
    }
    if read == 0 {
        let _ended = kill(process, Signal::SIGKILL);
    }
    read > 0
}

fn ended(status: ExitStatus) -> Report {
    let signal = status.signal();
    let code = status.code().unwrap_or_else(|| 128 + signal.unwrap_or_default());
    Report::Ended { code, signal }
}
