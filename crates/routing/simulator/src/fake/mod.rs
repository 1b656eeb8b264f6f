//! nftables in memory: takes the same batches as the kernel and refuses what the kernel refuses.
//!
//! All or nothing, like the kernel. It has no clock: elements that expire go by [`Fake::expire`].
//! It knows only the objects in [`nearhop_netfilter::object`] and does not encode anything; a packet's way
//! through the rules is `walk`'s. Where kernels differ it takes the stricter side: a chain with
//! rules cannot be deleted (the kernel's `NLM_F_NONREC`), a map cannot be used as a mere set, an
//! element of an interval set names its end.

mod check;
mod code;
mod run;
mod validate;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

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
    refuse_next: VecDeque<Code>,
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
    /// The element that a key hits, as a lookup finds it.
    pub(crate) fn hit(&self, key: &Bytes) -> Option<&Element> {
        match self.set.kind {
            SetKind::Interval => self.elements.values().find(|element| self.covers(element, key)),
            SetKind::Exact | SetKind::Dynamic => self.elements.get(key),
        }
    }

    /// Whether every field of a key lies between those of an element's key and end.
    fn covers(&self, element: &Element, key: &Bytes) -> bool {
        let end = element.end.as_deref().unwrap_or(&element.key);
        let bounds = parts(&self.set, &element.key).zip(parts(&self.set, end));
        bounds.zip(parts(&self.set, key)).all(|((low, high), part)| low <= part && part <= high)
    }
}

/// What `update` in a rule wrote to a dynamic set.
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
    /// Milliseconds.
    pub timeout_ms: u64,
}

impl Fake {
    /// Nothing in it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Does everything in a batch, or nothing and says why.
    pub fn apply(&mut self, batch: &Batch) -> Result<(), FakeError> {
        if let Some(code) = self.refuse_next.pop_front() {
            let about = format!("batch for {}", label(&batch.table));
            return Err(FakeError { op: None, code, about });
        }
        if self.run(batch)? {
            self.generation += 1;
        }
        Ok(())
    }

    /// Goes up with each batch that changed something.
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

    /// The sets of a table, sorted by name; none if there is no such table.
    pub fn sets(&self, table: &Table) -> impl Iterator<Item = &Set> {
        self.tables.get(table).into_iter().flat_map(|state| state.sets.values()).map(|set| &set.set)
    }

    /// The chains of a table with their rules, sorted by name; none if there is no such table.
    pub fn chains(&self, table: &Table) -> impl Iterator<Item = &Chain> {
        self.tables.get(table).into_iter().flat_map(|state| state.chains.values())
    }

    /// The elements of a set by key; none if there is no such table or set.
    pub fn elements(&self, table: &Table, set: &str) -> Option<&BTreeMap<Bytes, Element>> {
        Some(&self.tables.get(table)?.sets.get(set)?.elements)
    }

    pub(crate) fn states(&self) -> impl Iterator<Item = (&Table, &TableState)> {
        self.tables.iter()
    }

    /// Refuses the next batch as a whole. Twice: the next two.
    pub fn refuse_once(&mut self, code: Code) {
        self.refuse_next.push_back(code);
    }

    /// Refuses every batch that adds this key to a set of this name, with [`Code::NoMemory`],
    /// until [`Fake::accept_elements`].
    pub fn refuse_elements(&mut self, set: impl Into<Name>, key: Bytes) {
        self.refuse_elements.insert((set.into(), key));
    }

    /// Takes [`Fake::refuse_elements`] back.
    pub fn accept_elements(&mut self, set: impl Into<Name>, key: Bytes) {
        self.refuse_elements.remove(&(set.into(), key));
    }

    /// Puts in what a packet's `update` wrote. As in the kernel, data that is there stays, and
    /// the generation too. False if there is no such dynamic set, or no room in it.
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

    /// Lets an element of a dynamic set expire. False if it was not there.
    pub fn expire(&mut self, table: &Table, set: &str, key: &Bytes) -> bool {
        let set = self.tables.get_mut(table).and_then(|state| state.sets.get_mut(set));
        let set = set.filter(|set| set.set.kind == SetKind::Dynamic);
        set.is_some_and(|set| set.elements.remove(key).is_some())
    }
}

/// A table as nft writes it.
pub(crate) fn label(table: &Table) -> String {
    format!("{} {}", family_word(table.family), table.name)
}

/// nft's word for a family.
pub(crate) fn family_word(family: nearhop_core::Family) -> &'static str {
    match family {
        nearhop_core::Family::Ipv4 => "ip",
        nearhop_core::Family::Ipv6 => "ip6",
    }
}

#[cfg(test)]
mod tests;
