//! Engine tests that run on the fake and on the kernel with the same expectations.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod batches;
mod claims;
mod equal;
mod exposure;
mod faults;
mod flows;
mod follow;
mod local_address;
mod looking;
mod net;
mod on;
mod random;
mod reach;
mod records;
mod replace;
mod settings;
mod share;
mod steps;
mod sticky;
mod weights;
