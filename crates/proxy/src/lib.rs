//! The service proxy of one node.

pub mod engine;
pub mod kernel;
