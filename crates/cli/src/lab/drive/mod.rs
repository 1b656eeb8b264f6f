//! `nearhop lab drive`: opens connections and counts the Pods that answered.

mod signals;
mod text;
mod watch;
mod worker;

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use clap::{Args as ClapArgs, ValueEnum};
use nearhop_lab::drive::assertion::Assertion;
use nearhop_lab::drive::question::{Amount, By, From, Question, ServiceRef, Split};
use nearhop_lab::drive::report::{End, Report};
use nearhop_lab::drive::run::{Drive, Progress};
use nearhop_lab::drive::worker::{Family, Protocol};

use super::Name;
use crate::daemon::runtime;
use crate::output::OutputArgs;
use crate::parse::parse_between;
use signals::Signals;

pub(crate) use worker::{HoldArgs, WorkerArgs, hold, work};

/// Exit code if a connection failed, or an assertion did not hold.
const FAILED: u8 = 1;

/// Exit code if a client did not run to its end.
const LOST: u8 = 2;

/// Connections, unless a duration is given.
const CONNECTIONS: u64 = 1000;

/// Connections per interval of `--watch`, spread evenly.
const WATCHED: u64 = 200;

/// Opens connections to a Service of a lab and prints which Pods, nodes and zones answered.
///
/// Exit code 0: all connections were answered and all assertions hold. 1: a connection failed (unless
/// an assertion is about `failed` or `answered`), or an assertion does not hold. 2: error, or a
/// client did not run to its end. 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP, with the
/// result so far.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  nearhop lab drive web                                     # 1000 connections from every node
  nearhop lab drive web --by cpu --duration 30s --rate 200  # at 200/s, more from larger nodes
  nearhop lab drive shop/cart:http --from zone/zone-a --watch
  nearhop lab drive web --assert 'cross-zone<=1%' --assert 'failed==0' -o json")]
pub(crate) struct Args {
    #[command(flatten)]
    name: Name,

    /// Service: NAME, NAMESPACE/NAME or NAMESPACE/NAME:PORT. Default port: the Service's first.
    #[arg(value_name = "SERVICE")]
    service: ServiceRef,

    #[command(flatten)]
    clients: ClientArgs,

    #[command(flatten)]
    amount: AmountArgs,

    #[command(flatten)]
    connection: ConnectionArgs,

    /// Repeat every INTERVAL (default: 1s) until Ctrl-C or the end of --duration. Redraws on a
    /// terminal, else prints one block per interval; with -o json one line per interval.
    #[arg(
        long,
        value_name = "INTERVAL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "1s",
        value_parser = parse_interval,
        help_heading = "Result"
    )]
    watch: Option<Duration>,

    /// Fail unless this holds: METRIC OPERATOR VALUE. Metrics: connections, answered, failed,
    /// cross-zone, cross-node, rate, p50, p90, p99, max, share(FROM->TO) of two zones or two nodes.
    /// Operators: <=, <, ==, !=, >=, >. Values: 10, 1%, 20ms, 100/s. Can be repeated.
    #[arg(long = "assert", value_name = "CONDITION", help_heading = "Result")]
    assertions: Vec<Assertion>,

    #[command(flatten, next_help_heading = "Result")]
    output: OutputArgs,
}

#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Clients")]
struct ClientArgs {
    /// Client: pod/NAME, pod/NAMESPACE/NAME, node/NAME, zone/NAME, or external for a client outside
    /// the cluster. Default: every node.
    #[arg(long, value_name = "PLACE")]
    from: Option<From>,

    /// Share of each node: cpu, in proportion to its CPU, as in `nearhop demo`; node, equal shares;
    /// pod, in proportion to its running Pods of the Service's namespace. Default: node.
    #[arg(long, value_name = "cpu|node|pod", hide_possible_values = true)]
    by: Option<SplitArg>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SplitArg {
    Cpu,
    Node,
    Pod,
}

#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Amount")]
struct AmountArgs {
    /// Total number of connections. Default: 1000; without limit if --duration is given; with
    /// --watch 200 per interval.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    connections: Option<u64>,

    /// Stop opening connections after this time.
    #[arg(long, value_name = "DURATION", value_parser = parse_positive)]
    duration: Option<Duration>,

    /// Connections per second over all clients, at fixed times, however slow the answers are.
    /// Default: each connection begins when one ends.
    #[arg(long, value_name = "N", value_parser = parse_rate)]
    rate: Option<f64>,

    /// Connections at the same time, over all clients. Default: 24; with --rate as many as can wait
    /// for their timeout, up to 4096.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    concurrency: Option<u16>,
}

#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Connection")]
struct ConnectionArgs {
    /// Timeout of a connection, from its first packet to its answer.
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = parse_timeout)]
    timeout: Duration,

    /// Send a UDP packet from a new port each, instead of an HTTP request.
    #[arg(long)]
    udp: bool,

    /// Resolve the Service's DNS name for each connection. Default: use its cluster IP.
    #[arg(long)]
    dns: bool,

    /// Use IPv6. Default: IPv4.
    #[arg(short = '6', long)]
    ipv6: bool,
}

fn parse_positive(text: &str) -> Result<Duration, String> {
    parse_between(text, Duration::from_millis(100), Duration::from_secs(86_400))
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    parse_between(text, Duration::from_millis(200), Duration::from_secs(3600))
}

fn parse_timeout(text: &str) -> Result<Duration, String> {
    parse_between(text, Duration::from_millis(1), Duration::from_secs(300))
}

fn parse_rate(text: &str) -> Result<f64, String> {
    let rate = text.strip_suffix("/s").unwrap_or(text).parse::<f64>().ok();
    let fits = rate.filter(|rate| (0.01..=100_000.0).contains(rate));
    fits.ok_or_else(|| "expected connections per second, 0.01 to 100000".to_owned())
}

impl Args {
    fn question(&self) -> anyhow::Result<Question> {
        let from = self.clients.from.clone().unwrap_or(From::Everywhere);
        let several = matches!(from, From::Everywhere | From::Zone(_));
        if self.clients.by.is_some() && !several {
            bail!("--by divides the connections of several nodes. Cure: omit --by or --from");
        }
        let connection = &self.connection;
        Ok(Question {
            service: self.service.clone(),
            from,
            amount: self.amount()?,
            split: match self.clients.by {
                Some(SplitArg::Cpu) => Split::Cpu,
                Some(SplitArg::Pod) => Split::Pod,
                Some(SplitArg::Node) | None => Split::Node,
            },
            concurrency: self.amount.concurrency.map(usize::from),
            timeout: connection.timeout,
            protocol: if connection.udp { Protocol::Udp } else { Protocol::Tcp },
            by: if connection.dns { By::Name } else { By::Address },
            family: if connection.ipv6 { Family::V6 } else { Family::V4 },
        })
    }

    fn amount(&self) -> anyhow::Result<Amount> {
        let AmountArgs { connections, duration, rate, .. } = self.amount;
        let Some(interval) = self.watch else {
            let all = duration.is_none().then_some(CONNECTIONS);
            return Ok(Amount { connections: connections.or(all), duration, rate });
        };
        let seconds = interval.as_secs_f64();
        let (count, rate) = match (connections, rate) {
            (Some(_), Some(_)) => bail!(
                "with --watch, -n is the number per interval, which is a rate. Cure: omit -n or --rate"
            ),
            (None, Some(rate)) => ((rate * seconds).round().max(1.0) as u64, rate),
            (count, None) => {
                let count = count.unwrap_or(WATCHED);
                (count, count as f64 / seconds)
            }
        };
        // The duration limits the repetitions.
        Ok(Amount { connections: Some(count), duration: None, rate: Some(rate) })
    }
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let question = args.question()?;
    // A second thread, so that a second Ctrl-C is seen while the first one blocks in a write to a
    // full pipe.
    let runtime = runtime(2)?;
    let done = runtime.block_on(async {
        let signals = Signals::catch()?;
        tokio::select! {
            done = drive(&args, &question, &signals) => done,
            () = signals.hurry() => Ok(signals.code()),
        }
    });
    // Requests that still run must not delay the end.
    runtime.shutdown_background();
    done
}

async fn drive(args: &Args, question: &Question, signals: &Signals) -> anyhow::Result<ExitCode> {
    let prepared = async {
        let (state, cluster) = args.name.connect().await?;
        let drive = Drive::prepare(&state, &cluster, question).await?;
        for assertion in &args.assertions {
            drive.check(assertion).map_err(anyhow::Error::msg)?;
        }
        anyhow::Ok(drive)
    };
    let drive = tokio::select! {
        drive = prepared => drive?,
        () = signals.stop().wait() => return Ok(signals.code()),
    };
    if let Some(interval) = args.watch {
        return watch::watch(args, drive, interval, signals).await;
    }
    let mut bar = Bar::new();
    let report = drive.run(signals.stop(), |progress| bar.show(progress)).await;
    bar.clear();
    let report = judged(report?, &args.assertions);
    let output = &args.output;
    let text = || text::describe(&report);
    let printed = output.print(&report, text);
    if report.end == End::Interrupted {
        // A closed terminal cannot show the result; the signal is the reason of the end.
        return Ok(signals.code());
    }
    printed?;
    Ok(exit_code(&report, args))
}

fn judged(mut report: Report, assertions: &[Assertion]) -> Report {
    report.assertions = assertions.iter().map(|assertion| assertion.judge(&report)).collect();
    report
}

/// Without an assertion about failures, none may have failed: a script that only checks zones must
/// not pass while most connections are refused.
fn exit_code(report: &Report, args: &Args) -> ExitCode {
    let excused = args.assertions.iter().any(Assertion::is_about_failures);
    let failed = report.failed > 0 || report.connections == 0;
    let broken = report.assertions.iter().any(|judged| !judged.held);
    ExitCode::from(if !report.lost_clients.is_empty() {
        LOST
    } else if broken || report.end == End::GaveUp || (failed && !excused) {
        FAILED
    } else {
        0
    })
}

/// A line of progress, on a terminal only.
struct Bar {
    terminal: bool,
}

impl Bar {
    fn new() -> Self {
        Self { terminal: std::io::stderr().is_terminal() }
    }

    fn show(&mut self, progress: &Progress) {
        if self.terminal {
            Self::print(&format!("\r\x1b[K{}", text::progress(progress)));
        }
    }

    fn clear(&mut self) {
        if self.terminal {
            Self::print("\r\x1b[K");
        }
    }

    fn print(text: &str) {
        // Without a reader there is no progress to show.
        let _ = write!(std::io::stderr(), "{text}");
        let _ = std::io::stderr().flush();
    }
}

#[cfg(test)]
mod tests;
