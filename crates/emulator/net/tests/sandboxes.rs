//! Sandboxes and namespaces: apart from the machine and from each other.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::thread;

use nearhop_net::{Namespace, sandbox};

/// Makes `fails_on_purpose` fail.
const FAIL: &str = "NEARHOP_LAB_FAIL";
/// Makes `says_where_it_is` speak.
const SAY: &str = "NEARHOP_LAB_SAY";

fn network() -> PathBuf {
    std::fs::read_link("/proc/thread-self/ns/net").unwrap()
}

fn devices() -> Vec<String> {
    let table = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let names = table.lines().filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned()));
    names.collect()
}

/// This binary with one test.
fn only(mut command: Command, test: &str, variable: &str) -> Output {
    command.args(["--exact", test, "--nocapture"]).env(variable, "yes").output().unwrap()
}

#[test]
fn a_sandbox_has_a_network_of_its_own() {
    sandbox::run("a_sandbox_has_a_network_of_its_own", || {
        assert_eq!(devices(), ["lo"]);
        let first = std::fs::read_link("/proc/self/ns/net").unwrap();
        assert_ne!(network(), first, "the process's first thread stays outside");
        assert_eq!(thread::scope(|s| s.spawn(network).join().unwrap()), network());
    });
}

#[test]
fn fails_on_purpose() {
    sandbox::run("fails_on_purpose", || {
        assert!(std::env::var_os(FAIL).is_none(), "it was asked to fail");
    });
}

#[test]
fn a_body_that_panics_fails_its_test() {
    let output = only(Command::new(std::env::current_exe().unwrap()), "fails_on_purpose", FAIL);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("it was asked to fail"), "{said}");
}

#[test]
fn a_wrong_name_is_told() {
    let wrong = thread::Builder::new()
        .name("right".to_owned())
        .spawn(|| sandbox::run("wrong", || ()))
        .unwrap();
    let panic = wrong.join().unwrap_err();
    let message = panic.downcast_ref::<String>().unwrap();
    assert!(message.contains("`wrong`, but the test is `right`"), "{message}");
}

#[test]
fn namespaces_are_apart() {
    sandbox::run("namespaces_are_apart", || {
        let (a, b) = (Namespace::new("a").unwrap(), Namespace::new("b").unwrap());
        let seen = [network(), a.run(network), b.run(network)];
        assert!(seen[0] != seen[1] && seen[1] != seen[2] && seen[0] != seen[2], "{seen:?}");
        assert_eq!(a.run(|| Namespace::current().unwrap()).run(network), seen[1]);
        assert_eq!(a.run(devices), ["lo"]);
        assert_eq!(network(), seen[0], "the caller stays where it was");
        // `lo` is up: an address of it answers.
        a.run(|| std::net::UdpSocket::bind("127.0.0.1:0").unwrap().connect("127.0.0.1:9").unwrap());
    });
}

#[test]
fn a_panic_inside_goes_on_outside() {
    sandbox::run("a_panic_inside_goes_on_outside", || {
        let namespace = Namespace::new("a").unwrap();
        let work = || namespace.run(|| -> () { panic!("on purpose") });
        let panic = catch_unwind(AssertUnwindSafe(work)).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"on purpose"));
    });
}

#[test]
fn says_where_it_is() {
    if std::env::var_os(SAY).is_some() {
        println!("it is in {}", network().display());
    }
}

#[test]
fn a_command_runs_inside() {
    sandbox::run("a_command_runs_inside", || {
        let namespace = Namespace::new("a").unwrap();
        let command = namespace.command(std::env::current_exe().unwrap());
        let output = only(command, "says_where_it_is", SAY);
        let said = String::from_utf8_lossy(&output.stdout);
        let there = format!("it is in {}", namespace.run(network).display());
        assert!(said.contains(&there), "{there}: {said}");
    });
}
