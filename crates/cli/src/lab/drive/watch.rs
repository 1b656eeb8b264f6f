//! `lab drive --watch`: one result per interval.

use std::io::{ErrorKind, IsTerminal as _, Write as _, stdout};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use jiff::Zoned;
use nearhop_lab::drive::report::{End, Report};
use nearhop_lab::drive::run::Drive;
use tokio::time::sleep_until;

use super::signals::Signals;
use super::{Args, exit_code, judged, text};
use crate::output::Output;

/// Moves the cursor to the corner and clears what follows.
const REDRAW: &str = "\x1b[H\x1b[J";

/// Whether a reader is left.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reader {
    Reads,
    Gone,
}

/// Repeats the drive until a signal or the end of `--duration`. The exit code is that of the first
/// interval that was not as wanted.
pub(super) async fn watch(
    args: &Args,
    mut drive: Drive,
    interval: Duration,
    signals: &Signals,
) -> anyhow::Result<ExitCode> {
    let end = args.amount.duration.map(|duration| Instant::now() + duration);
    let mut worst = ExitCode::SUCCESS;
    loop {
        let next = Instant::now() + interval;
        let report = judged(drive.run(signals.stop(), |_| {}).await?, &args.assertions);
        if report.end == End::Interrupted {
            return Ok(signals.code());
        }
        if worst == ExitCode::SUCCESS {
            worst = exit_code(&report, args);
        }
        if show(args, report, interval)? == Reader::Gone {
            return Ok(worst);
        }
        if end.is_some_and(|end| next >= end) {
            return Ok(worst);
        }
        tokio::select! {
            () = sleep_until(next.into()) => {}
            () = signals.stop().wait() => return Ok(signals.code()),
        }
        // New nodes, Pods and addresses. While the API server is down, the known ones are used.
        drive.refresh().await;
    }
}

fn show(args: &Args, report: Report, interval: Duration) -> anyhow::Result<Reader> {
    if args.output.output == Output::Json {
        return write(&format!("{}\n", serde_json::to_string(&report)?));
    }
    let time = Zoned::now().strftime("%H:%M:%S");
    let title = format!("Every {interval:?}: {}   {time}\n\n", report.service);
    let body = text::describe(&report);
    if stdout().is_terminal() {
        // Not through the writer below: without colours it would drop these codes, too. The next
        // write reports a closed terminal.
        let _ = stdout().write_all(REDRAW.as_bytes());
        return write(&format!("{title}{body}"));
    }
    write(&format!("{title}{body}\n"))
}

fn write(text: &str) -> anyhow::Result<Reader> {
    let mut out = anstream::AutoStream::auto(stdout().lock());
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(Reader::Reads),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(error) => Err(error).context("cannot write to standard output"),
    }
}
