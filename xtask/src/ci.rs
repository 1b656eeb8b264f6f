//! The two pipelines: `test` and `ci`.
//!
//! A failed step does not stop the later ones: one run shows everything that is wrong. The report
//! at the end repeats each step's verdict, duration and test counts, lists the skipped tests by
//! reason, and ends with `N passed, N failed, N skipped`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Result;

use crate::Verdict;
use crate::step::{self, Counts, Done, Keep, Step};
use crate::{rootless, tidy};

pub(crate) fn run_tests(root: &Path, args: &[OsString]) -> Result<Verdict> {
    let done = run_steps(test_steps(root, find_runner(root), args))?;
    Ok(report(&done))
}

pub(crate) fn run_all(root: &Path) -> Result<Verdict> {
    let mut done = run_steps(test_steps(root, find_runner(root), &[]))?;
    done.extend(rootless::run(root, &binary(), &report_of_skips())?);
    done.extend(run_steps(lint_steps(root))?);
    done.push(step::run_inline("tidy", || tidy::run(root))?);
    Ok(report(&done))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Runner {
    Nextest,
    /// Part of every toolchain.
    CargoTest,
}

fn find_runner(root: &Path) -> Runner {
    let mut probe = cargo_in(root, &["nextest", "--version"]);
    let found = probe.stdout(Stdio::null()).stderr(Stdio::null()).status();
    match found {
        Ok(status) if status.success() => Runner::Nextest,
        _ => Runner::CargoTest,
    }
}

/// The `nearhop` executable beside this one, which the test build of the workspace creates. A
/// separate build would use other features of the dependencies and compile them again.
fn binary() -> PathBuf {
    let me = std::env::current_exe().unwrap_or_default();
    me.with_file_name("nearhop").with_extension(std::env::consts::EXE_EXTENSION)
}

/// The file to which the tests of a step report that they were skipped.
fn report_of_skips() -> PathBuf {
    std::env::temp_dir().join(format!("nearhop-skipped-tests-{}", std::process::id()))
}

/// Uses only the default targets: `--all-targets` would run the benches as tests. The runner
/// continues after a failure, so that one run shows all failures.
fn test_steps(root: &Path, runner: Runner, args: &[OsString]) -> Vec<Step> {
    // `--workspace` would win over the packages that the caller names.
    let names_packages = args.iter().any(|arg| arg == "-p" || arg == "--package");
    let all: &[&str] = if names_packages { &[] } else { &["--workspace"] };
    let mut steps = match runner {
        Runner::Nextest => vec![
            counted(
                "tests",
                cargo_in(root, &[&["nextest", "run", "--no-fail-fast"], all].concat()),
            ),
            // nextest does not run doc tests.
            counted("doc tests", cargo_in(root, &["test", "--workspace", "--doc"])),
        ],
        Runner::CargoTest => {
            vec![counted("tests", cargo_in(root, &[&["test", "--no-fail-fast"], all].concat()))]
        }
    };
    steps[0].command.args(args).env("NEARHOP_BINARY", binary());
    // Runs the executable, so that this step also tests the command.
    let mut conform = Command::new(binary());
    conform.current_dir(root).args(["conform", "conformance/cases"]);
    steps.push(Step { name: "conformance", command: conform, keep: Keep::LastLine });
    steps
}

fn lint_steps(root: &Path) -> Vec<Step> {
    let mut docs = cargo_in(root, &["doc", "--workspace", "--no-deps"]);
    docs.env("RUSTDOCFLAGS", "-D warnings");
    vec![
        uncounted("format", cargo_in(root, &["fmt", "--all", "--check"])),
        uncounted(
            "clippy",
            cargo_in(root, &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]),
        ),
        uncounted("docs", docs),
    ]
}

fn cargo_in(root: &Path, args: &[&str]) -> Command {
    let mut command = step::cargo();
    command.current_dir(root).args(args);
    command
}

fn counted(name: &'static str, command: Command) -> Step {
    Step { name, command, keep: Keep::TestCounts(report_of_skips()) }
}

fn uncounted(name: &'static str, command: Command) -> Step {
    Step { name, command, keep: Keep::Nothing }
}

fn run_steps(steps: Vec<Step>) -> Result<Vec<Done>> {
    steps.into_iter().map(Step::run).collect()
}

fn report(done: &[Done]) -> Verdict {
    let mut counts = Counts::default();
    done.iter().for_each(|step| counts.add(&step.counts));
    eprint!("\n{}{}", render_report(done), render_skipped(&counts));
    // Programs parse this line.
    println!("{} passed, {} failed, {} skipped", counts.passed, counts.failed, counts.skipped());
    let clean = done.iter().all(|step| step.verdict == Verdict::Clean);
    Verdict::from_success(clean)
}

fn render_report(done: &[Done]) -> String {
    let mut text = String::new();
    for step in done {
        let verdict = match step.verdict {
            Verdict::Clean => "ok",
            Verdict::Failed => "FAILED",
        };
        let took = seconds(step.took);
        text += &format!("{:<12} {verdict:<6} {took:>8}\n", step.name);
        for line in &step.kept {
            text += &format!("    {}\n", line.trim_start());
        }
    }
    let failed: Vec<&str> =
        done.iter().filter(|step| step.verdict == Verdict::Failed).map(|step| step.name).collect();
    if !failed.is_empty() {
        text += &format!("failed: {}\n", failed.join(", "));
    }
    text
}

/// Each reason with its tests.
fn render_skipped(counts: &Counts) -> String {
    let mut text = String::new();
    for (reason, tests) in &counts.skipped {
        text += &format!("skipped: {reason} ({})\n", tests.len());
        for test in tests {
            text += &format!("    {test}\n");
        }
    }
    text
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(steps: &[Step]) -> Vec<String> {
        let words = |step: &Step| {
            let args = step.command.get_args();
            args.map(|arg| arg.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
        };
        steps.iter().map(words).collect()
    }

    const CONFORM: &str = "conform conformance/cases";

    #[test]
    fn extra_arguments_go_only_to_the_test_runner() {
        let args = [OsString::from("route")];
        assert_eq!(
            lines(&test_steps(Path::new("."), Runner::Nextest, &args)),
            ["nextest run --no-fail-fast --workspace route", "test --workspace --doc", CONFORM]
        );
        assert_eq!(
            lines(&test_steps(Path::new("."), Runner::CargoTest, &args)),
            ["test --no-fail-fast --workspace route", CONFORM]
        );
        let one = ["-p", "xtask"].map(OsString::from);
        let steps = test_steps(Path::new("."), Runner::Nextest, &one);
        assert_eq!(lines(&steps)[0], "nextest run --no-fail-fast -p xtask");
    }

    #[test]
    fn the_report_names_failed_steps_and_repeats_the_counts() {
        let done = |name, verdict, kept: &[&str]| Done {
            name,
            verdict,
            took: Duration::from_millis(1250),
            kept: kept.iter().map(ToString::to_string).collect(),
            counts: Counts::default(),
        };
        let text = render_report(&[
            done("tests", Verdict::Clean, &["  3 tests run: 3 passed"]),
            done("format", Verdict::Failed, &[]),
        ]);
        assert_eq!(
            text,
            "tests        ok        1.2 s\n    3 tests run: 3 passed\nformat       FAILED    1.2 s\nfailed: format\n"
        );
    }

    #[test]
    fn skipped_tests_are_listed_by_reason() {
        let mut counts = Counts::default();
        let skipped = ["lab::a", "lab::b"].map(str::to_owned).to_vec();
        counts.skipped.insert("kubectl is not installed".to_owned(), skipped);
        assert_eq!(
            render_skipped(&counts),
            "skipped: kubectl is not installed (2)\n    lab::a\n    lab::b\n"
        );
    }
}
