//! nearhop's pure centre.
//!
//! Everything nearhop decides is decided here, as functions from values to values: what a Service
//! asks for ([`intent`]), which EndpointSlices and hints say so ([`mod@slice`], [`hint`]), and which
//! endpoints one node uses because of them ([`route`]). The reason travels with each decision.
//!
//! Deliberately absent: clocks, randomness, sockets, environment, Kubernetes wire types and maps
//! whose order depends on a seed. Time and place are arguments; conversion from the wire is
//! `nearhop-api`'s job.

pub mod answer;
pub mod cidr;
pub mod condition;
pub mod gate;
pub mod hint;
pub mod intent;
pub mod ip;
pub mod key;
pub mod labels;
pub mod locate;
pub mod model;
pub mod object;
pub mod plan;
pub mod problem;
pub mod quantity;
pub mod route;
pub mod routing;
pub mod slice;
pub mod world;

#[cfg(feature = "fixture")]
pub mod fixture;

pub use cidr::Cidr;
pub use condition::{Condition, ConditionStatus};
pub use gate::{Gate, Gates};
pub use intent::{Intent, IntentDecision};
pub use key::{EndpointKey, Family, Name, PodKey, Protocol, ServiceKey, ServicePortKey};
pub use labels::Labels;
pub use object::{Change, Kind, Object, ObjectRef};
pub use problem::{Problem, Subject};
pub use route::{RouteDecision, choose_route};
pub use slice::{SlicePlan, plan_slices};
pub use world::{Affected, World};
