//! What the kernel holds against what it is to hold.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use nearhop_core::{EndpointKey, Family, Name};

use crate::changes::Changes;
use crate::compile::Before;
use crate::element::Placed;
use crate::frontend::{At, Frontend, Slots};
use crate::image::{Image, signature};
use crate::layout::{SetId, protocol_of};
use crate::object::{Bytes, Chain, Data, Op};

/// What the kernel holds of our table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Its sets.
    pub sets: BTreeSet<Name>,
    /// Its chains.
    pub chains: BTreeMap<Name, HeldChain>,
    /// The elements of the sets that we write.
    pub elements: Vec<Placed>,
}

/// A chain that the kernel holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldChain {
    /// Whether it is a base chain.
    pub base: bool,
    /// How many rules it has.
    pub rules: usize,
    /// The comment of its first rule.
    pub signature: Option<Name>,
}

/// The comment of the table.
const COMMENT: &str = "rules of the nearhop service proxy";

/// What makes the kernel hold what it is to hold. `held` is none where there is no table.
pub fn reconcile(image: &Image, held: Option<&Held>) -> Changes {
    let mut changes = Changes::default();
    let nothing = Held::default();
    let family = image.config().family();
    if held.is_none() {
        changes.first(Op::AddTable { comment: Name::from(COMMENT) });
    }
    let is_new = held.is_none();
    let held = held.unwrap_or(&nothing);
    for id in SetId::ALL.into_iter().filter(|id| !held.sets.contains(id.name())) {
        changes.first(Op::AddSet(id.define(family)));
    }
    reconcile_chains(image.chains(), held, is_new, &mut changes);
    changes.replace(held.elements.clone(), image.elements());
    for name in held.sets.iter().filter(|name| SetId::by_name(name).is_none()) {
        changes.last(Op::DeleteSet(name.clone()));
    }
    changes
}

fn reconcile_chains(wanted: Vec<Chain>, held: &Held, is_new: bool, changes: &mut Changes) {
    let names: BTreeSet<Name> = wanted.iter().map(|chain| chain.name.clone()).collect();
    let mut fill = Vec::new();
    for chain in wanted {
        match held.chains.get(&chain.name) {
            Some(there) if is_right(there, &chain) => continue,
            Some(there) => {
                changes.first(Op::FlushChain(chain.name.clone()));
                // Where it hangs cannot be changed either.
                if there.base || chain.hook.is_some() {
                    changes.first(Op::DeleteChain(chain.name.clone()));
                }
            }
            None => {}
        }
        if is_new && chain.hook.is_some() {
            changes.last(Op::AddChain(chain));
        } else {
            // All chains first, then rules: a rule may go to any of them.
            changes.first(Op::AddChain(Chain { rules: Vec::new(), ..chain.clone() }));
            fill.push(chain);
        }
    }
    for chain in fill {
        changes.first(Op::AddChain(chain));
    }
    let unknown: Vec<&Name> = held.chains.keys().filter(|name| !names.contains(*name)).collect();
    for name in &unknown {
        changes.last(Op::FlushChain((*name).clone()));
    }
    for name in unknown {
        changes.last(Op::DeleteChain(name.clone()));
    }
}

fn is_right(there: &HeldChain, wanted: &Chain) -> bool {
    there.base == wanted.hook.is_some()
        && there.rules == wanted.rules.len()
        && there.signature.as_ref() == signature(wanted)
}

/// The slots that the kernel holds, so that a new start leaves everybody in place.
#[derive(Clone, Debug, Default)]
pub struct HeldSlots {
    endpoints: BTreeMap<Frontend, BTreeMap<u32, EndpointKey>>,
    local: BTreeMap<Frontend, BTreeMap<u32, EndpointKey>>,
}

impl HeldSlots {
    /// Reads the slots from what the kernel holds.
    pub fn of(held: &Held, family: Family) -> Self {
        let mut slots = Self::default();
        for (set, element) in &held.elements {
            let to = match set {
                SetId::Endpoints | SetId::NodeportEndpoints => &mut slots.endpoints,
                SetId::EndpointsLocal | SetId::NodeportEndpointsLocal => &mut slots.local,
                _ => continue,
            };
            let nodeport = matches!(set, SetId::NodeportEndpoints | SetId::NodeportEndpointsLocal);
            let read = || {
                let (frontend, rest) = read_frontend(&element.key, nodeport, family)?;
                let slot = u32::from_ne_bytes(rest.try_into().ok()?);
                let Data::Value(value) = &element.data else { return None };
                Some((frontend, slot, read_endpoint(value, family)?))
            };
            if let Some((frontend, slot, endpoint)) = read() {
                to.entry(frontend).or_default().insert(slot, endpoint);
            }
        }
        slots
    }
}

impl Before for HeldSlots {
    fn endpoints(&self, frontend: &Frontend) -> Option<Slots> {
        self.endpoints.get(frontend).map(|slots| slots.values().copied().collect())
    }

    fn local(&self, frontend: &Frontend) -> Option<Slots> {
        self.local.get(frontend).map(|slots| slots.values().copied().collect())
    }
}

/// The frontend at the beginning of a key, and what follows it.
fn read_frontend(key: &Bytes, nodeport: bool, family: Family) -> Option<(Frontend, &[u8])> {
    let bytes = key.as_slice();
    let (at, bytes) = if nodeport {
        (At::Node, bytes)
    } else {
        let (address, bytes) = read_address(bytes, family)?;
        (At::Address(address), bytes)
    };
    let (ports, rest) = bytes.split_at_checked(8)?;
    let port = u16::from_be_bytes([ports[4], ports[5]]);
    Some((Frontend { at, protocol: protocol_of(ports[0])?, port }, rest))
}

fn read_address(bytes: &[u8], family: Family) -> Option<(IpAddr, &[u8])> {
    Some(match family {
        Family::Ipv4 => {
            let (octets, rest) = bytes.split_first_chunk::<4>()?;
            (IpAddr::from(*octets), rest)
        }
        Family::Ipv6 => {
            let (octets, rest) = bytes.split_first_chunk::<16>()?;
            (IpAddr::from(*octets), rest)
        }
    })
}

/// The endpoint that a map's value names.
pub fn read_endpoint(value: &Bytes, family: Family) -> Option<EndpointKey> {
    let (ip, rest) = read_address(value.as_slice(), family)?;
    Some(EndpointKey { ip, port: u16::from_be_bytes([*rest.first()?, *rest.get(1)?]) })
}

/// An element of `affinity`: a client and the endpoint it stays with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stay {
    /// The client.
    pub client: IpAddr,
    /// The address it connects to.
    pub address: IpAddr,
    /// As a frontend by address; a node port's is found by its port.
    pub frontend: Frontend,
    /// The endpoint.
    pub endpoint: EndpointKey,
}

/// Reads an element of `affinity`.
pub fn read_stay(key: &Bytes, value: &Bytes, family: Family) -> Option<Stay> {
    let (client, rest) = read_address(key.as_slice(), family)?;
    let rest = Bytes::from_slice(rest)?;
    let (frontend, _) = read_frontend(&rest, false, family)?;
    let At::Address(address) = frontend.at else { return None };
    Some(Stay { client, address, frontend, endpoint: read_endpoint(value, family)? })
}
