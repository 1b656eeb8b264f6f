//! `nearhop lab drive`: opens connections and counts the Pods that answered.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args as ClapArgs;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use nearhop_lab::drive::hold::{self, Hold};
use nearhop_lab::drive::origin::{By, From, Question, ServiceRef};
use nearhop_lab::drive::report::Report;
use nearhop_lab::drive::run::drive;
use nearhop_lab::drive::worker::{self, Family, Job, Protocol};
use serde::de::DeserializeOwned;

use super::Name;
use crate::daemon::block_on;
use crate::output::{OutputArgs, announce};

/// Exit code if a connection failed.
const FAILED: u8 = 1;

/// Opens connections to a Service and prints which Pods and zones answered.
///
/// Exit code 0: all connections were answered. 1: one failed.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  nearhop lab drive web
  nearhop lab drive web --from zone/zone-a")]
pub(crate) struct Args {
    #[command(flatten)]
    name: Name,

    /// Service: NAME, NAMESPACE/NAME or NAMESPACE/NAME:PORT. Default port: the Service's first.
    #[arg(value_name = "SERVICE")]
    service: ServiceRef,

    /// Client: pod/NAME, node/NAME, zone/NAME, or external for a client outside the cluster.
    /// Default: every node.
    #[arg(long, value_name = "PLACE")]
    from: Option<From>,

    /// Total number of connections.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    connections: u64,

    /// Connections at the same time.
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = clap::value_parser!(u16).range(1..=1024))]
    concurrency: u16,

    /// Send a UDP packet from a new port each, instead of an HTTP request.
    #[arg(long)]
    udp: bool,

    /// Resolve the Service's DNS name for each connection. Default: use its cluster IP.
    #[arg(long)]
    dns: bool,

    /// Use IPv6. Default: IPv4.
    #[arg(short = '6', long)]
    ipv6: bool,

    #[command(flatten)]
    output: OutputArgs,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let question = Question {
        service: args.service,
        from: args.from.unwrap_or(From::Everywhere),
        connections: args.connections,
        concurrency: args.concurrency.into(),
        protocol: if args.udp { Protocol::Udp } else { Protocol::Tcp },
        by: if args.dns { By::Name } else { By::Address },
        family: if args.ipv6 { Family::V6 } else { Family::V4 },
    };
    let report = block_on(async {
        let (state, cluster) = args.name.connect().await?;
        Ok(drive(&state, &cluster, &question).await?)
    })?;
    args.output.print(&report, || describe(&report))?;
    Ok(ExitCode::from(if report.failures.is_empty() { 0 } else { FAILED }))
}

fn describe(report: &Report) -> String {
    let mut text = format!(
        "{} connections, {} answered, {:.1}% of them from another zone\n\n",
        report.connections,
        report.answered,
        report.cross_zone * 100.0
    );
    if report.answered > 0 {
        let _ = writeln!(text, "{}\n", matrix(report));
        let _ = writeln!(text, "{}", pods(report));
    }
    for (failure, count) in &report.failures {
        let _ = writeln!(text, "\n{count} {}", failure.words());
    }
    if let Some(latency) = report.latency {
        let ms = |us: u32| f64::from(us) / 1000.0;
        let _ = writeln!(
            text,
            "\nlatency: p50 {:.2} ms, p90 {:.2} ms, p99 {:.2} ms, max {:.2} ms",
            ms(latency.p50_us),
            ms(latency.p90_us),
            ms(latency.p99_us),
            ms(latency.max_us)
        );
    }
    text
}

fn matrix(report: &Report) -> Table {
    let mut zones: Vec<&String> = report.matrix.values().flat_map(|row| row.keys()).collect();
    zones.sort();
    zones.dedup();
    let mut table = Table::new();
    table.load_style(NOTHING);
    let named = |zone: &str| if zone.is_empty() { "(no zone)".to_owned() } else { zone.to_owned() };
    let head = zones.iter().map(|zone| named(zone));
    table.set_header(std::iter::once("FROM \\ TO".to_owned()).chain(head));
    for (from, row) in &report.matrix {
        let cells = zones.iter().map(|zone| row.get(*zone).copied().unwrap_or(0).to_string());
        table.add_row(std::iter::once(named(from)).chain(cells));
    }
    table
}

fn pods(report: &Report) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(["POD", "NODE", "ZONE", "ANSWERS", "SHARE"]);
    for (pod, answered) in &report.pods {
        let share = answered.answers as f64 / report.answered.max(1) as f64 * 100.0;
        let answers = answered.answers.to_string();
        let share = format!("{share:.1}%");
        table.add_row([pod, &answered.node, &answered.zone, &answers, &share]);
    }
    table
}

/// Opens connections from the network namespace it runs in. Started by `lab drive` and the demo.
#[derive(Debug, ClapArgs)]
pub(crate) struct WorkerArgs {
    /// The job, as JSON.
    #[arg(long, value_name = "JSON", value_parser = parse_job)]
    job: Job,

    /// Print a line per connection instead of the tally: milliseconds since the start, duration,
    /// and the Pod that answered, or `!` and the failure.
    #[arg(long)]
    lines: bool,
}

/// Performs the job and prints its tally.
pub(crate) fn work(args: &WorkerArgs) -> anyhow::Result<ExitCode> {
    let lines = args.lines;
    let on_attempt = move |attempt: &worker::Attempt| {
        if lines {
            print_line(attempt);
        }
    };
    let tally = block_on(async { Ok(worker::work(&args.job, on_attempt).await) })?;
    if !lines {
        let text = serde_json::to_string(&tally).context("a tally is plain data")?;
        writeln!(std::io::stdout(), "{text}")?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print_line(attempt: &worker::Attempt) {
    let who = match &attempt.outcome {
        Ok(pod) => pod.clone(),
        Err(failure) => format!("!{failure:?}"),
    };
    let (at, took) = (attempt.at.as_secs_f64() * 1e3, attempt.took.as_secs_f64() * 1e3);
    // The reader has closed the pipe.
    if writeln!(std::io::stdout(), "{at:.1} {took:.2} {who}").is_err() {
        std::process::exit(0);
    }
}

fn parse_json<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

fn parse_job(text: &str) -> Result<Job, String> {
    let job: Job = parse_json(text)?;
    if job.targets.is_empty() { Err("no targets".to_owned()) } else { Ok(job) }
}

/// Keeps connections open from the network namespace it runs in.
#[derive(Debug, ClapArgs)]
pub(crate) struct HoldArgs {
    /// The connections, as JSON.
    #[arg(long, value_name = "JSON", value_parser = parse_json::<Hold>)]
    job: Hold,
}

/// Prints `open` and the number of connections, and at the end the result.
pub(crate) fn hold(args: &HoldArgs) -> anyhow::Result<ExitCode> {
    let opened = |count: usize| announce(&format!("open {count}"));
    let held = block_on(async { Ok(hold::hold(&args.job, opened).await) })?;
    let text = serde_json::to_string(&held).context("a count is plain data")?;
    writeln!(std::io::stdout(), "{text}")?;
    Ok(ExitCode::SUCCESS)
}
