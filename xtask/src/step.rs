//! One step of a pipeline: runs a command, and returns its duration and its result.
//!
//! A test step prints the output of its command at once, and reads the counts from it for the report
//! at the end. Steps are independent: the pipeline decides their order and the effect of a failure.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::Verdict;

/// The environment variable with the file to which skipped tests report; `crates/skip` has the same
/// name.
const SKIPPED_TESTS: &str = "NEARHOP_SKIPPED_TESTS";

/// The part of a step's output that the report repeats.
#[derive(Clone, Debug)]
pub(crate) enum Keep {
    Nothing,
    /// The summary lines of nextest and of the standard test harness, and the skipped tests. The
    /// path is the file that the tests report to; the step removes it.
    TestCounts(PathBuf),
    /// The last line on standard output, where a report puts its total.
    LastLine,
}

/// Tests by outcome.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    /// The names of the tests by reason. The harness counts them as passed; `passed` does not.
    pub(crate) skipped: BTreeMap<String, Vec<String>>,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        for (reason, tests) in &other.skipped {
            self.skipped.entry(reason.clone()).or_default().extend(tests.iter().cloned());
        }
    }

    pub(crate) fn skipped(&self) -> usize {
        self.skipped.values().map(Vec::len).sum()
    }
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
    /// The counts of a test step; zero for other steps.
    pub(crate) counts: Counts,
}

impl Step {
    pub(crate) fn run(mut self) -> Result<Done> {
        let started = announce(self.name);
        if let Keep::TestCounts(report) = &self.keep {
            self.command.env(SKIPPED_TESTS, report);
        }
        let (verdict, output) = match self.keep {
            Keep::Nothing => {
                run_plain(&mut self.command).map(|verdict| (verdict, Output::default()))
            }
            Keep::TestCounts(_) | Keep::LastLine => run_teed(&mut self.command),
        }
        .with_context(|| format!("step `{}` could not be run", self.name))?;
        let kept = kept_lines(&self.keep, &output);
        let counts = match &self.keep {
            Keep::TestCounts(report) => count_tests(&kept, &take_report(report)?, verdict),
            Keep::Nothing | Keep::LastLine => Counts::default(),
        };
        Ok(Done { name: self.name, verdict, took: started.elapsed(), kept, counts })
    }
}

/// Runs a step in this process.
pub(crate) fn run_inline(
    name: &'static str,
    work: impl FnOnce() -> Result<Verdict>,
) -> Result<Done> {
    let started = announce(name);
    let verdict = work().with_context(|| format!("step `{name}` could not be run"))?;
    Ok(Done { name, verdict, took: started.elapsed(), kept: Vec::new(), counts: Counts::default() })
}

/// The cargo that started this program, so that all steps use the same toolchain.
pub(crate) fn cargo() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")))
}

fn announce(name: &str) -> Instant {
    // cargo prints to standard error, too, so the lines of a log are in the right order.
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
    // cargo prints no colours into a pipe; keep them on a terminal.
    if io::stderr().is_terminal() && env::var_os("CARGO_TERM_COLOR").is_none() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let stdout = child.stdout.take().expect("stdout is piped");
    let stderr = child.stderr.take().expect("stderr is piped");
    // Reads both pipes at the same time, because a child blocks on a full pipe.
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

/// Reads and removes the file that the tests reported to; there is none if no test was skipped.
fn take_report(path: &Path) -> Result<String> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        text => text.with_context(|| format!("read the skipped tests in {}", path.display()))?,
    };
    fs::remove_file(path)?;
    Ok(text)
}

/// Counts from the summary lines and the report of skipped tests. A step that failed without a
/// summary line, because it did not compile, counts as one failure.
fn count_tests(lines: &[String], report: &str, verdict: Verdict) -> Counts {
    let mut counts = Counts::default();
    for line in lines {
        let (passed, failed) = count_line(line);
        counts.passed += passed;
        counts.failed += failed;
    }
    for line in report.lines() {
        let (test, reason) = line.split_once('\t').unwrap_or((line, "no reason given"));
        let tests = counts.skipped.entry(reason.to_owned()).or_default();
        // A test may omit several parts for the same reason. Without the test's name there is
        // only a line of a file, which several tests may share.
        if test.contains(".rs:") || !tests.iter().any(|known| known == test) {
            tests.push(test.to_owned());
        }
    }
    counts.passed = counts.passed.saturating_sub(counts.skipped());
    if verdict == Verdict::Failed {
        counts.failed = counts.failed.max(1);
    }
    counts
}

/// Passed and failed tests of one summary line:
/// `Summary [ 0.1s] 5 tests run: 3 passed (1 slow), 1 failed, 1 timed out, 0 skipped` of nextest,
/// `test result: ok. 12 passed; 0 failed; 0 ignored; ...` of the standard harness.
fn count_line(line: &str) -> (usize, usize) {
    let (mut passed, mut failed) = (0, 0);
    let plain = strip_colours(line);
    let words: Vec<&str> =
        plain.split([' ', ',', ';', '(', ')']).filter(|w| !w.is_empty()).collect();
    for pair in words.windows(2) {
        let Ok(count) = pair[0].parse::<usize>() else { continue };
        match pair[1] {
            "passed" => passed += count,
            // nextest: "1 timed out", "1 exec failed".
            "failed" | "timed" | "exec" => failed += count,
            _ => {}
        }
    }
    (passed, failed)
}

/// The text without `ESC [ ... m`.
fn strip_colours(text: &str) -> String {
    let mut parts = text.split("\u{1b}[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').map_or(part, |(_, rest)| rest))
}

fn kept_lines(keep: &Keep, output: &Output) -> Vec<String> {
    match keep {
        Keep::Nothing => Vec::new(),
        Keep::TestCounts(_) => {
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
    // A colour code may separate the words.
    let nextest = line.contains("Summary") && line.contains(" run: ");
    let harness = line.contains("test result: ");
    // One line per target; targets without tests are left out.
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
    fn counts_of_both_runners_are_kept_and_empty_targets_dropped() {
        let counted = "test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";
        let empty = "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";
        let nextest = "\u{1b}[32;1m     Summary\u{1b}[0m [   0.1s] \u{1b}[1m3\u{1b}[0m tests run: 3 passed, 0 skipped";
        let output = output(&["running 12 tests", counted, empty], &[nextest]);
        let keep = Keep::TestCounts(PathBuf::new());
        assert_eq!(kept_lines(&keep, &output), [nextest, counted]);
    }

    #[test]
    fn skipped_tests_are_subtracted_from_the_passed_ones() {
        let lines = [
            "\u{1b}[32m Summary\u{1b}[0m [ 9s] \u{1b}[1m8\u{1b}[0m tests run: \u{1b}[1m5\u{1b}[0m \u{1b}[32;1mpassed\u{1b}[0m (1 slow), 1 failed, 1 timed out, 1 exec failed, 7 skipped",
            "test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out",
        ]
        .map(str::to_owned);
        let report = "lab::a\tkubectl is not installed\nlab::b\tno IPv6\n\
                      lab::c\tkubectl is not installed\nlab::a\tkubectl is not installed\n";
        let counts = count_tests(&lines, report, Verdict::Failed);
        assert_eq!((counts.passed, counts.failed, counts.skipped()), (14, 3, 3));
        assert_eq!(counts.skipped["kubectl is not installed"], ["lab::a", "lab::c"]);
    }

    #[test]
    fn a_step_that_does_not_compile_counts_as_one_failure() {
        let counts = count_tests(&[], "", Verdict::Failed);
        assert_eq!((counts.passed, counts.failed, counts.skipped()), (0, 1, 0));
    }

    #[test]
    fn a_test_step_reads_and_removes_the_report_of_skips() {
        let report = env::temp_dir().join(format!("nearhop-xtask-{}", std::process::id()));
        let script = format!("printf 'a::b\\tno kernel\\n' >> ${SKIPPED_TESTS}");
        let mut command = Command::new("sh");
        command.args(["-c", &script]);
        let keep = Keep::TestCounts(report.clone());
        let done = Step { name: "fake", command, keep }.run().unwrap();
        assert_eq!(done.counts.skipped["no kernel"], ["a::b"]);
        assert!(!report.exists());
    }

    #[test]
    fn the_last_non_empty_line_is_kept() {
        let output = output(&["one", "total", "", " "], &["noise"]);
        assert_eq!(kept_lines(&Keep::LastLine, &output), ["total"]);
        assert!(kept_lines(&Keep::LastLine, &Output::default()).is_empty());
    }

    #[test]
    fn lines_are_copied_byte_for_byte() {
        let mut copy = Vec::new();
        let lines = copy_lines(&b"a\r\nb\xff\nlast"[..], &mut copy).unwrap();
        assert_eq!(copy, b"a\r\nb\xff\nlast");
        assert_eq!(lines, ["a", "b\u{fffd}", "last"]);
    }
}
