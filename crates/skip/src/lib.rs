//! Reports a test that cannot run on this machine as skipped.
//!
//! Rust's test harness knows only passed and failed at run time. A test that needs a program or a
//! kernel feature calls [`skip`] with the reason and returns. `cargo xtask test` collects these
//! reports through the file that [`REPORT`] names, subtracts them from the passed tests and prints
//! them by reason. A test that omits only a part of its checks is reported as skipped too.
//!
//! Only tests depend on this crate.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::panic::Location;

/// Environment variable with the path of the report, a file with one line per skipped test:
/// `BINARY::TEST<tab>REASON`.
pub const REPORT: &str = "NEARHOP_SKIPPED_TESTS";

/// Reports the running test as skipped.
///
/// # Panics
///
/// If [`REPORT`] names a file that cannot be written: the test would count as passed.
#[track_caller]
pub fn skip(reason: &str) {
    let test = format!("{}::{}", binary_name(), test_name(Location::caller()));
    let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    // Directly, because the harness hides what a passed test prints with `eprintln!`.
    let _closed = writeln!(std::io::stderr(), "skipped: {test}: {reason}");
    let Some(path) = std::env::var_os(REPORT) else { return };
    // One write of one line: tests run at the same time, in threads and in processes.
    let line = format!("{test}\t{reason}\n");
    let file = OpenOptions::new().create(true).append(true).open(&path);
    let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
    written.unwrap_or_else(|error| panic!("report `{test}` as skipped to {path:?}: {error}"));
}

/// The test executable without the hash that cargo appends to its name.
fn binary_name() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    match name.rsplit_once('-') {
        Some((name, hash)) if hash.bytes().all(|byte| byte.is_ascii_hexdigit()) => name.to_owned(),
        _ => name,
    }
}

/// The harness names a test's thread after the test, or runs a single test (`--exact NAME`, as
/// nextest calls it) on the main thread. From any other thread the caller's line replaces the name.
fn test_name(caller: &Location<'_>) -> String {
    let thread = std::thread::current();
    match thread.name() {
        Some(name) if name != "main" && !name.starts_with("tokio") => return name.to_owned(),
        _ => {}
    }
    let mut arguments = std::env::args().skip(1);
    let exact = arguments.any(|argument| argument == "--exact");
    let mut names = std::env::args().skip(1).filter(|argument| !argument.starts_with('-'));
    match (exact, names.next(), names.next()) {
        (true, Some(name), None) => name,
        _ => format!("{}:{}", caller.file(), caller.line()),
    }
}
