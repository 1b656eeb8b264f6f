//! The parts of kube-controller-manager and kube-scheduler that a lab needs: Deployments,
//! ReplicaSets, DaemonSets, a scheduler, node health, and the default objects of each namespace.
//!
//! ```text
//!   watch    -> WatchBatch    list and watch of each kind
//!   cache    -> Change        objects from the watch and from responses to own writes
//!   affected -> Work          the decisions that a change requires
//!   work                      work items and their back-off
//!   deployment, replicaset, daemonset, scheduler, node, namespace -> Plan   decisions (pure)
//!   execute  -> Outcome       the only writer; responses go back into the caches
//!   run                       the event loop
//! ```
//!
//! Not implemented: leader election (two managers delete each other's surplus Pods and corrupt
//! nothing), StatefulSets, Jobs, volumes, quotas, preemption, and garbage collection by owner
//! reference, which the embedded API server does.

mod action;
mod affected;
mod affinity;
mod cache;
mod claim;
mod daemonset;
mod deployment;
mod execute;
mod kind;
mod namespace;
mod node;
mod object;
mod options;
mod pem;
mod pod;
mod quantity;
mod replicaset;
mod run;
mod scheduler;
mod state;
mod taint;
#[cfg(test)]
mod testing;
mod watch;
mod work;

pub use crate::options::{Controller, Controllers, Options, UnknownController};
pub use crate::pem::pem;
pub use crate::run::run;
