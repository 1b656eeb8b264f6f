//! `nearhop explain dns`, `controller --once` and `--dry-run` on an embedded API server.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

mod command;

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::time::Instant;

use command::{nearhop, text};
use serde_json::Value;

/// An API server in memory. It is killed at the end of the test.
struct Server {
    process: Child,
    kubeconfig: PathBuf,
    log: PathBuf,
}

impl Server {
    fn start(test: &str) -> Self {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let kubeconfig = directory.join(format!("{test}.kubeconfig"));
        let log = directory.join(format!("{test}.log"));
        let _ = std::fs::remove_file(&kubeconfig);
        let args = ["apiserver", "--ephemeral", "--listen", ":0", "--kubeconfig-out"];
        let mut command = nearhop(&args);
        command.arg(&kubeconfig).stdout(Stdio::piped());
        let mut process = command.stderr(std::fs::File::create(&log).unwrap()).spawn().unwrap();
        // The server prints its address when it is ready.
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("listening on "), "{line}");
        Self { process, kubeconfig, log }
    }

    fn run(&self, args: &[&str]) -> Output {
        nearhop(args).arg("--kubeconfig").arg(&self.kubeconfig).output().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_file(&self.log);
    }
}

#[test]
fn an_unknown_name_shows_the_search_list_and_that_only_some_servers_forward_it() {
    let server = Server::start("unknown_name");
    let output = server.run(&["explain", "dns", "nosuch"]);
    let expected = "\
name     nosuch. A
client   not given (use --from-pod)
tried    nosuch.default.svc.cluster.local.  the name does not exist (NXDOMAIN)
         nosuch.svc.cluster.local.          the name does not exist (NXDOMAIN)
         nosuch.cluster.local.              the name does not exist (NXDOMAIN)
         nosuch.                            not a cluster name
answer   no cluster name matches; a DNS server with upstream servers forwards it, one without \
(such as the lab's) refuses it
";
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(1), expected));
    let output = server.run(&["explain", "dns", "nosuch", "-o", "json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["tried"].as_array().map(Vec::len), Some(4), "{report:#}");
    assert_eq!(report["tried"][0]["name"], "nosuch.default.svc.cluster.local.");
    // A fully qualified name has no search list.
    let output = server.run(&["explain", "dns", "example.com."]);
    let answer = text(&output.stdout);
    assert!(answer.contains("answer   not a cluster name; a DNS server with"), "{answer}");
    assert!(!answer.contains("tried"), "{answer}");
}

#[test]
fn a_short_name_that_exists_shows_only_its_answer() {
    let server = Server::start("short_name");
    let output = server.run(&["explain", "dns", "kubernetes"]);
    let answer = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{answer}");
    assert!(answer.starts_with("name     kubernetes.default.svc.cluster.local. A\n"), "{answer}");
    assert!(!answer.contains("tried"), "{answer}");
    // The second entry of the search list.
    let output = server.run(&["explain", "dns", "kubernetes.default"]);
    let answer = text(&output.stdout);
    assert!(answer.contains("tried    kubernetes.default.default.svc.cluster.local. "), "{answer}");
}

#[test]
fn an_api_server_that_is_gone_is_an_error_at_once() {
    let server = Server::start("gone");
    let kubeconfig = server.kubeconfig.clone();
    drop(server);
    let begun = Instant::now();
    let mut command = nearhop(&["explain", "dns", "web", "--kubeconfig"]);
    let output = command.arg(kubeconfig).output().unwrap();
    let message = "error: cannot reach the API server: Connection refused\n";
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(2), message));
    // Once it took as long as the initial lists may take: 15 s.
    assert!(begun.elapsed().as_secs() < 12, "{:?}", begun.elapsed());
}

#[test]
fn a_run_once_ends_with_the_release_of_the_lease() {
    let server = Server::start("once");
    let output = server.run(&["controller", "--once"]);
    let log = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{log}");
    let last = log.lines().last().unwrap_or_default();
    assert!(last.contains("done, lease released"), "{log}");
    assert!(!log.contains("leads=false") && !log.contains("holder=\"\""), "{log}");
    // The next candidate finds a Lease without a holder.
    let output = server.run(&["controller", "--once"]);
    let log = text(&output.stderr);
    assert!(log.contains("the lease is free") && !log.contains("holder=\"\""), "{log}");
}

#[test]
fn a_dry_run_in_json_lists_the_writes() {
    let server = Server::start("dry_run");
    let output = server.run(&["controller", "--dry-run", "-o", "json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{report:#}");
    assert_eq!((&report["services"], &report["writes"]), (&1.into(), &Value::Array(Vec::new())));
    let output = server.run(&["controller", "-o", "json"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--dry-run"));
}
