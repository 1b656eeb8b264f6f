//! What talks to an API, against the embedded one.

mod client;
mod cluster;
mod lease;
mod proxies;
mod proxy;
