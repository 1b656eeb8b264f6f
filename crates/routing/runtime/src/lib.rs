//! The parts of a process that every daemon needs.
//!
//! ```text
//!   log       format and verbosity of log lines
//!   metrics   one registry, with the series that Kubernetes dashboards use
//!   server    a small HTTP server   admin   /healthz /livez /readyz /metrics on it
//!   health    named checks
//!   client    a kube client for daemons, with: sender, one request and its failure; events, a
//!             recorder; versions, the known versions of what this process writes
//!   lease     leader election
//!   shutdown  signals               backoff how long to wait before the next attempt
//!   queue     a work queue with back-off
//!   supervise tasks and threads whose panic must end the process
//!   interfaces  addresses of this machine
//!   pki       creates certificates     tls  uses them between an API server and node agents
//! ```
//!
//! This crate knows nothing about Services or slices, does not watch, and does not retry writes of
//! objects: only the caller knows whether a retry is still useful. It retries only Kubernetes Events
//! (`EventRecorder`), the lease, and ports that are in use (`bind_with_retries`).

pub mod admin;
pub mod backoff;
pub mod client;
mod error;
pub mod health;
pub mod interfaces;
pub mod lease;
pub mod log;
pub mod metrics;
pub mod pki;
pub mod queue;
pub mod server;
pub mod shutdown;
pub mod supervise;
pub mod tls;

use std::error::Error;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

pub use crate::error::RuntimeError;

/// Locks a mutex whose value has no partial updates, so that a panic of another holder changes
/// nothing.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sleeps until `due`, or forever if there is none.
pub async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

/// An error with its causes: the outermost messages of kube and hyper say little.
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    for cause in causes(error).skip(1).map(ToString::to_string) {
        // Many errors repeat their cause in their own message.
        if !text.contains(&cause) {
            text += &format!(": {cause}");
        }
    }
    text
}

/// The innermost cause of an error.
pub fn root_cause(error: &dyn Error) -> String {
    causes(error).last().unwrap_or(error).to_string()
}

fn causes(error: &dyn Error) -> impl Iterator<Item = &dyn Error> {
    std::iter::successors(Some(error), |error| (*error).source())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_printed_once() {
        let cause = std::io::Error::other("connection refused");
        let error = kube::Error::Service(Box::new(cause));
        assert_eq!(error_chain(&error), "ServiceError: connection refused");
        assert_eq!(root_cause(&error), "connection refused");
    }
}
