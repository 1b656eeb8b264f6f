//! The expected demand of each zone: the CPU of its nodes (KEP-2433 "Assumptions").

use std::collections::BTreeMap;
use std::fmt;

use crate::key::Name;
use crate::model::Node;

/// Expected demand by zone, and the nodes that could not be counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Zone to thousandths of a core of its ready, non-control-plane nodes.
    pub zones: BTreeMap<Name, u64>,
    /// Zone to region, if a node of the zone has a region label.
    pub regions: BTreeMap<Name, Name>,
    /// Nodes that count but have no usable zone.
    pub without_zone: Vec<Name>,
    /// The CPU of these nodes, in thousandths of a core.
    pub without_zone_milli: u64,
    /// Nodes that do not report their CPU. If there are any, every node counts as one core.
    pub without_cpu: Vec<Name>,
}

/// `--max-unzoned-share`: the maximum share of the CPU on nodes without a zone, in thousandths.
/// Above it, Auto sets no hints in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxUnzonedShare(pub u32);

impl Default for MaxUnzonedShare {
    fn default() -> Self {
        Self(100)
    }
}

/// Computes the capacity of a cluster.
pub fn measure_capacity<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> Capacity {
    let nodes: Vec<&Node> = nodes.into_iter().filter(|node| node.counts_as_capacity()).collect();
    let mut capacity = Capacity::default();
    let silent = |node: &&&Node| node.cpu_milli.is_none_or(|cpu| cpu == 0);
    capacity.without_cpu = nodes.iter().filter(silent).map(|node| node.name.clone()).collect();
    for node in nodes {
        let milli = capacity.milli_of(node);
        let Some(zone) = node.zone() else {
            capacity.without_zone.push(node.name.clone());
            capacity.without_zone_milli = capacity.without_zone_milli.saturating_add(milli);
            continue;
        };
        let sum = capacity.zones.entry(zone.clone()).or_default();
        *sum = sum.saturating_add(milli);
        if let Some(region) = node.region() {
            // A zone belongs to one region. If labels name several, the first region by name is
            // used.
            let entry = capacity.regions.entry(zone.clone()).or_insert_with(|| region.clone());
            if region < entry {
                *entry = region.clone();
            }
        }
    }
    capacity
}

impl Capacity {
    /// The capacity of one node: its CPU, or one core if any node does not report its CPU.
    pub(crate) fn milli_of(&self, node: &Node) -> u64 {
        if self.without_cpu.is_empty() { node.cpu_milli.unwrap_or_default() } else { 1000 }
    }

    /// The zone shares for Auto, or why there are none.
    pub fn shares(&self, max_unzoned: MaxUnzonedShare) -> Result<&BTreeMap<Name, u64>, NoShares> {
        let zoned: u128 = self.zones.values().map(|milli| u128::from(*milli)).sum();
        let unzoned = u128::from(self.without_zone_milli);
        if zoned == 0 || unzoned * 1000 > (zoned + unzoned) * u128::from(max_unzoned.0) {
            return Err(NoShares::TooLittleKnown {
                without_zone: self.without_zone.clone(),
                permille: (unzoned * 1000).checked_div(zoned + unzoned).unwrap_or(0) as u32,
            });
        }
        if self.zones.len() < 2 {
            return Err(NoShares::OneZone);
        }
        Ok(&self.zones)
    }
}

/// Why Auto has no zone shares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoShares {
    /// No node counts, or too much CPU is on nodes without a zone.
    TooLittleKnown {
        /// The nodes without a zone.
        without_zone: Vec<Name>,
        /// Their share of the CPU in thousandths.
        permille: u32,
    },
    /// All nodes that count are in one zone.
    OneZone,
}

impl NoShares {
    /// The responsible nodes.
    pub fn nodes(&self) -> &[Name] {
        match self {
            Self::TooLittleKnown { without_zone, .. } => without_zone,
            Self::OneZone => &[],
        }
    }

    /// Whether two values are equal except for the numbers.
    pub(crate) fn same_reason(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::OneZone, Self::OneZone) => true,
            (
                Self::TooLittleKnown { without_zone: a, .. },
                Self::TooLittleKnown { without_zone: b, .. },
            ) => a == b,
            _ => false,
        }
    }
}

impl fmt::Display for NoShares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OneZone => f.write_str("Nodes only ready in one zone"),
            Self::TooLittleKnown { without_zone, permille } => {
                f.write_str(
                    "Insufficient Node information: allocatable CPU or zone not specified on one \
                     or more nodes",
                )?;
                if without_zone.is_empty() {
                    return Ok(());
                }
                let names = some_of(without_zone);
                write!(
                    f,
                    " (without a zone: {names}; {}.{} % of the CPU)",
                    permille / 10,
                    permille % 10
                )
            }
        }
    }
}

/// A few names and the number of the others, to keep a message short.
pub(crate) fn some_of(names: &[Name]) -> String {
    const MOST: usize = 10;
    let shown: Vec<&str> = names.iter().take(MOST).map(Name::as_str).collect();
    match names.len().saturating_sub(MOST) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
