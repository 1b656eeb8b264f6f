//! The nodes of a lab: names, labels, CPU and addresses. A value without effects.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;
use jiff::SignedDuration;
use nearhop_core::Name;
use nearhop_core::labels::well_known;
use nearhop_core::model::Node;
use serde::{Deserialize, Serialize};

use crate::LabError;
use crate::ranges::Ranges;

/// The label of racks, as in core's fixtures.
pub(crate) const RACK: &str = "rack";

/// Offsets in the nodes' range.
const CONTROL_PLANE: u32 = 2;
const EXTERNAL: u32 = 3;
const FIRST_NODE: u32 = 10;

/// Upper bound for one machine.
pub(crate) const MAX_NODES: usize = 200;

/// Default CPU of a node, in thousandths.
const CPU_MILLI: u64 = 4000;

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabNode {
    /// Name.
    pub name: String,
    /// Labels, without the hostname.
    pub labels: BTreeMap<String, String>,
    /// Allocatable CPU in thousandths.
    pub cpu_milli: u64,
    /// One of each family.
    pub addresses: [IpAddr; 2],
    /// One of each family.
    pub pod_cidrs: [IpNet; 2],
}

impl LabNode {
    /// The zone; empty if it has none.
    pub fn zone(&self) -> &str {
        self.labels.get(well_known::ZONE).map_or("", String::as_str)
    }

    /// The region; empty if it has none.
    pub(crate) fn region(&self) -> &str {
        self.labels.get(well_known::REGION).map_or("", String::as_str)
    }
}

/// Delays of a packet, added for each border that it crosses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delays {
    /// Between nodes.
    pub node: Duration,
    /// Between zones, in addition.
    pub zone: Duration,
    /// Between regions, in addition.
    pub region: Duration,
}

impl FromStr for Delays {
    type Err = String;

    /// Reads `node=100us,zone=2ms,region=30ms`; each is optional.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{text}: expected delays of tiers, such as node=100us,zone=2ms,region=30ms");
        let mut delays = Self::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (tier, value) = part.split_once('=').ok_or_else(wrong)?;
            let delay: SignedDuration = value.parse().map_err(|_| wrong())?;
            let delay = Duration::try_from(delay).map_err(|_| wrong())?;
            *match tier {
                "node" => &mut delays.node,
                "zone" => &mut delays.zone,
                "region" => &mut delays.region,
                _ => return Err(wrong()),
            } = delay;
        }
        Ok(delays)
    }
}

/// The nodes and addresses of a lab.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    /// Nodes, in the order of their addresses.
    pub nodes: Vec<LabNode>,
    /// Address ranges.
    pub ranges: Ranges,
    /// Addresses of the control plane.
    pub control_plane: [IpAddr; 2],
    /// Addresses of external clients.
    pub external: [IpAddr; 2],
    /// Delays of links.
    pub delays: Delays,
}

/// A node before it has addresses.
#[derive(Clone, Debug)]
struct Plan {
    name: String,
    labels: BTreeMap<String, String>,
    cpu_milli: u64,
}

impl Topology {
    /// Zones `zone-a`, `zone-b`, … of one region, each with nodes `node-a1`, `node-a2`, …, each node
    /// in its own rack.
    pub fn grid(zones: usize, nodes_per_zone: usize, ranges: Ranges) -> Result<Self, LabError> {
        let nodes = zones.saturating_mul(nodes_per_zone);
        if nodes > MAX_NODES || zones > MAX_NODES {
            return Err(LabError::TooManyNodes { nodes, max: MAX_NODES });
        }
        let cpu = vec![CPU_MILLI; zones];
        Self::grid_of(&cpu, nodes_per_zone, ranges)
    }

    /// The same, with the CPU of the nodes per zone.
    pub(crate) fn grid_of(
        cpu: &[u64],
        nodes_per_zone: usize,
        ranges: Ranges,
    ) -> Result<Self, LabError> {
        if cpu.is_empty() {
            return Err(LabError::NoZones);
        }
        if nodes_per_zone == 0 {
            return Err(LabError::NoNodes);
        }
        let mut nodes = Vec::new();
        for (zone, cpu_milli) in cpu.iter().enumerate() {
            let letter = zone_letter(zone);
            for n in 1..=nodes_per_zone {
                let labels = [
                    (well_known::REGION, "region-1".to_owned()),
                    (well_known::ZONE, format!("zone-{letter}")),
                    (RACK, format!("rack-{letter}{n}")),
                ];
                let labels = labels.map(|(key, value)| (key.to_owned(), value)).into();
                nodes.push(Plan {
                    name: format!("node-{letter}{n}"),
                    labels,
                    cpu_milli: *cpu_milli,
                });
            }
        }
        Self::assign_addresses(nodes, ranges)
    }

    /// Nodes with their names, labels and CPU. The lab assigns their addresses.
    pub(crate) fn of_nodes(nodes: &[Node], ranges: Ranges) -> Result<Self, LabError> {
        let pair = |(key, value): (&Name, &Name)| (key.to_string(), value.to_string());
        let plans = nodes.iter().map(|node| Plan {
            name: node.name.to_string(),
            labels: node.labels.iter().map(pair).collect(),
            cpu_milli: node.cpu_milli.unwrap_or(CPU_MILLI),
        });
        Self::assign_addresses(plans.collect(), ranges)
    }

    fn assign_addresses(plans: Vec<Plan>, ranges: Ranges) -> Result<Self, LabError> {
        ranges.check()?;
        check_count(&plans)?;
        let small = |flag| LabError::RangeTooSmall { flag, nodes: plans.len() };
        let at = |place| ranges.nodes.at(place).ok_or(small("--node-cidr"));
        let mut nodes = Vec::new();
        for (n, plan) in (0u32..).zip(&plans) {
            nodes.push(LabNode {
                name: plan.name.clone(),
                labels: plan.labels.clone(),
                cpu_milli: plan.cpu_milli,
                addresses: at(FIRST_NODE + n)?,
                pod_cidrs: ranges.pods.subrange(n).ok_or(small("--pod-cidr"))?,
            });
        }
        let (control_plane, external) = (at(CONTROL_PLANE)?, at(EXTERNAL)?);
        Ok(Self { nodes, ranges, control_plane, external, delays: Delays::default() })
    }

    /// The zones in order, each with its region; both may be empty.
    pub(crate) fn zones(&self) -> Vec<(String, String)> {
        let zones: BTreeSet<(&str, &str)> =
            self.nodes.iter().map(|node| (node.zone(), node.region())).collect();
        zones.into_iter().map(|(zone, region)| (zone.to_owned(), region.to_owned())).collect()
    }

    /// A node by its name.
    pub fn node(&self, name: &str) -> Option<&LabNode> {
        self.nodes.iter().find(|node| node.name == name)
    }
}

/// a to z, then aa, ab, ...
fn zone_letter(zone: usize) -> String {
    let letter = char::from(b'a' + u8::try_from(zone % 26).expect("below 26"));
    match zone / 26 {
        0 => letter.to_string(),
        more => format!("{}{letter}", zone_letter(more - 1)),
    }
}

fn check_count(plans: &[Plan]) -> Result<(), LabError> {
    if plans.is_empty() {
        return Err(LabError::NoNodes);
    }
    if plans.len() > MAX_NODES {
        return Err(LabError::TooManyNodes { nodes: plans.len(), max: MAX_NODES });
    }
    Ok(())
}

/// Whether the name is valid for a Node and as a hostname.
pub(crate) fn is_host_name(name: &str) -> bool {
    let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let label = |part: &str| {
        part.starts_with(alphanumeric)
            && part.ends_with(alphanumeric)
            && part.chars().all(|c| alphanumeric(c) || c == '-')
    };
    name.len() <= 63 && name.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grid_has_zones_racks_and_addresses() {
        let topology = Topology::grid_of(&[8000, 2000], 2, Ranges::default())
            .expect("the ranges are large enough");
        let names: Vec<&str> = topology.nodes.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(names, ["node-a1", "node-a2", "node-b1", "node-b2"]);
        let last = topology.node("node-b2").expect("the node exists");
        assert_eq!((last.zone(), last.region(), last.cpu_milli), ("zone-b", "region-1", 2000));
        assert_eq!(last.labels[RACK], "rack-b2");
        assert_eq!(last.addresses[0].to_string(), "172.31.0.13");
        assert_eq!(last.pod_cidrs[1].to_string(), "fd00:10:244:3::/64");
        assert_eq!(zone_letter(25), "z");
        assert_eq!(zone_letter(26), "aa");
    }

    #[test]
    fn nodes_are_read_from_a_file() {
        let file = crate::config::ConfigFile::parse(
            "f",
            "node n1 zone=east region=eu cpu=2\nnode n2 label:a=b\n",
        );
        let topology = file.and_then(|file| file.topology(Ranges::default()));
        let topology = topology.expect("the text is valid");
        assert_eq!(topology.node("n1").map(|node| node.cpu_milli), Some(2000));
        assert_eq!(topology.node("n2").map(|node| node.labels["a"].as_str()), Some("b"));
        let zones = [(String::new(), String::new()), ("east".to_owned(), "eu".to_owned())];
        assert_eq!(topology.zones(), zones);
        let empty = Topology::of_nodes(&[], Ranges::default()).expect_err("no nodes").to_string();
        assert!(empty.contains("at least one node"), "{empty}");
    }

    #[test]
    fn delays_are_read_by_tier() {
        let delays: Delays = "zone=2ms,node=100us".parse().expect("the text is valid");
        assert_eq!(
            (delays.zone, delays.node),
            (Duration::from_millis(2), Duration::from_micros(100))
        );
        assert!(delays.region.is_zero());
        for wrong in ["zone", "zone=soon", "planet=1s", "zone=-1s"] {
            assert!(wrong.parse::<Delays>().is_err(), "{wrong}");
        }
    }
}
