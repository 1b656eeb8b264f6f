//! Runs this binary again with one test that skips itself, in each way a harness calls a test.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

use nearhop_skip::{REPORT, skip};

const INNER: &str = "NEARHOP_SKIP_INNER";

fn is_inner() -> bool {
    std::env::var_os(INNER).is_some()
}

mod inner {
    #[test]
    fn needs_a_program() {
        if super::is_inner() {
            super::skip("the program\n  is not installed");
        }
    }

    #[test]
    fn needs_a_kernel() {
        if super::is_inner() {
            super::skip("the kernel is old");
        }
    }
}

/// The report of an inner run with these arguments, sorted, and its standard error.
fn run(arguments: &[&str]) -> (Vec<String>, String) {
    let directory = tempfile::tempdir().unwrap();
    let report = directory.path().join("report");
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args(arguments).env(INNER, "1").env(REPORT, &report).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = std::fs::read_to_string(report).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    (lines, String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_skipped_test_is_reported_with_its_name_and_reason() {
    let program = "report::inner::needs_a_program\tthe program is not installed";
    let kernel = "report::inner::needs_a_kernel\tthe kernel is old";
    // As `cargo test` runs several tests.
    let (lines, errors) = run(&["inner::", "--test-threads=2"]);
    assert_eq!(lines, [kernel, program]);
    let shown = "skipped: report::inner::needs_a_kernel: the kernel is old\n";
    assert!(errors.contains(shown), "the harness hides it: {errors}");
    // As nextest runs each test.
    let (lines, _) = run(&["--exact", "inner::needs_a_program", "--nocapture"]);
    assert_eq!(lines, [program]);
    // As xtask runs the tests of an unprivileged user.
    let (lines, _) = run(&["inner::", "--test-threads=1"]);
    assert_eq!(lines, [kernel, program]);
}

#[test]
fn a_test_fails_if_its_skip_cannot_be_reported() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "inner::needs_a_kernel"]).env(INNER, "1");
    let output = command.env(REPORT, "/no/such/directory/report").output().unwrap();
    assert!(!output.status.success(), "{output:?}");
}
