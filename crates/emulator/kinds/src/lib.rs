//! The kinds of Kubernetes. Write rules: `strategy`, a module per kind, `allocate`. Presentation:
//! `table`, `discovery`, `openapi`. All functions are pure; time and randomness are arguments.

pub mod allocate;
mod autoscaler;
pub mod builtin;
pub mod config;
pub mod crd;
pub mod discovery;
pub mod endpoints;
pub mod endpointslice;
mod errors;
pub mod event;
mod fields;
pub mod ip;
mod json;
pub mod metadata;
pub mod namespace;
mod node;
pub mod openapi;
pub mod options;
pub mod pod;
mod resource;
pub mod scale;
pub mod service;
mod simple;
pub mod strategy;
pub mod table;
mod verb;
mod workload;

pub use nearhop_object::names;
pub use resource::{Origin, Registry, Resource, SubresourceEntry};
pub use verb::{Subresource, Verb};
