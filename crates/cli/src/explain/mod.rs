//! `nearhop explain`: why things are as they are, from the objects of a live cluster.

mod dns;
mod live;

use std::process::ExitCode;

use clap::{Args as ClapArgs, Subcommand};

/// Says why a name is answered as it is.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Dns(Box<dns::Args>),
}

/// Explains.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build()?;
    match args.what {
        What::Dns(args) => runtime.block_on(dns::run(*args)),
    }
}
