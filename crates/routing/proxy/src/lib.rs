//! The service proxy of one node: writes the routes of `nearhop-core` to the kernel.
//!
//! ```text
//!   feed -> control: cluster state, routes, pending changes               (no effects)
//!             |  changed Services
//!             v
//!           family_sync, one for each family -> engine -> kernel           (one batch)
//!             |  frontends that lost endpoints
//!             v
//!           release: affinity records; sweep: conntrack flows             (stale ones deleted)
//! ```
//!
//! [`run`] is the event loop. Beside it are [`health`] (probes and health check ports), `observe`
//! (what the proxy does with a Service, and why) and [`metrics`].
//!
//! Deliberately absent: decisions about topology (`nearhop-core`), the layout of the rules
//! (`nearhop-netfilter`), other nodes, and writing to the API, except events.

pub mod cleanup;
pub mod conntrack;
mod control;
pub mod engine;
mod error;
mod family_sync;
mod flow_eligibility;
pub mod health;
pub mod kernel;
mod lock;
pub mod metrics;
mod monitor;
mod observe;
pub mod options;
mod pace;
pub mod rbac;
pub mod release;
mod repairs;
pub mod run;
mod sweep;
pub mod sysctl;
mod trigger;

pub use error::ProxyError;
pub use lock::{Lock, LockError};
