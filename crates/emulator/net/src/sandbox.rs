//! Runs a test or a process in its own network and mount namespaces.
//!
//! Root makes the namespaces in place. Other users need a user namespace, which a process with
//! several threads cannot enter: a test runs its own binary again with only this test, and a program
//! enters before it starts a thread. If neither is allowed the test fails.

use std::fmt;
use std::fs;
use std::io;
use std::process::{Command, Output};
use std::thread;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use super::child::{self, IdMaps};
use super::{NetError, namespace};

pub(super) const NETWORK_AND_MOUNTS: CloneFlags =
    CloneFlags::CLONE_NEWNET.union(CloneFlags::CLONE_NEWNS);

/// Set for a test binary that was started by [`run`]: the name of the test.
const INNER: &str = "NEARHOP_SANDBOX_TEST";

/// The sandbox cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// Neither as this user nor in a user namespace.
    #[error(
        "this user may not make network namespaces ({direct}), nor user namespaces to make them in \
         ({nested}). Cure: run it as root, or allow unprivileged user namespaces: sysctl \
         user.max_user_namespaces above 0, kernel.unprivileged_userns_clone=1 and \
         kernel.apparmor_restrict_unprivileged_userns=0 where they exist; in a container, a \
         seccomp profile that lets `unshare` through"
    )]
    Forbidden {
        /// Error as this user.
        direct: io::Error,
        /// Error in a user namespace.
        nested: io::Error,
    },
    /// [`enter`] was called too late: threads keep their namespaces.
    #[error(
        "the process has {threads} threads already. Cure: call sandbox::enter first thing in main"
    )]
    Threads {
        /// Number of threads.
        threads: usize,
    },
    /// The namespaces cannot be prepared.
    #[error("set up the sandbox: {what}: {cause}")]
    Setup {
        /// The operation.
        what: &'static str,
        /// The kernel's error.
        cause: io::Error,
    },
    /// The network cannot be set up.
    #[error(transparent)]
    Net(#[from] NetError),
}

/// Runs the body of a test in a sandbox. `test` is the full name of the test in its binary:
/// `sandbox::run("link::tests::veth_connects_two_namespaces", || ...)`.
/// Panics if the body does, if there can be no sandbox, and if the test has another name.
pub fn run(test: &str, body: impl FnOnce() + Send) {
    check_name(test);
    match run_here(test, body) {
        Ok(()) => {}
        Err(SandboxError::Forbidden { direct, .. }) if std::env::var_os(INNER).is_none() => {
            run_again(test, direct);
        }
        Err(error) => panic!("test `{test}`: {error}"),
    }
}

/// Checks the name: with a wrong one the inner run would find no test, but only for users who are not
/// root. The harness names a test's thread after the test, except when it uses no threads.
fn check_name(test: &str) {
    let thread = thread::current();
    let harness = thread.name().unwrap_or("main");
    assert!(
        harness == "main" || harness == test,
        "sandbox::run was given the name `{test}`, but the test is `{harness}`: pass that"
    );
}

fn run_here(test: &str, body: impl FnOnce() + Send) -> Result<(), SandboxError> {
    namespace::in_thread(test, || {
        unshare_here()?;
        if std::env::var_os(INNER).is_some() {
            println!("{}", Ran(test));
        }
        body();
        Ok(())
    })
}

/// Printed by the inner run, so that the outer one knows that the test was found.
struct Ran<'a>(&'a str);

impl fmt::Display for Ran<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sandbox: `{}` runs in a user namespace", self.0)
    }
}

/// Runs this binary again with only this test, as root of a user namespace.
fn run_again(test: &str, direct: io::Error) {
    let binary = std::env::current_exe().expect("a running test has a binary");
    let mut command = Command::new(binary);
    command.args(["--exact", test, "--nocapture", "--include-ignored"]).env(INNER, test);
    child::in_user_namespace(&mut command, IdMaps::present_user());
    let output = command.output().unwrap_or_else(|nested| {
        panic!("test `{test}`: {}", SandboxError::Forbidden { direct, nested })
    });
    let Output { status, stdout, stderr } = output;
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    print!("{stdout}");
    eprint!("{stderr}");
    assert!(status.success(), "`{test}` failed in its user namespace ({status}); see above");
    let ran = stdout.contains(&Ran(test).to_string());
    assert!(ran, "the test binary has no test `{test}`: give sandbox::run its exact name");
}

/// Moves the whole process into a sandbox. Must be called first in `main`.
/// Fails if the machine does not allow it, and when there are other threads already.
pub fn enter() -> Result<(), SandboxError> {
    let threads = fs::read_dir("/proc/self/task").map_err(setup("count threads"))?.count();
    if threads > 1 {
        return Err(SandboxError::Threads { threads });
    }
    match unshare_here() {
        Err(SandboxError::Forbidden { direct, .. }) => {
            let entered = enter_user_namespace(NETWORK_AND_MOUNTS);
            entered.map_err(|nested| SandboxError::Forbidden { direct, nested })?;
            prepare()
        }
        done => done,
    }
}

/// Moves the calling thread, and the threads that it starts, into new namespaces.
fn unshare_here() -> Result<(), SandboxError> {
    match unshare(NETWORK_AND_MOUNTS) {
        Ok(()) => prepare(),
        Err(Errno::EPERM) => Err(SandboxError::Forbidden {
            direct: Errno::EPERM.into(),
            nested: io::Error::other("not tried: this is one already"),
        }),
        Err(Errno::ENOSPC) => {
            let what = "make network and mount namespaces; there are too many: raise the sysctls \
                        user.max_net_namespaces and user.max_mnt_namespaces";
            Err(setup(what)(Errno::ENOSPC.into()))
        }
        Err(errno) => Err(setup("make network and mount namespaces")(errno.into())),
    }
}

fn prepare() -> Result<(), SandboxError> {
    keep_mounts_private().map_err(setup("keep mounts private"))?;
    Ok(namespace::prepare_current("sandbox")?)
}

/// Moves the calling process, which must have one thread, into a user namespace, where it is root,
/// and into these new namespaces.
pub fn enter_user_namespace(spaces: CloneFlags) -> io::Result<()> {
    IdMaps::present_user().unshare(spaces)
}

/// Makes later mounts invisible outside of the calling thread's mount namespace.
pub fn keep_mounts_private() -> io::Result<()> {
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    Ok(mount(None::<&str>, "/", None::<&str>, private, None::<&str>)?)
}

fn setup(what: &'static str) -> impl Fn(io::Error) -> SandboxError {
    move |cause| SandboxError::Setup { what, cause }
}
