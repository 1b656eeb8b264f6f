//! A node and what is around it, for tests with real packets.
//!
//! ```text
//!    host "pod-a"  eth0 ----- veth0  +------+
//!    host "pod-b"  eth0 ----- veth1  | node |  eth0 ----- the world, which swallows everything
//!    host "client" eth0 ----- ext0   +------+    the node's own addresses
//! ```
//!
//! Hosts may stand for pods here, pods elsewhere or clients outside: all that differs is their
//! addresses and what the node's rules think of them. The node forwards between them and has no
//! rules of its own. What it has no host for goes out into the world, where nobody answers: as on a
//! real node, a Service's address has a route, though not a useful one.
//!
//! The node's ends of the cables have no addresses: a packet that the node masquerades gets one of
//! the node's own, as on a node whose pods have routes. Neighbours are written down, so nothing is
//! lost to a first ARP.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{Namespace, NetError, link, sysctl};

/// Everybody's gateway for IPv4. Nobody has this address: it is a name for a cable's other end.
pub const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);

/// Everybody's gateway for IPv6, likewise.
pub const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// The only device of a host, and the device of the node that has its addresses.
pub const DEVICE: &str = "eth0";

/// One node that forwards, and hosts, each on a cable of its own.
#[derive(Debug)]
pub struct Star {
    node: Namespace,
    /// Held, not used: without it the node's device would go.
    _world: Namespace,
    hosts: BTreeMap<String, Host>,
    cables: usize,
}

#[derive(Debug)]
struct Host {
    namespace: Namespace,
    cable: String,
}

impl Star {
    /// A node with these addresses and no hosts.
    /// Fails if the caller may not make namespaces, or an address is given twice.
    pub fn new(node_addresses: &[IpAddr]) -> Result<Self, NetError> {
        Self::around(Namespace::new("node")?, node_addresses)
    }

    /// The same around a namespace that is there, such as the sandbox itself: what a test starts
    /// then runs on the node.
    pub fn around(node: Namespace, node_addresses: &[IpAddr]) -> Result<Self, NetError> {
        sysctl::forwarding(&node)?;
        // Programs skip `lo` when they look for a node's addresses.
        let world = Namespace::new("world")?;
        link::veth(&node, DEVICE, &world, DEVICE)?;
        for address in node_addresses {
            link::add_address(&node, DEVICE, *address)?;
        }
        add_gateways(&node, node_addresses, link::mac(&world, DEVICE)?)?;
        Ok(Self { node, _world: world, hosts: BTreeMap::new(), cables: 0 })
    }

    /// The node.
    pub fn node(&self) -> &Namespace {
        &self.node
    }

    /// Adds a host; the node's end of its cable is called `veth<N>`, counted from 0.
    /// Fails if an address is given twice.
    /// Panics if there is a host of this name.
    pub fn host(&mut self, name: &str, addresses: &[IpAddr]) -> Result<Namespace, NetError> {
        let device = format!("veth{}", self.cables);
        self.host_at(&device, name, addresses)
    }

    /// Adds a host whose cable ends in the node's `device`.
    /// Fails if the device's name is taken or too long (15 bytes), or an address is given twice.
    /// Panics if there is a host of this name.
    pub fn host_at(
        &mut self,
        device: &str,
        name: &str,
        addresses: &[IpAddr],
    ) -> Result<Namespace, NetError> {
        assert!(!self.hosts.contains_key(name), "there are two hosts `{name}`");
        let namespace = Namespace::new(name)?;
        self.cables += 1;
        attach(&self.node, device, &namespace, addresses)?;
        let host = Host { namespace: namespace.clone(), cable: device.to_owned() };
        self.hosts.insert(name.to_owned(), host);
        Ok(namespace)
    }

    /// A host by its name.
    pub fn get(&self, name: &str) -> Option<&Namespace> {
        self.hosts.get(name).map(|host| &host.namespace)
    }

    /// Cuts the host's cable: the node's device and its routes are gone, as after a pod's end.
    /// Fails if somebody has deleted the device already.
    /// Panics if there is no host of this name.
    pub fn remove(&mut self, name: &str) -> Result<(), NetError> {
        let host = self.hosts.remove(name);
        let host = host.unwrap_or_else(|| panic!("there is no host `{name}` to remove"));
        link::delete(&self.node, &host.cable)
    }
}

/// A cable from the node's `device` to the host, and the host's addresses at its end: /32 and /128,
/// with the node as the way to everywhere.
/// Fails if the device's name is taken or too long (15 bytes), or an address is given twice.
pub fn attach(
    node: &Namespace,
    device: &str,
    host: &Namespace,
    addresses: &[IpAddr],
) -> Result<(), NetError> {
    link::veth(node, device, host, DEVICE)?;
    let host_mac = link::mac(host, DEVICE)?;
    for address in addresses {
        link::add_address(host, DEVICE, *address)?;
        link::add_neighbour(node, device, *address, host_mac)?;
        link::add_route(node, *address, None, device)?;
    }
    add_gateways(host, addresses, link::mac(node, device)?)
}

/// Default routes to the other end of the namespace's cable, for the families of its addresses.
fn add_gateways(
    namespace: &Namespace,
    addresses: &[IpAddr],
    other_end: link::Mac,
) -> Result<(), NetError> {
    let gateways: [(IpAddr, IpNet); 2] = [
        (GATEWAY_V4.into(), Ipv4Net::default().into()),
        (GATEWAY_V6.into(), Ipv6Net::default().into()),
    ];
    for (gateway, everywhere) in gateways {
        if addresses.iter().any(|address| address.is_ipv4() == gateway.is_ipv4()) {
            link::add_neighbour(namespace, DEVICE, gateway, other_end)?;
            link::add_route(namespace, everywhere, Some(gateway), DEVICE)?;
        }
    }
    Ok(())
}
