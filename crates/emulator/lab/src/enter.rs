//! Becoming the root of a world of one's own.
//!
//! `lab up` makes a PID namespace (and, where the user is not root, a user namespace to make it in)
//! and starts the supervisor as its first process. The kernel ends every process of a PID namespace
//! with its first one, and the first one with its parent: however the command ends, nothing stays.

use std::fs;
use std::io;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{getegid, geteuid};

use crate::LabError;

/// Moves the calling process, which must have one thread, to where it may do everything that a lab
/// needs. What it starts next is the first process of a new PID namespace; it must call
/// [`bind_to_parent`], and its standard input must be a pipe that nobody writes to.
///
/// # Errors
///
/// The machine does not allow it.
pub fn enter() -> Result<(), LabError> {
    let spaces = CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWNS;
    match unshare(spaces) {
        Ok(()) => keep_mounts_private().map_err(LabError::Unshare),
        // Some systems allow the namespace, and nothing in it: all of it is tried.
        Err(Errno::EPERM) => enter_user_namespace(spaces)
            .and_then(|()| keep_mounts_private())
            .map_err(|nested| LabError::Forbidden { direct: Errno::EPERM.into(), nested }),
        Err(errno) => Err(LabError::Unshare(errno.into())),
    }
}

/// What is mounted here from now on stays here.
fn keep_mounts_private() -> io::Result<()> {
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    Ok(mount(None::<&str>, "/", None::<&str>, private, None::<&str>)?)
}

fn enter_user_namespace(spaces: CloneFlags) -> io::Result<()> {
    let (user, group) = (geteuid(), getegid());
    unshare(CloneFlags::CLONE_NEWUSER | spaces)?;
    // The kernel takes a group map from an ordinary user only after this.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {user} 1\n"))?;
    fs::write("/proc/self/gid_map", format!("0 {group} 1\n"))
}

/// Ends this process when its parent does, however that ends.
///
/// # Errors
///
/// The kernel refuses, which it has no reason to.
pub fn bind_to_parent() -> io::Result<()> {
    set_pdeathsig(Signal::SIGKILL)?;
    // The parent may have ended before that: then nobody holds the other end of this pipe.
    std::thread::Builder::new().name("parent".to_owned()).spawn(|| {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        std::process::exit(1);
    })?;
    Ok(())
}
