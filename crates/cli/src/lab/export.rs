//! `nearhop lab export`: a running lab as a file for `lab up --config`.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use nearhop_lab::export::export;

use super::{Name, status_of};
use crate::daemon::block_on;
use crate::output::print;

/// Prints a running lab as a file that `nearhop lab up --config` accepts.
///
/// The file has the lab's nodes, Services and Pods. Comments name what it cannot express.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  nearhop lab export > shop.lab
  nearhop lab export --name lab-2 | nearhop lab check -")]
pub(crate) struct Args {
    #[command(flatten)]
    name: Name,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let text = block_on(async {
        let (state, cluster) = args.name.connect().await?;
        let status = status_of(&state)?;
        Ok(export(&cluster, &status).await?)
    })?;
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}
