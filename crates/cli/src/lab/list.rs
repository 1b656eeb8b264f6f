//! `nearhop lab list`: the running labs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args as ClapArgs;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use nearhop_lab::control::LabPhase;
use nearhop_lab::state;
use serde::Serialize;

use super::{Name, describe_age, status_of};
use crate::output::OutputArgs;

/// Lists the running labs of this user.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  nearhop lab list
  nearhop lab list -o json")]
pub(crate) struct Args {
    #[command(flatten)]
    name: Name,

    #[command(flatten)]
    output: OutputArgs,
}

/// A lab.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    name: String,
    state: &'static str,
    age_seconds: Option<u64>,
    zones: usize,
    nodes: usize,
    kubeconfig: PathBuf,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let base = state::base()?;
    let running = state::running(&base)?;
    let wanted = args.name.given();
    let named = running.iter().filter(|name| wanted.is_none_or(|wanted| wanted == *name));
    let rows: Vec<Row> = named.map(|name| look(name, &base.join(name))).collect();
    args.output.print(&rows, || match wanted {
        Some(name) if rows.is_empty() && !running.is_empty() => {
            format!("no lab `{name}` runs; running labs: {}\n", running.join(", "))
        }
        _ => describe(&rows),
    })?;
    Ok(ExitCode::SUCCESS)
}

fn look(name: &str, state: &Path) -> Row {
    let status = status_of(state).ok();
    let status = status.as_ref();
    Row {
        name: name.to_owned(),
        state: match status.map(|status| status.phase) {
            Some(LabPhase::Starting) => "starting",
            Some(LabPhase::Up) => "up",
            None => "not answering",
        },
        age_seconds: status.map(|status| status.uptime_seconds),
        zones: status.map_or(0, |status| status.named_zones()),
        nodes: status.map_or(0, |status| status.zones.values().map(Vec::len).sum()),
        kubeconfig: state.join("kubeconfig"),
    }
}

fn describe(rows: &[Row]) -> String {
    if rows.is_empty() {
        return "no lab runs\n".to_owned();
    }
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(["NAME", "STATE", "AGE", "ZONES", "NODES", "KUBECONFIG"]);
    for row in rows {
        table.add_row([
            row.name.clone(),
            row.state.to_owned(),
            row.age_seconds.map_or("-".to_owned(), describe_age),
            row.zones.to_string(),
            row.nodes.to_string(),
            row.kubeconfig.display().to_string(),
        ]);
    }
    table.to_string().lines().map(|line| format!("{}\n", line.trim_end())).collect()
}
