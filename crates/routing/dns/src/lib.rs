//! Cluster DNS: the answers of `nearhop-core`, on the wire.
//!
//! ```text
//!   feed -> control -> state                        one writer, many readers
//!                        |
//!   packet -> wire -> answerer: place, answer ----> wire -> packet     (no effects)
//!                        |  not our name
//!                        v
//!                     forward: cache, other servers
//! ```
//!
//! `serve` has the sockets around it, [`run`] the life of the process. Deliberately absent:
//! which records there are and who gets which endpoints (`nearhop-core`), writes to the API, and a
//! resolver: other names are asked of other servers.

pub mod answerer;
mod control;
mod error;
pub mod forward;
pub mod limit;
pub mod metrics;
pub mod options;
pub mod place;
pub mod rbac;
pub mod readiness;
pub mod resolv_conf;
pub mod run;
pub mod serve;
pub mod state;
pub mod wire;

pub use error::DnsError;
