//! Child processes in other namespaces: the only unsafe code of this crate.
//!
//! Code between fork and exec may only make system calls: another thread of the parent may have held
//! a lock, such as the allocator's, at the time of the fork.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::fcntl::{OFlag, open};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::stat::Mode;
use nix::unistd::{getegid, geteuid, write};

use super::Namespace;
use super::sandbox::NETWORK_AND_MOUNTS;

/// The ID maps of a user namespace, formatted before the fork.
#[derive(Debug)]
pub(super) struct IdMaps {
    user: String,
    group: String,
}

impl IdMaps {
    /// Maps root in the namespace to the current user and group.
    pub(super) fn present_user() -> Self {
        Self { user: format!("0 {} 1\n", geteuid()), group: format!("0 {} 1\n", getegid()) }
    }

    /// Moves the calling process, which must have one thread, into a new user namespace and these
    /// new namespaces.
    pub(super) fn unshare(&self, spaces: CloneFlags) -> io::Result<()> {
        unshare(CloneFlags::CLONE_NEWUSER | spaces)?;
        // Required before an unprivileged user may write a group map.
        put(c"/proc/self/setgroups", "deny")?;
        put(c"/proc/self/uid_map", &self.user)?;
        put(c"/proc/self/gid_map", &self.group)
    }
}

/// Writes a file without allocating, unlike `std::fs::write`.
fn put(path: &CStr, text: &str) -> io::Result<()> {
    let file = open(path, OFlag::O_WRONLY | OFlag::O_CLOEXEC, Mode::empty())?;
    write(file, text.as_bytes())?;
    Ok(())
}

/// Runs the command's child in this namespace.
pub(super) fn in_network(command: &mut Command, namespace: Namespace) {
    // SAFETY: the closure makes one system call, with a descriptor that it keeps open.
    unsafe {
        command.pre_exec(move || Ok(setns(namespace.fd(), CloneFlags::CLONE_NEWNET)?));
    }
}

/// Runs the command's child as root of a new user namespace with its own network.
pub(super) fn in_user_namespace(command: &mut Command, maps: IdMaps) {
    // SAFETY: `IdMaps::unshare` calls unshare, open, write and close with values made beforehand.
    unsafe {
        command.pre_exec(move || maps.unshare(NETWORK_AND_MOUNTS));
    }
}
