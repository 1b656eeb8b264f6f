//! Just enough of kube-controller-manager and kube-scheduler for a pleasant lab: Deployments,
//! ReplicaSets, DaemonSets, a scheduler, the life of nodes, and what every namespace has.
//!
//! ```text
//!   watch   -> WatchEvent         everything that is read comes in here
//!   cache   -> Change        objects as the watch shows them and as our writes made them
//!   affected_work   -> Work          which decisions a change calls for
//!   queue                    which is next; pauses after failures
//!   deployment, replicaset, daemonset, scheduler, node, namespace -> Plan    the decisions, pure
//!   effect  -> Outcome        the one place that writes; answers go back into the caches
//!   run                      the loop
//! ```
//!
//! Deliberately not here: leader election (two of them undo each other's surplus and corrupt
//! nothing), StatefulSets, Jobs, volumes, quotas, preemption, and garbage collection by owner,
//! which the embedded API does itself.

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
mod queue;
mod replicaset;
mod run;
mod scheduler;
mod selector;
mod state;
mod taint;
mod tell;
#[cfg(test)]
mod testing;
mod watch;

pub use crate::options::{Controller, Controllers, Options, UnknownController};
pub use crate::pem::pem;
pub use crate::run::run;
