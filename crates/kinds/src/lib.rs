//! What Kubernetes says of each kind: which resources there are, what it fills in, what it refuses,
//! and how it shows them. Values in, values out; time and chance are arguments.

mod initial_status;
mod json;
pub mod workload;
pub mod strategy;
pub mod simple;
pub mod scale;
pub mod rules;
pub mod pod;
pub mod options;
pub mod node;
pub mod namespace;
pub mod metadata;
pub mod fields;
pub mod event;
pub mod allocate;
pub mod config;
pub mod endpoints;
pub mod endpointslice;
pub mod ip;
pub mod service;
pub mod names;
pub mod builtin;
pub mod discovery;
pub mod table;
pub mod openapi;
pub mod resource;
pub mod crd;

pub use resource::{Origin, Registry, Resource, Subresource};
