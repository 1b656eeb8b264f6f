//! The engine, on the fake and on the kernel, with the same expectations.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod claims;
mod exposure;
mod follow;
mod looking;
mod on;
mod settings;
mod steps;
