//! `nearhop lab`: a multi-zone cluster of real packets on one machine.

mod drive;
mod exec;
mod fault;
mod status;
mod supervisor;
mod up;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use clap::{Args as ClapArgs, Subcommand};
use nearhop_lab::cluster::Cluster;
use nearhop_lab::control::{Answer, Request, Status, ask};
use nearhop_lab::state;

pub(crate) use drive::{HoldArgs, WorkerArgs, hold, work};
pub(crate) use supervisor::{SupervisorArgs, start, supervise};

/// How long a lab may take to end.
const PATIENCE: Duration = Duration::from_secs(20);

/// A multi-zone cluster on this machine: nodes and Pods are namespaces, packets are real.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Up(Box<up::Args>),
    Status(status::Args),
    Exec(exec::Args),
    Drive(drive::Args),
    Fault(fault::Args),
    Down(Down),
}

/// Ends a lab.
#[derive(Debug, ClapArgs)]
struct Down {
    #[command(flatten)]
    name: Name,
}

/// Which lab.
#[derive(Debug, ClapArgs)]
struct Name {
    /// Name of the lab; not needed where only one runs.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

/// Does what the command says.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Up(args) => up::run(*args),
        Command::Status(args) => status::run(&args),
        Command::Exec(args) => exec::run(args),
        Command::Drive(args) => drive::run(args),
        Command::Fault(args) => fault::run(args),
        Command::Down(args) => down(&args.name),
    }
}

fn down(name: &Name) -> anyhow::Result<ExitCode> {
    let state = name.find()?;
    // It may be gone before it has answered; its directory is the last thing to go.
    let _ = ask(&state, &Request::Down);
    let deadline = Instant::now() + PATIENCE;
    while state.exists() {
        if Instant::now() > deadline {
            bail!("the lab does not end. Cure: kill `nearhop lab up`; the next start cleans up");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(ExitCode::SUCCESS)
}

impl Name {
    /// The directory of the lab that is meant.
    fn find(&self) -> anyhow::Result<PathBuf> {
        let base = state::base();
        let running = state::running(&base)?;
        let name = match (&self.name, running.as_slice()) {
            (Some(name), labs) if labs.contains(name) => name,
            (None, [only]) => only,
            (Some(name), []) => bail!("no lab `{name}` runs. Cure: nearhop lab up --name {name}"),
            (Some(name), labs) => bail!("no lab `{name}` runs; there is {}", labs.join(", ")),
            (None, []) => bail!("no lab runs. Cure: nearhop lab up"),
            (None, labs) => bail!("several labs run: {}. Cure: --name NAME", labs.join(", ")),
        };
        Ok(base.join(name))
    }

    /// The same, and its API.
    async fn connect(&self) -> anyhow::Result<(PathBuf, Cluster)> {
        let state = self.find()?;
        let cluster = Cluster::connect(&state.join("kubeconfig")).await?;
        Ok((state, cluster))
    }
}

/// Asks a lab; what it refuses is an error.
fn request(state: &std::path::Path, request: &Request) -> anyhow::Result<Option<Box<Status>>> {
    let answer = ask(state, request)
        .with_context(|| format!("the lab in {} does not answer", state.display()))?;
    match answer {
        Answer::Status(status) => Ok(Some(status)),
        Answer::Done => Ok(None),
        Answer::Refused(why) => Err(anyhow!(why)),
        Answer::Output { .. } => bail!("the lab answered another question"),
    }
}

/// The runtime of a command that is no daemon.
fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start the runtime")?;
    let done = runtime.block_on(work);
    // A thread may still sit in a read of standard input.
    runtime.shutdown_background();
    done
}
