//! Network namespaces, the links between them, and traffic through them.
//!
//! Everything here is held by file descriptors: what nobody holds any longer vanishes by itself,
//! also after a crash. Nothing is named in the file system, so runs cannot meet each other.

mod child;
mod error;
pub mod link;
pub mod namespace;
mod netlink;
pub mod sandbox;
pub mod star;
pub mod sysctl;
pub mod traffic;

pub use crate::net::error::NetError;
pub use crate::net::namespace::Namespace;
pub use crate::net::star::Star;
