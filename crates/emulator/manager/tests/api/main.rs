//! The manager on the embedded API server, with created nodes and a simulated kubelet.

mod cluster;
mod faults;
mod kubectl;
mod kubelet;
mod nodes;
mod scheduling;
mod workloads;
