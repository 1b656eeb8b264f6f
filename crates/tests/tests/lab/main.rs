//! Tests of a whole cluster: real packets through real proxies, Pods that are created and deleted, and
//! faults.
//!
//! Each test starts its own lab, except those of [`e2e`], which need only an API. Labs run one after
//! the other: some of these tests count seconds, and a machine with two cores is too slow for two labs.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod auth;
mod bad_input;
mod commands;
mod dns;
mod drive;
mod e2e;
mod endings;
mod environment;
mod exec;
mod faults;
mod files;
mod flows;
mod lifecycle;
mod local_dns;
mod memory;
mod pages;
mod robust;
mod rollout;
mod status;
mod sticky;
mod stuck;
mod walkthrough;

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;

/// Locks the machine for one lab; closing the file releases the lock.
fn lock_machine() -> File {
    let user = std::fs::metadata("/proc/self").unwrap().uid();
    let name = format!("nearhop-tests-lab-{user}.lock");
    let lock = File::create(std::env::temp_dir().join(name)).unwrap();
    lock.lock().unwrap();
    lock
}

/// Runs a test's body while no other lab runs.
fn run(body: impl Future<Output = anyhow::Result<()>>) {
    let _lock = lock_machine();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    if let Err(error) = runtime.block_on(body) {
        panic!("{error:#}");
    }
}
