//! The addresses that clients connect to, and what happens to their connections.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;

use nearhop_core::{Cidr, EndpointKey, Name, Protocol};

use crate::affinity::{Affinity, Reach};
use crate::draw::Draw;

/// The address, protocol and port that clients connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frontend {
    /// An address, or the node's own addresses.
    pub at: At,
    /// Protocol.
    pub protocol: Protocol,
    /// Port.
    pub port: u16,
}

/// The address part of a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum At {
    /// A cluster IP, external IP or load balancer IP.
    Address(IpAddr),
    /// A node port: any address of the node that serves node ports.
    Node,
}

/// The endpoints, each in its slot, and how a connection draws one. The order is that in the kernel
/// and depends on the previous slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slots {
    endpoints: Arc<[EndpointKey]>,
    draw: Draw,
}

impl Slots {
    /// Endpoints by slot; `draw` must have the same number of slots.
    pub fn new(endpoints: Vec<EndpointKey>, draw: Draw) -> Self {
        debug_assert_eq!(endpoints.len(), draw.slots() as usize);
        Self { endpoints: endpoints.into(), draw }
    }

    /// The endpoints by slot.
    pub fn endpoints(&self) -> &Arc<[EndpointKey]> {
        &self.endpoints
    }

    /// How a slot is drawn.
    pub fn draw(&self) -> &Draw {
        &self.draw
    }
}

impl Deref for Slots {
    type Target = [EndpointKey];

    fn deref(&self) -> &[EndpointKey] {
        &self.endpoints
    }
}

/// What happens to connections to a frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The Service port, shown by `nft list`.
    pub name: Name,
    /// The field that the address comes from.
    pub address: AddressKind,
    /// How connections reach endpoints.
    pub path: Path,
    /// The endpoints; may be empty.
    pub endpoints: Slots,
    /// What happens to connections without an endpoint.
    pub refusal: Option<Refusal>,
    /// Session affinity, if the Service has it.
    pub affinity: Option<Affinity>,
    /// Allowed sources; none allows all. Sorted, disjoint ranges of addresses.
    pub sources: Option<Arc<[(IpAddr, IpAddr)]>>,
}

/// The field that a Service's address comes from, in order of precedence. If two Services claim the
/// same address and port, the smaller kind wins: the API server allocates cluster IPs, a cloud
/// controller writes the load balancer status, but every user who can write a Service can write
/// `externalIPs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AddressKind {
    /// `spec.clusterIPs`.
    ClusterIp,
    /// `status.loadBalancer.ingress`.
    LoadBalancer,
    /// `spec.externalIPs`.
    ExternalIp,
    /// An address of the node, by `nodePort`.
    Node,
}

/// How connections reach endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Path {
    /// Without masquerading. For cluster IPs, another rule masquerades traffic from outside.
    Direct,
    /// With masquerading: the answer must return through this node.
    Masquerade,
    /// `externalTrafficPolicy: Local`. Clients on this node use all endpoints, others use these.
    LocalOnly(Slots),
}

/// What happens to a connection without an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Reject: the client gets an error at once.
    Reject,
    /// Drop: another node may serve the connection.
    Drop,
}

impl Entry {
    /// Its slots with session affinity, by the endpoints that they contain.
    pub(crate) fn sticky_slots(&self) -> impl Iterator<Item = (Reach, &Slots)> {
        let own = self.affinity.as_ref().map(|affinity| (affinity.reach, &self.endpoints));
        let local = match &self.path {
            Path::LocalOnly(slots) if own.is_some() => Some((Reach::Local, slots)),
            _ => None,
        };
        own.into_iter().chain(local)
    }

    /// The slots for all endpoints and, if they differ, the slots for local endpoints.
    pub fn slots(&self) -> impl Iterator<Item = &Slots> {
        let local = match &self.path {
            Path::LocalOnly(slots) => Some(slots),
            Path::Direct | Path::Masquerade => None,
        };
        std::iter::once(&self.endpoints).chain(local)
    }
}

/// The frontends and other data that one Service adds to the kernel, in one family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// Its frontends.
    pub frontends: BTreeMap<Frontend, Entry>,
    /// Its cluster IP: other ports of it are refused.
    pub cluster_ip: Option<IpAddr>,
    /// Local endpoints: an endpoint that reaches itself through the Service must be masqueraded.
    pub hairpins: BTreeSet<(EndpointKey, Protocol)>,
}

/// Merges ranges into disjoint intervals: the kernel refuses overlapping intervals.
pub(crate) fn merge_ranges(cidrs: impl IntoIterator<Item = Cidr>) -> Vec<(IpAddr, IpAddr)> {
    let mut ranges: Vec<(IpAddr, IpAddr)> =
        cidrs.into_iter().map(|cidr| (cidr.first(), cidr.last())).collect();
    ranges.sort_unstable();
    let mut merged: Vec<(IpAddr, IpAddr)> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match merged.last_mut() {
            // Two CIDRs overlap only if one contains the other.
            Some((_, end)) if first <= *end => *end = last.max(*end),
            _ => merged.push((first, last)),
        }
    }
    merged
}
