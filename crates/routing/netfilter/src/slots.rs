//! Assigns slots to endpoints.
//!
//! Each endpoint has one slot, next to those of the same weight; [`Draw`] defines how often it is
//! drawn. The previous slots are an argument, so that few endpoints move.

use std::collections::BTreeMap;

use nearhop_core::route::Backend;
use nearhop_core::{EndpointKey, Name};

use crate::draw::Draw;
use crate::frontend::Slots;

/// Weights that differ by less than one part in this many form one group: the weight of a zone in
/// millionths does not always divide evenly, and each group costs a rule.
const ALIKE: u64 = 1_000;

/// Assigns a slot to each endpoint, and keeps endpoints in their previous slots if possible.
pub(crate) fn assign_slots(before: &[EndpointKey], backends: &[Backend]) -> Slots {
    let groups = group_by_weight(backends);
    let sizes: Vec<(u32, u64)> = groups.iter().map(Group::size_and_weight).collect();
    let draw = Draw::by_weight(&sizes);
    let mut slots = Vec::with_capacity(backends.len());
    for group in groups {
        let there = before.get(slots.len()..).unwrap_or_default();
        slots.extend(fill(there, group.endpoints.iter().map(|backend| backend.key)));
    }
    Slots::new(slots, draw)
}

/// The slots of one group; its first slot is the first of `there`.
fn fill(
    there: &[EndpointKey],
    keys: impl ExactSizeIterator<Item = EndpointKey>,
) -> Vec<EndpointKey> {
    let mut slots: Vec<Option<EndpointKey>> = vec![None; keys.len()];
    // Whether an endpoint still needs a slot.
    let mut left: BTreeMap<EndpointKey, bool> = keys.map(|key| (key, true)).collect();
    for (slot, key) in slots.iter_mut().zip(there) {
        if left.get_mut(key).is_some_and(std::mem::take) {
            *slot = Some(*key);
        }
    }
    let mut rest = left.into_iter().filter_map(|(key, needs)| needs.then_some(key));
    let filled = slots.into_iter().map(|slot| slot.or_else(|| rest.next()));
    filled.map(|slot| slot.expect("as many are left as slots are free")).collect()
}

/// Endpoints of the same weight.
struct Group<'a> {
    /// The lowest weight in the group.
    weight: u64,
    endpoints: Vec<&'a Backend>,
}

impl<'a> Group<'a> {
    fn takes(&self, backend: &Backend) -> bool {
        u64::from(backend.weight) * ALIKE <= self.weight * (ALIKE + 1)
    }

    fn size_and_weight(&self) -> (u32, u64) {
        let weight = self.endpoints.iter().map(|backend| u64::from(backend.weight)).sum();
        (self.endpoints.len() as u32, weight)
    }

    /// The sort key of the group among other groups: by zone, so that groups keep their place when
    /// weights change.
    fn place(&self) -> (Option<&'a Name>, Option<EndpointKey>) {
        let zones = self.endpoints.iter().map(|backend| backend.zone.as_ref());
        (zones.min().flatten(), self.endpoints.first().map(|backend| backend.key))
    }
}

fn group_by_weight(backends: &[Backend]) -> Vec<Group<'_>> {
    let mut sorted: Vec<&Backend> = backends.iter().collect();
    sorted.sort_by_key(|backend| (backend.weight, backend.key));
    let mut groups: Vec<Group<'_>> = Vec::new();
    for backend in sorted {
        match groups.last_mut().filter(|group| group.takes(backend)) {
            Some(group) => group.endpoints.push(backend),
            None => groups.push(Group { weight: backend.weight.into(), endpoints: vec![backend] }),
        }
    }
    groups.sort_by_key(Group::place);
    groups
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use proptest::prelude::*;

    use super::*;

    fn endpoint(i: u32) -> EndpointKey {
        EndpointKey { ip: IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + i)), port: 80 }
    }

    fn backends(weights: &[u32]) -> Vec<Backend> {
        let backend = |(i, weight): (usize, &u32)| Backend {
            key: endpoint(i as u32),
            weight: *weight,
            zone: None,
            local: false,
        };
        weights.iter().enumerate().map(backend).collect()
    }

    /// Backends with one zone for each weight; the zone of the largest weight sorts first.
    fn in_zones(weights: &[u32]) -> Vec<Backend> {
        let zone = |weight: u32| Some(Name::from(format!("zone-{}", 100 - weight)));
        let backends = backends(weights).into_iter();
        backends.map(|backend| Backend { zone: zone(backend.weight), ..backend }).collect()
    }

    #[test]
    fn equal_weights_are_drawn_evenly() {
        assert_eq!(*assign_slots(&[], &backends(&[7, 7, 7])).draw(), Draw::Even(3));
        assert_eq!(*assign_slots(&[], &[]).draw(), Draw::Even(0));
        // Weights in millionths do not divide evenly by three.
        let nearly = backends(&[333_333, 333_333, 333_334]);
        assert_eq!(*assign_slots(&[], &nearly).draw(), Draw::Even(3));
    }

    #[test]
    fn remaining_endpoints_keep_their_slots() {
        let first = assign_slots(&[], &backends(&[1, 1, 1, 1]));
        let removed: Vec<Backend> = backends(&[1, 1, 1, 1]).into_iter().skip(1).collect();
        let second = assign_slots(&first, &removed);
        // The last endpoint moved into the free slot; the others kept theirs.
        assert_eq!(*second, [endpoint(3), endpoint(1), endpoint(2)]);
    }

    /// How many slots have a different endpoint than before.
    fn moved(before: &[EndpointKey], after: &[EndpointKey]) -> usize {
        before.iter().zip(after).filter(|(before, after)| before != after).count()
    }

    #[test]
    fn adding_an_endpoint_moves_one_endpoint_of_each_later_group() {
        let weights = [[9; 100], [3; 100], [1; 100]].concat();
        let mut all = in_zones(&weights);
        let first = assign_slots(&[], &all);
        let new = Backend { key: endpoint(1000), ..all[0].clone() };
        all.push(new);
        let second = assign_slots(&first, &all);
        assert_eq!(moved(&first, &second), 2);
        // The endpoint is removed again.
        all.pop();
        assert_eq!(moved(&second, &assign_slots(&second, &all)), 2);
    }

    #[test]
    fn groups_keep_their_slots_when_the_weights_swap() {
        let first = assign_slots(&[], &in_zones(&[[9; 100], [3; 100]].concat()));
        let turned: Vec<Backend> = in_zones(&[[9; 100], [3; 100]].concat())
            .into_iter()
            .map(|backend| Backend { weight: 27 / backend.weight, ..backend })
            .collect();
        let second = assign_slots(&first, &turned);
        assert_eq!(moved(&first, &second), 0);
        assert_ne!(first.draw(), second.draw());
    }

    #[test]
    fn every_endpoint_gets_a_share() {
        let slots = assign_slots(&[], &backends(&[1_000_000, 1]));
        let shares = slots.draw().shares();
        assert!(shares.iter().all(|share| *share > 0.0), "{shares:?}");
    }

    proptest! {
        #[test]
        fn shares_match_the_weights_and_each_endpoint_has_one_slot(
            weights in prop::collection::vec(1u32..1_000_000, 1..60),
        ) {
            let backends = backends(&weights);
            let slots = assign_slots(&[], &backends);
            prop_assert_eq!(slots.len(), backends.len());
            let total: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
            for (key, share) in slots.iter().zip(slots.draw().shares()) {
                let wanted = backends.iter().find(|backend| backend.key == *key);
                let wanted = f64::from(wanted.expect("a slot holds a backend").weight) / total;
                prop_assert!((share / wanted - 1.0).abs() < 0.0011, "{share} is not {wanted}");
            }
        }

        #[test]
        fn previous_slots_affect_only_the_order(
            before in prop::collection::vec(0u32..20, 0..30),
            weights in prop::collection::vec(1u32..5, 0..15),
        ) {
            let before: Vec<EndpointKey> = before.into_iter().map(endpoint).collect();
            let backends = backends(&weights);
            let shares = |slots: &Slots| -> BTreeMap<EndpointKey, u64> {
                let shares = slots.draw().shares().into_iter().map(f64::to_bits);
                slots.iter().copied().zip(shares).collect()
            };
            let slots = assign_slots(&before, &backends);
            let fresh = assign_slots(&[], &backends);
            prop_assert_eq!(slots.draw(), fresh.draw());
            prop_assert_eq!(shares(&slots), shares(&fresh));
        }
    }
}
