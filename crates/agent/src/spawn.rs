//! Starts processes from a thread that lives as long as the agent.
//!
//! A shim dies with the *thread* that started it, and the runtime's threads come and go.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::Path;
use std::process::{Command as StdCommand, Stdio};
use std::sync::mpsc;
use std::{io, thread};

use nearhop_net::Namespace;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::container::Stage;

/// Starts the hidden commands of this binary. Clones use the same thread.
#[derive(Clone, Debug)]
pub(crate) struct Spawner(mpsc::Sender<Order>);

#[derive(Debug)]
struct Order {
    command: StdCommand,
    answer: oneshot::Sender<io::Result<Child>>,
}

/// Where a command's standard streams go.
#[derive(Debug)]
pub(crate) enum Streams {
    /// Pipes to the agent.
    Pipes,
    /// All of them are this terminal.
    Terminal(OwnedFd),
}

impl Spawner {
    /// # Panics
    /// Outside of a tokio runtime.
    pub(crate) fn start() -> Self {
        let (sender, orders) = mpsc::channel::<Order>();
        let handle = Handle::current();
        let thread = thread::Builder::new().name("spawner".to_owned());
        let work = move || {
            let _inside = handle.enter();
            for order in orders {
                let child = Command::from(order.command).kill_on_drop(true).spawn();
                // A child that nobody waits for any more is killed with its handle.
                let _gone = order.answer.send(child);
            }
        };
        thread.spawn(work).expect("a process can start one more thread");
        Self(sender)
    }

    async fn spawn(&self, command: StdCommand) -> io::Result<Child> {
        let (answer, child) = oneshot::channel();
        let gone = || io::Error::other("the spawner has ended");
        self.0.send(Order { command, answer }).map_err(|_| gone())?;
        child.await.map_err(|_| gone())?
    }

    /// A container's shim in the namespace, and the socket to it.
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

    /// One more command in a container of the namespace.
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
    // Not the binary's path: that may be another one by now.
    let mut command = namespace.command("/proc/self/exe");
    command.args(["container", stage.argument()]).arg(spec);
    command
}
