//! What a container's processes may do: next to nothing outside of the pod's own network.
//!
//! They are root of the pod's user namespace, which has one user, and keep three capabilities in it.
//! The pod's network belongs to that namespace, so there they have force; the node's network does
//! not, so there they have none.

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

/// Raw sockets (ping), ports below 1024, and addresses, routes and rules: in the pod's own network.
const KEPT: CapabilitySet =
    CapabilitySet::NET_RAW.union(CapabilitySet::NET_BIND_SERVICE).union(CapabilitySet::NET_ADMIN);

/// How many processes and threads a pod may have. The kernel counts them by user namespace.
const PROCESSES: u64 = 1024;

/// Until it runs the container's program, nobody in the container may look into this process: it
/// has the host's files open.
pub(super) fn hide() -> Result<(), String> {
    set_dumpable(false).map_err(|errno| format!("hide from the container: {errno}"))
}

/// Makes the standard streams the pod's, so that a program can open `/dev/stdout`.
pub(super) fn give_streams(identity: Identity) {
    let give = |stream: &dyn AsFd| {
        // Whose owner cannot be changed, such as a socket, can still be written to.
        let (user, group) = (Some(identity.user()), Some(identity.group()));
        let _unchanged = rustix::fs::fchown(stream.as_fd(), user, group);
    };
    give(&std::io::stdin());
    give(&std::io::stdout());
    give(&std::io::stderr());
}

/// Becomes root of the pod's user namespace, and nobody outside of it.
pub(super) fn enter_user_namespace(namespace: &File) -> Result<(), String> {
    // Where the user may not change them they have no meaning in the namespace.
    let _denied = setgroups(&[]);
    let failed = |what: &'static str| move |errno| format!("{what}: {errno}");
    setns(namespace, CloneFlags::CLONE_NEWUSER).map_err(failed("enter the user namespace"))?;
    let (user, group) = (Uid::from_raw(0), Gid::from_raw(0));
    setresgid(group, group, group).map_err(failed("become the pod's group"))?;
    setresuid(user, user, user).map_err(failed("become the pod's user"))
}

/// Locks all mounts: in a mount namespace of a user namespace that has fewer privileges, the kernel
/// lets nobody take a flag such as read-only away, nor a mount that hides something.
pub(super) fn lock_mounts() -> Result<(), String> {
    unshare(CloneFlags::CLONE_NEWNS).map_err(|errno| format!("lock the mounts: {errno}"))
}

/// Gives up all privileges but those that are kept, for good.
pub(super) fn restrict() -> Result<(), String> {
    setrlimit(Resource::RLIMIT_NPROC, PROCESSES, PROCESSES)
        .map_err(|errno| format!("limit the number of processes: {errno}"))?;
    drop_capabilities().map_err(|errno| format!("give up capabilities: {errno}"))?;
    set_no_new_privs().map_err(|errno| format!("refuse new privileges: {errno}"))
}

fn drop_capabilities() -> Result<(), Errno> {
    for number in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if KEPT.contains(capability) {
            continue;
        }
        match remove_capability_from_bounding_set(capability) {
            // The kernel has no more of them.
            Err(Errno::INVAL) => break,
            done => done?,
        }
    }
    // A kernel without this set has nothing in it.
    let _absent = clear_ambient_capability_set();
    let inheritable = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: KEPT, permitted: KEPT, inheritable })
}
