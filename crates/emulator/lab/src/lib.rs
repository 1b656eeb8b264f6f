//! A cluster in a box.
//!
//! ```text
//!   topology, ranges   which nodes there are, where they stand, which addresses they use (values)
//!   world              from there to namespaces and links; cuts and heals them
//!   spec, daemon       which processes that means; one of them, kept running and disturbed
//!   enter, state       a world of one's own that ends with its owner; the directory it writes to
//!   lab, control       all of it together; what is asked of it while it runs
//!   kubeconfig, relay  how the API is reached from outside and inside
//!   serve              a lab from its start to its end
//!   cluster            the API, objects as JSON
//!   objects            a fixture's Services and Pods as API objects
//!   drive              connections, counted by who answered
//!   demo               policies measured beside their predictions
//! ```
//!
//! No daemon needs this crate.

#![cfg(target_os = "linux")]

pub mod cluster;
pub mod control;
pub mod daemon;
pub mod demo;
pub mod dns;
pub mod drive;
pub mod enter;
mod error;
mod kubeconfig;
pub mod lab;
pub mod objects;
mod pki;
pub mod ranges;
mod relay;
pub mod serve;
pub mod spec;
pub mod state;
pub mod topology;
pub mod world;

pub use crate::error::LabError;
pub use crate::lab::Lab;
pub use crate::spec::Spec;
pub use crate::topology::Topology;
