//! One step of a pipeline: a command that is run, timed and remembered.
//!
//! A test step's output is shown as it comes and also read, so that the counts can be repeated at
//! the end of a long log. Steps know nothing of each other; order and failure are the pipeline's
//! business.

use std::env;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::Verdict;

/// Which lines of a step's output are worth repeating in the summary.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Keep {
    Nothing,
    /// The summary lines of nextest and of the standard test harness.
    TestCounts,
    /// The last line on standard output, where a report puts its total.
    LastLine,
}

#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) command: Command,
    pub(crate) keep: Keep,
}

#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) name: &'static str,
    pub(crate) verdict: Verdict,
    pub(crate) took: Duration,
    pub(crate) kept: Vec<String>,
}

impl Step {
    pub(crate) fn run(mut self) -> Result<Done> {
        let started = announce(self.name);
        let (verdict, kept) = match self.keep {
            Keep::Nothing => (run_plain(&mut self.command), Vec::new()),
            keep => match run_teed(&mut self.command) {
                Ok((verdict, output)) => (Ok(verdict), kept_lines(keep, &output)),
                Err(error) => (Err(error), Vec::new()),
            },
        };
        let verdict = verdict.with_context(|| format!("step `{}` could not be run", self.name))?;
        Ok(Done { name: self.name, verdict, took: started.elapsed(), kept })
    }
}

/// The same bookkeeping for work that is done in this process.
pub(crate) fn run_inline(
    name: &'static str,
    work: impl FnOnce() -> Result<Verdict>,
) -> Result<Done> {
    let started = announce(name);
    let verdict = work().with_context(|| format!("step `{name}` could not be run"))?;
    Ok(Done { name, verdict, took: started.elapsed(), kept: Vec::new() })
}

/// The cargo that started us, so that a step never runs under another toolchain.
pub(crate) fn cargo() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")))
}

fn announce(name: &str) -> Instant {
    // Standard error, where cargo's own lines go: the order in a log is then the order of events.
    eprintln!("\n==> {name}");
    Instant::now()
}

fn run_plain(command: &mut Command) -> Result<Verdict> {
    let status = command.status()?;
    Ok(Verdict::from_success(status.success()))
}

#[derive(Debug, Default)]
struct Output {
    stdout: Vec<String>,
    stderr: Vec<String>,
}

fn run_teed(command: &mut Command) -> Result<(Verdict, Output)> {
    // Behind a pipe cargo would drop its colours; keep them for someone who is watching.
    if io::stderr().is_terminal() && env::var_os("CARGO_TERM_COLOR").is_none() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let stdout = child.stdout.take().expect("stdout was piped above");
    let stderr = child.stderr.take().expect("stderr was piped above");
    // Both at once: a child that fills the pipe nobody reads would wait forever.
    let (stdout, stderr) = thread::scope(|scope| {
        let errors = scope.spawn(|| copy_lines(stderr, &mut io::stderr()));
        let lines = copy_lines(stdout, &mut io::stdout());
        (lines, errors.join().expect("copying lines does not panic"))
    });
    let output = Output { stdout: stdout?, stderr: stderr? };
    let status = child.wait()?;
    Ok((Verdict::from_success(status.success()), output))
}

fn copy_lines(from: impl Read, to: &mut impl Write) -> io::Result<Vec<String>> {
    let mut reader = BufReader::new(from);
    let mut lines = Vec::new();
    loop {
        let mut line = Vec::new();
        if reader.read_until(b'\n', &mut line)? == 0 {
            return Ok(lines);
        }
        to.write_all(&line)?;
        to.flush()?;
        lines.push(String::from_utf8_lossy(&line).trim_end().to_owned());
    }
}

fn kept_lines(keep: Keep, output: &Output) -> Vec<String> {
    match keep {
        Keep::Nothing => Vec::new(),
        Keep::TestCounts => {
            let all = output.stderr.iter().chain(&output.stdout);
            all.filter(|line| is_test_count(line)).cloned().collect()
        }
        Keep::LastLine => {
            let mut lines = output.stdout.iter().rev();
            let last = lines.find(|line| !line.trim().is_empty());
            last.cloned().into_iter().collect()
        }
    }
}

fn is_test_count(line: &str) -> bool {
    // A colour code may stand between the words, so each is looked for by itself.
    let nextest = line.contains("Summary") && line.contains(" run: ");
    let harness = line.contains("test result: ");
    // One line per target: those without tests say nothing.
    let empty = line.contains(" 0 passed; 0 failed");
    nextest || (harness && !empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(stdout: &[&str], stderr: &[&str]) -> Output {
        let own = |lines: &[&str]| lines.iter().map(ToString::to_string).collect();
        Output { stdout: own(stdout), stderr: own(stderr) }
    }

    #[test]
    fn keeps_the_counts_of_both_runners_and_drops_empty_targets() {
        let counted = "test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";
        let empty = "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";
        let nextest = "\u{1b}[32;1m     Summary\u{1b}[0m [   0.1s] \u{1b}[1m3\u{1b}[0m tests run: 3 passed, 0 skipped";
        let output = output(&["running 12 tests", counted, empty], &[nextest]);
        assert_eq!(kept_lines(Keep::TestCounts, &output), [nextest, counted]);
    }

    #[test]
    fn keeps_the_last_line_that_says_something() {
        let output = output(&["one", "total", "", " "], &["noise"]);
        assert_eq!(kept_lines(Keep::LastLine, &output), ["total"]);
        assert!(kept_lines(Keep::LastLine, &Output::default()).is_empty());
    }

    #[test]
    fn copies_what_it_reads_byte_for_byte() {
        let mut copy = Vec::new();
        let lines = copy_lines(&b"a\r\nb\xff\nlast"[..], &mut copy).unwrap();
        assert_eq!(copy, b"a\r\nb\xff\nlast");
        assert_eq!(lines, ["a", "b\u{fffd}", "last"]);
    }
}
