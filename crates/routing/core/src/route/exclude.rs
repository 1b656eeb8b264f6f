//! Why an endpoint is not in a chosen set: the reason for the choice, for one endpoint.

use std::fmt;

use super::choose::RouteSet;
use super::collect::RouteEndpoint;
use super::reason::{Candidates, Tier};
use crate::key::Name;

/// Why an endpoint is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exclusion {
    /// It is not ready.
    NotReady,
    /// It terminates, and other endpoints are ready.
    Terminating,
    /// It is on another node, and the traffic policy is Local.
    OtherNode(Option<Name>),
    /// It is hinted for other nodes.
    HintedForNodes(Vec<Name>),
    /// It is hinted for other zones.
    HintedForZones(Vec<Name>),
    /// Its node has another value of the deciding topology key, or none.
    OtherValue(Name),
    /// Its zone has no weight for this node's zone.
    NoWeight(Option<Name>),
    /// It shares no topology key with this node, and the keys are hard.
    OutOfReach,
    /// Its address is in several slices, and another entry is used.
    Twice,
}

impl fmt::Display for Exclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |names: &[Name]| names.iter().map(Name::as_str).collect::<Vec<_>>().join(", ");
        match self {
            Self::NotReady => f.write_str("it is not ready"),
            Self::Terminating => f.write_str("it terminates, and others are ready"),
            Self::OtherNode(Some(node)) => write!(f, "it is on node {node}, the policy is Local"),
            Self::OtherNode(None) => f.write_str("its node is not known, the policy is Local"),
            Self::HintedForNodes(nodes) => write!(f, "it is hinted for node {}", list(nodes)),
            Self::HintedForZones(zones) => write!(f, "it is hinted for zone {}", list(zones)),
            Self::OtherValue(key) => write!(f, "its node does not share this node's {key}"),
            Self::NoWeight(Some(zone)) => write!(f, "zone {zone} has no weight from here"),
            Self::NoWeight(None) => f.write_str("it has no zone, so no weight"),
            Self::OutOfReach => f.write_str("it shares no topology key with this node"),
            Self::Twice => f.write_str("another endpoint with the same address is used"),
        }
    }
}

/// Returns why an endpoint of the port is not in `set`; `None` if it is in the set.
pub fn explain_excluded(endpoint: &RouteEndpoint<'_>, set: &RouteSet) -> Option<Exclusion> {
    if set.backends.iter().any(|backend| backend.key == endpoint.key) {
        return None;
    }
    let usable = match set.reason.candidates {
        Candidates::Ready => endpoint.ready,
        Candidates::ServingTerminating => endpoint.serving && endpoint.terminating,
        Candidates::None => endpoint.is_usable(),
    };
    // For the local set, endpoints of other nodes are never candidates.
    let is_local_set = matches!(set.reason.tier, Tier::Local)
        || (matches!(set.reason.tier, Tier::NoEndpoint) && usable);
    if is_local_set && !endpoint.local {
        return Some(Exclusion::OtherNode(endpoint.endpoint.node.clone()));
    }
    if !usable {
        let ends = endpoint.terminating && endpoint.serving;
        return Some(if ends { Exclusion::Terminating } else { Exclusion::NotReady });
    }
    Some(match &set.reason.tier {
        Tier::SameNode => Exclusion::HintedForNodes(endpoint.endpoint.hint_nodes().to_vec()),
        Tier::SameZone => Exclusion::HintedForZones(endpoint.endpoint.hint_zones().to_vec()),
        Tier::Key(key) => Exclusion::OtherValue(key.clone()),
        Tier::Weights => Exclusion::NoWeight(endpoint.endpoint.zone.clone()),
        Tier::OutOfReach => Exclusion::OutOfReach,
        Tier::All | Tier::AnyKey | Tier::Routing | Tier::Local | Tier::NoEndpoint => {
            Exclusion::Twice
        }
    })
}
