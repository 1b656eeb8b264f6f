//! The program `nearhop conform`: exit codes, the last line, standard output and standard error.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const CASES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../conformance/cases");

fn nearhop(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearhop"));
    command
        .env_remove("NEARHOP_CONFORM_ONLY")
        .env_remove("NEARHOP_OUTPUT")
        .arg("conform")
        .args(args);
    command
}

fn run(args: &[&str]) -> Output {
    nearhop(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn last_line(output: &Output) -> String {
    text(&output.stdout).lines().last().unwrap_or_default().to_owned()
}

/// A separate directory for one test.
fn scratch(name: &str, files: &[(&str, &str)]) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&dir);
    for (path, content) in files {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    dir
}

const GOOD: &str =
    r#"{"group": "find_port", "cases": [{"id": "a", "target_port": 1, "expect": {"port": 1}}]}"#;
const BAD: &str =
    r#"{"group": "find_port", "cases": [{"id": "b", "target_port": 1, "expect": {"port": 2}}]}"#;

#[test]
fn the_cases_of_the_repository_pass() {
    let output = run(&[CASES]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    let last = last_line(&output);
    assert!(last.ends_with(" passed, 0 failed, 0 skipped"), "{last}");
    assert!(!text(&output.stdout).contains("unknown groups"));
    assert!(output.stderr.is_empty());
}

#[test]
fn a_difference_is_printed_with_exit_code_1() {
    let dir = scratch("difference", &[("x/bad.json", BAD), ("a.json", GOOD), ("note.txt", "{")]);
    let output = run(&[dir.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(last_line(&output), "1 passed, 1 failed, 0 skipped");
    assert!(text(&output.stdout).contains("b: expect.port: expected 2, got 1"));
}

#[test]
fn an_invalid_file_gives_exit_code_1_and_the_others_run() {
    let dir = scratch("unusable", &[("a.json", GOOD), ("broken.json", "{"), ("list.json", "[]")]);
    let output = run(&[dir.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(last_line(&output), "1 passed, 2 failed, 0 skipped");
    assert!(text(&output.stdout).contains("broken.json: not JSON"));
}

#[test]
fn usage_errors_exit_2() {
    let empty = scratch("empty", &[("readme.md", "nothing here")]);
    let file = scratch("usage", &[("a.json", GOOD)]).join("a.json");
    let (empty, file) = (empty.to_str().unwrap(), file.to_str().unwrap());
    for (args, message) in [
        (vec![], "FILE_OR_DIR"),
        (vec!["/no/such/path"], "/no/such/path"),
        (vec!["--frobnicate", file], "--frobnicate"),
        (vec!["-o", "yaml", file], "yaml"),
        (vec![empty], "no *.json files"),
        (vec!["--only", "find_prot", file], "find_prot; groups: find_port"),
    ] {
        let output = run(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains(message), "{args:?}: {}", text(&output.stderr));
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn only_runs_the_requested_groups() {
    let output = run(&["--only", "find_port", "--only", "hints_enabled", CASES]);
    assert_eq!(last_line(&output), "20 passed, 0 failed, 0 skipped");
    let output =
        nearhop(&[CASES]).env("NEARHOP_CONFORM_ONLY", "find_port,dns_apex").output().unwrap();
    assert_eq!(last_line(&output), "19 passed, 0 failed, 0 skipped");
}

#[test]
fn json_output_is_one_document_and_the_summary_goes_to_stderr() {
    let dir =
        scratch("json", &[("bad.json", BAD), ("future.json", r#"{"group":"x","cases":[1]}"#)]);
    let output = run(&["-o", "json", dir.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["passed"], &report["failed"]), (&Value::from(0), &Value::from(1)));
    assert_eq!(report["skipped_groups"][0], "x");
    assert_eq!(report["groups"][0]["group"], "find_port");
    let failure = &report["failures"][0];
    assert_eq!((failure["id"].as_str(), failure["group"].as_str()), (Some("b"), Some("find_port")));
    assert_eq!(failure["path"], "expect.port");
    assert_eq!((&failure["expected"], &failure["actual"]), (&Value::from(2), &Value::from(1)));
    assert_eq!(text(&output.stderr), "0 passed, 1 failed, 1 skipped\n");
    let twin = nearhop(&[dir.to_str().unwrap()]).env("NEARHOP_OUTPUT", "json").output().unwrap();
    assert_eq!(twin.stdout, output.stdout);
}

#[test]
fn a_closed_pipe_ends_quietly() {
    let mut child =
        nearhop(&[CASES]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!((child.wait().unwrap().code(), stderr.as_str()), (Some(0), ""));
}

/// If standard error cannot be written, the message is lost, but the exit code stays the same.
#[test]
fn a_full_standard_error_does_not_change_the_exit_code() {
    let full = || fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let json = nearhop(&["-o", "json", CASES]).stderr(full()).output().unwrap();
    assert_eq!(json.status.code(), Some(0));
    assert!(serde_json::from_slice::<Value>(&json.stdout).is_ok());
    let missing = nearhop(&["no/such/path"]).stderr(full()).output().unwrap();
    assert_eq!(missing.status.code(), Some(2));
}
