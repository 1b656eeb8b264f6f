//! Distributes endpoints over slices with few writes.
//!
//! Packing removes old endpoints from existing slices and updates the others. It first fills slices
//! that change anyway, then at most one unchanged slice; the remaining endpoints go into new
//! slices. It never merges slices only to reduce their number. Where upstream does not define an
//! order, the slice with the lower name comes first, so that the plan is deterministic.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::desired::{Desired, Wanted};
use super::metadata::{labels_changed, new_slice, same_placeholder};
use crate::key::Family;
use crate::labels::Labels;
use crate::model::{AddressType, Addresses, Endpoint, PodRef, Service, Slice, SlicePort};

/// Slices by the operation that they need.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SliceLists {
    /// Slices to create.
    pub create: Vec<Slice>,
    /// Slices to update.
    pub update: Vec<Slice>,
    /// Slices that do not change, except for hints.
    pub unchanged: Vec<Arc<Slice>>,
}

/// Counts for the controller's metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackCounts {
    /// Endpoints that are not in any existing slice of their group.
    pub added: usize,
    /// Endpoints removed from slices of groups that remain.
    pub removed: usize,
    /// Endpoints to publish.
    pub desired_endpoints: usize,
    /// The number of slices that they need at least.
    pub desired_slices: usize,
    /// The number of slices that they use.
    pub num_slices: usize,
}

/// The result of packing one family.
#[derive(Debug, Default)]
pub(super) struct Packed {
    /// Slices to write or keep.
    pub lists: SliceLists,
    pub delete: Vec<Arc<Slice>>,
    pub counts: PackCounts,
}

/// The properties and the maximum size of this Service's slices.
#[derive(Clone, Copy, Debug)]
pub(super) struct PackContext<'a> {
    pub service: &'a Service,
    pub labels: &'a Labels,
    /// `--max-endpoints-per-slice`.
    pub max: usize,
}

/// Packs one family. `existing` contains all managed slices of that family.
pub(super) fn pack(
    context: PackContext<'_>,
    family: Family,
    existing: &[Arc<Slice>],
    desired: Desired<'_>,
) -> Packed {
    let mut packed = Packed::default();
    let mut by_ports: BTreeMap<Arc<[SlicePort]>, Vec<&Arc<Slice>>> = BTreeMap::new();
    for slice in existing {
        if slice.owners.contains(&context.service.uid) {
            by_ports.entry(sorted_ports(slice)).or_default().push(slice);
        } else {
            packed.delete.push(slice.clone());
        }
    }
    for (ports, group) in desired.groups {
        let slices = by_ports.remove(&ports).unwrap_or_default();
        pack_group(context, family, &ports, slices, group, &mut packed);
    }
    packed.delete.extend(by_ports.into_values().flatten().cloned());
    keep_or_create_placeholder(context, family, existing.len(), &mut packed);
    packed.counts.desired_slices = packed.counts.desired_slices.max(1);
    packed
}

fn sorted_ports(slice: &Slice) -> Arc<[SlicePort]> {
    if slice.ports.is_sorted() {
        return slice.ports.clone();
    }
    let mut ports = slice.ports.to_vec();
    ports.sort();
    ports.into()
}

fn pack_group(
    context: PackContext<'_>,
    family: Family,
    ports: &Arc<[SlicePort]>,
    existing: Vec<&Arc<Slice>>,
    desired: Vec<Wanted<'_>>,
    packed: &mut Packed,
) {
    let wanted = desired.len();
    let before = existing.len();
    let mut pool = Pool::new(desired);
    let mut lists = SliceLists::default();
    let mut deleted = 0;
    for slice in existing {
        match refresh(context, slice, &mut pool) {
            Refreshed::Same => lists.unchanged.push(slice.clone()),
            Refreshed::Changed(slice) => lists.update.push(slice),
            Refreshed::Empty => {
                deleted += 1;
                packed.delete.push(slice.clone());
            }
        }
    }
    packed.counts.removed += pool.dropped;
    let mut rest = pool.into_rest();
    packed.counts.added += rest.len();
    fill_changed(&mut lists, &mut rest, context.max);
    place_rest(context, family, ports, &mut lists, rest);
    packed.counts.desired_endpoints += wanted;
    packed.counts.desired_slices += wanted.div_ceil(context.max);
    packed.counts.num_slices += before + lists.create.len() - deleted;
    packed.lists.create.append(&mut lists.create);
    packed.lists.update.append(&mut lists.update);
    packed.lists.unchanged.append(&mut lists.unchanged);
}

/// Puts the remaining endpoints into one unchanged slice with enough space, else into new slices.
fn place_rest(
    context: PackContext<'_>,
    family: Family,
    ports: &Arc<[SlicePort]>,
    lists: &mut SliceLists,
    mut rest: Vec<Wanted<'_>>,
) {
    while !rest.is_empty() {
        let (list, mut slice) = match take_best_fit(&mut lists.unchanged, rest.len(), context.max) {
            Some(slice) => (&mut lists.update, relabelled(context, &slice)),
            None => {
                let empty = new_slice(context.service, context.labels, AddressType::Ip(family));
                (&mut lists.create, Slice { ports: ports.clone(), ..empty })
            }
        };
        fill(&mut slice, &mut rest, context.max);
        list.push(slice);
    }
}

/// Desired endpoints of a group, each taken once.
struct Pool<'a> {
    /// Sorted by the name of their Pod.
    desired: Vec<Wanted<'a>>,
    taken: Vec<bool>,
    /// The position after the last match. Slices were filled in this order, so the next endpoint is
    /// usually here and needs no search.
    next: usize,
    dropped: usize,
}

impl<'a> Pool<'a> {
    fn new(desired: Vec<Wanted<'a>>) -> Self {
        let taken = vec![false; desired.len()];
        Self { desired, taken, next: 0, dropped: 0 }
    }

    /// Takes the desired endpoint with the same identity as an existing one.
    fn take(&mut self, existing: &Endpoint) -> Option<usize> {
        let name = &existing.target.as_ref()?.name;
        let at = match self.desired.get(self.next) {
            Some(guess) if guess.pod.key.name == *name => self.next,
            _ => self.desired.binary_search_by(|probe| probe.pod.key.name.cmp(name)).ok()?,
        };
        if self.taken[at] || !same_identity(&self.desired[at], existing) {
            return None;
        }
        self.taken[at] = true;
        self.next = at + 1;
        Some(at)
    }

    /// The endpoints that no existing slice contains, last Pod first, so that filling from the end
    /// keeps the order.
    fn into_rest(self) -> Vec<Wanted<'a>> {
        let untaken = self.desired.into_iter().zip(self.taken).filter(|(_, taken)| !taken);
        let mut rest: Vec<Wanted<'a>> = untaken.map(|(wanted, _)| wanted).collect();
        rest.reverse();
        rest
    }
}

/// Compares the identity of endpoints: addresses, host name, target.
fn same_identity(wanted: &Wanted<'_>, existing: &Endpoint) -> bool {
    let same_addresses = || {
        wanted.addresses == existing.addresses || {
            let sorted = |addresses: &Addresses| {
                let mut addresses = addresses.as_slice().to_vec();
                addresses.sort();
                addresses
            };
            sorted(&wanted.addresses) == sorted(&existing.addresses)
        }
    };
    let key = &wanted.pod.key;
    let same_pod = |pod: &PodRef| pod.name == key.name && pod.namespace == key.namespace;
    existing.target.as_ref().is_some_and(same_pod)
        && wanted.hostname == existing.hostname.as_ref()
        && same_addresses()
}

/// Whether an endpoint with the same identity needs no update. Hints are not compared.
fn same_content(wanted: &Wanted<'_>, existing: &Endpoint) -> bool {
    let same_uid = existing.target.as_ref().is_some_and(|pod| pod.uid == wanted.pod.uid);
    wanted.conditions == existing.conditions
        && wanted.node == existing.node.as_ref()
        && wanted.zone == existing.zone.as_ref()
        && same_uid
}

enum Refreshed {
    Same,
    Changed(Slice),
    Empty,
}

/// Removes endpoints that are no longer desired from an existing slice, and updates the others.
fn refresh(context: PackContext<'_>, slice: &Slice, pool: &mut Pool<'_>) -> Refreshed {
    let mut kept: Vec<(usize, &Endpoint)> = Vec::with_capacity(slice.endpoints.len());
    let mut changed = false;
    for endpoint in &slice.endpoints {
        match pool.take(endpoint) {
            Some(at) => {
                changed |= !same_content(&pool.desired[at], endpoint);
                kept.push((at, endpoint));
            }
            None => pool.dropped += 1,
        }
    }
    changed |= kept.len() != slice.endpoints.len();
    if !changed {
        return if labels_changed(&slice.labels, &context.service.labels) {
            Refreshed::Changed(relabelled(context, slice))
        } else {
            Refreshed::Same
        };
    }
    if kept.is_empty() {
        return Refreshed::Empty;
    }
    let endpoints = kept.into_iter().map(|(at, old)| {
        let new = pool.desired[at].endpoint();
        // An endpoint that did not change keeps its old hint, because Auto prefers existing hints.
        let same = same_content(&pool.desired[at], old) && new.is_ready();
        Endpoint { hints: old.hints.clone().filter(|_| same), ..new }
    });
    Refreshed::Changed(Slice {
        endpoints: endpoints.collect(),
        ..relabelled(context, &Slice { endpoints: Vec::new(), ..slice.clone() })
    })
}

fn relabelled(context: PackContext<'_>, slice: &Slice) -> Slice {
    Slice { labels: context.labels.clone(), ..slice.clone() }
}

/// Fills slices that change anyway, the fullest first.
fn fill_changed(lists: &mut SliceLists, rest: &mut Vec<Wanted<'_>>, max: usize) {
    let fullness = |slice: &Slice| std::cmp::Reverse(slice.endpoints.len());
    lists.update.sort_by(|a, b| fullness(a).cmp(&fullness(b)).then_with(|| a.name.cmp(&b.name)));
    for slice in &mut lists.update {
        fill(slice, rest, max);
    }
}

fn fill(slice: &mut Slice, rest: &mut Vec<Wanted<'_>>, max: usize) {
    let room = max.saturating_sub(slice.endpoints.len()).min(rest.len());
    let taken = rest.drain(rest.len() - room..).rev();
    slice.endpoints.extend(taken.map(|wanted| wanted.endpoint()));
}

/// The unchanged slice that has space for all `rest` endpoints and has the least space left.
fn take_best_fit(unchanged: &mut Vec<Arc<Slice>>, rest: usize, max: usize) -> Option<Arc<Slice>> {
    if rest >= max {
        return None;
    }
    let (at, _) = (unchanged.iter().enumerate())
        .filter(|(_, slice)| slice.endpoints.len() + rest <= max)
        .min_by_key(|(_, slice)| (max - slice.endpoints.len(), slice.name.clone()))?;
    Some(unchanged.remove(at))
}

/// Every Service has at least one slice per family: if all slices would be deleted and none
/// created, this function keeps or creates an empty one.
fn keep_or_create_placeholder(
    context: PackContext<'_>,
    family: Family,
    existing: usize,
    packed: &mut Packed,
) {
    if packed.delete.len() != existing || !packed.lists.create.is_empty() {
        return;
    }
    let placeholder = new_slice(context.service, context.labels, AddressType::Ip(family));
    packed.counts.num_slices += 1;
    if packed.delete.len() == 1 && same_placeholder(&packed.delete[0], &placeholder) {
        packed.lists.unchanged.append(&mut packed.delete);
    } else {
        packed.lists.create.push(placeholder);
    }
}
