//! What only a whole cluster shows: real packets through real proxies, Pods that come and go, and
//! everything that can fail.
//!
//! Each test has a lab of its own, but for those of [`e2e`], which need nothing but an API. Labs
//! run one after the other: some of these tests count seconds, and a machine with two cores has
//! none to spare for a neighbour.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod auth;
mod bad_input;
mod commands;
mod dns;
mod e2e;
mod endings;
mod faults;
mod flows;
mod local_dns;
mod rollout;
mod sticky;
mod walkthrough;

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;

/// The machine, for one lab: the lock goes with the file.
fn alone() -> File {
    let user = std::fs::metadata("/proc/self").unwrap().uid();
    let name = format!("nearhop-tests-lab-{user}.lock");
    let lock = File::create(std::env::temp_dir().join(name)).unwrap();
    lock.lock().unwrap();
    lock
}

/// Runs a test's body, with the machine to itself.
fn run(body: impl Future<Output = anyhow::Result<()>>) {
    let _alone = alone();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    if let Err(error) = runtime.block_on(body) {
        panic!("{error:#}");
    }
}
