//! What clients connect to, and what becomes of a connection: a decision in the words of packets.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;

use nearhop_core::{Cidr, EndpointKey, Name, Protocol};

use crate::affinity::{Affinity, Reach};
use crate::draw::Draw;

/// Where clients connect to.
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
    /// A cluster IP, external IP or load balancer's IP.
    Address(IpAddr),
    /// Node port: any address of the node that takes them.
    Node,
}

/// The endpoints, each in its slot, and how a connection draws one. The order is that of the kernel
/// and depends on what was there before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slots {
    endpoints: Arc<[EndpointKey]>,
    draw: Draw,
}

impl Slots {
    /// Endpoints by slot; `draw` has as many slots.
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

/// What becomes of a connection to a frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The Service port, for those who read `nft list`.
    pub name: Name,
    /// Where the Service has the address from.
    pub address: AddressKind,
    /// How connections get to endpoints.
    pub path: Path,
    /// The endpoints; may be empty.
    pub endpoints: Slots,
    /// What happens to those that find no endpoint.
    pub refusal: Option<Refusal>,
    /// How clients stay with their endpoints, where they do.
    pub affinity: Option<Affinity>,
    /// Sources that may connect; all without it. Sorted, disjoint ranges of addresses.
    pub sources: Option<Arc<[(IpAddr, IpAddr)]>>,
}

/// Where a Service has an address from, those first that fewer people may write. Where two Services
/// claim one address and port, the smaller kind has it: the API server allocates cluster IPs, a
/// cloud's controller writes the load balancer's status, and each user who may write a Service
/// writes `externalIPs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AddressKind {
    /// `spec.clusterIPs`.
    ClusterIp,
    /// `status.loadBalancer.ingress`.
    LoadBalancer,
    /// `spec.externalIPs`.
    ExternalIp,
    /// The node's own, by `nodePort`.
    Node,
}

/// How connections get to endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Path {
    /// To the endpoints as they come. Cluster IPs: another rule masquerades what is from outside.
    Direct,
    /// To the endpoints, masqueraded: the answer must come back through this node.
    Masquerade,
    /// `externalTrafficPolicy: Local`. Clients on this node use all endpoints, others these.
    LocalOnly(Slots),
}

/// What happens to a connection without an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The client gets an error at once.
    Reject,
    /// No reply: another node may take it.
    Drop,
}

impl Entry {
    /// Its slots by which endpoints they hold, where clients stay with them.
    pub fn sticky_slots(&self) -> impl Iterator<Item = (Reach, &Slots)> {
        let own = self.affinity.as_ref().map(|affinity| (affinity.reach, &self.endpoints));
        let local = match &self.path {
            Path::LocalOnly(slots) if own.is_some() => Some((Reach::Local, slots)),
            _ => None,
        };
        own.into_iter().chain(local)
    }

    /// The endpoints that clients elsewhere reach, and those on this node where they differ.
    pub fn slots(&self) -> impl Iterator<Item = &Slots> {
        let local = match &self.path {
            Path::LocalOnly(slots) => Some(slots),
            Path::Direct | Path::Masquerade => None,
        };
        std::iter::once(&self.endpoints).chain(local)
    }
}

/// Everything that one Service puts into the kernel, in one family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// Its frontends.
    pub frontends: BTreeMap<Frontend, Entry>,
    /// Its cluster IP: other ports of it are refused.
    pub cluster_ip: Option<IpAddr>,
    /// Endpoints on this node: one that reaches itself through the Service must be masqueraded.
    pub hairpins: BTreeSet<(EndpointKey, Protocol)>,
}

/// Ranges as disjoint intervals: the kernel refuses intervals that overlap.
pub fn merge_ranges(cidrs: impl IntoIterator<Item = Cidr>) -> Vec<(IpAddr, IpAddr)> {
    let mut ranges: Vec<(IpAddr, IpAddr)> =
        cidrs.into_iter().map(|cidr| (cidr.first(), cidr.last())).collect();
    ranges.sort_unstable();
    let mut merged: Vec<(IpAddr, IpAddr)> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match merged.last_mut() {
            // CIDRs overlap only by one being inside the other.
            Some((_, end)) if first <= *end => *end = last.max(*end),
            _ => merged.push((first, last)),
        }
    }
    merged
}
