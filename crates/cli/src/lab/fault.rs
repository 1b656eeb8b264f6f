//! `nearhop lab fault`: injects faults into links, processes and the API server.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use clap::{Args as ClapArgs, Subcommand};
use nearhop_lab::api_faults::{ApiFault, Flaky, inject};
use nearhop_lab::control::{Fault, Request, Status};
use nearhop_lab::daemon::{Order, Phase};
use nearhop_lab::logs::{Tail, Until, logs, read};
use nearhop_lab::world::Cable;

use super::status::describe_flaky;
use super::{Name, name_flag, request, status_of};
use crate::daemon::block_on;
use crate::output::print;
use crate::parse::parse_duration;

/// Injects faults into a lab: cuts links, kills or pauses processes, disturbs the API server.
///
/// Returns when the fault is in effect, and prints how to undo it; `heal all` repairs everything.
/// `nearhop lab status` lists the processes and all faults.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  nearhop lab fault cut zone/zone-a
  nearhop lab fault restart controller -- --feature-gates=ServiceTopology=false
  nearhop lab fault flaky --share 10 --delay 100ms
  nearhop lab fault heal all")]
pub(crate) struct Args {
    #[command(flatten)]
    name: Name,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Cuts a node or a zone off the network. Its Pods still reach each other.
    #[command(
        after_help = "Examples:\n  nearhop lab fault cut node/node-a1\n  nearhop lab fault cut zone/zone-a"
    )]
    Cut {
        /// node/NAME or zone/NAME.
        #[arg(value_name = "PLACE")]
        place: String,
    },
    /// Reconnects a node or a zone; `all` also starts every process and heals the API server.
    #[command(
        after_help = "Examples:\n  nearhop lab fault heal node/node-a1\n  nearhop lab fault heal all"
    )]
    Heal {
        /// node/NAME, zone/NAME or all.
        #[arg(value_name = "PLACE")]
        place: String,
    },
    /// Kills a process (SIGKILL). It stays down.
    #[command(
        after_help = "Examples:\n  nearhop lab fault kill apiserver\n  nearhop lab fault kill proxy/node-a1"
    )]
    Kill(Process),
    /// Starts a killed process again.
    #[command(
        after_help = "Examples:\n  nearhop lab fault start apiserver\n  nearhop lab fault start proxy/node-a1"
    )]
    Start(Process),
    /// Kills a process (SIGKILL) and starts it at once, with the arguments after `--` added.
    ///
    /// Feature gates are merged with those of the lab; other flags replace those of the lab. Without
    /// arguments the process gets its own again.
    #[command(
        after_help = "Examples:\n  nearhop lab fault restart manager\n  nearhop lab fault restart controller -- --feature-gates=ServiceTopology=false"
    )]
    Restart {
        #[command(flatten)]
        process: Process,
        /// Arguments to add, after `--`.
        #[arg(last = true, value_name = "ARG")]
        args: Vec<String>,
    },
    /// Suspends a process (SIGSTOP).
    #[command(
        after_help = "Examples:\n  nearhop lab fault pause controller\n  nearhop lab fault pause agent/node-b2"
    )]
    Pause(Process),
    /// Continues a paused process (SIGCONT).
    #[command(
        after_help = "Examples:\n  nearhop lab fault resume controller\n  nearhop lab fault resume agent/node-b2"
    )]
    Resume(Process),
    /// Lets the API server fail a share of requests and delay all of them, until `heal all`.
    ///
    /// It affects all clients, your kubectl included; only the requests of `nearhop lab` commands
    /// are exempt.
    #[command(
        after_help = "Examples:\n  nearhop lab fault flaky --share 10 --code 429\n  nearhop lab fault flaky --delay 200ms"
    )]
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
    /// Closes every watch on the API server.
    #[command(
        after_help = "Examples:\n  nearhop lab fault drop-watches\n  nearhop lab fault drop-watches --name lab-2"
    )]
    DropWatches,
    /// Drops the API server's watch history, so that clients must list again.
    #[command(
        after_help = "Examples:\n  nearhop lab fault compact\n  nearhop lab fault compact --name lab-2"
    )]
    Compact,
}

/// The process that a fault is for.
#[derive(Debug, ClapArgs)]
struct Process {
    /// apiserver, controller, manager, agent/NODE, dns/NODE or proxy/NODE.
    #[arg(id = "process", value_name = "PROCESS")]
    name: String,
}

/// How long healing the API server may take, and the pause between attempts.
const TIMEOUT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);

/// How long a process with added arguments is watched: it exits at once if it does not know them.
const TRIAL: Duration = Duration::from_millis(500);

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let state = args.name.find()?;
    let status = status_of(&state)?;
    let target = Target { flag: name_flag(&status.name), name: &args.name, state };
    let said = match args.command {
        Command::Cut { place } => target.set_cable(&place, Cable::Cut)?,
        Command::Heal { place } if place == "all" => heal_all(&args.name, &target.state)?,
        Command::Heal { place } => target.set_cable(&place, Cable::Healed)?,
        Command::Kill(process) => target.order(&process.name, Order::Kill)?,
        Command::Start(process) => target.order(&process.name, Order::Start)?,
        Command::Restart { process, args } => target.order(&process.name, Order::Restart(args))?,
        Command::Pause(process) => target.order(&process.name, Order::Pause)?,
        Command::Resume(process) => target.order(&process.name, Order::Resume)?,
        Command::Flaky { share, code, delay } => {
            target.disturb(ApiFault::Flaky(flaky(share, code, delay)?))?
        }
        Command::DropWatches => target.disturb(ApiFault::DropWatches)?,
        Command::Compact => target.disturb(ApiFault::Compact)?,
    };
    print(&format!("{said}\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// The lab that gets a fault. Each fault returns what it did, and how to undo it.
struct Target<'a> {
    name: &'a Name,
    state: PathBuf,
    /// The flag that the command to undo it needs.
    flag: String,
}

impl Target<'_> {
    fn undo(&self, what: &str) -> String {
        format!("undo: nearhop lab fault{} {what}", self.flag)
    }

    fn set_cable(&self, place: &str, wanted: Cable) -> anyhow::Result<String> {
        request(&self.state, &Request::Fault(cable(place, wanted)?))?;
        Ok(match wanted {
            Cable::Cut => {
                format!("cut {place}: its links are down; {}", self.undo(&format!("heal {place}")))
            }
            Cable::Healed => format!("healed {place}: its links are up"),
        })
    }

    fn order(&self, name: &str, order: Order) -> anyhow::Result<String> {
        request(&self.state, &Request::Fault(Fault::Process(name.to_owned(), order.clone())))?;
        Ok(match order {
            Order::Kill => {
                format!("killed {name}: it stays down; {}", self.undo(&format!("start {name}")))
            }
            Order::Start => format!("started {name}"),
            Order::Restart(args) => {
                restarted(&self.state, name, &args, &self.undo(&format!("restart {name}")))?
            }
            Order::Pause => format!("paused {name}; {}", self.undo(&format!("resume {name}"))),
            Order::Resume => format!("resumed {name}"),
        })
    }

    fn disturb(&self, fault: ApiFault) -> anyhow::Result<String> {
        let said = match &fault {
            ApiFault::Flaky(flaky) => format!(
                "{}, also those of your kubectl, not those of nearhop lab commands; {}",
                describe_flaky(flaky),
                self.undo("heal all")
            ),
            ApiFault::DropWatches => {
                "closed all watches once; clients open them again, nothing to undo".to_owned()
            }
            ApiFault::Compact => {
                "dropped the watch history once; clients list again, nothing to undo".to_owned()
            }
            ApiFault::None => "healed the API server".to_owned(),
        };
        block_on(inflict(self.name, fault))?;
        Ok(said)
    }
}

fn flaky(share: f64, code: u16, delay: Duration) -> anyhow::Result<Flaky> {
    if !(0.0..=100.0).contains(&share) {
        bail!("--share {share}: expected 0 to 100 percent");
    }
    if share == 0.0 && delay.is_zero() {
        bail!("nothing to do. Cure: --share PERCENT, --delay DURATION or both");
    }
    Ok(Flaky { share: share / 100.0, code, delay })
}

fn cable(place: &str, cable: Cable) -> anyhow::Result<Fault> {
    match place.split_once('/') {
        Some(("node", name)) => Ok(Fault::Node(name.to_owned(), cable)),
        Some(("zone", name)) => Ok(Fault::Zone(name.to_owned(), cable)),
        _ => bail!("`{place}`: expected node/NAME or zone/NAME"),
    }
}

fn heal_all(name: &Name, state: &Path) -> anyhow::Result<String> {
    request(state, &Request::Fault(Fault::HealAll))?;
    let status = status_of(state)?;
    if status.processes.contains_key("apiserver") {
        block_on(heal_api(name))?;
    }
    Ok(describe_healed(&status))
}

fn describe_healed(status: &Status) -> String {
    let flag = name_flag(&status.name);
    // A process that exits at once is between two starts most of the time.
    let exited = status.processes.iter().filter(|(_, one)| one.phase == Phase::Waiting);
    let exited: Vec<&str> = exited.map(|(process, _)| process.as_str()).collect();
    let mut said = match exited.first() {
        None => "healed all: the links are up, every process runs, no request fails".to_owned(),
        Some(first) => format!(
            "healed all but {}, which exits again: nearhop lab logs{flag} {first}",
            exited.join(", ")
        ),
    };
    for (process, state) in status.processes.iter().filter(|(_, one)| !one.added_args.is_empty()) {
        let undo = format!("nearhop lab fault{flag} restart {process}");
        said += &format!("; {process} keeps {}, undo: {undo}", state.added_args.join(" "));
    }
    said
}

/// The command line of a restarted process. Fails if added arguments make it exit.
fn restarted(state: &Path, name: &str, added: &[String], undo: &str) -> anyhow::Result<String> {
    if added.is_empty() {
        return Ok(format!("restarted {name} with the lab's own arguments"));
    }
    let begun = Instant::now();
    loop {
        let status = status_of(state)?;
        let process = status.processes.get(name).context("the lab does not list the process")?;
        if process.phase == Phase::Waiting {
            let why = last_error(&status, name);
            return Err(anyhow!("{name} does not start with {}: {why}; {undo}", added.join(" ")));
        }
        if begun.elapsed() > TRIAL {
            return Ok(format!("restarted {name}: nearhop {}; {undo}", process.args.join(" ")));
        }
        std::thread::sleep(PAUSE / 2);
    }
}

/// The last error in the log of a process.
fn last_error(status: &Status, process: &str) -> String {
    let mut last = "its log has no error".to_owned();
    let keep = |_: &str, line: &str| {
        if let Some(error) = line.strip_prefix("error: ") {
            last = error.to_owned();
        }
        Ok(())
    };
    // Without a log the text above remains.
    let _ = logs(status, Some(process)).and_then(|logs| read(logs, Tail::All, Until::End, keep));
    last
}

/// Retries, because the API server may have just been started.
async fn heal_api(name: &Name) -> anyhow::Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match inflict(name, ApiFault::None).await {
            Err(_) if Instant::now() < deadline => tokio::time::sleep(PAUSE).await,
            done => return done,
        }
    }
}

async fn inflict(name: &Name, fault: ApiFault) -> anyhow::Result<()> {
    let (_, cluster) = name.connect().await?;
    inject(&cluster, fault).await.context("cannot inject faults into the API server")
}
