//! Compares the table in the kernel with the desired table.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nearhop_core::{EndpointKey, Family, Name};

use crate::affinity::define_map;
use crate::changes::Changes;
use crate::compile::PreviousSlots;
use crate::desired::{DesiredTable, signature};
use crate::element::Placed;
use crate::frontend::Frontend;
use crate::layout::{SetId, frontend_of, read_endpoint};
use crate::object::{Chain, Data, Op, Set};

/// The content of our table in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelState {
    /// Its sets.
    pub sets: BTreeSet<Name>,
    /// Its chains.
    pub chains: BTreeMap<Name, KernelChain>,
    /// The elements of the sets that the proxy writes.
    pub elements: Vec<Placed>,
    /// Whether a set has another definition, or the table is dormant: the whole table is replaced.
    pub outdated: bool,
    /// Whether elements may be missing, because other programs changed tables during the read.
    pub rough: bool,
}

impl KernelState {
    /// Sets that are not in the desired table.
    pub fn strange_sets<'a>(&'a self, desired: &'a DesiredTable) -> impl Iterator<Item = &'a Name> {
        let ours = |name: &Name| SetId::by_name(name).is_some() || desired.maps().contains(name);
        self.sets.iter().filter(move |name| !ours(name))
    }

    /// Desired sets that are missing.
    pub fn missing_sets(&self, desired: &DesiredTable) -> Vec<Set> {
        let family = desired.config().family();
        let fixed = SetId::ALL.into_iter().map(|id| id.define(family));
        let maps = desired.maps().iter().map(|map| define_map(map.clone(), family));
        fixed.chain(maps).filter(|set| !self.sets.contains(&set.name)).collect()
    }
}

/// A chain in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelChain {
    /// Whether it is a base chain.
    pub base: bool,
    /// How many rules it has.
    pub rules: usize,
    /// The comment of its first rule.
    pub signature: Option<Name>,
}

/// The comment of the table, which identifies it as ours.
pub const COMMENT: &str = "rules of the nearhop service proxy";

/// The changes that turn the table in the kernel into the desired one. `held` is none if there is
/// no table.
pub fn reconcile(desired: &DesiredTable, held: Option<&KernelState>) -> Changes {
    let mut changes = Changes::default();
    let nothing = KernelState::default();
    if held.is_none() {
        changes.first(Op::AddTable { comment: Name::from(COMMENT) });
    }
    let held = held.unwrap_or(&nothing);
    for set in held.missing_sets(desired) {
        changes.first(Op::AddSet(set));
    }
    let chains = desired.chains();
    let known = chains.iter().map(|chain| chain.name.clone()).collect();
    reconcile_chains(chains, held, &mut changes);
    if held.elements.is_empty() {
        changes.fill(desired.elements());
    } else {
        changes.replace(held.elements.clone(), desired.elements());
    }
    remove_unknown(desired, &known, held, &mut changes);
    changes
}

/// Deletes unknown objects: rules first, then the sets that they used, then the chains that rules
/// and sets referred to.
fn remove_unknown(
    desired: &DesiredTable,
    known: &BTreeSet<Name>,
    held: &KernelState,
    changes: &mut Changes,
) {
    let chains: Vec<&Name> = held.chains.keys().filter(|name| !known.contains(*name)).collect();
    for name in &chains {
        changes.last(Op::FlushChain((*name).clone()));
    }
    for name in held.strange_sets(desired) {
        changes.last(Op::DeleteSet(name.clone()));
    }
    for name in chains {
        changes.last(Op::DeleteChain(name.clone()));
    }
}

fn reconcile_chains(wanted: Vec<Chain>, held: &KernelState, changes: &mut Changes) {
    let mut fill = Vec::new();
    for chain in wanted {
        let there = held.chains.get(&chain.name);
        match there {
            Some(there) if is_right(there, &chain) => continue,
            Some(there) => {
                changes.first(Op::FlushChain(chain.name.clone()));
                // The hook of a chain cannot be changed.
                if there.base || chain.hook.is_some() {
                    changes.first(Op::DeleteChain(chain.name.clone()));
                }
            }
            None => {}
        }
        if there.is_none() && chain.hook.is_some() {
            // Add hooks last: packets must not pass an incomplete table.
            changes.last(Op::AddChain(chain));
        } else {
            // Add all chains first, then rules: a rule may refer to any chain.
            changes.first(Op::AddChain(Chain { rules: Vec::new(), ..chain.clone() }));
            fill.push(chain);
        }
    }
    for chain in fill {
        changes.first(Op::AddChain(chain));
    }
}

/// Whether a chain has the desired rules, according to its signature.
pub fn is_right(there: &KernelChain, wanted: &Chain) -> bool {
    there.base == wanted.hook.is_some()
        && there.rules == wanted.rules.len()
        && there.signature.as_ref() == signature(wanted)
}

/// The slots in the kernel, so that endpoints keep their slots after a restart.
#[derive(Clone, Debug, Default)]
pub struct KernelSlots {
    endpoints: BTreeMap<Frontend, BTreeMap<u32, EndpointKey>>,
    local: BTreeMap<Frontend, BTreeMap<u32, EndpointKey>>,
}

impl KernelSlots {
    /// Reads the slots from the content of the kernel.
    pub fn of(held: &KernelState, family: Family) -> Self {
        let mut slots = Self::default();
        for (set, element) in &held.elements {
            let to = match set {
                SetId::Endpoints | SetId::NodeportEndpoints => &mut slots.endpoints,
                SetId::EndpointsLocal | SetId::NodeportEndpointsLocal => &mut slots.local,
                _ => continue,
            };
            let read = || {
                let frontend = frontend_of(*set, &element.key)?;
                let slot = u32::from_ne_bytes(*element.key.as_slice().last_chunk::<4>()?);
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

impl KernelSlots {
    /// Every frontend with its endpoints.
    pub fn frontends(&self) -> impl Iterator<Item = (&Frontend, Vec<EndpointKey>)> {
        let all: BTreeSet<&Frontend> = self.endpoints.keys().chain(self.local.keys()).collect();
        all.into_iter().map(|frontend| {
            let slots = [self.endpoints.get(frontend), self.local.get(frontend)];
            let endpoints = slots.into_iter().flatten().flat_map(BTreeMap::values).copied();
            (frontend, endpoints.collect())
        })
    }
}

impl PreviousSlots for KernelSlots {
    fn endpoints(&self, frontend: &Frontend) -> Option<Arc<[EndpointKey]>> {
        self.endpoints.get(frontend).map(|slots| slots.values().copied().collect())
    }

    fn local(&self, frontend: &Frontend) -> Option<Arc<[EndpointKey]>> {
        self.local.get(frontend).map(|slots| slots.values().copied().collect())
    }
}
