//! A node and the hosts linked to it, for tests with real packets.
//!
//! ```text
//!    host "pod-a"  eth0 ----- veth0  +------+
//!    host "pod-b"  eth0 ----- veth1  | node |  eth0 ----- the world, which drops all packets
//!    host "client" eth0 ----- ext0   +------+    the node's own addresses
//! ```
//!
//! Hosts represent local pods, remote pods or external clients: only their addresses differ. The node
//! forwards between them and has no packet filter rules. Other packets leave through the default
//! route and are dropped: as on a real node, a Service's address has a route.
//!
//! The node's ends of the links have no addresses, so masqueraded packets get the node's own address.
//! Neighbour entries are static, so that no packet waits for ARP.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{Namespace, NetError, link, sysctl};

/// The IPv4 gateway of all hosts. No device has this address: it denotes the other end of a link.
const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);

/// The IPv6 gateway of all hosts, likewise.
const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// The device of a host, and the node's device with its addresses.
pub const DEVICE: &str = "eth0";

/// A node that forwards, and hosts, each on its own link.
#[derive(Debug)]
pub struct Star {
    node: Namespace,
    /// Keeps the node's device alive.
    _world: Namespace,
    hosts: BTreeMap<String, Host>,
    links: usize,
}

#[derive(Debug)]
struct Host {
    namespace: Namespace,
    device: String,
}

impl Star {
    /// A node with these addresses and no hosts.
    /// Fails if the caller may not make namespaces, or an address is given twice.
    pub fn new(node_addresses: &[IpAddr]) -> Result<Self, NetError> {
        Self::around(Namespace::new("node")?, node_addresses)
    }

    /// The same with an existing namespace, such as the sandbox itself, whose processes then run on
    /// the node.
    pub fn around(node: Namespace, node_addresses: &[IpAddr]) -> Result<Self, NetError> {
        sysctl::forwarding(&node)?;
        // Not on `lo`, which programs skip when they look for a node's addresses.
        let world = Namespace::new("world")?;
        link::veth(&node, DEVICE, &world, DEVICE)?;
        for address in node_addresses {
            link::add_address(&node, DEVICE, *address)?;
        }
        add_gateways(&node, node_addresses, link::mac(&world, DEVICE)?)?;
        Ok(Self { node, _world: world, hosts: BTreeMap::new(), links: 0 })
    }

    /// The node.
    pub fn node(&self) -> &Namespace {
        &self.node
    }

    /// Adds a host; the node's device is `veth<N>`, counted from 0.
    /// Fails if an address is given twice.
    /// Panics if there is a host of this name.
    pub fn host(&mut self, name: &str, addresses: &[IpAddr]) -> Result<Namespace, NetError> {
        let device = format!("veth{}", self.links);
        self.host_at(&device, name, addresses)
    }

    /// Adds a host on the node's `device`.
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
        self.links += 1;
        attach(&self.node, device, &namespace, addresses)?;
        let host = Host { namespace: namespace.clone(), device: device.to_owned() };
        self.hosts.insert(name.to_owned(), host);
        Ok(namespace)
    }

    /// A host by its name.
    pub fn get(&self, name: &str) -> Option<&Namespace> {
        self.hosts.get(name).map(|host| &host.namespace)
    }

    /// Deletes the host's link with its routes, as after a pod's end.
    /// Fails if the device is deleted already.
    /// Panics if there is no host of this name.
    pub fn remove(&mut self, name: &str) -> Result<(), NetError> {
        let host = self.hosts.remove(name);
        let host = host.unwrap_or_else(|| panic!("there is no host `{name}` to remove"));
        link::delete(&self.node, &host.device)
    }
}

/// Links the host to the node's `device`. The host has the addresses as /32 and /128, and the node as
/// its default gateway.
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

/// Adds default routes to the other end of the link, for the families of the addresses.
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
