//! The node of a case and its neighbours, in network namespaces.
//!
//! Every destination of a packet has a server, a decoy, so that a packet that no rule matches gets
//! an answer: the test can distinguish a rule that drops from no rule, and a rule that rejects from
//! a closed port.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use nearhop_conform::flows::{Flow, FlowCase};
use nearhop_core::{Family, Protocol};
use nearhop_net::traffic::{self, Server};
use nearhop_net::{Namespace, Star};
use nearhop_netfilter::config::LocalTraffic;

/// The node's addresses for masquerading; never a client's address, so that masquerading is
/// visible. The kernel chooses the first IPv4 address, and the IPv6 address with the longest prefix
/// in common with the destination.
const MASKS: [IpAddr; 2] = [
    IpAddr::V4(std::net::Ipv4Addr::new(192, 168, 255, 254)),
    IpAddr::V6(std::net::Ipv6Addr::new(0xfd00, 0xffff, 0, 0, 0, 0, 0, 0xfe)),
];

/// A node, its clients, endpoints and decoys.
pub(crate) struct Node {
    star: Star,
    clients: BTreeMap<IpAddr, Namespace>,
    addresses: Vec<IpAddr>,
    /// The servers stop when this value is dropped.
    _servers: Vec<Server>,
}

impl Node {
    pub(crate) fn new(case: &FlowCase) -> Self {
        let family = case.config.family();
        let of_family = |address: &IpAddr| Family::of(*address) == family;
        let own = MASKS.into_iter().chain(case.node_addresses.iter().copied());
        let addresses: Vec<IpAddr> = own.filter(of_family).collect();
        let mut star = Star::new(&addresses).unwrap();
        let clients = add_clients(&mut star, case);
        let mut places = Places { star, clients, addresses, servers: Vec::new() };
        places.serve(case);
        let Places { star, clients, addresses, servers } = places;
        Self { star, clients, addresses, _servers: servers }
    }

    /// The namespace of the node.
    pub(crate) fn namespace(&self) -> &Namespace {
        self.star.node()
    }

    /// The namespace that sends a flow's packets, and the source address to bind if it has several.
    pub(crate) fn client(&self, flow: &Flow) -> (&Namespace, Option<IpAddr>) {
        let source = flow.packet.source.ip();
        match self.clients.get(&source) {
            Some(namespace) => (namespace, None),
            None => (self.namespace(), Some(source)),
        }
    }

    /// Whether an address belongs to the node.
    pub(crate) fn has(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address)
    }
}

/// Adds one host for each client that is not the node.
fn add_clients(star: &mut Star, case: &FlowCase) -> BTreeMap<IpAddr, Namespace> {
    let mut clients = BTreeMap::new();
    for flow in &case.flows {
        let source = flow.packet.source.ip();
        if case.is_node(source) || clients.contains_key(&source) {
            continue;
        }
        let device = match flow.packet.iif.as_str() {
            "eth0" if is_pod(case, source) => format!("pod{}", clients.len()),
            "eth0" => format!("ext{}", clients.len()),
            given => given.to_owned(),
        };
        let host = star.host_at(&device, &source.to_string(), &[source]).unwrap();
        clients.insert(source, host);
    }
    clients
}

fn is_pod(case: &FlowCase, address: IpAddr) -> bool {
    matches!(&case.config.local, Some(LocalTraffic::Source(range)) if range.contains(address))
}

/// A node under construction.
struct Places {
    star: Star,
    clients: BTreeMap<IpAddr, Namespace>,
    addresses: Vec<IpAddr>,
    servers: Vec<Server>,
}

impl Places {
    fn serve(&mut self, case: &FlowCase) {
        let endpoints = case.endpoints.clone();
        let wanted = case.flows.iter().map(|f| (f.packet.destination, f.packet.protocol));
        let decoys: BTreeSet<(SocketAddr, Protocol)> =
            wanted.filter(|decoy| !endpoints.contains(decoy)).collect();
        // Endpoints and decoys are on separate hosts.
        self.serve_all("endpoints", &endpoints);
        self.serve_all("elsewhere", &decoys);
    }

    /// Starts servers; those without a host yet share one new host.
    fn serve_all(&mut self, name: &str, all: &BTreeSet<(SocketAddr, Protocol)>) {
        let ips: BTreeSet<IpAddr> = all.iter().map(|(at, _)| at.ip()).collect();
        let without_host: Vec<IpAddr> =
            ips.into_iter().filter(|address| self.place(*address).is_none()).collect();
        if !without_host.is_empty() {
            let host = self.star.host(name, &without_host).unwrap();
            self.clients.extend(without_host.into_iter().map(|address| (address, host.clone())));
        }
        for (at, protocol) in all {
            let place = self.place(at.ip()).expect("every server has a host");
            self.servers.push(Server::start(&place, by(*protocol), *at).unwrap());
        }
    }

    fn place(&self, address: IpAddr) -> Option<Namespace> {
        if address.is_loopback() || self.addresses.contains(&address) {
            return Some(self.star.node().clone());
        }
        self.clients.get(&address).cloned()
    }
}

pub(crate) fn by(protocol: Protocol) -> traffic::Protocol {
    match protocol {
        Protocol::Tcp => traffic::Protocol::Tcp,
        Protocol::Udp => traffic::Protocol::Udp,
        Protocol::Sctp => traffic::Protocol::Sctp,
    }
}
