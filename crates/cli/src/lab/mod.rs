//! `nearhop lab`: a multi-zone cluster on one machine.

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
pub(crate) use exec::{ExecArgs, exec_stage};
pub(crate) use supervisor::{SupervisorArgs, start, supervise};

/// How long a lab may take to stop.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Runs a multi-zone Kubernetes cluster on this machine: nodes and Pods are network namespaces with
/// real packets.
///
/// For trying out and testing routing policies and failures. Needs root or user namespaces, and no
/// other programs.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  nearhop lab up
  nearhop lab drive web
  nearhop lab fault cut zone/zone-a
  nearhop lab down")]
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
    /// Stops a lab and deletes its files.
    #[command(after_help = "Examples:\n  nearhop lab down\n  nearhop lab down --name lab-2")]
    Down(Name),
}

/// The lab to use.
#[derive(Debug, ClapArgs)]
struct Name {
    /// Name of the lab. Default: the only one that runs.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Up(args) => up::run(*args),
        Command::Status(args) => status::run(&args),
        Command::Exec(args) => exec::run(args),
        Command::Drive(args) => drive::run(args),
        Command::Fault(args) => fault::run(args),
        Command::Down(name) => down(&name),
    }
}

fn down(name: &Name) -> anyhow::Result<ExitCode> {
    let state = name.find()?;
    // The lab may end before it answers. Its directory is removed last.
    let _ = ask(&state, &Request::Down);
    let deadline = Instant::now() + TIMEOUT;
    while state.exists() {
        if Instant::now() > deadline {
            bail!("the lab does not stop. Cure: kill `nearhop lab up`; the next start cleans up");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(ExitCode::SUCCESS)
}

impl Name {
    /// The directory of the lab.
    fn find(&self) -> anyhow::Result<PathBuf> {
        let base = state::base();
        let running = state::running(&base)?;
        let name = match (&self.name, running.as_slice()) {
            (Some(name), labs) if labs.contains(name) => name,
            (None, [only]) => only,
            (Some(name), []) => bail!("no lab `{name}` runs. Cure: nearhop lab up --name {name}"),
            (Some(name), labs) => bail!("no lab `{name}` runs; running labs: {}", labs.join(", ")),
            (None, []) => bail!("no lab runs. Cure: nearhop lab up"),
            (None, labs) => bail!("several labs run: {}. Cure: --name NAME", labs.join(", ")),
        };
        Ok(base.join(name))
    }

    /// The directory of the lab, and a client of its API.
    async fn connect(&self) -> anyhow::Result<(PathBuf, Cluster)> {
        let state = self.find()?;
        let cluster = Cluster::connect(&state.join("kubeconfig")).await?;
        Ok((state, cluster))
    }
}

/// Sends a request to a lab; a refusal is an error.
fn request(state: &std::path::Path, request: &Request) -> anyhow::Result<Option<Box<Status>>> {
    let answer = ask(state, request)
        .with_context(|| format!("the lab in {} does not answer", state.display()))?;
    match answer {
        Answer::Status(status) => Ok(Some(status)),
        Answer::Done => Ok(None),
        Answer::Refused(why) => Err(anyhow!(why)),
        Answer::Output { .. } => bail!("unexpected answer from the lab"),
    }
}
