//! Namespaces that end with the lab.
//!
//! `lab up` makes a PID namespace (in a user namespace if the user is not root) and starts the
//! supervisor as its first process. The kernel kills all processes of a PID namespace with the first
//! one, and the first one with its parent: however the command ends, no process remains.

use std::io;

use nearhop_net::sandbox::{enter_user_namespace, keep_mounts_private};
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;

use crate::LabError;

/// Moves the calling process, which must have one thread, into the lab's namespaces. Its next child
/// is the first process of a new PID namespace; the child must call [`bind_to_parent`], with a pipe
/// that receives no data as its standard input.
pub fn enter() -> Result<(), LabError> {
    let spaces = CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWNS;
    match unshare(spaces) {
        Ok(()) => keep_mounts_private().map_err(LabError::Unshare),
        // Some systems allow the user namespace but no mounts in it.
        Err(Errno::EPERM) => enter_user_namespace(spaces)
            .and_then(|()| keep_mounts_private())
            .map_err(|nested| LabError::Forbidden { direct: Errno::EPERM.into(), nested }),
        Err(errno) => Err(LabError::Unshare(errno.into())),
    }
}

/// Kills this process when its parent ends.
pub fn bind_to_parent() -> io::Result<()> {
    set_pdeathsig(Signal::SIGKILL)?;
    // The parent may have ended before that: then standard input is closed.
    std::thread::Builder::new().name("parent".to_owned()).spawn(|| {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        std::process::exit(1);
    })?;
    Ok(())
}
