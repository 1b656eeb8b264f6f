//! The DNS server over real sockets, with DNS clients of other projects.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod changes;
mod outages;
mod places;
mod rows;
