//! nftables in memory: accepts the same batches as the kernel and refuses what the kernel refuses.
//!
//! A batch is applied as a whole or not at all, as in the kernel. There is no clock:
//! [`Fake::expire`] deletes elements that expire. The fake knows only the objects in
//! [`nearhop_netfilter::object`] and does not encode anything; `walk` sends packets through the
//! rules. Where kernels differ, the fake is as strict as the strictest: a chain with rules cannot
//! be deleted (the kernel's `NLM_F_NONREC`), a map cannot be used as a plain set, an element of an
//! interval set must have an end.

mod check;
mod code;
mod run;
mod validate;

use std::collections::{BTreeMap, BTreeSet};

use nearhop_core::Name;

use nearhop_netfilter::object::{
    Batch, Bytes, Chain, Data, Element, MOST_DYNAMIC, Set, SetKind, Table,
};

use check::parts;
pub(crate) use check::{data_len, key_len};
pub use code::{Code, FakeError};

/// nftables in memory.
#[derive(Clone, Debug, Default)]
pub struct Fake {
    tables: BTreeMap<Table, TableState>,
    generation: u64,
    refuse_elements: BTreeSet<(Name, Bytes)>,
}

/// A table and everything in it.
#[derive(Clone, Debug)]
pub(crate) struct TableState {
    pub(crate) comment: Name,
    pub(crate) sets: BTreeMap<Name, SetState>,
    pub(crate) chains: BTreeMap<Name, Chain>,
}

/// A set and its elements.
#[derive(Clone, Debug)]
pub(crate) struct SetState {
    pub(crate) set: Set,
    pub(crate) elements: BTreeMap<Bytes, Element>,
}

impl SetState {
    /// The element that a lookup of a key finds.
    pub(crate) fn hit(&self, key: &Bytes) -> Option<&Element> {
        match self.set.kind {
            SetKind::Interval => self.elements.values().find(|element| self.covers(element, key)),
            SetKind::Exact | SetKind::Dynamic => self.elements.get(key),
        }
    }

    /// Whether every field of a key is between those of an element's key and end.
    fn covers(&self, element: &Element, key: &Bytes) -> bool {
        let end = element.end.as_deref().unwrap_or(&element.key);
        let bounds = parts(&self.set, &element.key).zip(parts(&self.set, end));
        bounds.zip(parts(&self.set, key)).all(|((low, high), part)| low <= part && part <= high)
    }
}

/// An element that `update` in a rule wrote to a dynamic set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The table of the rule.
    pub table: Table,
    /// The set.
    pub set: Name,
    /// The key.
    pub key: Bytes,
    /// The data.
    pub data: Bytes,
    /// Timeout in milliseconds.
    pub timeout_ms: u64,
}

impl Fake {
    /// Creates it without tables.
    pub fn new() -> Self {
        Self::default()
    }

    /// Applies all changes of a batch, or none and returns the error.
    pub fn apply(&mut self, batch: &Batch) -> Result<(), FakeError> {
        if self.run(batch)? {
            self.generation += 1;
        }
        Ok(())
    }

    /// The generation, which increases with each batch that changed something.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The tables, sorted.
    pub fn tables(&self) -> impl Iterator<Item = &Table> {
        self.tables.keys()
    }

    /// The comment of a table.
    pub fn comment(&self, table: &Table) -> Option<&Name> {
        self.tables.get(table).map(|state| &state.comment)
    }

    /// The sets of a table, sorted by name; empty if the table does not exist.
    pub fn sets(&self, table: &Table) -> impl Iterator<Item = &Set> {
        self.tables.get(table).into_iter().flat_map(|state| state.sets.values()).map(|set| &set.set)
    }

    /// The chains of a table with their rules, sorted by name; empty if the table does not exist.
    pub fn chains(&self, table: &Table) -> impl Iterator<Item = &Chain> {
        self.tables.get(table).into_iter().flat_map(|state| state.chains.values())
    }

    /// The elements of a set by key; none if the table or set does not exist.
    pub fn elements(&self, table: &Table, set: &str) -> Option<&BTreeMap<Bytes, Element>> {
        Some(&self.tables.get(table)?.sets.get(set)?.elements)
    }

    pub(crate) fn states(&self) -> impl Iterator<Item = (&Table, &TableState)> {
        self.tables.iter()
    }

    /// Refuses every batch that adds this key to a set of this name, with [`Code::NoMemory`],
    /// until [`Fake::accept_elements`].
    pub fn refuse_elements(&mut self, set: impl Into<Name>, key: Bytes) {
        self.refuse_elements.insert((set.into(), key));
    }

    /// Reverts [`Fake::refuse_elements`].
    pub fn accept_elements(&mut self, set: impl Into<Name>, key: Bytes) {
        self.refuse_elements.remove(&(set.into(), key));
    }

    /// Adds an element that a packet's `update` wrote. As in the kernel, existing data and the
    /// generation do not change. Returns false if the dynamic set does not exist or is full.
    pub fn record(&mut self, record: &Record) -> bool {
        let set = self.tables.get_mut(&record.table).and_then(|t| t.sets.get_mut(&record.set));
        let Some(set) = set.filter(|set| set.set.kind == SetKind::Dynamic) else { return false };
        let full = set.elements.len() >= MOST_DYNAMIC as usize;
        if full && !set.elements.contains_key(&record.key) {
            return false;
        }
        set.elements.entry(record.key).or_insert_with(|| Element {
            key: record.key,
            end: None,
            data: Data::Value(record.data),
            comment: None,
        });
        true
    }

    /// Expires an element of a dynamic set. Returns false if it does not exist.
    pub fn expire(&mut self, table: &Table, set: &str, key: &Bytes) -> bool {
        let set = self.tables.get_mut(table).and_then(|state| state.sets.get_mut(set));
        let set = set.filter(|set| set.set.kind == SetKind::Dynamic);
        set.is_some_and(|set| set.elements.remove(key).is_some())
    }
}

/// A table in nft syntax.
pub(crate) fn label(table: &Table) -> String {
    format!("{} {}", family_word(table.family), table.name)
}

/// nft's name of a family.
pub(crate) fn family_word(family: nearhop_core::Family) -> &'static str {
    match family {
        nearhop_core::Family::Ipv4 => "ip",
        nearhop_core::Family::Ipv6 => "ip6",
    }
}

#[cfg(test)]
mod tests;
