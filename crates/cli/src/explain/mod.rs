//! `nearhop explain`: explains decisions from the objects of a live cluster.

mod dns;
mod live;

use std::process::ExitCode;

use clap::{Args as ClapArgs, Subcommand};

use crate::daemon::block_on;

/// Explains decisions of nearhop from the objects of a live cluster.
///
/// Reads the cluster and writes nothing.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  nearhop explain dns db --from-pod client
  nearhop explain --help")]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Dns(Box<dns::Args>),
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.what {
        What::Dns(args) => block_on(dns::run(*args)),
    }
}
