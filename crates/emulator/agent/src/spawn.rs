//! Starts processes from a thread that lives as long as the agent.
//!
//! A shim's parent-death signal follows the *thread* that started it, and the runtime's threads
//! come and go. The thread has its own mount namespace, which its processes inherit: tmpfs volumes
//! are mounted there, invisible to the host, and disappear with the agent.

use std::fs;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command as StdCommand, Stdio};
use std::sync::mpsc;

use nearhop_net::Namespace;
use nearhop_net::sandbox::keep_mounts_private;
use nearhop_runtime::supervise;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::container::{Identity, Stage, sandbox};

/// Starts the hidden commands of this binary. Clones share the thread.
#[derive(Clone, Debug)]
pub(crate) struct Spawner(mpsc::Sender<Order>);

#[derive(Debug)]
enum Order {
    Start { command: Box<StdCommand>, answer: oneshot::Sender<io::Result<Child>> },
    Mount { volumes: Vec<TmpfsVolume>, answer: oneshot::Sender<io::Result<()>> },
}

/// An emptyDir in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TmpfsVolume {
    /// The mount point.
    pub(crate) place: PathBuf,
    /// The size in bytes.
    pub(crate) size: u64,
    pub(crate) owner: Identity,
}

/// The standard streams of a command.
#[derive(Debug)]
pub(crate) enum Streams {
    /// Pipes to the agent.
    Pipes,
    /// A terminal for all of them.
    Terminal(OwnedFd),
}

/// The network of a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodNetwork {
    Own,
    Hosts,
}

#[derive(Debug)]
pub(crate) struct PodNamespaces {
    pub(crate) user: File,
    /// `None` for a Pod in the node's network.
    pub(crate) network: Option<OwnedFd>,
}

impl Spawner {
    /// # Panics
    /// Outside of a tokio runtime.
    pub(crate) fn start() -> Self {
        let (sender, orders) = mpsc::channel::<Order>();
        let handle = Handle::current();
        let work = move || {
            let _inside = handle.enter();
            let unshared = unshare(CloneFlags::CLONE_NEWNS).map_err(io::Error::from);
            let private = unshared.and_then(|()| keep_mounts_private());
            for order in orders {
                match (order, &private) {
                    (Order::Start { command, answer }, Ok(())) => {
                        let child = Command::from(*command).kill_on_drop(true).spawn();
                        // If the caller has gone, the handle's drop kills the child.
                        let _gone = answer.send(child);
                    }
                    (Order::Mount { volumes, answer }, Ok(())) => {
                        let _gone = answer.send(volumes.iter().try_for_each(mount_memory));
                    }
                    (Order::Start { answer, .. }, Err(error)) => {
                        let _gone = answer.send(Err(error.kind().into()));
                    }
                    (Order::Mount { answer, .. }, Err(error)) => {
                        let _gone = answer.send(Err(error.kind().into()));
                    }
                }
            }
        };
        supervise::thread("spawner", work).expect("a process can start one more thread");
        Self(sender)
    }

    async fn order<T>(
        &self,
        order: impl FnOnce(oneshot::Sender<io::Result<T>>) -> Order,
    ) -> io::Result<T> {
        let (answer, answered) = oneshot::channel();
        let gone = || io::Error::other("the spawner thread has stopped");
        self.0.send(order(answer)).map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }

    async fn spawn(&self, command: StdCommand) -> io::Result<Child> {
        self.order(|answer| Order::Start { command: Box::new(command), answer }).await
    }

    /// Mounts tmpfs volumes for containers that start later.
    pub(crate) async fn mount(&self, volumes: Vec<TmpfsVolume>) -> io::Result<()> {
        self.order(|answer| Order::Mount { volumes, answer }).await
    }

    /// Creates the namespaces of a Pod; `identity` is its root on the host.
    pub(crate) async fn sandbox(
        &self,
        network: PodNetwork,
        identity: Identity,
    ) -> io::Result<PodNamespaces> {
        let word = match network {
            PodNetwork::Own => sandbox::OWN_NETWORK,
            PodNetwork::Hosts => sandbox::HOST_NETWORK,
        };
        let mut command = StdCommand::new("/proc/self/exe");
        command.args(["container", Stage::Sandbox.argument(), word]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.spawn(command).await?;
        let (Some(out), Some(mut err)) = (child.stdout.take(), child.stderr.take()) else {
            unreachable!("both are pipes")
        };
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line).await?;
        let Ok(pid) = line.trim().parse::<u32>() else {
            let mut why = String::new();
            err.read_to_string(&mut why).await?;
            return Err(io::Error::other(why.trim().to_owned()));
        };
        let of = |name: &str| format!("/proc/{pid}/{name}");
        fs::write(of("uid_map"), format!("0 {} 1\n", identity.uid))?;
        fs::write(of("gid_map"), format!("0 {} 1\n", identity.gid))?;
        let network = match network {
            PodNetwork::Own => Some(File::open(of("ns/net"))?.into()),
            PodNetwork::Hosts => None,
        };
        let user = File::open(of("ns/user"))?;
        // The process exits at end of input.
        drop(child.stdin.take());
        child.wait().await?;
        Ok(PodNamespaces { user, network })
    }

    /// Starts a container's shim in the namespace; returns its socket.
    pub(crate) async fn shim(
        &self,
        namespace: &Namespace,
        spec: &Path,
    ) -> io::Result<(Child, UnixStream)> {
        let (ours, theirs) = StdUnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let mut command = hidden(namespace, Stage::Run, spec);
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = self.spawn(command).await?;
        Ok((child, UnixStream::from_std(ours)?))
    }

    /// Starts another command in a container.
    pub(crate) async fn exec(
        &self,
        namespace: &Namespace,
        spec: &Path,
        streams: Streams,
    ) -> io::Result<Child> {
        let mut command = hidden(namespace, Stage::Exec, spec);
        match streams {
            Streams::Pipes => {
                command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            }
            Streams::Terminal(terminal) => {
                command.stdin(terminal.try_clone()?).stdout(terminal.try_clone()?);
                command.stderr(terminal);
            }
        }
        self.spawn(command).await
    }
}

fn hidden(namespace: &Namespace, stage: Stage, spec: &Path) -> StdCommand {
    // The file at the binary's path may have been replaced.
    let mut command = namespace.command("/proc/self/exe");
    command.args(["container", stage.argument()]).arg(spec);
    command
}

fn mount_memory(volume: &TmpfsVolume) -> io::Result<()> {
    let Identity { uid, gid } = volume.owner;
    // Each file uses memory that its size does not count.
    let options = format!("size={},nr_inodes=64k,mode=777,uid={uid},gid={gid}", volume.size);
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    Ok(mount(Some("tmpfs"), &volume.place, Some("tmpfs"), flags, Some(options.as_str()))?)
}
