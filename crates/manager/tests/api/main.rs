//! The manager on the embedded API, with hand-made nodes and a kubelet that only pretends.

mod cluster;
mod kubelet;
mod workloads;
