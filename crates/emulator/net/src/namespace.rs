//! A network namespace, held by a file descriptor.
//!
//! A thread belongs to one namespace, so each closure runs in a new thread that enters the namespace.
//! A socket stays in the namespace in which it was made, and any thread can use it.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::resume_unwind;
use std::process::Command;
use std::sync::Arc;
use std::thread;

use nix::sched::{CloneFlags, setns, unshare};

use super::{NetError, child, netlink, sysctl};

/// A network namespace. Clones share it; it ends with the last of them and of its sockets and
/// processes.
#[derive(Clone, Debug)]
pub struct Namespace(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: String,
    fd: OwnedFd,
}

impl Namespace {
    /// A new namespace with `lo` up and settings that do not depend on the machine's
    /// (see [`sysctl`]). The name is for messages and threads only.
    /// Fails if the caller may not make one: it needs a [`sandbox`](super::sandbox), or to be root.
    pub fn new(name: &str) -> Result<Self, NetError> {
        in_thread(name, || {
            unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| {
                NetError::new(name, "create it (only root may, or a sandbox)", errno.into())
            })?;
            prepare_current(name)?;
            Self::open_current(name)
        })
    }

    /// A namespace that another process has made, prepared like a new one.
    /// Fails if its settings cannot be written.
    pub fn adopt(name: &str, fd: OwnedFd) -> Result<Self, NetError> {
        let namespace = Self(Arc::new(Inner { name: name.to_owned(), fd }));
        namespace.run(|| prepare_current(name))?;
        Ok(namespace)
    }

    /// The namespace of the calling thread.
    /// Fails if `/proc` is not mounted.
    pub fn current() -> Result<Self, NetError> {
        Self::open_current("current")
    }

    fn open_current(name: &str) -> Result<Self, NetError> {
        // Not `/proc/self`: that is the main thread, which may be in another namespace.
        let path = "/proc/thread-self/ns/net";
        let file =
            File::open(path).map_err(|cause| NetError::new(name, format!("open {path}"), cause))?;
        Ok(Self(Arc::new(Inner { name: name.to_owned(), fd: file.into() })))
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The descriptor that keeps it alive.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }

    /// Runs `work` in a thread inside and returns its value. Threads that `work` starts are inside
    /// too.
    /// Panics if `work` does, and if the namespace cannot be entered.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        in_thread(self.name(), || {
            setns(self.fd(), CloneFlags::CLONE_NEWNET)
                .unwrap_or_else(|errno| panic!("enter namespace `{}`: {errno}", self.name()));
            work()
        })
    }

    /// Like [`run`](Self::run), for work that may fail; the error names the operation.
    pub(super) fn attempt<T: Send>(
        &self,
        what: &str,
        work: impl FnOnce() -> io::Result<T> + Send,
    ) -> Result<T, NetError> {
        self.run(work).map_err(|cause| NetError::new(self.name(), what, cause))
    }

    /// A command whose child runs in the namespace.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        child::in_network(&mut command, self.clone());
        command
    }
}

/// Prepares the new network namespace of the calling thread.
pub(super) fn prepare_current(name: &str) -> Result<(), NetError> {
    sysctl::write_defaults().map_err(|cause| NetError::new(name, "write settings", cause))?;
    let up = netlink::here(async |handle| netlink::set_up(&handle, "lo").await);
    up.map_err(|cause| NetError::new(name, "set lo up", cause))
}

/// Runs `work` in a new thread; a panic continues in the caller.
pub(super) fn in_thread<T: Send>(name: &str, work: impl FnOnce() -> T + Send) -> T {
    let done = thread::scope(|scope| {
        let thread = thread::Builder::new().name(name.to_owned());
        thread.spawn_scoped(scope, work).expect("a process can start one more thread").join()
    });
    done.unwrap_or_else(|panic| resume_unwind(panic))
}
