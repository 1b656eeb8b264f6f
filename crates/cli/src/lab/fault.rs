//! `nearhop lab fault`: cables, processes and the API server, disturbed on demand.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::{Args as ClapArgs, Subcommand};
use nearhop_lab::cluster::Cluster;
use nearhop_lab::control::{Fault, Request};
use nearhop_lab::daemon::Order;
use nearhop_lab::world::Cable;
use serde_json::{Value, json};

use super::{Name, block_on, request};
use crate::parse::parse_duration;

/// Disturbs a lab, and mends it.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(flatten)]
    name: Name,

    #[command(subcommand)]
    command: Command,
}

/// Processes are called as `lab status` calls them: apiserver, controller, manager, proxy/NODE,
/// agent/NODE.
#[derive(Debug, Subcommand)]
enum Command {
    /// Take a node or a zone off the network: node/NAME or zone/NAME.
    Cut { place: String },
    /// Put it back; `all` mends every cable, every process and the API.
    Heal { place: String },
    /// kill -9, and it stays down.
    Kill { process: String },
    /// Start a killed process again.
    Start { process: String },
    /// kill -9 and start at once, with more arguments if some follow `--`.
    Restart {
        process: String,
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Stop a process in its tracks: alive, and not answering.
    Pause { process: String },
    /// Let a paused process go on.
    Resume { process: String },
    /// Let the API server answer a share of requests with an error, and all of them late, until
    /// `heal all`.
    Flaky {
        /// Share of the requests, in percent.
        #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
        share: f64,
        /// What they get: 403, 409, 422, 429 or 500.
        #[arg(long, value_name = "CODE", default_value_t = 500)]
        code: u16,
        /// How late every answer is.
        #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "0s")]
        delay: Duration,
    },
    /// Close every watch on the API server.
    DropWatches,
    /// Let the API server forget its history, so that everybody has to list again.
    Compact,
}

const FAULTS: &str = "/nearhop/faults";

/// How long an API server may take to be healed, and how often it is tried.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);

/// Does it, and returns when it is done.
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

/// An API server that has just been started takes a moment.
async fn heal_api(name: &Name) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match inflict(name, json!({})).await {
            Err(_) if Instant::now() < deadline => tokio::time::sleep(PAUSE).await,
            done => return done,
        }
    }
}

async fn inflict(name: &Name, faults: Value) -> anyhow::Result<()> {
    let (_, cluster): (_, Cluster) = name.connect().await?;
    let asked = cluster.create(FAULTS, &faults).await;
    asked.context("the API server was not disturbed")?;
    Ok(())
}
