//! The process that creates the user and network namespaces of a Pod. It exits as soon as the agent
//! has opened them.
//!
//! ```text
//!   process  unshares, forbids further user namespaces, prints its process id
//!   agent    writes the id maps, opens the namespaces, closes the pipe
//! ```
//!
//! The agent cannot do it itself: a multi-threaded process cannot enter a user namespace.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;

use super::init;

/// The argument for a Pod with its own network.
pub(crate) const OWN_NETWORK: &str = "own-network";

/// The argument for a Pod in the node's network.
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
    // In a nested user namespace a Pod would regain all capabilities there. If the file is not
    // writable, the locked mounts still protect the host.
    let _unwritable = fs::write("/proc/sys/user/max_user_namespaces", "0");
    let mut out = io::stdout();
    writeln!(out, "{}", init::outer_pid()?)?;
    out.flush()?;
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(())
}
