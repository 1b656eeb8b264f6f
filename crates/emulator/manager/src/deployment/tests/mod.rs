//! Rollouts in tables and in a simulated cluster.

mod properties;
mod sim;
mod tables;
