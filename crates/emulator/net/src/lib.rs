//! Network namespaces, links between them, and test traffic.
//!
//! ```text
//!   sandbox     runs a test or a process in its own namespaces
//!   namespace   one network namespace: runs a closure or a program in it
//!   link        veth pairs, bridges, addresses, routes
//!   delay       link delays (netem)
//!   sysctl      settings of a namespace
//!   program     how a program ended, or why it could not be executed
//!   star        a node and the hosts linked to it
//!   traffic     servers and clients that report who answered
//! ```
//!
//! File descriptors hold all resources, so the kernel removes them when the process ends, also after
//! a crash. They have no names in the file system, so runs cannot collide.
//!
//! Needs no programs such as `ip` or `nft`. Does not know packet filter rules or clusters
//! (`nearhop-lab` does).

// On other systems the crate is empty, so that the workspace still builds.
#![cfg(target_os = "linux")]

mod child;
pub mod delay;
mod error;
pub mod link;
pub mod namespace;
mod netlink;
pub mod program;
pub mod sandbox;
pub mod star;
pub mod sysctl;
pub mod traffic;

pub use crate::error::NetError;
pub use crate::namespace::Namespace;
pub use crate::star::Star;
