//! The nftables and conntrack parts that nearhop needs, without a socket.
//!
//! ```text
//!   RouteTable -> compile -> Program (frontends of one Service)
//!                              |  desired: all Services of a family, the owner of each frontend
//!                              v
//!                            Changes -> Batch -> wire (bytes) -> the kernel   (other crate)
//!   content of the kernel -> wire (bytes) -> reconcile(DesiredTable, KernelState) -> Changes
//! ```
//!
//! Deliberately absent: a socket, a clock, and every decision about topology.

pub mod affinity;
pub mod chain;
pub mod changes;
pub mod compile;
pub mod config;
pub mod conntrack;
pub mod desired;
pub mod draw;
pub mod element;
pub mod frontend;
pub mod layout;
pub mod object;
pub mod reconcile;
pub mod records;
pub mod slots;
pub mod wire;
