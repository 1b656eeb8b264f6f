//! What Kubernetes says of each kind: which resources there are, what it fills in, what it refuses,
//! and how it shows them. Values in, values out; time and chance are arguments.

pub mod allocate;
pub mod autoscaler;
pub mod builtin;
pub mod config;
pub mod crd;
pub mod discovery;
pub mod endpoints;
pub mod endpointslice;
pub mod event;
pub mod fields;
pub mod ip;
mod json;
pub mod metadata;
pub mod names;
pub mod namespace;
pub mod node;
pub mod openapi;
pub mod options;
pub mod pod;
pub mod resource;
pub mod scale;
pub mod service;
pub mod simple;
pub mod strategy;
pub mod table;
pub mod verb;
pub mod workload;

pub use resource::{Origin, Registry, Resource, SubresourceEntry};
pub use verb::{Subresource, Verb};
