//! `nearhop lab status`: the nodes and processes of a lab.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::Args as ClapArgs;
use nearhop_lab::control::{LabPhase, Request, Status};
use nearhop_lab::daemon::{Phase, State};

use super::{Name, request};
use crate::output::OutputArgs;

/// Shows the nodes and processes of a lab, and the nodes and zones that are cut off.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  nearhop lab status
  nearhop lab status -o json")]
pub(crate) struct Args {
    #[command(flatten)]
    name: Name,

    #[command(flatten)]
    output: OutputArgs,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let state = args.name.find()?;
    let Some(status) = request(&state, &Request::Status)? else {
        anyhow::bail!("unexpected answer from the lab");
    };
    args.output.print(&status, || describe(&status))?;
    Ok(ExitCode::SUCCESS)
}

fn describe(status: &Status) -> String {
    let phase = match status.phase {
        LabPhase::Starting => "starting",
        LabPhase::Up => "up",
    };
    let mut text = format!("lab `{}` is {phase}\n", status.name);
    let _ = writeln!(text, "  kubeconfig  {}", status.kubeconfig.display());
    let _ = writeln!(text, "  logs        {}", status.logs.display());
    for (zone, nodes) in &status.zones {
        let zone = if zone.is_empty() { "(no zone)" } else { zone };
        let _ = writeln!(text, "  {zone:<11} {}", nodes.join(", "));
    }
    if !status.cut.is_empty() {
        let _ = writeln!(text, "  cut off     {}", status.cut.join(", "));
    }
    for (name, state) in &status.processes {
        let _ = writeln!(text, "  {name:<20} {}", describe_process(state));
    }
    text
}

fn describe_process(state: &State) -> String {
    let mut text = match state.phase {
        Phase::Running => "running".to_owned(),
        Phase::Paused => "paused".to_owned(),
        Phase::Killed => "killed; `lab fault start` starts it again".to_owned(),
        Phase::Waiting => "exited; restarting".to_owned(),
    };
    if state.restarts > 0 {
        let _ = write!(text, ", restarts: {}", state.restarts);
    }
    if let Some(end) = &state.last_end {
        let _ = write!(text, ", last exit: {end}");
    }
    text
}
