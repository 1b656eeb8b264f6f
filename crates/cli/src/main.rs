//! `nearhop`: the only binary. Arguments, files and exit codes; what is decided, the crates below
//! decide.

mod apiserver;
mod conform;

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Sends every connection to a Kubernetes Service to the nearest endpoint that can take it, and
/// proves that it did.
#[derive(Debug, Parser)]
#[command(name = "nearhop", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Apiserver(apiserver::Args),
    Conform(conform::Args),
}

/// Exit code of a command that could not do what it was asked.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Apiserver(args) => apiserver::run(args),
        Command::Conform(args) => conform::run(&args),
    };
    result.unwrap_or_else(|error| {
        complain(&format!("error: {error:#}"));
        ExitCode::from(USAGE)
    })
}

/// Writes a line to standard error. If nobody can read it, the exit code still tells.
pub(crate) fn complain(line: &str) {
    let _unread = writeln!(std::io::stderr(), "{line}");
}
