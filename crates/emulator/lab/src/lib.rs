//! A multi-zone cluster on one machine.
//!
//! ```text
//!   topology, ranges   nodes, zones and address ranges (values)
//!   config             the file of --config, with the places of its objects (a value)
//!   world              their network namespaces and links; cuts and heals links
//!   spec, daemon, args the processes and their flags; supervision and faults of one process
//!   enter, state       namespaces that end with their owner; the lab's directory
//!   lab, control       a running lab; requests to it
//!   kubeconfig, relay  access to the API from inside and outside the lab
//!   api_faults         faults that the API server injects
//!   admin              access to the metrics of all processes from outside the lab
//!   merge              the lab's kubeconfig in the user's
//!   serve              the life of a lab
//!   exec               commands in Pods and in the lab's networks
//!   cluster, apply     client of the API, objects as JSON; server-side apply
//!   leftovers          what an earlier lab has left in a data directory
//!   objects            a fixture's Services and Pods as API objects
//!   export             a running lab as a file
//!   logs, log_limit    reads the logs of the processes; limits their sizes
//!   ready              waits for a lab
//!   drive              opens connections and counts the Pods that answered
//!   demo               measures policies and compares with predictions
//! ```
//!
//! No daemon depends on this crate.

#![cfg(target_os = "linux")]

mod admin;
pub mod api_faults;
pub mod apply;
mod args;
pub mod cluster;
pub mod config;
pub mod control;
pub mod daemon;
pub mod demo;
mod dns;
pub mod drive;
pub mod enter;
mod error;
pub mod exec;
pub mod export;
mod kubeconfig;
pub mod lab;
mod leftovers;
mod log_limit;
pub mod logs;
pub mod merge;
mod objects;
mod pki;
pub mod ranges;
pub mod ready;
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
