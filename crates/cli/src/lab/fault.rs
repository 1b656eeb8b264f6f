//! `nearhop lab fault`: injects faults into links, processes and the API server.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::{Args as ClapArgs, Subcommand};
use nearhop_lab::control::{Fault, Request};
use nearhop_lab::daemon::Order;
use nearhop_lab::world::Cable;
use serde_json::{Value, json};

use super::{Name, request};
use crate::daemon::block_on;
use crate::parse::parse_duration;

/// Injects faults into a lab: cuts links, kills or pauses processes, disturbs the API server.
///
/// Returns when the fault is in effect; `heal all` repairs everything. `nearhop lab status` lists
/// the process names: apiserver, controller, manager, agent/NODE, dns/NODE, proxy/NODE.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  nearhop lab fault cut zone/zone-a
  nearhop lab fault heal all")]
pub(crate) struct Args {
    #[command(flatten)]
    name: Name,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Cut a node or a zone off the network: node/NAME or zone/NAME.
    #[command(after_help = "Examples:\n  nearhop lab fault cut zone/zone-a")]
    Cut {
        /// What: node/NAME or zone/NAME.
        #[arg(value_name = "PLACE")]
        place: String,
    },
    /// Reconnect a node or a zone; `all` also starts every process and heals the API server.
    #[command(after_help = "Examples:\n  nearhop lab fault heal all")]
    Heal {
        /// What: node/NAME, zone/NAME, or all.
        #[arg(value_name = "PLACE")]
        place: String,
    },
    /// Kill a process (SIGKILL). It stays down.
    #[command(after_help = "Examples:\n  nearhop lab fault kill proxy/node-a1")]
    Kill {
        /// Name of the process, such as controller or proxy/node-a1.
        #[arg(value_name = "PROCESS")]
        process: String,
    },
    /// Start a killed process again.
    #[command(after_help = "Examples:\n  nearhop lab fault start proxy/node-a1")]
    Start {
        /// Name of the process, such as controller or proxy/node-a1.
        #[arg(value_name = "PROCESS")]
        process: String,
    },
    /// Kill a process (SIGKILL) and start it at once, with the arguments after `--` added.
    #[command(after_help = "Examples:\n  nearhop lab fault restart controller -- -v 4")]
    Restart {
        /// Name of the process, such as controller or proxy/node-a1.
        #[arg(value_name = "PROCESS")]
        process: String,
        /// Arguments to add, after `--`.
        #[arg(last = true, value_name = "ARG")]
        args: Vec<String>,
    },
    /// Suspend a process (SIGSTOP).
    #[command(after_help = "Examples:\n  nearhop lab fault pause apiserver")]
    Pause {
        /// Name of the process, such as controller or proxy/node-a1.
        #[arg(value_name = "PROCESS")]
        process: String,
    },
    /// Continue a paused process (SIGCONT).
    #[command(after_help = "Examples:\n  nearhop lab fault resume apiserver")]
    Resume {
        /// Name of the process, such as controller or proxy/node-a1.
        #[arg(value_name = "PROCESS")]
        process: String,
    },
    /// Let the API server fail a share of requests and delay all of them, until `heal all`.
    #[command(after_help = "Examples:\n  nearhop lab fault flaky --share 10 --delay 200ms")]
    Flaky {
        /// Share of requests that fail, in percent.
        #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
        share: f64,
        /// HTTP status of failed requests: 403, 409, 422, 429 or 500.
        #[arg(long, value_name = "CODE", default_value_t = 500)]
        code: u16,
        /// Delay of every response.
        #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "0s")]
        delay: Duration,
    },
    /// Close every watch on the API server.
    #[command(after_help = "Examples:\n  nearhop lab fault drop-watches")]
    DropWatches,
    /// Drop the API server's watch history, so that clients must list again.
    #[command(after_help = "Examples:\n  nearhop lab fault compact")]
    Compact,
}

const FAULTS: &str = "/nearhop/faults";

/// How long healing the API server may take, and the pause between attempts.
const TIMEOUT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let state = args.name.find()?;
    let lab = |fault| request(&state, &Request::Fault(fault)).map(drop);
    let process = |name: String, order| lab(Fault::Process(name, order));
    let api = |faults: Value| block_on(inflict(&args.name, faults));
    match args.command {
        Command::Cut { place } => lab(cable(&place, Cable::Cut)?),
        Command::Heal { place } if place == "all" => {
            lab(Fault::HealAll)?;
            let status = request(&state, &Request::Status)?;
            let own = status.is_some_and(|status| status.processes.contains_key("apiserver"));
            if own { block_on(heal_api(&args.name)) } else { Ok(()) }
        }
        Command::Heal { place } => lab(cable(&place, Cable::Healed)?),
        Command::Kill { process: name } => process(name, Order::Kill),
        Command::Start { process: name } => process(name, Order::Start),
        Command::Restart { process: name, args } => process(name, Order::Restart(args)),
        Command::Pause { process: name } => process(name, Order::Pause),
        Command::Resume { process: name } => process(name, Order::Resume),
        Command::Flaky { share, code, delay } => {
            if !(0.0..=100.0).contains(&share) {
                bail!("--share {share}: expected 0 to 100 percent");
            }
            let answer = json!({"code": code, "share": share / 100.0});
            api(json!({"answer": answer, "delayMs": delay.as_millis() as u64}))
        }
        Command::DropWatches => api(json!({"dropWatches": true})),
        Command::Compact => api(json!({"compact": true})),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn cable(place: &str, cable: Cable) -> anyhow::Result<Fault> {
    match place.split_once('/') {
        Some(("node", name)) => Ok(Fault::Node(name.to_owned(), cable)),
        Some(("zone", name)) => Ok(Fault::Zone(name.to_owned(), cable)),
        _ => bail!("`{place}`: expected node/NAME or zone/NAME"),
    }
}

/// Retries, because the API server may have just been started.
async fn heal_api(name: &Name) -> anyhow::Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match inflict(name, json!({})).await {
            Err(_) if Instant::now() < deadline => tokio::time::sleep(PAUSE).await,
            done => return done,
        }
    }
}

async fn inflict(name: &Name, faults: Value) -> anyhow::Result<()> {
    let (_, cluster) = name.connect().await?;
    cluster.create(FAULTS, &faults).await.context("cannot inject faults into the API server")?;
    Ok(())
}
