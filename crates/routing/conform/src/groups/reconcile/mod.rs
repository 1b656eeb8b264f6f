//! Complete plans: the input is Pods and existing slices, the output is the writes of a controller.

mod bench;
mod metrics;
mod packing;
mod placeholder;
mod rows;
mod topology;

pub(super) use packing::packing;
pub(super) use placeholder::placeholder;
pub(super) use rows::{finalize, missing_node, single_pod};
pub(super) use topology::{topology_hints, traffic_distribution};
