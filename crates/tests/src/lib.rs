//! Helpers of the test batteries: start a server, send requests to it, and replay recorded answers of a real server.
//!
//! The batteries themselves are in `tests/`, one file per subject; the recordings and tables they read are in `data/`.
//! Nothing here is part of the product, so failures are `anyhow` errors and panics happen only inside tests.

pub mod cluster;
pub mod dns;
pub mod http;
pub mod kubectl;
#[cfg(target_os = "linux")]
pub mod lab;
#[cfg(target_os = "linux")]
pub mod node;
// The oracle is in `tests/oracle`; it is compiled here, so that all batteries can use it.
#[path = "../tests/oracle/kep.rs"]
pub mod oracle;
#[cfg(target_os = "linux")]
pub mod pages;
pub mod replay;
pub mod rest;
pub mod scene;
pub mod server;
