//! The service proxy of one node: the decisions of `nearhop-core`, kept in the kernel.
//!
//! ```text
//!   feed -> control: world, routes, who waits                       (no effects)
//!             |  which Services
//!             v
//!           family_sync, one for each family -> engine -> kernel           (one batch)
//!             |  who lost endpoints
//!             v
//!           release, sweep -> conntrack                           (who is still stuck to them)
//! ```
//!
//! [`run`] is the loop around it: one closed set of events and one match. Beside it [`health`]
//! (who may ask how it is), `observe` (what it does with a Service, and why) and [`metrics`].
//!
//! Deliberately absent: decisions about topology (`nearhop-core`), what rules look like
//! (`nearhop-netfilter`), other nodes, and everything that writes to the API but events.

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
