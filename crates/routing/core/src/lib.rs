//! The decisions of nearhop, as pure functions.
//!
//! This crate makes all decisions of nearhop: what a Service requests ([`intent`]), which
//! EndpointSlices and hints express it ([`mod@slice`], [`hint`]), and which endpoints one node uses
//! because of them ([`route`]). Each decision contains its reason.
//!
//! The crate uses no clocks, randomness, sockets, environment variables, Kubernetes wire types or
//! maps with random order. Time and place are arguments; `nearhop-api` converts the wire types.

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
