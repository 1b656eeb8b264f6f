//! `nearhop`: the only binary. Reads arguments and files and returns exit codes; the other crates
//! do the work.

mod agent;
mod apiserver;
mod conform;
mod controller;
mod daemon;
mod demo;
mod dns;
mod explain;
mod lab;
mod manager;
mod manifests;
mod output;
mod parse;
mod proxy;

use std::process::ExitCode;

use clap::builder::BoolishValueParser;
use clap::{ArgAction, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

pub(crate) use output::complain;

/// Topology-aware routing for Kubernetes Services: sends each connection to the nearest endpoint that
/// can take it, and measures that it did.
///
/// Each flag can also be set by an environment variable: --data-dir is NEARHOP_DATA_DIR.
#[derive(Debug, Parser)]
#[command(name = "nearhop", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Agent(Box<agent::Args>),
    Apiserver(apiserver::Args),
    Conform(conform::Args),
    #[command(hide = true)]
    Container(agent::ContainerArgs),
    Controller(Box<controller::Args>),
    Demo(demo::Args),
    Dns(Box<dns::Args>),
    Explain(explain::Args),
    Lab(lab::Args),
    #[command(hide = true)]
    LabDrive(lab::WorkerArgs),
    #[command(hide = true)]
    LabExec(lab::ExecArgs),
    #[command(hide = true)]
    LabHold(lab::HoldArgs),
    #[command(hide = true)]
    LabSupervisor(lab::SupervisorArgs),
    Manager(manager::Args),
    #[command(hide = true)]
    Image(agent::ImageArgs),
    Manifests(manifests::Args),
    Proxy(Box<proxy::Args>),
}

/// Exit code of an error.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let matches = with_environment(Cli::command()).get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let result = match cli.command {
        Command::Agent(args) => agent::run(*args),
        Command::Apiserver(args) => apiserver::run(args),
        Command::Conform(args) => conform::run(&args),
        Command::Container(args) => agent::container(&args),
        Command::Controller(args) => controller::run(*args),
        Command::Demo(args) => demo::run(&args),
        Command::Dns(args) => dns::run(&args),
        Command::Explain(args) => explain::run(args),
        Command::Lab(args) => lab::run(args),
        Command::LabDrive(args) => lab::work(&args),
        Command::LabExec(args) => Ok(lab::exec_stage(&args)),
        Command::LabHold(args) => lab::hold(&args),
        Command::LabSupervisor(args) => lab::supervise(&args),
        Command::Manager(args) => manager::run(args),
        Command::Image(args) => agent::image(&args),
        Command::Manifests(args) => manifests::run(&args),
        Command::Proxy(args) => proxy::run(*args),
    };
    result.unwrap_or_else(|error| {
        complain(&format!("error: {}", output::describe(&error)));
        ExitCode::from(USAGE)
    })
}

/// Gives every flag an environment variable: `--data-dir` is also `NEARHOP_DATA_DIR`.
fn with_environment(command: clap::Command) -> clap::Command {
    let with_env = |arg: clap::Arg| {
        let Some(long) = arg.get_long() else { return arg };
        let name = format!("NEARHOP_{}", long.replace('-', "_").to_uppercase());
        let arg = arg.env(name);
        // For switches, `1` means the same as `true`.
        match arg.get_action() {
            ArgAction::SetTrue => arg.value_parser(BoolishValueParser::new()),
            _ => arg,
        }
    };
    command.mut_subcommands(|command| with_environment(command.mut_args(with_env)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_has_an_environment_variable() {
        let command = with_environment(Cli::command());
        command.clone().debug_assert();
        for subcommand in command.get_subcommands() {
            for arg in subcommand.get_arguments().filter(|arg| arg.get_long().is_some()) {
                let env = arg.get_env().and_then(|env| env.to_str()).unwrap_or_default();
                assert!(env.starts_with("NEARHOP_"), "{} {arg}", subcommand.get_name());
            }
        }
    }
}
