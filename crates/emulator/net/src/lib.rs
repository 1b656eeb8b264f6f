//! Networks in a box: namespaces, the links between them, and traffic through them.
//!
//! ```text
//!   sandbox     a test, or a whole process, in namespaces of its own
//!   namespace   one network namespace: run a closure or a program in it
//!   link        veth pairs, bridges, addresses, routes
//!   delay       links that take their time
//!   sysctl      settings of a namespace
//!   star        a node and the hosts around it, ready for packets
//!   traffic     servers and clients that say who answered whom
//! ```
//!
//! Everything here is held by file descriptors: what nobody holds any longer vanishes by itself,
//! also after a crash. Nothing is named in the file system, so runs cannot meet each other.
//!
//! It needs no program: neither `ip` nor `nft`. Deliberately not here: packet filter rules, which
//! are what is being tested, and clusters, which are `nearhop-lab`'s.

// Namespaces are Linux's; elsewhere the crate is empty, so that the workspace still builds.
#![cfg(target_os = "linux")]

mod child;
pub mod delay;
mod error;
pub mod link;
pub mod namespace;
mod netlink;
pub mod sandbox;
pub mod star;
pub mod sysctl;
pub mod traffic;

pub use crate::error::NetError;
pub use crate::namespace::Namespace;
pub use crate::star::Star;
