//! Tests of the modules that use the API, against the embedded API.

mod client;
mod cluster;
mod lease;
mod proxies;
mod proxy;
