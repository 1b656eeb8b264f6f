//! Process plumbing that every daemon needs and none should write twice.
//!
//! ```text
//!   log       where lines go, how many of them
//!   metrics   one registry, the series that Kubernetes' dashboards look for
//!   server    a small HTTP server   admin   /healthz /livez /readyz /metrics on it
//!   health    named checks
//!   client    a kube client that is set up for daemons
//!   lease     who of several may act
//!   shutdown  signals               backoff how long to wait before the next attempt
//!   waits     the same for kube's watches
//!   supervise tasks and threads that must not die unnoticed
//!   interfaces  addresses of this machine
//!   pki       certificates made here    tls  what an API server and node agents do with them
//! ```
//!
//! Deliberately not here: anything about Services or slices, watching, and retrying for a caller,
//! who alone knows what is still worth doing.

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
pub mod waits;

pub use crate::error::RuntimeError;
