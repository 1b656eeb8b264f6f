//! A cluster's network in a box.
//!
//! ```text
//!   net::sandbox     a test, or a whole process, in namespaces of its own
//!   net::namespace   one network namespace: run a closure or a program in it
//!   net::link        veth pairs, bridges, addresses, routes
//!   net::sysctl      settings of a namespace
//!   net::star        a node and the hosts around it, ready for packets
//!   net::traffic     servers and clients that say who answered whom
//! ```
//!
//! No daemon needs this crate, and it needs no program: neither `ip` nor `nft`. Deliberately not
//! here: packet filter rules, which are what is being tested.

#[cfg(target_os = "linux")]
pub mod net;
