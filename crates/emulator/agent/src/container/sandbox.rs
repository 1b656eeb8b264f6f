//! The process that makes a pod's namespaces: user and network. It ends as soon as the agent has
//! them open.
//!
//! ```text
//!   it     unshares, forbids further user namespaces, says its number
//!   agent  writes the maps of users and groups, opens the namespaces, closes the pipe
//! ```
//!
//! The agent cannot do it itself: a process with several threads cannot enter a user namespace.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;

use super::init;

/// The word for a pod that has a network of its own.
pub(crate) const OWN_NETWORK: &str = "own-network";

/// The word for a pod in the node's network.
pub(crate) const HOST_NETWORK: &str = "host-network";

pub(super) fn main(network: &Path) -> ExitCode {
    match make(network == Path::new(OWN_NETWORK)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _unread = writeln!(io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

fn make(own_network: bool) -> io::Result<()> {
    set_pdeathsig(Signal::SIGKILL)?;
    let network = if own_network { CloneFlags::CLONE_NEWNET } else { CloneFlags::empty() };
    unshare(CloneFlags::CLONE_NEWUSER | network)?;
    // In a user namespace of its own a pod would have all capabilities again, if only there. Where
    // the machine does not let this be written, the mounts are locked all the same.
    let _unwritable = fs::write("/proc/sys/user/max_user_namespaces", "0");
    let mut out = io::stdout();
    writeln!(out, "{}", init::outer_pid()?)?;
    out.flush()?;
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(())
}
