//! Cluster DNS: serves the answers of `nearhop-core` over UDP and TCP.
//!
//! ```text
//!   feed -> update -> state                                one writer, many readers
//!                       |
//!   packet -> wire -> answerer: client_location, answer -> wire -> packet     (no I/O)
//!                       |  name outside the cluster
//!                       v
//!                     forward: cache, upstream servers
//! ```
//!
//! `serve` owns the sockets, [`run`] the life of the process. This crate does not decide which
//! records exist or which endpoints a client gets (`nearhop-core` does), does not write to the API
//! and does not resolve names recursively: it forwards them.

pub mod answerer;
pub mod client_location;
mod error;
pub mod forward;
pub mod metrics;
pub mod options;
mod rate_limit;
pub mod rbac;
pub mod readiness;
pub mod resolv_conf;
pub mod run;
pub mod serve;
pub mod state;
mod update;
pub mod wire;

pub use error::DnsError;
