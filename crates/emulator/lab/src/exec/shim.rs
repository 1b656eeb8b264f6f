//! The lab's side of a command in a network namespace.
//!
//! ```text
//!   supervisor ── shim      in the network namespace; its standard input is the connection of the caller
//!                  └─ init    first process of a new PID namespace; reaps, passes signals on
//!                      └─ command   leads its own session, then executes the program
//! ```
//!
//! Each command has a PID namespace, because only that ends everything that it started: a process
//! cannot leave the namespace by `setsid` or by forking twice, and the kernel kills all of its
//! processes when the first one ends. A subreaper would miss processes if it was killed itself, and
//! cgroups are often not writable for an ordinary user. `/proc` stays the machine's, as in the rest of
//! the lab. The command does not run as the first process, because that one ignores signals by
//! default.
//!
//! Init ends when the command does, when the caller disconnects, and when the shim or the lab ends.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitCode, Stdio};

use nearhop_net::program::{NOT_EXECUTABLE, NotExecuted, SIGNALLED, reap};
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigSet, Signal, kill, killpg};
use nix::unistd::{Pid, setsid};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::process::PidfdFlags;
use serde::{Deserialize, Serialize};

use super::Screen;
use super::channel::{Channel, Received, STREAMS};
use super::signals::Signals;

/// The hidden command of these processes.
pub(crate) const COMMAND: &str = "lab-exec";

/// The processes, by the first argument of the hidden command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Talks to the caller.
    Shim,
    /// First process of the PID namespace, for a command with separate streams.
    Init(Screen),
    /// Executes the program.
    Command(Screen),
}

impl Stage {
    const ALL: [(Self, &str); 5] = [
        (Self::Shim, "shim"),
        (Self::Init(Screen::Streams), "init"),
        (Self::Init(Screen::Terminal), "init-terminal"),
        (Self::Command(Screen::Streams), "command"),
        (Self::Command(Screen::Terminal), "command-terminal"),
    ];

    pub(crate) fn argument(self) -> &'static str {
        let found = Self::ALL.into_iter().find(|(stage, _)| *stage == self);
        found.expect("the list has every stage").1
    }

    /// Parses the argument.
    pub fn parse(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|(_, name)| *name == text);
        found.map(|(stage, _)| stage).ok_or_else(|| format!("`{text}` is not a stage of exec"))
    }
}

/// From the caller, with its streams.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Start {
    pub(super) command: Vec<String>,
    pub(super) directory: OsString,
    pub(super) env: Vec<(OsString, OsString)>,
    pub(super) screen: Screen,
}

/// From the caller, while the command runs.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Order {
    Signal(i32),
}

/// To the caller.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Event {
    /// The shim waits for [`Start`].
    Attached,
    /// The command cannot run; also an answer of the supervisor.
    Refused(String),
    /// The command has ended, and everything that it started.
    Ended(u8),
}

/// Runs one of the processes.
#[must_use]
pub fn main(stage: Stage, words: &[String]) -> ExitCode {
    match stage {
        // The caller sees the end of the connection.
        Stage::Shim => serve().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS),
        Stage::Init(screen) => ExitCode::from(init(screen, words).unwrap_or_else(complain)),
        Stage::Command(screen) => execute(screen, words),
    }
}

fn serve() -> io::Result<()> {
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut channel = Channel::new(socket);
    channel.send(&Event::Attached)?;
    let Some(start) = channel.receive::<Start>()? else { return Ok(()) };
    let event = match spawn(start, channel.take_descriptors()) {
        Ok(init) => Event::Ended(attend(init, &mut channel)?),
        Err(why) => Event::Refused(why),
    };
    channel.send(&event)
}

fn spawn(start: Start, streams: Vec<OwnedFd>) -> Result<Child, String> {
    let [input, output, errors] = <[OwnedFd; STREAMS]>::try_from(streams)
        .map_err(|streams| format!("{} of {STREAMS} streams arrived", streams.len()))?;
    std::env::set_current_dir(&start.directory).map_err(|error| {
        format!("cannot enter the directory {}: {error}", start.directory.display())
    })?;
    unshare(CloneFlags::CLONE_NEWPID)
        .map_err(|errno| format!("cannot create a PID namespace: {errno}"))?;
    let mut command = Command::new("/proc/self/exe");
    command.args([COMMAND, Stage::Init(start.screen).argument(), "--"]).args(start.command);
    command.env_clear().envs(start.env).stdin(input).stdout(output).stderr(errors);
    command.spawn().map_err(|error| format!("cannot start the command: {error}"))
}

/// Waits for the end of init, passes signals to it, and kills it when the caller disconnects.
///
/// Single-threaded: a process that has unshared its PID namespace cannot create threads.
fn attend(mut init: Child, channel: &mut Channel) -> io::Result<u8> {
    let handle =
        rustix::process::pidfd_open(rustix::process::Pid::from_child(&init), PidfdFlags::empty())?;
    let mut is_connected = true;
    loop {
        let mut watched = vec![PollFd::new(&handle, PollFlags::IN)];
        if is_connected {
            watched.push(PollFd::new(channel, PollFlags::IN));
        }
        retry_on_intr(|| poll(&mut watched, None))?;
        let has_ended = !watched[0].revents().is_empty();
        let has_mail = watched.get(1).is_some_and(|it| !it.revents().is_empty());
        drop(watched);
        if has_ended {
            let status = init.wait()?;
            let signalled = || SIGNALLED + u8::try_from(status.signal().unwrap_or(0)).unwrap_or(0);
            return Ok(status.code().and_then(|it| it.try_into().ok()).unwrap_or_else(signalled));
        }
        if has_mail && !matches!(channel.fill(), Ok(Received::Data)) {
            is_connected = false;
            init.kill()?;
        }
        while let Some(Order::Signal(number)) = channel.next()? {
            if let Ok(signal) = Signal::try_from(number) {
                // It may have ended.
                let _ = kill(process_of(&init), signal);
            }
        }
    }
}

/// Runs the command; returns its exit code. When this process ends, the kernel kills the rest of the
/// PID namespace.
fn init(screen: Screen, words: &[String]) -> io::Result<u8> {
    set_pdeathsig(Signal::SIGKILL)?;
    // Before the command starts, so that no signal is lost. A blocked signal is not ignored, although
    // this is a first process.
    let signals = Signals::all()?;
    let mut command = Command::new("/proc/self/exe");
    command.args([COMMAND, Stage::Command(screen).argument(), "--"]).args(words);
    let main = process_of(&command.spawn()?);
    close_streams();
    loop {
        retry_on_intr(|| poll(&mut [PollFd::new(&signals, PollFlags::IN)], None))?;
        while let Some(signal) = signals.next()? {
            if signal == Signal::SIGCHLD {
                if let Some(code) = reap(main) {
                    return Ok(code);
                }
            } else {
                pass_on(signal, main);
            }
        }
    }
}

/// Sends a signal to the command's process group, as a terminal does.
fn pass_on(signal: Signal, main: Pid) {
    // A session of its own ignores SIGTSTP.
    let signal = if signal == Signal::SIGTSTP { Signal::SIGSTOP } else { signal };
    if killpg(main, signal) == Err(Errno::ESRCH) {
        // It does not lead its group yet.
        let _ = kill(main, signal);
    }
}

/// So that a reader of the output sees its end when the command closes it.
fn close_streams() {
    if let Ok(nowhere) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(&nowhere);
        let _ = rustix::stdio::dup2_stdout(&nowhere);
        let _ = rustix::stdio::dup2_stderr(&nowhere);
    }
}

fn process_of(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).expect("a positive process id"))
}

fn execute(screen: Screen, words: &[String]) -> ExitCode {
    let Some((first, rest)) = words.split_first() else { return ExitCode::from(NOT_EXECUTABLE) };
    if let Err(error) = lead(screen) {
        return ExitCode::from(complain(error));
    }
    let error = Command::new(first).args(rest).exec();
    let NotExecuted { code, message } =
        NotExecuted::explain(first, std::env::var_os("PATH").as_deref(), &error);
    // The caller may have closed standard error.
    let _ = writeln!(io::stderr(), "{message}");
    ExitCode::from(code)
}

/// Leads a new session, with standard input as its terminal, and accepts all signals.
fn lead(screen: Screen) -> io::Result<()> {
    setsid()?;
    if screen == Screen::Terminal {
        rustix::process::ioctl_tiocsctty(io::stdin())?;
    }
    Ok(SigSet::empty().thread_set_mask()?)
}

fn complain(error: io::Error) -> u8 {
    let _ = writeln!(io::stderr(), "cannot start the command: {error}");
    NOT_EXECUTABLE
}

/// A command that runs the shim.
pub(crate) fn prepare(mut command: Command) -> Command {
    command.args([COMMAND, Stage::Shim.argument()]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}
