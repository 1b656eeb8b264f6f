//! `nearhop lab`: a multi-zone cluster on one machine.

mod check;
mod detach;
mod down;
mod drive;
mod exec;
mod export;
mod fault;
mod kubeconfig;
mod list;
mod logs;
mod status;
mod supervisor;
mod up;
mod wait;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, anyhow, bail};
use clap::{Args as ClapArgs, Subcommand};
use nearhop_lab::cluster::Cluster;
use nearhop_lab::control::{Answer, Request, Status, ask};
use nearhop_lab::state;

use crate::help::GLOBAL;
use crate::output::describe;

pub(crate) use drive::{HoldArgs, WorkerArgs, hold, work};
pub(crate) use exec::{ExecArgs, exec_stage};
pub(crate) use supervisor::{SupervisorArgs, start, supervise};
pub(crate) use up::NODE_GRACE;

/// Runs a multi-zone Kubernetes cluster on this machine: nodes and Pods are network namespaces with
/// real packets.
///
/// For trying out and testing routing policies and failures. Needs root or user namespaces, and no
/// other programs.
#[derive(Debug, ClapArgs)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Name of the lab, for any of the commands; it may also follow the command.
    // Clap copies the value to the command.
    #[arg(long = "name", id = "name", value_name = "NAME", value_parser = parse_name, help_heading = GLOBAL)]
    name: Option<String>,

    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  nearhop lab up                                   # three zones, two nodes each, until Ctrl-C
  nearhop lab up --detach --config shop.lab        # nodes, Services and Pods of a file
  nearhop lab drive shop/cart                      # who answers, from every node
  nearhop lab fault cut zone/zone-a                # and then: nearhop lab fault heal all
  nearhop lab down";

#[derive(Debug, Subcommand)]
enum Command {
    Up(Box<up::Args>),
    Down(down::Args),
    List(list::Args),
    Status(status::Args),
    Wait(wait::Args),
    Logs(logs::Args),
    Kubeconfig(kubeconfig::Args),
    Exec(exec::Args),
    Drive(drive::Args),
    Fault(fault::Args),
    Check(check::Args),
    Export(export::Args),
}

/// The lab to use.
#[derive(Debug, ClapArgs)]
struct Name {
    /// Name of the lab. Default: the only one that runs.
    #[arg(long, value_name = "NAME", global = true, value_parser = parse_name, help_heading = GLOBAL)]
    name: Option<String>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let name = args.name;
    dispatch(args.command).map_err(|error| match name.filter(|name| name != "lab") {
        Some(name) => name_cures(&error, &name),
        None => error,
    })
}

/// The cures of the lab's errors are commands without a name, as one lab has no need of it.
fn name_cures(error: &anyhow::Error, name: &str) -> anyhow::Error {
    let text = describe(error);
    let Some((cause, cure)) =
        text.split_once("Cure: ").filter(|(_, cure)| !cure.contains("--name"))
    else {
        return anyhow::Error::msg(text);
    };
    let cure = cure.replace("nearhop lab ", &format!("nearhop lab --name {name} "));
    anyhow::Error::msg(format!("{cause}Cure: {cure}"))
}

fn dispatch(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Up(args) => up::run(*args),
        Command::Down(args) => down::run(&args),
        Command::List(args) => list::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Wait(args) => wait::run(&args),
        Command::Logs(args) => logs::run(&args),
        Command::Kubeconfig(args) => kubeconfig::run(&args),
        Command::Exec(args) => exec::run(args),
        Command::Drive(args) => drive::run(args),
        Command::Fault(args) => fault::run(args),
        Command::Check(args) => check::run(&args),
        Command::Export(args) => export::run(&args),
    }
}

impl Name {
    /// The given name.
    fn given(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The directory of the lab.
    fn find(&self) -> anyhow::Result<PathBuf> {
        let base = state::base()?;
        let running = state::running(&base)?;
        let name = match (self.given(), running.as_slice()) {
            (Some(name), labs) if labs.iter().any(|lab| lab == name) => name,
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
fn request(state: &Path, request: &Request) -> anyhow::Result<Option<Box<Status>>> {
    let answer = ask(state, request)
        .with_context(|| format!("the lab in {} does not answer", state.display()))?;
    match answer {
        Answer::Status(status) => Ok(Some(status)),
        Answer::Done => Ok(None),
        Answer::Refused(why) => Err(anyhow!(why)),
        Answer::Output { .. } => bail!("unexpected answer from the lab"),
    }
}

/// The status of the lab in this directory.
fn status_of(state: &Path) -> anyhow::Result<Box<Status>> {
    request(state, &Request::Status)?.context("unexpected answer from the lab")
}

/// The flag that a command for this lab needs, with a space before it; none for the default name.
fn name_flag(lab: &str) -> String {
    if lab == "lab" { String::new() } else { format!(" --name {lab}") }
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// A duration in words such as `3m10s`.
fn describe_age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{}s", seconds / 60, seconds % 60),
        3600..86400 => format!("{}h{}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d{}h", seconds / 86400, seconds % 86400 / 3600),
    }
}

/// The name is also a directory's. An empty one means no name.
fn parse_name(text: &str) -> Result<String, String> {
    let sound = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !(1..=40).contains(&text.len()) || !text.chars().all(sound) {
        return Err("expected 1 to 40 letters, digits, `-` and `_`".to_owned());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An empty `--name`, such as that of an unset variable of a script, must not mean another lab.
    #[test]
    fn a_name_is_not_empty_and_not_a_path() {
        assert_eq!(parse_name("mine").as_deref(), Ok("mine"));
        for wrong in ["", "../etc", &"x".repeat(41)] {
            assert!(parse_name(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn cures_have_the_name_of_the_lab() {
        let cure = |text: &'static str| name_cures(&anyhow!(text), "two").to_string();
        assert_eq!(cure("no x. Cure: nearhop lab up"), "no x. Cure: nearhop lab --name two up");
        assert_eq!(cure("Cure: nearhop lab up --name q"), "Cure: nearhop lab up --name q");
        assert_eq!(cure("nearhop lab ended"), "nearhop lab ended");
    }

    #[test]
    fn ages_have_two_units() {
        for (seconds, wanted) in [(5, "5s"), (190, "3m10s"), (7260, "2h1m"), (176_400, "2d1h")] {
            assert_eq!(describe_age(seconds), wanted);
        }
    }
}
