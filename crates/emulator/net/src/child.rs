//! Child processes in other namespaces: the only unsafe code of this crate.
//!
//! What happens between fork and exec may only call the kernel: another thread of the parent may
//! have held a lock, such as the allocator's, at the moment of the fork.

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

/// Who the present user becomes in a user namespace: root, written out before anybody forks.
#[derive(Debug)]
pub(super) struct IdMaps {
    user: String,
    group: String,
}

impl IdMaps {
    /// Maps root in the namespace to the present user and group.
    pub(super) fn present_user() -> Self {
        Self { user: format!("0 {} 1\n", geteuid()), group: format!("0 {} 1\n", getegid()) }
    }

    /// Moves the calling process, which must have one thread, into new user, network and mount
    /// namespaces.
    pub(super) fn unshare(&self) -> io::Result<()> {
        unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)?;
        // The kernel takes a group map from an ordinary user only after this.
        put(c"/proc/self/setgroups", "deny")?;
        put(c"/proc/self/uid_map", &self.user)?;
        put(c"/proc/self/gid_map", &self.group)
    }
}

/// `std::fs::write` might allocate.
fn put(path: &CStr, text: &str) -> io::Result<()> {
    let file = open(path, OFlag::O_WRONLY | OFlag::O_CLOEXEC, Mode::empty())?;
    write(file, text.as_bytes())?;
    Ok(())
}

/// The command's child will run in this namespace.
pub(super) fn in_network(command: &mut Command, namespace: Namespace) {
    // SAFETY: the closure makes one system call, with a descriptor that it keeps open.
    unsafe {
        command.pre_exec(move || Ok(setns(namespace.fd(), CloneFlags::CLONE_NEWNET)?));
    }
}

/// The command's child will be root of a new user namespace, with a network of its own.
pub(super) fn in_user_namespace(command: &mut Command, maps: IdMaps) {
    // SAFETY: `IdMaps::unshare` calls unshare, open, write and close with values made beforehand.
    unsafe {
        command.pre_exec(move || maps.unshare());
    }
}
