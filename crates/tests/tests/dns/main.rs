//! The cluster's names over real sockets, asked by clients of other projects.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod changes;
mod outages;
mod places;
mod rows;
