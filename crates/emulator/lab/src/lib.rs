//! A multi-zone cluster on one machine.
//!
//! ```text
//!   topology, ranges   nodes, zones and address ranges (values)
//!   world              their network namespaces and links; cuts and heals links
//!   spec, daemon       the processes and their flags; supervision and faults of one process
//!   enter, state       namespaces that end with their owner; the lab's directory
//!   lab, control       a running lab; requests to it
//!   kubeconfig, relay  access to the API from inside and outside the lab
//!   serve              the life of a lab
//!   exec               commands in Pods and in the lab's networks
//!   cluster            client of the API, objects as JSON
//!   objects            a fixture's Services and Pods as API objects
//!   drive              opens connections and counts the Pods that answered
//!   demo               measures policies and compares with predictions
//! ```
//!
//! No daemon depends on this crate.

#![cfg(target_os = "linux")]

pub mod cluster;
pub mod control;
pub mod daemon;
pub mod demo;
mod dns;
pub mod drive;
pub mod enter;
mod error;
pub mod exec;
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
