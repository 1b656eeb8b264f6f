//! The network namespaces and links of a topology.
//!
//! ```text
//!   control plane --+                      +-- bridge of zone a --+-- node-a1 (eth0)
//!                   |                      |                      +-- node-a2 (eth0)
//!        external --+-- core -- region 1 --+
//!                         |                +-- bridge of zone b --+-- node-b1 (eth0)
//!                         |                                       +-- node-b2 (eth0)
//!                         +---- region 2 -- ...
//! ```
//!
//! All bridges are in one namespace, the fabric. A node's or a zone's link can be taken down and up.
//! Delays apply to one direction of a link, so that each border counts once. Nodes reach other nodes'
//! Pods through the node addresses. The default route leads to the external namespace, which drops
//! packets: as on a real node, a Service's address has a route. The agents make Pods.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use nearhop_net::delay::{Delay, set_delay};
use nearhop_net::{Namespace, link, sysctl};

use crate::LabError;
use crate::topology::{LabNode, Topology};

const CORE: &str = "core";
const DEVICE: &str = "eth0";

/// The state of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cable {
    /// Up.
    Healed,
    /// Down.
    Cut,
}

/// The network namespaces of a lab. The kernel removes them when this is dropped and no process runs
/// in them.
#[derive(Debug)]
pub struct World {
    fabric: Namespace,
    control_plane: Namespace,
    external: Namespace,
    /// Each node's namespace and its port in the fabric.
    nodes: BTreeMap<String, (Namespace, String)>,
    /// Each zone's links in the fabric, one per region.
    trunks: BTreeMap<String, Vec<String>>,
    /// Whether the kernel supports the delays.
    slow: Delay,
}

impl World {
    /// Makes all namespaces and links.
    pub fn build(topology: &Topology) -> Result<Self, LabError> {
        let fabric = Namespace::new("fabric")?;
        link::bridge(&fabric, CORE)?;
        let mut world = Self {
            control_plane: host(&fabric, "control-plane", "cp", &topology.control_plane, topology)?,
            external: host(&fabric, "external", "ext", &topology.external, topology)?,
            fabric,
            nodes: BTreeMap::new(),
            trunks: BTreeMap::new(),
            slow: Delay::Set,
        };
        let zones = topology.zones();
        let regions: BTreeSet<&str> = zones.iter().map(|(_, region)| region.as_str()).collect();
        let regions: Vec<&str> = regions.into_iter().collect();
        for n in 0..regions.len() {
            world.add_bridge(&region_bridge(n), CORE, topology.delays.region)?;
        }
        for (n, (zone, region)) in zones.iter().enumerate() {
            let region = regions.iter().position(|one| one == region);
            let region = region_bridge(region.expect("regions are those of the zones"));
            let trunk = world.add_bridge(&zone_bridge(n), &region, topology.delays.zone)?;
            world.trunks.entry(zone.clone()).or_default().push(trunk);
        }
        for (n, node) in topology.nodes.iter().enumerate() {
            world.add_node(n, node, topology)?;
        }
        Ok(world)
    }

    /// Adds a bridge below another one; returns the upper end of the link between them.
    fn add_bridge(&mut self, name: &str, above: &str, delay: Duration) -> Result<String, LabError> {
        let (upper, lower) = (format!("{name}-up"), format!("{name}-down"));
        link::bridge(&self.fabric, name)?;
        link::veth(&self.fabric, &upper, &self.fabric, &lower)?;
        link::enslave(&self.fabric, &upper, above)?;
        link::enslave(&self.fabric, &lower, name)?;
        self.slow_down(&upper, delay)?;
        Ok(upper)
    }

    fn slow_down(&mut self, device: &str, delay: Duration) -> Result<(), LabError> {
        if !delay.is_zero() && set_delay(&self.fabric, device, delay)? == Delay::NotSupported {
            self.slow = Delay::NotSupported;
        }
        Ok(())
    }

    /// Whether the links have the delays of the topology.
    pub(crate) fn delays(&self) -> Delay {
        self.slow
    }

    fn add_node(&mut self, n: usize, node: &LabNode, topology: &Topology) -> Result<(), LabError> {
        let own =
            |(zone, region): &(String, String)| zone == node.zone() && region == node.region();
        let zone = topology.zones().iter().position(own);
        let bridge = zone_bridge(zone.expect("zones are those of the nodes"));
        let port = format!("port{n}");
        let namespace =
            attach(&self.fabric, &node.name, &port, &bridge, &node.addresses, topology)?;
        sysctl::forwarding(&namespace)?;
        open_to_pods(&namespace)?;
        add_pod_routes(&namespace, Some(&node.name), topology)?;
        for (everywhere, outside) in everywhere().into_iter().zip(topology.external) {
            link::add_route(&namespace, everywhere, Some(outside), DEVICE)?;
        }
        self.slow_down(&port, topology.delays.node)?;
        self.nodes.insert(node.name.clone(), (namespace, port));
        Ok(())
    }

    /// The namespace of the API server and the controllers.
    pub fn control_plane(&self) -> &Namespace {
        &self.control_plane
    }

    /// The namespace of external clients.
    pub fn external(&self) -> &Namespace {
        &self.external
    }

    /// A node's namespace.
    pub fn node(&self, name: &str) -> Result<&Namespace, LabError> {
        Ok(&self.find_node(name)?.0)
    }

    fn find_node(&self, name: &str) -> Result<&(Namespace, String), LabError> {
        self.nodes.get(name).ok_or_else(|| no_such("node", name, self.nodes.keys()))
    }

    /// Cuts or heals a node's link. Its Pods still reach each other.
    pub fn set_node(&self, name: &str, cable: Cable) -> Result<(), LabError> {
        let (_, port) = self.find_node(name)?;
        self.set(port, cable)
    }

    /// Cuts or heals a zone's links. Its nodes still reach each other.
    pub fn set_zone(&self, zone: &str, cable: Cable) -> Result<(), LabError> {
        let trunks =
            self.trunks.get(zone).ok_or_else(|| no_such("zone", zone, self.trunks.keys()))?;
        trunks.iter().try_for_each(|trunk| self.set(trunk, cable))
    }

    fn set(&self, port: &str, cable: Cable) -> Result<(), LabError> {
        let done = match cable {
            Cable::Healed => link::set_up(&self.fabric, port),
            Cable::Cut => link::set_down(&self.fabric, port),
        };
        Ok(done?)
    }
}

fn region_bridge(n: usize) -> String {
    format!("region{n}")
}

fn zone_bridge(n: usize) -> String {
    format!("zone{n}")
}

/// A namespace on the core bridge, with routes to Pods.
fn host(
    fabric: &Namespace,
    name: &str,
    port: &str,
    addresses: &[IpAddr; 2],
    topology: &Topology,
) -> Result<Namespace, LabError> {
    let namespace = attach(fabric, name, port, CORE, addresses, topology)?;
    add_pod_routes(&namespace, None, topology)?;
    Ok(namespace)
}

/// A namespace with addresses, linked to a bridge.
fn attach(
    fabric: &Namespace,
    name: &str,
    port: &str,
    bridge: &str,
    addresses: &[IpAddr; 2],
    topology: &Topology,
) -> Result<Namespace, LabError> {
    let namespace = Namespace::new(name)?;
    link::veth(&namespace, DEVICE, fabric, port)?;
    link::enslave(fabric, port, bridge)?;
    let nodes = topology.ranges.nodes;
    for (address, length) in addresses.iter().zip([nodes.v4.prefix_len(), nodes.v6.prefix_len()]) {
        let address = IpNet::new(*address, length).expect("the length is a range's");
        link::add_address(&namespace, DEVICE, address)?;
    }
    Ok(namespace)
}

/// Routes to the Pods of other nodes, through those nodes.
fn add_pod_routes(
    namespace: &Namespace,
    own: Option<&str>,
    topology: &Topology,
) -> Result<(), LabError> {
    for node in topology.nodes.iter().filter(|node| Some(node.name.as_str()) != own) {
        for (pods, via) in node.pod_cidrs.iter().zip(node.addresses) {
            link::add_route(namespace, *pods, Some(via), DEVICE)?;
        }
    }
    Ok(())
}

fn everywhere() -> [IpNet; 2] {
    [Ipv4Net::default().into(), Ipv6Net::default().into()]
}

fn no_such<'a>(
    what: &'static str,
    name: &str,
    known: impl Iterator<Item = &'a String>,
) -> LabError {
    let known: Vec<&str> = known.map(String::as_str).collect();
    LabError::NotFound { what, name: name.to_owned(), known: known.join(", ") }
}

/// Lets Pods with hostNetwork, which are unprivileged, use ports below 1024 and ping.
fn open_to_pods(node: &Namespace) -> Result<(), LabError> {
    sysctl::set_sysctl(node, "net/ipv4/ip_unprivileged_port_start", "0")?;
    // In a user namespace only group 0 is mapped.
    let groups = "net/ipv4/ping_group_range";
    let all = sysctl::set_sysctl(node, groups, "0 2147483647");
    Ok(all.or_else(|_| sysctl::set_sysctl(node, groups, "0 0"))?)
}
