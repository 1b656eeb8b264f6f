//! Why a set of endpoints was chosen, as data.
//!
//! Kernel comments, `explain`, conditions, events, metrics and the dashboard are renderings of
//! these values; the `code` functions give the stable words for labels and exit messages.

use std::fmt;

use crate::key::Name;

/// Which endpoints were chosen, in words of topology.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Those with the node's value of a topology key.
    Key(Name),
    /// Any, because the topology keys end with `*`.
    AnyKey,
    /// Whatever the routing annotation says, which could not be used.
    Routing,
    /// Those the weight table names for the node's zone.
    Weights,
    /// Those hinted for this node.
    SameNode,
    /// Those hinted for this zone.
    SameZone,
    /// All.
    All,
    /// Those on this node, because the traffic policy says Local.
    Local,
    /// None: hard topology keys and nothing in reach.
    OutOfReach,
    /// None: there are no usable endpoints.
    Nobody,
}

impl Tier {
    /// A stable word for labels.
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
            Self::Nobody => "nobody",
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
    /// Slices that hold endpoints carry different revisions of the routing annotation.
    RoutingDisagrees {
        /// A slice that differs from the others.
        slice: Name,
    },
    /// A slice's routing annotation could not be read.
    RoutingBroken {
        /// That slice.
        slice: Name,
    },
    /// The node has no such label.
    NodeWithoutLabel(Name),
    /// No endpoint's node has the node's value of this label.
    NobodyThere {
        /// Label key.
        key: Name,
        /// The node's value.
        value: Name,
    },
    /// The node's zone has no row in the weight table.
    ZoneWithoutWeights(Name),
    /// The node has no zone.
    NodeWithoutZone,
    /// Some ready endpoints carry no such hint, so none counts (KEP-2433 "Kube-Proxy").
    Unhinted {
        /// How many.
        count: usize,
        /// Of how many.
        of: usize,
    },
    /// Every endpoint is hinted, but none for this place.
    HintedElsewhere,
    /// The feature gate is off.
    GateOff,
}

impl Miss {
    /// A stable word for labels.
    pub fn code(&self) -> &'static str {
        match self {
            Self::RoutingDisagrees { .. } => "routing-disagrees",
            Self::RoutingBroken { .. } => "routing-broken",
            Self::NodeWithoutLabel(_) => "node-without-label",
            Self::NobodyThere { .. } => "nobody-there",
            Self::ZoneWithoutWeights(_) => "zone-without-weights",
            Self::NodeWithoutZone => "node-without-zone",
            Self::Unhinted { .. } => "unhinted",
            Self::HintedElsewhere => "hinted-elsewhere",
            Self::GateOff => "gate-off",
        }
    }
}

impl fmt::Display for Miss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RoutingDisagrees { slice } => {
                write!(f, "slice {slice} carries another revision of the routing")
            }
            Self::RoutingBroken { slice } => {
                write!(f, "the routing of slice {slice} is not readable")
            }
            Self::NodeWithoutLabel(key) => write!(f, "this node has no label {key}"),
            Self::NobodyThere { key, value } => write!(f, "no ready endpoint has {key}={value}"),
            Self::ZoneWithoutWeights(zone) => write!(f, "zone {zone} has no weights"),
            Self::NodeWithoutZone => f.write_str("this node has no zone"),
            Self::Unhinted { count, of } => {
                write!(f, "{count} of {of} ready endpoints carry no hint")
            }
            Self::HintedElsewhere => f.write_str("no endpoint is hinted for this place"),
            Self::GateOff => f.write_str("the feature gate is off"),
        }
    }
}

/// Which endpoints could be chosen at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Candidates {
    /// The ready ones.
    Ready,
    /// None is ready anywhere: those still serving while they terminate.
    ServingTerminating,
    /// None.
    None,
}

/// A tier that was tried and not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// The tier.
    pub tier: Tier,
    /// Why not.
    pub miss: Miss,
}

/// The reason of a choice: what was chosen, from what, and what was tried before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// What was chosen.
    pub tier: Tier,
    /// From what.
    pub candidates: Candidates,
    /// What was tried before, nearest first. Tiers without a request or hints are not named.
    pub tried: Vec<Tried>,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.tier)?;
        if self.candidates == Candidates::ServingTerminating {
            f.write_str(" of the terminating ones, none is ready")?;
        }
        for tried in &self.tried {
            write!(f, "; not {}: {}", tried.tier, tried.miss)?;
        }
        Ok(())
    }
}
