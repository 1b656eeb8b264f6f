//! The kernel's connection tracking, without a socket: flows as values, requests as bytes, and which
//! flows must go.
//!
//! ```text
//!   flow      a message          -> Flow (messages are cut in `wire`)
//!   view      what this node knows of its frontends and their endpoints
//!   plan      flows, view        -> which are stale and why, how many were kept
//!   request   dump, delete       -> bytes
//! ```
//!
//! Deliberately absent: TCP (a connection ends by itself, and resetting one is never our business),
//! counters and timeouts of flows, and any request that could empty the table.

pub mod flow;
pub mod plan;
pub mod request;
pub mod view;

pub use flow::{Ends, Flow};
pub use plan::{Judgement, Plan, Stale, Why, judge, plan_deletions};
pub use request::{delete_flow, dump};
pub use view::{Endpoints, FlowEligibility, Rehome, Sets, View};
