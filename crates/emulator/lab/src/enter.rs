//! Namespaces that end with the lab.
//!
//! `lab up` makes a PID namespace (in a user namespace if the user is not root) and starts the
//! supervisor as its first process. The kernel kills all processes of a PID namespace with the first
//! one, and the first one with its parent: however the command ends, no process remains.

use std::fs;
use std::io;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{getegid, geteuid};

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

/// Mounts in this namespace do not propagate to the machine.
fn keep_mounts_private() -> io::Result<()> {
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    Ok(mount(None::<&str>, "/", None::<&str>, private, None::<&str>)?)
}

fn enter_user_namespace(spaces: CloneFlags) -> io::Result<()> {
    let (user, group) = (geteuid(), getegid());
    unshare(CloneFlags::CLONE_NEWUSER | spaces)?;
    // Required before an unprivileged user may write a group map.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {user} 1\n"))?;
    fs::write("/proc/self/gid_map", format!("0 {group} 1\n"))
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
