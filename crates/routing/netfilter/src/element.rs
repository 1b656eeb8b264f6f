//! Converts a frontend to elements of sets and maps.

use std::net::IpAddr;

use nearhop_core::{EndpointKey, Name, Protocol};

use crate::affinity::Reach;
use crate::chain::{Mark, OnDemand, Pick, Recording, Stay, external_local_chain};
use crate::frontend::{At, Entry, Frontend, Path, Refusal, Slots};
use crate::layout::{SetId, key_of, protocol_number};
use crate::object::{Bytes, Data, Element, Verdict};

/// An element and its set.
pub(crate) type Placed = (SetId, Element);

/// Maximum length of a comment that nft shows.
const COMMENT: usize = 127;

/// The maps for one kind of frontend.
struct Maps {
    entry: SetId,
    near: SetId,
    local: SetId,
    endpoints: SetId,
    endpoints_local: SetId,
    no_endpoints: SetId,
    sticky: SetId,
    sticky_local: SetId,
    affinity: SetId,
}

impl Maps {
    /// The map for clients without a record.
    fn sticky(&self, reach: Reach) -> SetId {
        match reach {
            Reach::Cluster => self.sticky,
            Reach::Local => self.sticky_local,
        }
    }
}

const ADDRESS: Maps = Maps {
    entry: SetId::Services,
    near: SetId::ServicesNear,
    local: SetId::ServicesLocal,
    endpoints: SetId::Endpoints,
    endpoints_local: SetId::EndpointsLocal,
    no_endpoints: SetId::NoEndpoints,
    sticky: SetId::StickyServices,
    sticky_local: SetId::StickyServicesLocal,
    affinity: SetId::AffinityServices,
};

const NODE: Maps = Maps {
    entry: SetId::Nodeports,
    near: SetId::NodeportsNear,
    local: SetId::NodeportsLocal,
    endpoints: SetId::NodeportEndpoints,
    endpoints_local: SetId::NodeportEndpointsLocal,
    no_endpoints: SetId::NoEndpointNodeports,
    sticky: SetId::StickyNodeports,
    sticky_local: SetId::StickyNodeportsLocal,
    affinity: SetId::AffinityNodeports,
};

/// The elements of a frontend, and the chains that they refer to.
pub fn place(
    frontend: &Frontend,
    entry: &Entry,
    elements: &mut Vec<Placed>,
    chains: &mut Vec<OnDemand>,
) {
    Placer::new(frontend, entry, elements, chains, Wanted::Yes).run();
}

/// Only the chains that the elements of a frontend refer to.
pub(crate) fn chains_of(frontend: &Frontend, entry: &Entry, chains: &mut Vec<OnDemand>) {
    Placer::new(frontend, entry, &mut Vec::new(), chains, Wanted::No).run();
}

/// Whether to create the elements for slots, which are most of all elements.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Yes,
    No,
}

struct Placer<'a> {
    key: Bytes,
    protocol: Protocol,
    maps: &'static Maps,
    entry: &'a Entry,
    elements: &'a mut Vec<Placed>,
    chains: &'a mut Vec<OnDemand>,
    slots: Wanted,
}

impl<'a> Placer<'a> {
    fn new(
        frontend: &Frontend,
        entry: &'a Entry,
        elements: &'a mut Vec<Placed>,
        chains: &'a mut Vec<OnDemand>,
        slots: Wanted,
    ) -> Self {
        let maps = match frontend.at {
            At::Address(_) => &ADDRESS,
            At::Node => &NODE,
        };
        let (key, protocol) = (key_of(frontend), frontend.protocol);
        Self { key, protocol, maps, entry, elements, chains, slots }
    }

    fn run(mut self) {
        let (entry, maps) = (self.entry, self.maps);
        let reach = entry.affinity.as_ref().map_or(Reach::Cluster, |affinity| affinity.reach);
        let own = |placer: &mut Self, into, mark| {
            placer.pick(into, maps.endpoints, &entry.endpoints, reach, mark);
        };
        match &entry.path {
            Path::Direct => own(&mut self, maps.entry, Mark::No),
            Path::Masquerade => own(&mut self, maps.entry, Mark::Yes),
            Path::LocalOnly(local) => {
                if !entry.endpoints.is_empty() || !local.is_empty() {
                    let chain = Verdict::Goto(Name::from(external_local_chain(maps.near)));
                    self.verdict(maps.entry, chain);
                }
                own(&mut self, maps.near, Mark::No);
                self.pick(maps.local, maps.endpoints_local, local, Reach::Local, Mark::No);
            }
        }
        if let Some(refusal) = entry.refusal {
            let verdict = match refusal {
                Refusal::Reject => Verdict::Goto(Name::from("reject-chain")),
                Refusal::Drop => Verdict::Drop,
            };
            self.verdict(maps.no_endpoints, verdict);
        }
        self.record();
        self.guard();
    }

    /// Adds the elements that record the endpoints of clients with session affinity.
    fn record(&mut self) {
        let has_endpoints = self.entry.slots().any(|slots| !slots.is_empty());
        let Some(affinity) = self.entry.affinity.as_ref().filter(|_| has_endpoints) else { return };
        let recording = Recording {
            port: affinity.port.clone(),
            protocol: self.protocol,
            seconds: affinity.seconds,
            maps: affinity.maps,
        };
        self.go_to(self.maps.affinity, OnDemand::Record(recording));
    }

    fn push(&mut self, set: SetId, data: Data) {
        let comment = Some(shorten(&self.entry.name));
        self.elements.push((set, Element { key: self.key, end: None, data, comment }));
    }

    fn verdict(&mut self, set: SetId, verdict: Verdict) {
        self.push(set, Data::Verdict(verdict));
    }

    fn go_to(&mut self, set: SetId, chain: OnDemand) {
        self.verdict(set, Verdict::Goto(chain.name()));
        self.chains.push(chain);
    }

    /// Adds the elements that send connections to one of the slots, if there are any.
    fn pick(&mut self, entry: SetId, from: SetId, slots: &Slots, reach: Reach, mark: Mark) {
        if slots.is_empty() {
            return;
        }
        let pick = Pick { from, first: 0, draw: slots.draw().clone(), mark };
        if let Some(affinity) = &self.entry.affinity {
            let (port, protocol) = (affinity.port.clone(), self.protocol);
            self.go_to(entry, OnDemand::Stay(Stay { port, protocol, reach, mark }));
            // The stay chain has already marked the packet.
            let pick = Pick { mark: Mark::No, ..pick };
            self.go_to(self.maps.sticky(reach), OnDemand::Pick(pick));
        } else {
            match pick.set().filter(|_| entry == SetId::Services) {
                Some(set) => self.push(set, Data::None),
                None => self.go_to(entry, OnDemand::Pick(pick)),
            }
        }
        if self.slots == Wanted::No {
            return;
        }
        self.elements.reserve(slots.len());
        for (slot, endpoint) in slots.iter().enumerate() {
            let key = self.key.slot(slot as u32);
            let data = Data::Value(Bytes::EMPTY.address(endpoint.ip).port(endpoint.port));
            self.elements.push((from, Element { key, end: None, data, comment: None }));
        }
    }

    /// Adds the elements for `loadBalancerSourceRanges`.
    fn guard(&mut self) {
        let Some(sources) = self.entry.sources.clone() else { return };
        self.push(SetId::Firewall, Data::None);
        for (first, last) in sources.iter() {
            let key = self.key.address(*first);
            let end = Some(Box::new(self.key.address(*last)));
            let allowed = Element { key, end, data: Data::None, comment: None };
            self.elements.push((SetId::FirewallAllowed, allowed));
        }
    }
}

/// The element that refuses other ports of a cluster IP.
pub(crate) fn place_cluster_ip(address: IpAddr) -> Placed {
    let key = Bytes::EMPTY.address(address);
    (SetId::ClusterIps, Element { key, end: None, data: Data::None, comment: None })
}

/// The element that masquerades an endpoint's connections to itself.
pub(crate) fn place_hairpin(endpoint: EndpointKey, protocol: Protocol) -> Placed {
    let key = Bytes::EMPTY.address(endpoint.ip).address(endpoint.ip);
    let key = key.protocol(protocol_number(protocol)).port(endpoint.port);
    (SetId::Hairpin, Element { key, end: None, data: Data::None, comment: None })
}

fn shorten(name: &Name) -> Name {
    if name.len() <= COMMENT {
        return name.clone();
    }
    Name::from(&name[..name.floor_char_boundary(COMMENT)])
}
