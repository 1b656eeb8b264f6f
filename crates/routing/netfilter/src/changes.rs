//! Collects the changes of a table and makes batches of them.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use nearhop_core::{EndpointKey, Name, Protocol};

use crate::affinity::Reach;
use crate::element::Placed;
use crate::frontend::{Entry as FrontendEntry, Frontend};
use crate::layout::{SetId, frontend_of};
use crate::object::{Batch, Bytes, Element, Op, Table};

/// The changes of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Changes of sets, chains and rules that must precede the elements, in order.
    before: Vec<Op>,
    elements: BTreeMap<(SetId, Bytes), Pending>,
    /// Elements of a new table: there is nothing to compare with.
    fresh: Vec<Placed>,
    /// Changes that must follow the elements: deletions of unused objects, and hooks.
    after: Vec<Op>,
    lost: Vec<Lost>,
    /// Service ports that may have affinity records to endpoints that are no longer eligible.
    releases: BTreeSet<Name>,
}

/// The old and the new state of an element. Several changes of one element in one batch are merged
/// into this.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Pending {
    was: Option<Element>,
    now: Option<Element>,
}

impl Pending {
    fn changes(&self) -> bool {
        match (&self.was, &self.now) {
            (Some(was), Some(now)) => was.end != now.end || was.data != now.data,
            (None, None) => false,
            _ => true,
        }
    }

    /// Whether an element without a frontend must be changed after all frontends.
    fn comes_last(&self, set: SetId) -> bool {
        match set {
            // Refuse other ports of a cluster IP only after the ports of its Service are written.
            SetId::ClusterIps => self.now.is_some(),
            // Masquerade as long as connections may go to the endpoint.
            SetId::Hairpin => self.now.is_none(),
            _ => false,
        }
    }
}

/// A frontend that no longer uses some endpoints: conntrack may still have UDP flows to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The frontend.
    pub frontend: Frontend,
    /// Endpoints that it no longer uses. Empty if the frontend changed in another way: under
    /// another policy a client may have to leave an endpoint that other clients still use.
    pub endpoints: Vec<EndpointKey>,
}

impl Changes {
    /// Whether there are no changes.
    pub fn is_empty(&self) -> bool {
        !self.touches_rules()
            && self.fresh.is_empty()
            && !self.elements.values().any(Pending::changes)
    }

    /// How many elements change.
    pub fn elements(&self) -> usize {
        self.fresh.len() + self.elements.values().filter(|pending| pending.changes()).count()
    }

    /// Whether chains or sets change.
    pub(crate) fn touches_rules(&self) -> bool {
        !self.before.is_empty() || !self.after.is_empty()
    }

    /// Frontends that lost endpoints.
    pub fn lost(&self) -> &[Lost] {
        &self.lost
    }

    /// Service ports that may have affinity records to delete: to endpoints that their frontend no
    /// longer uses.
    pub fn releases(&self) -> &BTreeSet<Name> {
        &self.releases
    }

    pub(crate) fn delete(&mut self, (set, element): Placed) {
        match self.elements.entry((set, element.key)) {
            Entry::Vacant(vacant) => {
                vacant.insert(Pending { was: Some(element), now: None });
            }
            Entry::Occupied(mut pending) => pending.get_mut().now = None,
        }
    }

    pub(crate) fn add(&mut self, (set, element): Placed) {
        let key = (set, element.key);
        self.elements.entry(key).or_default().now = Some(element);
    }

    pub(crate) fn first(&mut self, op: Op) {
        self.before.push(op);
    }

    pub(crate) fn last(&mut self, op: Op) {
        self.after.push(op);
    }

    /// Takes out the changes that must follow all elements: the hooks of a new table.
    pub fn hold_back(&mut self) -> Self {
        Self { after: std::mem::take(&mut self.after), ..Self::default() }
    }

    /// Adds elements to a table that has none.
    pub(crate) fn fill(&mut self, elements: Vec<Placed>) {
        self.fresh = elements;
    }

    /// Replaces elements by others.
    pub(crate) fn replace(&mut self, old: Vec<Placed>, new: Vec<Placed>) {
        old.into_iter().for_each(|placed| self.delete(placed));
        new.into_iter().for_each(|placed| self.add(placed));
    }

    /// Notes which endpoints a frontend no longer uses.
    pub(crate) fn touch(
        &mut self,
        frontend: &Frontend,
        before: Option<&FrontendEntry>,
        after: Option<&FrontendEntry>,
    ) {
        let sticky = before.and_then(|entry| Some((entry, entry.affinity.as_ref()?)));
        if let Some((before, affinity)) = sticky
            && lets_go(before, after)
        {
            self.releases.insert(affinity.port.clone());
        }
        if frontend.protocol != Protocol::Tcp {
            self.lose(frontend, endpoints_of(before), after);
        }
    }

    /// Notes which of a frontend's previous endpoints are no longer used.
    pub fn lose(
        &mut self,
        frontend: &Frontend,
        had: Vec<EndpointKey>,
        after: Option<&FrontendEntry>,
    ) {
        let has: BTreeSet<EndpointKey> = endpoints_of(after).into_iter().collect();
        let mut endpoints = had;
        endpoints.retain(|endpoint| !has.contains(endpoint));
        self.lost.push(Lost { frontend: *frontend, endpoints });
    }

    /// One batch with all changes.
    pub fn into_batch(self, table: &Table) -> Batch {
        let Self { before: mut ops, elements, fresh, after, .. } = self;
        let (delete, add) = split(elements, fresh);
        ops.extend(ops_of(delete, |set, elements| Op::DeleteElements { set, elements }));
        ops.extend(ops_of(add, |set, elements| Op::AddElements { set, elements }));
        ops.extend(after);
        Batch { table: table.clone(), ops }
    }

    /// One batch, or several if it would have more than `size` elements. Each frontend still
    /// changes atomically.
    pub fn into_sized(self, table: &Table, size: usize) -> Vec<Batch> {
        if self.elements() <= size {
            return vec![self.into_batch(table)];
        }
        let Parts { common, frontends, finish } = self.split();
        let mut batches = Vec::new();
        let mut open = common.cut(table, size, &mut batches);
        for changes in frontends.into_values() {
            let together = open.elements.len() + changes.elements.len();
            if !open.elements.is_empty() && together > size {
                batches.push(std::mem::take(&mut open).into_batch(table));
            }
            open.elements.extend(changes.elements);
        }
        batches.push(open.into_batch(table));
        let rest = finish.cut(table, size, &mut batches);
        batches.push(rest.into_batch(table));
        batches.retain(|batch| !batch.ops.is_empty());
        batches
    }

    /// Moves its first elements into batches, and keeps at most `size`.
    fn cut(mut self, table: &Table, size: usize, batches: &mut Vec<Batch>) -> Self {
        while let Some(key) = self.elements.keys().nth(size.max(1)).copied() {
            let elements = self.elements.split_off(&key);
            let after = std::mem::take(&mut self.after);
            let rest = Self { elements, after, ..Self::default() };
            batches.push(std::mem::replace(&mut self, rest).into_batch(table));
        }
        self
    }

    /// Splits the changes by frontend.
    pub fn split(mut self) -> Parts {
        std::mem::take(&mut self.fresh).into_iter().for_each(|placed| self.add(placed));
        let Self { before, elements, after, .. } = self;
        let mut common = Self { before, ..Self::default() };
        let mut finish = Self { after, ..Self::default() };
        let mut frontends: BTreeMap<Frontend, Self> = BTreeMap::new();
        for ((set, key), pending) in elements.into_iter().filter(|(_, pending)| pending.changes()) {
            let of = match frontend_of(set, &key) {
                Some(frontend) => frontends.entry(frontend).or_default(),
                None if pending.comes_last(set) => &mut finish,
                None => &mut common,
            };
            of.elements.insert((set, key), pending);
        }
        Parts { common, frontends, finish }
    }

    /// Batches of at most `size` elements, for a table without hooks. They are made one after the
    /// other, because all of them together would need as much memory as the whole table.
    pub fn into_batches(self, table: &Table, size: usize) -> impl Iterator<Item = Batch> {
        let Self { before, elements, fresh, after, .. } = self;
        let (delete, add) = split(elements, fresh);
        let delete = ops_of(delete, |set, elements| Op::DeleteElements { set, elements });
        let add = add.into_iter().flat_map(move |(set, elements)| {
            let (set, mut rest) = (Name::from(set.name()), elements.into_iter());
            std::iter::from_fn(move || {
                let elements: Vec<Element> = rest.by_ref().take(size).collect();
                let set = set.clone();
                (!elements.is_empty()).then_some(Op::AddElements { set, elements })
            })
        });
        let table = table.clone();
        let parts = std::iter::once(before)
            .chain(delete.chain(add).map(|op| vec![op]))
            .chain(std::iter::once(after));
        parts.filter(|ops| !ops.is_empty()).map(move |ops| Batch { table: table.clone(), ops })
    }
}

/// Changes, split by frontend.
#[derive(Clone, Debug)]
pub struct Parts {
    /// Changes that belong to no frontend or to several, and come first.
    pub common: Changes,
    /// Changes of one frontend each.
    pub frontends: BTreeMap<Frontend, Changes>,
    /// Changes that must come last.
    pub finish: Changes,
}

/// Whether clients of a frontend may have records of an unused endpoint, or the affinity changed.
fn lets_go(before: &FrontendEntry, after: Option<&FrontendEntry>) -> bool {
    let Some(after) = after.filter(|after| after.affinity == before.affinity) else { return true };
    let still: BTreeSet<(Reach, EndpointKey)> = sticky_endpoints(after).collect();
    sticky_endpoints(before).any(|endpoint| !still.contains(&endpoint))
}

fn sticky_endpoints(entry: &FrontendEntry) -> impl Iterator<Item = (Reach, EndpointKey)> {
    let slots = entry.sticky_slots();
    slots.flat_map(|(reach, slots)| slots.iter().map(move |endpoint| (reach, *endpoint)))
}

fn endpoints_of(entry: Option<&FrontendEntry>) -> Vec<EndpointKey> {
    let slots = entry.into_iter().flat_map(FrontendEntry::slots);
    slots.flat_map(|slots| slots.iter().copied()).collect()
}

type BySet = BTreeMap<SetId, Vec<Element>>;

/// The deleted and the added elements. An element with new data is in both; packets do not see
/// this, because a batch is atomic.
fn split(elements: BTreeMap<(SetId, Bytes), Pending>, fresh: Vec<Placed>) -> (BySet, BySet) {
    let (mut delete, mut add) = (BySet::new(), BySet::new());
    for (set, element) in fresh {
        add.entry(set).or_default().push(element);
    }
    for ((set, _), pending) in elements.into_iter().filter(|(_, pending)| pending.changes()) {
        delete.entry(set).or_default().extend(pending.was);
        add.entry(set).or_default().extend(pending.now);
    }
    delete.retain(|_, elements| !elements.is_empty());
    add.retain(|_, elements| !elements.is_empty());
    (delete, add)
}

fn ops_of(by_set: BySet, op: impl Fn(Name, Vec<Element>) -> Op) -> impl Iterator<Item = Op> {
    by_set.into_iter().map(move |(set, elements)| op(Name::from(set.name()), elements))
}
