//! Namespaces that end with the lab.
//!
//! `lab up` makes a PID namespace (in a user namespace if the user is not root) and starts the
//! supervisor as its first process. The kernel kills all processes of a PID namespace with the first
//! one, and the first one with its parent: however the command ends, no process remains.
//!
//! What the lab's processes write (objects, logs, files of Pods) is in a tmpfs that is mounted in the
//! lab's mount namespace: no request waits for a disk, and the files end with the lab. A link in the
//! lab's directory leads other processes of the machine to the logs.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use nearhop_net::sandbox::{enter_user_namespace, keep_mounts_private};
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigSet, Signal};

use crate::LabError;
use crate::spec::{logs_link, logs_of, memory_of};
use crate::state::private_dir;

/// Moves the calling process, which must have one thread, into the lab's namespaces. Its next child
/// is the first process of a new PID namespace; the child must call [`bind_to_parent`], with a pipe
/// that receives no data as its standard input. `state` is the lab's directory.
pub fn enter(state: &Path) -> Result<Memory, LabError> {
    let spaces = CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWNS;
    match unshare(spaces) {
        Ok(()) => keep_mounts_private().map_err(LabError::Unshare)?,
        // Some systems allow the user namespace but no mounts in it.
        Err(Errno::EPERM) => enter_user_namespace(spaces)
            .and_then(|()| keep_mounts_private())
            .map_err(|nested| LabError::Forbidden { direct: Errno::EPERM.into(), nested })?,
        Err(errno) => return Err(LabError::Unshare(errno.into())),
    }
    Memory::mount(state)
}

/// A lab that fills its memory must not fill that of the machine: the default is half of it, and
/// two labs would take all. A quarter leaves room for the processes of both.
const OPTIONS: &str = "mode=0700,size=25%";

/// The tmpfs of a lab. Dropping it unmounts it, so that the lab's directory can be removed.
#[derive(Debug)]
pub struct Memory(PathBuf);

impl Memory {
    fn mount(state: &Path) -> Result<Self, LabError> {
        let path = memory_of(state);
        let failed = |cause| LabError::File { path: path.clone(), cause };
        private_dir().create(&path).map_err(failed)?;
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some("nearhop"), &path, Some("tmpfs"), flags, Some(OPTIONS))
            .map_err(|errno| failed(errno.into()))?;
        let memory = Self(path);
        let logs = logs_of(state);
        let made = fs::create_dir(&logs).and_then(|()| {
            // This process is outside of the lab's PID namespace, so its id is valid on the machine.
            let seen = format!("/proc/{}/root{}", std::process::id(), logs.display());
            symlink(seen, logs_link(state))
        });
        made.map_err(|cause| LabError::File { path: logs_link(state), cause })?;
        Ok(memory)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // The next start removes what remains.
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

/// Signals that wait until this is dropped: they must not end a process that has made a directory
/// and has no handler yet.
#[derive(Debug)]
pub struct HeldSignals(SigSet);

impl HeldSignals {
    /// Holds SIGINT, SIGTERM and SIGHUP.
    pub fn hold() -> io::Result<Self> {
        let set = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
        set.thread_block()?;
        Ok(Self(set))
    }
}

impl Drop for HeldSignals {
    fn drop(&mut self) {
        self.0.thread_unblock().expect("the set is valid");
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
