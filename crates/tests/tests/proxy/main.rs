//! `nearhop proxy` on a node: real processes, the tables of the kernel, real packets.

#![cfg(target_os = "linux")]

mod beside;
mod faults;
mod flags;
mod health;
mod introspection;
mod lifecycle;
mod matrix;
mod metrics;
mod node_object;
mod restart;
mod sysctl;
mod topology;
mod udp;
mod without_api;
