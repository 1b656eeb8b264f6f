//! Weights as numbers of slots, and which slot is whose.
//!
//! The kernel picks a slot evenly, so an endpoint's share is its number of slots. Both functions
//! look only at their arguments; the slots of before are one of them, so that little moves.

use std::collections::BTreeMap;

use nearhop_core::EndpointKey;
use nearhop_core::route::Backend;

use crate::frontend::Slots;

/// Asked and given shares differ by this much at most, summed over all endpoints: one in a
/// hundred connections, however endpoints are grouped into zones.
const TOLERANCE: f64 = 0.01;
/// Never more slots than this, or four per endpoint if that is more.
const MOST_SLOTS: usize = 4096;

/// How many slots each endpoint gets.
pub fn count_slots(backends: &[Backend]) -> Vec<u32> {
    let equal = backends.windows(2).all(|pair| pair[0].weight == pair[1].weight);
    if equal {
        return vec![1; backends.len()];
    }
    let total: f64 = backends.iter().map(|backend| f64::from(backend.weight)).sum();
    let shares: Vec<f64> = backends.iter().map(|b| f64::from(b.weight) / total).collect();
    let most = MOST_SLOTS.max(backends.len() * 4);
    let mut best = (f64::INFINITY, Vec::new());
    let mut slots = backends.len();
    while slots <= most {
        let counts = divide(&shares, slots);
        let error = error_of(&shares, &counts);
        if error < best.0 {
            best = (error, counts);
        }
        if error <= TOLERANCE {
            break;
        }
        // Steps of an eighth: few tries, and at most an eighth more slots than needed.
        slots += (slots / 8).max(1);
    }
    best.1
}

/// Largest remainders: whole numbers that add up to `slots`, or more where somebody would get none.
fn divide(shares: &[f64], slots: usize) -> Vec<u32> {
    let wanted: Vec<f64> = shares.iter().map(|share| share * slots as f64).collect();
    let mut counts: Vec<u32> = wanted.iter().map(|wanted| (*wanted as u32).max(1)).collect();
    let given: usize = counts.iter().map(|count| *count as usize).sum();
    let mut order: Vec<usize> = (0..shares.len()).collect();
    let remainder = |i: usize| wanted[i] - wanted[i].floor();
    order.sort_by(|a, b| remainder(*b).total_cmp(&remainder(*a)).then(a.cmp(b)));
    for i in order.into_iter().take(slots.saturating_sub(given)) {
        counts[i] += 1;
    }
    counts
}

fn error_of(shares: &[f64], counts: &[u32]) -> f64 {
    let slots: f64 = counts.iter().map(|count| f64::from(*count)).sum();
    shares.iter().zip(counts).map(|(share, count)| (share - f64::from(*count) / slots).abs()).sum()
}

/// Gives each endpoint its number of slots, and leaves in place whoever was there and still is.
pub fn assign_slots(before: &[EndpointKey], backends: &[Backend]) -> Slots {
    let counts = count_slots(backends);
    let total: usize = counts.iter().map(|count| *count as usize).sum();
    let mut left: BTreeMap<EndpointKey, u32> =
        backends.iter().map(|backend| backend.key).zip(counts).collect();
    let mut slots: Vec<Option<EndpointKey>> = vec![None; total];
    for (slot, key) in slots.iter_mut().zip(before) {
        if let Some(count) = left.get_mut(key).filter(|count| **count > 0) {
            *count -= 1;
            *slot = Some(*key);
        }
    }
    let mut rest = left.into_iter().flat_map(|(key, count)| (0..count).map(move |_| key));
    slots
        .into_iter()
        .map(|slot| slot.or_else(|| rest.next()).expect("as many are left as slots are free"))
        .collect()
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

    #[test]
    fn equal_weights_are_one_slot_each() {
        assert_eq!(count_slots(&backends(&[7, 7, 7])), [1, 1, 1]);
        assert_eq!(count_slots(&[]), Vec::<u32>::new());
    }

    #[test]
    fn a_slot_that_is_right_stays() {
        let first = assign_slots(&[], &backends(&[1, 1, 1, 1]));
        let removed: Vec<Backend> = backends(&[1, 1, 1, 1]).into_iter().skip(1).collect();
        let second = assign_slots(&first, &removed);
        // The last one moved into the hole; the others are where they were.
        assert_eq!(*second, [endpoint(3), endpoint(1), endpoint(2)]);
    }

    #[test]
    fn whoever_is_chosen_can_be_reached() {
        let counts = count_slots(&backends(&[1_000_000, 1]));
        assert_eq!(counts[1], 1);
        assert!(counts[0] >= 100);
    }

    proptest! {
        #[test]
        fn shares_are_within_a_hundredth(weights in prop::collection::vec(1u32..1_000_000, 1..60)) {
            let backends = backends(&weights);
            let counts = count_slots(&backends);
            let total: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
            let shares: Vec<f64> = weights.iter().map(|w| f64::from(*w) / total).collect();
            prop_assert!(error_of(&shares, &counts) <= TOLERANCE);
            prop_assert!(counts.iter().sum::<u32>() <= 4_608);
        }

        #[test]
        fn the_past_decides_only_the_order(
            before in prop::collection::vec(0u32..20, 0..30),
            weights in prop::collection::vec(1u32..5, 0..15),
        ) {
            let before: Vec<EndpointKey> = before.into_iter().map(endpoint).collect();
            let backends = backends(&weights);
            let mut slots = assign_slots(&before, &backends).to_vec();
            let mut fresh = assign_slots(&[], &backends).to_vec();
            slots.sort_unstable();
            fresh.sort_unstable();
            prop_assert_eq!(slots, fresh);
        }
    }
}
