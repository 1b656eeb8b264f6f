//! The manager on the embedded API, with hand-made nodes and a kubelet that only pretends.

mod cluster;
mod faults;
mod kubectl;
mod kubelet;
mod nodes;
mod scheduling;
mod workloads;
