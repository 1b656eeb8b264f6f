//! A very small kubelet: it registers a Node and runs the Pods that are bound to it as processes,
//! each pod in a network of its own.
//!
//! ```text
//!   watch ──> run: who is on this node ──> pod::worker, one task a pod
//!                                             │  machine: what is to be done (pure)
//!                                             │  launch: a container's processes
//!                                             └  probes
//!   status, events <── what the workers say         node: the Node and its Lease
//!   server: logs and exec, as a kubelet serves them
//!   container: the processes between the agent and a program     image: built-in programs
//! ```
//!
//! It joins any Kubernetes API server. A container runs programs of the host's file system, or one
//! of the built-in images: `nearhop/echo`, and what ends in `agnhost` or `pause`. Deliberately not
//! here: registries and images, limits of memory and CPU, users that a pod chooses, storage other
//! than files of the pod's own, and anything about Services.

// Namespaces are Linux's; elsewhere the crate is empty, so that the workspace still builds.
#![cfg(target_os = "linux")]

mod addresses;
pub mod container;
mod etc_files;
mod events;
#[cfg(test)]
mod fake_api;
pub mod image;
mod node;
pub mod options;
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
