//! A small kubelet: it registers a Node and runs the Pods that are bound to it as processes, each
//! Pod in its own network namespace.
//!
//! ```text
//!   watch ──> run: the Pods of this node ──> pod::worker, one task per Pod
//!                                             │  machine: next actions (pure)
//!                                             │  launch: a container's processes
//!                                             └  prober: probes
//!   status, events <── workers            node: the Node and its Lease
//!   server: logs and exec on the kubelet port
//!   container: processes between the agent and a program     image: built-in programs
//! ```
//!
//! It works with any Kubernetes API server. A container runs programs of the host's file system, or
//! a built-in image: `nearhop/echo`, and images whose names end in `agnhost` or `pause`. Not
//! implemented: image pulls, limits of memory and CPU, `runAsUser`, persistent volumes, and
//! Services.

// The crate is empty on other systems than Linux, so that the workspace still builds.
#![cfg(target_os = "linux")]

mod addresses;
pub mod container;
mod etc_files;
#[cfg(test)]
mod fake_api;
pub mod image;
mod node;
mod options;
mod pod;
mod root_dir;
mod run;
mod server;
mod spawn;
mod status;
mod users;

pub use crate::options::{Clients, Options};
pub use crate::run::{AgentError, run};
pub use crate::server::ServeError;
