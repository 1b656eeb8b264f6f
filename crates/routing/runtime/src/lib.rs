//! The parts of a process that every daemon needs.
//!
//! ```text
//!   log       format and verbosity of log lines
//!   metrics   one registry, with the series that Kubernetes dashboards use
//!   server    a small HTTP server   admin   /healthz /livez /readyz /metrics on it
//!   health    named checks
//!   client    a kube client for daemons
//!   lease     leader election
//!   shutdown  signals               backoff how long to wait before the next attempt
//!   queue     a work queue with back-off
//!   supervise tasks and threads whose panic must end the process
//!   interfaces  addresses of this machine
//!   pki       creates certificates     tls  uses them between an API server and node agents
//! ```
//!
//! This crate knows nothing about Services or slices, does not watch, and does not retry: only the
//! caller knows whether a retry is still useful.

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

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use crate::error::RuntimeError;

/// Locks a mutex whose value has no partial updates, so that a panic of another holder changes
/// nothing.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
