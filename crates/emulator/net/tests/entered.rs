//! A separate program that enters a sandbox, as benches and the lab do.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[cfg(target_os = "linux")]
fn main() {
    use nearhop_net::sandbox::SandboxError;
    use nearhop_net::{Namespace, sandbox};

    let network = || std::fs::read_link("/proc/thread-self/ns/net").unwrap();
    let before = network();
    sandbox::enter().unwrap_or_else(|error| panic!("{error}"));
    assert_ne!(network(), before, "the process has a new network namespace");

    let elsewhere = std::thread::spawn(network).join().unwrap();
    assert_eq!(elsewhere, network(), "new threads are in the same namespace");
    assert_ne!(Namespace::new("next").unwrap().run(network), network());

    let late = std::thread::scope(|scope| scope.spawn(sandbox::enter).join().unwrap());
    assert!(matches!(late, Err(SandboxError::Threads { threads: 2 })), "{late:?}");
}

#[cfg(not(target_os = "linux"))]
fn main() {}
