//! The commands, and which function runs each.

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

use crate::color::Color;
use crate::{
    agent, apiserver, completion, conform, controller, demo, dns, explain, help, lab, manager,
    manifests, proxy, version,
};

/// Topology-aware routing for Kubernetes Services: sends each connection to the nearest endpoint
/// that can take it, and measures that it did.
///
/// Start with `nearhop demo`, which measures every policy, or with `nearhop lab up`, which runs a
/// cluster of three zones on this machine. On a cluster you run the controller once, and the proxy
/// and perhaps the DNS server on each node.
#[derive(Debug, Parser)]
#[command(name = "nearhop", version = version::SHORT)]
#[command(after_help = "Examples:
  nearhop demo
  nearhop lab up --zones 3 --nodes-per-zone 2
  nearhop manifests | kubectl apply -f -
  nearhop controller --kubeconfig kubeconfig --dry-run
  nearhop proxy --help

Exit codes:
  0  done
  1  done, but the result is not as asked: a failed connection, a difference, a name without records
  2  error: wrong arguments, a file or a cluster that cannot be used
  `lab exec` has the exit code of its command.

Environment:
  Each flag has a variable: --zones of `lab up` is NEARHOP_LAB_UP_ZONES; flags that mean the same
  in every command have a name without it: --kubeconfig is NEARHOP_KUBECONFIG
  NO_COLOR, CLICOLOR_FORCE: colours off, or on also without a terminal
  RUST_LOG: log filter of the daemons, instead of --verbosity")]
struct Cli {
    /// When to use colours: auto (on a terminal), always or never.
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        hide_possible_values = true,
        help_heading = help::GLOBAL
    )]
    // Applied before the arguments are parsed; here it is checked and described.
    color: Color,

    #[command(subcommand)]
    command: Command,
}

/// A command with its arguments.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Agent(Box<agent::Args>),
    Apiserver(apiserver::Args),
    Completion(completion::Args),
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
    Manpages(completion::ManArgs),
    Proxy(Box<proxy::Args>),
    Version(version::Args),
}

/// All commands.
pub(crate) fn all() -> clap::Command {
    Cli::command()
}

/// The commands that help shows: without those that nearhop itself starts.
pub(crate) fn public() -> clap::Command {
    let all = all();
    let shown = all.get_subcommands().filter(|command| !command.is_hide_set());
    clap::Command::new("nearhop")
        .args(all.get_arguments().cloned())
        .subcommands(shown.cloned().collect::<Vec<_>>())
}

/// The command of these arguments.
pub(crate) fn read(matches: &clap::ArgMatches) -> Result<Command, clap::Error> {
    use clap::FromArgMatches as _;
    Cli::from_arg_matches(matches).map(|cli| cli.command)
}

/// Runs a command.
pub(crate) fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Agent(args) => agent::run(*args),
        Command::Apiserver(args) => apiserver::run(args),
        Command::Completion(args) => completion::run(&args),
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
        Command::Manpages(args) => completion::write_man_pages(&args),
        Command::Proxy(args) => proxy::run(*args),
        Command::Version(args) => version::run(&args),
    }
}
