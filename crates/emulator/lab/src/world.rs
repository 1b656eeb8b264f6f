//! From a topology to namespaces and links.
//!
//! ```text
//!   control plane --+                      +-- bridge of zone a --+-- node-a1 (eth0)
//!                   |                      |                      +-- node-a2 (eth0)
//!     the outside --+-- core -- region 1 --+
//!                         |                +-- bridge of zone b --+-- node-b1 (eth0)
//!                         |                                       +-- node-b2 (eth0)
//!                         +---- region 2 -- ...
//! ```
//!
//! All bridges are in one namespace, the fabric. A node's cable or a zone's trunk can be taken down
//! and up again; delays are on the way down, so that each border that is crossed counts once. Nodes send to each other's Pods through each other's addresses; what nobody has
//! goes to the outside, which swallows it: as on a real node, a Service's address has a route.
//! Pods are not made here: they are their node's business.

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

/// Whether packets pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cable {
    /// They do.
    Healed,
    /// They do not.
    Cut,
}

/// The namespaces of a lab. It ends when nobody holds it and nothing runs in it.
#[derive(Debug)]
pub struct World {
    fabric: Namespace,
    control_plane: Namespace,
    external: Namespace,
    /// A node's namespace and its port in the fabric.
    nodes: BTreeMap<String, (Namespace, String)>,
    /// A zone's trunks in the fabric, one for each region that it is in.
    trunks: BTreeMap<String, Vec<String>>,
    /// Whether links are as slow as they were meant to be.
    slow: Delay,
}

impl World {
    /// Makes everything.
    ///
    /// # Errors
    ///
    /// The kernel refuses something.
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

    /// A bridge below another one, and the name of the upper end of the trunk between them.
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

    /// Whether links are as slow as the topology asks for.
    #[must_use]
    pub fn delays(&self) -> Delay {
        self.slow
    }

    fn add_node(&mut self, n: usize, node: &LabNode, topology: &Topology) -> Result<(), LabError> {
        let own =
            |(zone, region): &(String, String)| zone == node.zone() && region == node.region();
        let zone = topology.zones().iter().position(own);
        let bridge = zone_bridge(zone.expect("zones are those of the nodes"));
        let port = format!("port{n}");
        let namespace = cable(&self.fabric, &node.name, &port, &bridge, &node.addresses, topology)?;
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

    /// Where the API server and the controllers run.
    #[must_use]
    pub fn control_plane(&self) -> &Namespace {
        &self.control_plane
    }

    /// Where clients from outside are.
    #[must_use]
    pub fn external(&self) -> &Namespace {
        &self.external
    }

    /// A node's namespace.
    ///
    /// # Errors
    ///
    /// There is no such node.
    pub fn node(&self, name: &str) -> Result<&Namespace, LabError> {
        Ok(&self.find_node(name)?.0)
    }

    fn find_node(&self, name: &str) -> Result<&(Namespace, String), LabError> {
        self.nodes.get(name).ok_or_else(|| no_such("node", name, self.nodes.keys()))
    }

    /// Takes a node off the network, or back on. Its Pods still reach each other.
    ///
    /// # Errors
    ///
    /// There is no such node.
    pub fn set_node(&self, name: &str, cable: Cable) -> Result<(), LabError> {
        let (_, port) = self.find_node(name)?;
        self.set(port, cable)
    }

    /// Takes a zone off the network, or back on. Its nodes still reach each other.
    ///
    /// # Errors
    ///
    /// There is no such zone.
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

/// A namespace on the core bridge that knows where Pods are.
fn host(
    fabric: &Namespace,
    name: &str,
    port: &str,
    addresses: &[IpAddr; 2],
    topology: &Topology,
) -> Result<Namespace, LabError> {
    let namespace = cable(fabric, name, port, CORE, addresses, topology)?;
    add_pod_routes(&namespace, None, topology)?;
    Ok(namespace)
}

/// A namespace on a bridge, with its addresses.
fn cable(
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

/// Other nodes' Pods are behind their nodes.
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
    LabError::NoSuchPlace { what, name: name.to_owned(), known: known.join(", ") }
}

/// Pods in the node's network have no rights there. What needs none on a network that is only the
/// lab's: ports below 1024, and pings.
fn open_to_pods(node: &Namespace) -> Result<(), LabError> {
    sysctl::set_sysctl(node, "net/ipv4/ip_unprivileged_port_start", "0")?;
    // Who is not root has one group to name.
    let groups = "net/ipv4/ping_group_range";
    let all = sysctl::set_sysctl(node, groups, "0 2147483647");
    Ok(all.or_else(|_| sysctl::set_sysctl(node, groups, "0 0"))?)
}
