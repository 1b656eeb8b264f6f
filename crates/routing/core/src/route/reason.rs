//! The reason for a chosen set of endpoints, as data.
//!
//! `explain dns`, the debug output and the metrics show these values; [`Tier::code`] is the stable
//! name for metric labels.

use std::fmt;

use crate::key::Name;
use crate::labels::well_known;

/// The tier of the chosen endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Endpoints with the node's value of a topology key.
    Key(Name),
    /// Any endpoint, because the topology keys end with `*`.
    AnyKey,
    /// The routing annotation, if it could not be used.
    Routing,
    /// Endpoints in the zones that have a weight for the node's zone.
    Weights,
    /// Endpoints hinted for this node.
    SameNode,
    /// Endpoints hinted for this zone.
    SameZone,
    /// All endpoints.
    All,
    /// Endpoints on this node, because the traffic policy is Local.
    Local,
    /// No endpoints: the topology keys are hard, and no endpoint matches.
    OutOfReach,
    /// No endpoints: none is usable.
    NoEndpoint,
}

impl Tier {
    /// A stable name for metric labels.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Key(_) => "key",
            Self::AnyKey => "any-key",
            Self::Routing => "routing",
            Self::Weights => "weights",
            Self::SameNode => "same-node",
            Self::SameZone => "same-zone",
            Self::All => "all",
            Self::Local => "local",
            Self::OutOfReach => "out-of-reach",
            Self::NoEndpoint => "no-endpoints",
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(key) => write!(f, "same {key}"),
            other => f.write_str(other.code()),
        }
    }
}

/// Why a tier was not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Miss {
    /// Slices with endpoints have different revisions of the routing annotation.
    RoutingDisagrees {
        /// A slice that differs from the others.
        slice: Name,
    },
    /// A slice has an invalid routing annotation.
    RoutingBroken {
        /// The slice.
        slice: Name,
    },
    /// The node does not have this label.
    NodeWithoutLabel(Name),
    /// No endpoint is on a node with the same value of this label.
    NoMatchingEndpoint {
        /// Label key.
        key: Name,
        /// The node's value.
        value: Name,
    },
    /// The node's zone has no row in the weight table.
    ZoneWithoutWeights(Name),
    /// The node has no zone.
    NodeWithoutZone,
    /// Some ready endpoints have no such hint, so all hints are ignored (KEP-2433 "Kube-Proxy").
    Unhinted {
        /// Number of endpoints without the hint.
        count: usize,
        /// Number of all ready endpoints.
        of: usize,
    },
    /// All endpoints have hints, but none for this place.
    HintedElsewhere,
    /// The feature gate is off.
    GateOff,
}

impl fmt::Display for Miss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RoutingDisagrees { slice } => {
                write!(f, "slice {slice} has another revision of the routing annotation")
            }
            Self::RoutingBroken { slice } => {
                write!(f, "the routing annotation of slice {slice} is invalid")
            }
            Self::NodeWithoutLabel(key) => write!(f, "this node has no label {key}"),
            Self::NoMatchingEndpoint { key, value } => {
                write!(f, "no ready endpoint has {key}={value}")
            }
            Self::ZoneWithoutWeights(zone) => write!(f, "zone {zone} has no weights"),
            Self::NodeWithoutZone => f.write_str("this node has no zone"),
            Self::Unhinted { count, of } => {
                write!(f, "{count} of {of} ready endpoints have no hint")
            }
            Self::HintedElsewhere => f.write_str("no endpoint has a hint for this node or zone"),
            Self::GateOff => f.write_str("the feature gate is off"),
        }
    }
}

/// The endpoints that a choice starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Candidates {
    /// Ready endpoints.
    Ready,
    /// No endpoint is ready: endpoints that terminate and still serve.
    ServingTerminating,
    /// No endpoints.
    None,
}

/// A tier that was tried and not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// The tier.
    pub tier: Tier,
    /// Why it was not used.
    pub miss: Miss,
}

/// The reason for a choice: the chosen tier, the candidates, and the tiers tried before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// The chosen tier.
    pub tier: Tier,
    /// The candidates.
    pub candidates: Candidates,
    /// The tiers tried before, nearest first. Tiers without a request or hints are not listed.
    pub tried: Vec<Tried>,
}

impl Reason {
    /// Why hard keys leave no endpoint: what each key misses, and that no other key is allowed.
    fn write_out_of_reach(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, tried) in self.tried.iter().enumerate() {
            f.write_str(if i == 0 { "" } else { ", " })?;
            match &tried.miss {
                Miss::NoMatchingEndpoint { key, value } if *key == well_known::ZONE => {
                    write!(f, "no ready endpoint in zone {value}")?;
                }
                Miss::NoMatchingEndpoint { key, value } if *key == well_known::HOSTNAME => {
                    write!(f, "no ready endpoint on node {value}")?;
                }
                miss => write!(f, "{miss}")?,
            }
        }
        let only_zone = |tried: &Tried| match &tried.tier {
            Tier::Key(key) => *key == well_known::ZONE,
            _ => false,
        };
        let other = if self.tried.iter().all(only_zone) { "zone" } else { "endpoint" };
        write!(f, ", and the keys allow no other {other}")
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.tier == Tier::OutOfReach {
            return self.write_out_of_reach(f);
        }
        write!(f, "{}", self.tier)?;
        if self.candidates == Candidates::ServingTerminating {
            f.write_str(" (terminating endpoints, because none is ready)")?;
        }
        for tried in &self.tried {
            write!(f, "; not {}: {}", tried.tier, tried.miss)?;
        }
        Ok(())
    }
}
