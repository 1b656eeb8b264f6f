//! The caller's terminal, and new terminals for commands.

use std::io;
use std::os::fd::OwnedFd;

use rustix::pty::OpenptFlags;
use rustix::termios::{
    OptionalActions, Termios, Winsize, isatty, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize,
};

/// The size of a terminal if the caller has none.
const DEFAULT: Winsize = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };

pub(super) fn is_input_terminal() -> bool {
    isatty(io::stdin())
}

/// The caller's terminal, which passes every byte unchanged until this is dropped.
#[derive(Debug)]
pub(super) struct RawMode {
    saved: Termios,
}

impl RawMode {
    pub(super) fn enter() -> io::Result<Self> {
        let saved = tcgetattr(io::stdin())?;
        let mode = Self { saved };
        mode.set()?;
        Ok(mode)
    }

    /// Sets the mode again, after a shell has changed it.
    pub(super) fn set(&self) -> io::Result<()> {
        let mut raw = self.saved.clone();
        raw.make_raw();
        Ok(tcsetattr(io::stdin(), OptionalActions::Drain, &raw)?)
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // The terminal may be closed. Not `Drain`: its reader may have stopped.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.saved);
    }
}

/// The size of the caller's terminal.
pub(super) fn size() -> Winsize {
    let size = tcgetwinsize(io::stdout()).or_else(|_| tcgetwinsize(io::stdin()));
    size.ok().filter(|size| size.ws_row > 0 && size.ws_col > 0).unwrap_or(DEFAULT)
}

/// A new terminal of the caller's size: the end of the caller, and that of the command.
pub(super) fn open() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = rustix::pty::openpt(flags)?;
    rustix::pty::grantpt(&ours)?;
    rustix::pty::unlockpt(&ours)?;
    let theirs = rustix::pty::ioctl_tiocgptpeer(&ours, flags)?;
    tcsetwinsize(&ours, size())?;
    Ok((ours, theirs))
}
