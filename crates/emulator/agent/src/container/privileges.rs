//! The privileges of a container's processes.
//!
//! They are root in the Pod's user namespace, which has one user, and keep three capabilities. The
//! Pod's network namespace belongs to that user namespace, so the capabilities apply there; the
//! node's network does not, so they have no effect there.

use std::fs::File;
use std::os::fd::AsFd;

use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::prctl::{set_dumpable, set_no_new_privs};
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities,
};

use super::Identity;

/// Raw sockets (ping), ports below 1024, and network configuration, in the Pod's own network.
const KEPT: CapabilitySet =
    CapabilitySet::NET_RAW.union(CapabilitySet::NET_BIND_SERVICE).union(CapabilitySet::NET_ADMIN);

/// The process and thread limit of a Pod. The kernel counts per user namespace.
const PROCESSES: u64 = 1024;

/// Prevents the container from tracing this process, which has files of the host open, until it
/// executes the program.
pub(super) fn hide() -> Result<(), String> {
    set_dumpable(false).map_err(|errno| format!("cannot clear the dumpable flag: {errno}"))
}

/// Changes the owner of the standard streams, so that a program can open `/dev/stdout`.
pub(super) fn give_streams(identity: Identity) {
    let give = |stream: &dyn AsFd| {
        // Streams such as sockets, whose owner cannot change, stay writable.
        let (user, group) = (Some(identity.user()), Some(identity.group()));
        let _unchanged = rustix::fs::fchown(stream.as_fd(), user, group);
    };
    give(&std::io::stdin());
    give(&std::io::stdout());
    give(&std::io::stderr());
}

/// Becomes root in the Pod's user namespace.
pub(super) fn enter_user_namespace(namespace: &File) -> Result<(), String> {
    // Fails without privileges; then the groups have no effect in the namespace.
    let _denied = setgroups(&[]);
    let failed = |what: &'static str| move |errno| format!("{what}: {errno}");
    setns(namespace, CloneFlags::CLONE_NEWUSER)
        .map_err(failed("cannot enter the user namespace"))?;
    let (user, group) = (Uid::from_raw(0), Gid::from_raw(0));
    setresgid(group, group, group).map_err(failed("cannot set the group"))?;
    setresuid(user, user, user).map_err(failed("cannot set the user"))
}

/// Locks all mounts: in a mount namespace of a less privileged user namespace the kernel forbids
/// clearing flags such as read-only, and removing mounts.
pub(super) fn lock_mounts() -> Result<(), String> {
    unshare(CloneFlags::CLONE_NEWNS).map_err(|errno| format!("cannot lock the mounts: {errno}"))
}

/// Drops all other privileges permanently.
pub(super) fn restrict() -> Result<(), String> {
    setrlimit(Resource::RLIMIT_NPROC, PROCESSES, PROCESSES)
        .map_err(|errno| format!("cannot limit the number of processes: {errno}"))?;
    drop_capabilities().map_err(|errno| format!("cannot drop capabilities: {errno}"))?;
    set_no_new_privs().map_err(|errno| format!("cannot set no_new_privs: {errno}"))
}

fn drop_capabilities() -> Result<(), Errno> {
    for number in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if KEPT.contains(capability) {
            continue;
        }
        match remove_capability_from_bounding_set(capability) {
            // Beyond the kernel's last capability.
            Err(Errno::INVAL) => break,
            done => done?,
        }
    }
    // Old kernels have no ambient set.
    let _absent = clear_ambient_capability_set();
    let inheritable = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: KEPT, permitted: KEPT, inheritable })
}
