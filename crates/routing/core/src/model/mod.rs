//! The objects that nearhop decides about, with only the fields that it reads.
//!
//! They correspond to the Kubernetes kinds of the same name, but contain only parsed values: an
//! unreadable address is already left out (see `nearhop-api`). The `problems` functions find values
//! that can be parsed but are invalid (a port 0, a zone name that a hint cannot have).

mod locator;
mod node;
mod pod;
mod service;
mod service_cidr;
mod slice;

pub use locator::Locator;
pub use node::{Namespace, Node, zone_of};
pub use pod::{Addresses, ContainerPort, Pod, PodDns, Second};
pub use service::{
    ClusterIps, DEFAULT_AFFINITY, LONGEST_AFFINITY, Service, ServicePort, ServiceType,
    SourceRanges, TargetPort, TopologySpec, TrafficPolicy,
};
pub use service_cidr::ServiceCidr;
pub use slice::{AddressType, Conditions, Endpoint, Hints, PodRef, Slice, SlicePort};

use crate::object::ObjectRef;
use crate::problem::{Problem, quote};

/// Whether a text can be a zone in a hint: a non-empty label value (the API server rejects other
/// values in `forZones`).
pub fn is_zone_name(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let outer = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.len() <= 63
        && text.chars().all(inner)
        && outer(text.chars().next())
        && outer(text.chars().next_back())
}

fn zone_problem(object: ObjectRef, field: String, zone: &str) -> Problem {
    Problem::new(
        object,
        field,
        format!("{} is not a zone name", quote(zone)),
        "use 1 to 63 letters, digits, '-', '_' or '.'; it counts as no zone until then",
    )
}
