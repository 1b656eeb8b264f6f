//! Signals of the caller, as events.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// Signals that end the caller, unless the command handles them.
pub(super) const ENDING: [Signal; 4] =
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

/// Signals that the command gets too.
const OTHERS: [Signal; 5] =
    [Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGTSTP, Signal::SIGCONT, Signal::SIGWINCH];

/// Signals that no longer interrupt this process, and can be read instead. Threads that are started
/// later do not get them either.
#[derive(Debug)]
pub(super) struct Signals(SignalFd);

impl Signals {
    /// Those of a caller.
    pub(super) fn of_caller() -> io::Result<Self> {
        Self::take(ENDING.into_iter().chain(OTHERS).collect())
    }

    /// All signals.
    pub(super) fn all() -> io::Result<Self> {
        Self::take(SigSet::all())
    }

    fn take(set: SigSet) -> io::Result<Self> {
        set.thread_block()?;
        Ok(Self(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?))
    }

    /// The next signal, if there is one.
    pub(super) fn next(&self) -> io::Result<Option<Signal>> {
        let Some(info) = self.0.read_signal()? else { return Ok(None) };
        let number = i32::try_from(info.ssi_signo).map_err(io::Error::other)?;
        Ok(Signal::try_from(number).ok())
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
