//! The hidden commands of clients inside the lab.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args as ClapArgs;
use nearhop_lab::drive::hold::{self, Hold};
use nearhop_lab::drive::worker::work as perform;
use nearhop_lab::drive::worker::{Attempt, Job, Message, work_and_report};
use nearhop_runtime::shutdown::{Shutdown, Trigger};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::daemon::block_on;
use crate::output::announce;

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

    /// Send the counts while it runs, to this Unix socket or with `-` to standard output, and stop
    /// when that side, or standard input, sends or closes.
    #[arg(long, value_name = "PATH", conflicts_with = "lines")]
    report_to: Option<PathBuf>,

    /// The first line to the socket.
    #[arg(long, value_name = "N", default_value_t = 0)]
    number: usize,
}

/// Performs the job and prints its tally.
pub(crate) fn work(args: &WorkerArgs) -> anyhow::Result<ExitCode> {
    if let Some(path) = &args.report_to {
        block_on(report_to(path, args))?;
        return Ok(ExitCode::SUCCESS);
    }
    let lines = args.lines;
    let on_attempt = move |attempt: &Attempt| {
        if lines {
            print_line(attempt);
        }
    };
    let (_trigger, endless) = Shutdown::manual();
    let tally = block_on(async { Ok(perform(&args.job, &endless, on_attempt).await) })?;
    if !lines {
        let text = serde_json::to_string(&tally).context("a tally is plain data")?;
        writeln!(std::io::stdout(), "{text}")?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn report_to(path: &Path, args: &WorkerArgs) -> anyhow::Result<()> {
    if path == Path::new("-") {
        return report(&args.job, tokio::io::stdin(), tokio::io::stdout()).await;
    }
    let mut stream = UnixStream::connect(path)
        .await
        .with_context(|| format!("cannot connect to {}", path.display()))?;
    stream.write_all(format!("{}\n", args.number).as_bytes()).await?;
    let (read, write) = stream.into_split();
    report(&args.job, read, write).await
}

async fn report(
    job: &Job,
    input: impl AsyncRead + Unpin + Send + 'static,
    mut output: impl AsyncWrite + Unpin,
) -> anyhow::Result<()> {
    let (trigger, stop) = Shutdown::manual();
    tokio::spawn(stop_on_input(input, trigger));
    let send = async |message: Message| -> anyhow::Result<()> {
        let mut line = serde_json::to_string(&message).context("counts are plain data")?;
        line.push('\n');
        output.write_all(line.as_bytes()).await?;
        Ok(output.flush().await?)
    };
    work_and_report(job, &stop, send).await
}

async fn stop_on_input(mut input: impl AsyncRead + Unpin, trigger: Trigger) {
    // Any input, its end and an error mean the same.
    let _ = input.read(&mut [0]).await;
    trigger.request();
}

fn print_line(attempt: &Attempt) {
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
