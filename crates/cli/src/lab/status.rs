//! `nearhop lab status`: the nodes, processes and faults of a lab.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args as ClapArgs;
use nearhop_lab::api_faults::{self, ApiFaults, Flaky};
use nearhop_lab::control::{LabPhase, Status};
use nearhop_lab::daemon::{Phase, State};
use serde::Serialize;

use super::{Name, describe_age, name_flag, status_of};
use crate::color::paint_failure;
use crate::daemon::block_on;
use crate::output::OutputArgs;

/// How long the API server may take to report its faults.
const PATIENCE: Duration = Duration::from_secs(2);

/// Shows a lab: nodes, processes, all faults, and how to reach API, logs and metrics.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  nearhop lab status
  nearhop lab status -o json | jq -r '.processes[\"proxy/node-a1\"].url'")]
pub(crate) struct Args {
    #[command(flatten)]
    name: Name,

    #[command(flatten)]
    output: OutputArgs,
}

/// The status, and the faults that only the API server knows.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Whole {
    #[serde(flatten)]
    status: Box<Status>,
    /// Absent if the lab has no API server, or if that does not answer.
    api_faults: Option<ApiFaults>,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let status = status_of(&args.name.find()?)?;
    let api_faults = if status.processes.contains_key("apiserver") {
        block_on(async {
            let asked = async {
                let (_, cluster) = args.name.connect().await?;
                anyhow::Ok(api_faults::read(&cluster).await?)
            };
            Ok(tokio::time::timeout(PATIENCE, asked).await.ok().and_then(Result::ok))
        })?
    } else {
        None
    };
    let whole = Whole { status, api_faults };
    args.output.print(&whole, || describe(&whole))?;
    Ok(ExitCode::SUCCESS)
}

fn describe(Whole { status, api_faults }: &Whole) -> String {
    let phase = match status.phase {
        LabPhase::Starting => "starting",
        LabPhase::Up => "up",
    };
    let flag = name_flag(&status.name);
    let age = describe_age(status.uptime_seconds);
    let mut text = format!("lab `{}` is {phase}, for {age}\n", status.name);
    let mut line = |title: &str, value: &str| {
        let _ = writeln!(text, "  {title:<11} {value}");
    };
    line("kubeconfig", &status.kubeconfig.display().to_string());
    line("server", &status.server);
    line("logs", &format!("{}, or nearhop lab logs{flag}", status.logs.display()));
    if let Some((process, url)) = first_url(status) {
        let all = url.strip_suffix(process).unwrap_or(url);
        line("metrics", &format!("curl {all}PROCESS/metrics, such as {process}"));
    }
    if let Some(directory) = &status.data_dir {
        line("data", &directory.display().to_string());
    }
    if let Some(grace) = status.node_monitor_grace_period_seconds {
        line("node grace", &format!("not ready after {grace} s without a heartbeat"));
    }
    for (zone, nodes) in &status.zones {
        line(if zone.is_empty() { "(no zone)" } else { zone }, &nodes.join(", "));
    }
    if !status.cut.is_empty() {
        line("cut off", &paint_failure(&status.cut.join(", ")));
    }
    for fault in describe_api(status, api_faults.as_ref()) {
        line("API faults", &paint_failure(&fault));
    }
    for (name, state) in &status.processes {
        let _ = writeln!(text, "  {name:<20} {}", describe_process(name, state, &flag));
    }
    text
}

/// A process with metrics: the controller if there is one.
fn first_url(status: &Status) -> Option<(&str, &str)> {
    let with_url = status
        .processes
        .iter()
        .filter_map(|(name, process)| Some((name.as_str(), process.url.as_deref()?)));
    with_url.min_by_key(|(name, _)| *name != "controller")
}

fn describe_api(status: &Status, faults: Option<&ApiFaults>) -> Vec<String> {
    let Some(faults) = faults else {
        let own = status.processes.contains_key("apiserver");
        let unknown = "unknown: the API server does not answer";
        return if own { vec![unknown.to_owned()] } else { Vec::new() };
    };
    let flaky = faults.flaky.map(|flaky| describe_flaky(&flaky));
    let happened = [
        (faults.watch_drops, "closed all watches"),
        (faults.compactions, "dropped the watch history"),
    ];
    let happened = happened.into_iter().filter(|(count, _)| *count > 0);
    flaky
        .into_iter()
        .chain(happened.map(|(count, what)| format!("{what}, times: {count}")))
        .collect()
}

/// `20% of requests fail with HTTP 500, all are delayed by 30 ms`.
pub(super) fn describe_flaky(flaky: &Flaky) -> String {
    let share = format!("{}% of requests fail with HTTP {}", flaky.share * 100.0, flaky.code);
    let delay = format!("are delayed by {} ms", flaky.delay.as_millis());
    match (flaky.share > 0.0, !flaky.delay.is_zero()) {
        (true, true) => format!("{share}, all {delay}"),
        (true, false) => share,
        (false, _) => format!("all requests {delay}"),
    }
}

fn describe_process(name: &str, state: &State, flag: &str) -> String {
    let cure = |order: &str| format!("; nearhop lab fault{flag} {order} {name}");
    let mut text = match state.phase {
        Phase::Running => "running".to_owned(),
        Phase::Paused => paint_failure("paused") + &cure("resume"),
        Phase::Killed => paint_failure("killed") + &cure("start"),
        Phase::Waiting => paint_failure("exited") + "; restarting",
    };
    if state.restarts > 0 {
        let _ = write!(text, ", restarts: {}", state.restarts);
    }
    if !state.added_args.is_empty() {
        let _ = write!(text, ", added arguments: {}", state.added_args.join(" "));
    }
    if let Some(end) = &state.last_end {
        let _ = write!(text, ", last exit: {end}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flaky_apis_are_described() {
        for (share, millis, wanted) in [
            (0.2, 0, "20% of requests fail with HTTP 500"),
            (0.2, 30, "20% of requests fail with HTTP 500, all are delayed by 30 ms"),
            (0.0, 30, "all requests are delayed by 30 ms"),
        ] {
            let flaky = Flaky { share, code: 500, delay: Duration::from_millis(millis) };
            assert_eq!(describe_flaky(&flaky), wanted);
        }
    }
}
