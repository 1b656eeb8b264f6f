//! Sandboxes and namespaces are separate from the machine and from each other.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::thread;

use nearhop_net::{Namespace, sandbox};

/// Makes `fails_if_requested` fail.
const FAIL: &str = "NEARHOP_LAB_FAIL";
/// Makes `prints_its_namespace_if_requested` print its network namespace.
const PRINT: &str = "NEARHOP_LAB_SAY";

fn network() -> PathBuf {
    std::fs::read_link("/proc/thread-self/ns/net").unwrap()
}

fn devices() -> Vec<String> {
    let table = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let names = table.lines().filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned()));
    names.collect()
}

/// The output of one test of this binary.
fn run_test(mut command: Command, test: &str, variable: &str) -> Output {
    command.args(["--exact", test, "--nocapture"]).env(variable, "yes").output().unwrap()
}

#[test]
fn a_sandbox_has_its_own_network_namespace() {
    sandbox::run("a_sandbox_has_its_own_network_namespace", || {
        assert_eq!(devices(), ["lo"]);
        let first = std::fs::read_link("/proc/self/ns/net").unwrap();
        assert_ne!(network(), first, "the main thread stays outside");
        assert_eq!(thread::scope(|s| s.spawn(network).join().unwrap()), network());
    });
}

#[test]
fn fails_if_requested() {
    sandbox::run("fails_if_requested", || {
        assert!(std::env::var_os(FAIL).is_none(), "the test fails as requested");
    });
}

#[test]
fn a_panic_in_the_sandbox_fails_the_test() {
    let output =
        run_test(Command::new(std::env::current_exe().unwrap()), "fails_if_requested", FAIL);
    let output_text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{output_text}");
    assert!(output_text.contains("the test fails as requested"), "{output_text}");
}

#[test]
fn a_wrong_test_name_is_reported() {
    let wrong = thread::Builder::new()
        .name("right".to_owned())
        .spawn(|| sandbox::run("wrong", || ()))
        .unwrap();
    let panic = wrong.join().unwrap_err();
    let message = panic.downcast_ref::<String>().unwrap();
    assert!(message.contains("`wrong`, but the test is `right`"), "{message}");
}

#[test]
fn namespaces_are_separate() {
    sandbox::run("namespaces_are_separate", || {
        let (a, b) = (Namespace::new("a").unwrap(), Namespace::new("b").unwrap());
        let seen = [network(), a.run(network), b.run(network)];
        assert!(seen[0] != seen[1] && seen[1] != seen[2] && seen[0] != seen[2], "{seen:?}");
        assert_eq!(a.run(|| Namespace::current().unwrap()).run(network), seen[1]);
        assert_eq!(a.run(devices), ["lo"]);
        assert_eq!(network(), seen[0], "the caller stays in its namespace");
        // `lo` is up: the kernel has a route to its address.
        a.run(|| std::net::UdpSocket::bind("127.0.0.1:0").unwrap().connect("127.0.0.1:9").unwrap());
    });
}

#[test]
fn a_panic_in_a_namespace_reaches_the_caller() {
    sandbox::run("a_panic_in_a_namespace_reaches_the_caller", || {
        let namespace = Namespace::new("a").unwrap();
        let work = || namespace.run(|| -> () { panic!("on purpose") });
        let panic = catch_unwind(AssertUnwindSafe(work)).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"on purpose"));
    });
}

#[test]
fn prints_its_namespace_if_requested() {
    if std::env::var_os(PRINT).is_some() {
        println!("network namespace {}", network().display());
    }
}

#[test]
fn a_command_runs_in_the_namespace() {
    sandbox::run("a_command_runs_in_the_namespace", || {
        let namespace = Namespace::new("a").unwrap();
        let command = namespace.command(std::env::current_exe().unwrap());
        let output = run_test(command, "prints_its_namespace_if_requested", PRINT);
        let output_text = String::from_utf8_lossy(&output.stdout);
        let there = format!("network namespace {}", namespace.run(network).display());
        assert!(output_text.contains(&there), "{there}: {output_text}");
    });
}
