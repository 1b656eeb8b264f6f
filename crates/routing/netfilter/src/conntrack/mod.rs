//! The kernel's connection tracking, without a socket: flows as values, encoded requests, and the
//! decision which flows are stale.
//!
//! ```text
//!   flow      a message          -> Flow (`wire` splits bytes into messages)
//!   view      the frontends of this node and their endpoints
//!   plan      flows, view        -> the stale flows with reasons, the number of others
//!   request   dump, delete       -> bytes
//! ```
//!
//! Deliberately absent: TCP (a connection ends by itself, and the proxy never resets one), counters
//! and timeouts of flows, and any request that could delete all flows.

pub mod flow;
pub mod plan;
pub mod request;
pub mod view;

pub use flow::{Ends, Flow};
pub use plan::{Judgement, Plan, Stale, Why, judge};
pub use request::{delete_flow, dump};
pub use view::{Endpoints, FlowEligibility, Rehome, View};
