//! A frontend as elements of sets and maps.

use std::net::IpAddr;

use nearhop_core::{EndpointKey, Name, Protocol};

use crate::chain::{Mark, OnDemand, Pick, Sticky, external_local_chain};
use crate::frontend::{At, Entry, Frontend, Path, Refusal, Slots};
use crate::layout::{SetId, key_of, protocol_number};
use crate::object::{Bytes, Data, Element, Verdict};

/// An element and where it belongs.
pub type Placed = (SetId, Element);

/// nft shows at most so many bytes of a comment.
const COMMENT: usize = 127;

/// The maps for one kind of frontend.
struct Maps {
    entry: SetId,
    near: SetId,
    local: SetId,
    endpoints: SetId,
    endpoints_local: SetId,
    nobody: SetId,
    affinity: SetId,
}

const ADDRESS: Maps = Maps {
    entry: SetId::Services,
    near: SetId::ServicesNear,
    local: SetId::ServicesLocal,
    endpoints: SetId::Endpoints,
    endpoints_local: SetId::EndpointsLocal,
    nobody: SetId::NoEndpoints,
    affinity: SetId::AffinityServices,
};

const NODE: Maps = Maps {
    entry: SetId::Nodeports,
    near: SetId::NodeportsNear,
    local: SetId::NodeportsLocal,
    endpoints: SetId::NodeportEndpoints,
    endpoints_local: SetId::NodeportEndpointsLocal,
    nobody: SetId::NoEndpointNodeports,
    affinity: SetId::AffinityNodeports,
};

/// The elements of a frontend, and the chains that they go to.
pub fn place(
    frontend: &Frontend,
    entry: &Entry,
    elements: &mut Vec<Placed>,
    chains: &mut Vec<OnDemand>,
) {
    run(frontend, Placer { key: key_of(frontend), entry, elements, chains, slots: Wanted::Yes });
}

/// Only the chains that the elements of a frontend go to.
pub fn chains_of(frontend: &Frontend, entry: &Entry, chains: &mut Vec<OnDemand>) {
    let elements = &mut Vec::new();
    run(frontend, Placer { key: key_of(frontend), entry, elements, chains, slots: Wanted::No });
}

/// Whether the elements for slots are wanted: of all elements they are nearly all.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Yes,
    No,
}

fn run(frontend: &Frontend, mut placer: Placer<'_>) {
    let entry = placer.entry;
    let maps = match frontend.at {
        At::Address(_) => &ADDRESS,
        At::Node => &NODE,
    };
    match &entry.path {
        Path::Direct => placer.pick(maps.entry, maps.endpoints, &entry.endpoints, Mark::No),
        Path::Masquerade => placer.pick(maps.entry, maps.endpoints, &entry.endpoints, Mark::Yes),
        Path::LocalOnly(local) => {
            if !entry.endpoints.is_empty() || !local.is_empty() {
                let chain = Verdict::Goto(Name::from(external_local_chain(maps.near)));
                placer.verdict(maps.entry, chain);
            }
            placer.pick(maps.near, maps.endpoints, &entry.endpoints, Mark::No);
            placer.pick(maps.local, maps.endpoints_local, local, Mark::No);
        }
    }
    if let Some(refusal) = entry.refusal {
        let verdict = match refusal {
            Refusal::Reject => Verdict::Goto(Name::from("reject-chain")),
            Refusal::Drop => Verdict::Drop,
        };
        placer.verdict(maps.nobody, verdict);
    }
    if let Some(seconds) = entry.affinity.filter(|_| entry.slots().any(|slots| !slots.is_empty())) {
        let record = OnDemand::Record(frontend.protocol, seconds);
        placer.go_to(maps.affinity, record);
    }
    placer.guard();
}

struct Placer<'a> {
    key: Bytes,
    entry: &'a Entry,
    elements: &'a mut Vec<Placed>,
    chains: &'a mut Vec<OnDemand>,
    slots: Wanted,
}

impl Placer<'_> {
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

    /// Sends connections to one of the slots, if there are any.
    fn pick(&mut self, entry: SetId, from: SetId, slots: &Slots, mark: Mark) {
        if slots.is_empty() {
            return;
        }
        let sticky = if self.entry.affinity.is_some() { Sticky::Yes } else { Sticky::No };
        let pick = Pick { from, draw: slots.draw().clone(), sticky, mark };
        match pick.set().filter(|_| entry == SetId::Services) {
            Some(set) => self.push(set, Data::None),
            None => self.go_to(entry, OnDemand::Pick(pick)),
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

    /// Lets only some sources through.
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
pub fn place_cluster_ip(address: IpAddr) -> Placed {
    let key = Bytes::EMPTY.address(address);
    (SetId::ClusterIps, Element { key, end: None, data: Data::None, comment: None })
}

/// The element that masquerades an endpoint's connections to itself.
pub fn place_hairpin(endpoint: EndpointKey, protocol: Protocol) -> Placed {
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
