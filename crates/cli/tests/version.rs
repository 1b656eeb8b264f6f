//! `nearhop version` and `nearhop --version`.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

mod command;

use command::{nearhop, text};
use serde_json::Value;

fn json(args: &[&str]) -> (Option<i32>, Value) {
    let output = nearhop(args).env("HOME", "/nonexistent").output().unwrap();
    let value = serde_json::from_slice(&output.stdout);
    (output.status.code(), value.expect("the output is JSON"))
}

#[test]
fn the_version_names_commit_date_and_compiler() {
    let (code, report) = json(&["version", "--client", "-o", "json"]);
    let build = &report["clientVersion"];
    assert_eq!((code, build["version"].as_str()), (Some(0), Some(env!("CARGO_PKG_VERSION"))));
    for field in ["profile", "target", "rustc"] {
        assert!(build[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {build}");
    }
    // Absent in a source tree without git.
    if let Some(commit) = build["commit"].as_str() {
        assert!(commit.len() >= 40, "{commit}");
        let short = text(&nearhop(&["--version"]).output().unwrap().stdout);
        assert!(short.contains(&commit[..12]), "{short}");
        assert_eq!(short.lines().count(), 1, "{short}");
    }
    assert!(report.get("serverVersion").is_none() && report.get("serverError").is_none());
}

#[test]
fn a_missing_cluster_is_said_and_is_no_error() {
    let (code, report) = json(&["version", "-o", "json"]);
    let why = report["serverError"].as_str().unwrap();
    assert_eq!(code, Some(0));
    assert!(why.contains("/nonexistent/.kube/config does not exist"), "{why}");
}

#[test]
fn a_named_cluster_that_does_not_answer_gives_exit_code_1() {
    let file = concat!(env!("CARGO_TARGET_TMPDIR"), "/unreachable.kubeconfig");
    let kubeconfig = "{current-context: a, contexts: [{name: a, context: {cluster: a}}], \
                      clusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}]}";
    std::fs::write(file, kubeconfig).unwrap();
    let output = nearhop(&["version", "--kubeconfig", file]).output().unwrap();
    let stdout = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{stdout}");
    assert!(stdout.starts_with("nearhop ") && stdout.contains("\nserver  unknown: "), "{stdout}");
    assert!(stdout.to_lowercase().contains("refused"), "{stdout}");
}
