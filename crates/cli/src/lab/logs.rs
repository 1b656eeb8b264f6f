//! `nearhop lab logs`: the logs of a lab's processes.

use std::io::{ErrorKind, Write as _, stdout};
use std::process::ExitCode;

use clap::Args as ClapArgs;
use nearhop_lab::LabError;
use nearhop_lab::logs::{Tail, Until, logs, read};

use super::{Name, status_of};

/// Prints the logs of a lab's processes: of one, or of all with its name before each line.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  nearhop lab logs controller --tail 20
  nearhop lab logs -f proxy/node-a1        # also after a restart of the process, until the lab ends
  nearhop lab logs -f | grep WARN")]
pub(crate) struct Args {
    #[command(flatten)]
    name: Name,

    /// Process, as `nearhop lab status` names it: apiserver, controller, manager, agent/NODE,
    /// dns/NODE or proxy/NODE. Default: all.
    #[arg(value_name = "PROCESS")]
    process: Option<String>,

    /// Print new lines until the lab ends.
    #[arg(short, long)]
    follow: bool,

    /// Lines from the end of each log. Default: all.
    #[arg(long, value_name = "N")]
    tail: Option<usize>,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let status = status_of(&args.name.find()?)?;
    let logs = logs(&status, args.process.as_deref())?;
    let tail = args.tail.map_or(Tail::All, Tail::Last);
    let until = if args.follow { Until::LabEnds } else { Until::End };
    let print = |process: &str, line: &str| {
        let mut out = stdout().lock();
        match args.process {
            Some(_) => writeln!(out, "{line}"),
            None => writeln!(out, "[{process}] {line}"),
        }
    };
    match read(logs, tail, until, print) {
        // The reader has closed the pipe.
        Err(LabError::Output(error)) if error.kind() == ErrorKind::BrokenPipe => {}
        done => done?,
    }
    Ok(ExitCode::SUCCESS)
}
