//! How the kernel draws one of a frontend's slots.
//!
//! Each endpoint has one slot. If all weights are equal, one `numgen` picks the slot. Otherwise
//! endpoints of the same weight (for `Balanced`, those of a zone) form a group of adjacent slots.
//! One rule per group decides at random whether a connection belongs to the group, and then picks
//! one of its slots with equal probability; the last group takes all remaining connections. Shares
//! are therefore exact to a billionth at any size, and all endpoints of a group get the same share.

use std::sync::Arc;

/// The denominator of probabilities.
pub const WHOLE: u32 = 1_000_000_000;

/// How a slot is drawn.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Draw {
    /// This many slots have the same probability.
    Even(u32),
    /// By group, in this order.
    Weighted(Arc<[Group]>),
}

/// Adjacent slots with the same probability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group {
    /// Its first slot.
    pub first: u32,
    /// How many slots it has.
    pub slots: u32,
    /// Its share, in parts of [`WHOLE`], of the connections that no earlier group has taken.
    pub chance: u32,
}

impl Default for Draw {
    fn default() -> Self {
        Self::Even(0)
    }
}

impl Draw {
    /// Draws by the weights of groups: pairs of number of slots and total weight, in the order of
    /// their slots.
    pub fn by_weight(groups: &[(u32, u64)]) -> Self {
        if let [] | [_] = groups {
            return Self::Even(groups.iter().map(|(slots, _)| slots).sum());
        }
        let mut first = 0;
        let mut weighed: Vec<(Group, u64)> = Vec::with_capacity(groups.len());
        for (slots, weight) in groups {
            weighed.push((Group { first, slots: *slots, chance: WHOLE }, *weight));
            first += slots;
        }
        // The heaviest group first: most connections need only one rule.
        weighed.sort_by_key(|(group, weight)| (std::cmp::Reverse(*weight), group.first));
        let mut left: u64 = groups.iter().map(|(_, weight)| weight).sum();
        let last = weighed.len() - 1;
        for (group, weight) in &mut weighed[..last] {
            group.chance = chance(*weight, left);
            left -= *weight;
        }
        Self::Weighted(weighed.into_iter().map(|(group, _)| group).collect())
    }

    /// The groups, in the order of their rules.
    pub fn groups(&self) -> Vec<Group> {
        match self {
            Self::Even(0) => Vec::new(),
            Self::Even(slots) => vec![Group { first: 0, slots: *slots, chance: WHOLE }],
            Self::Weighted(groups) => groups.to_vec(),
        }
    }

    /// How many slots there are.
    pub fn slots(&self) -> u32 {
        match self {
            Self::Even(slots) => *slots,
            Self::Weighted(groups) => groups.iter().map(|group| group.slots).sum(),
        }
    }

    /// The share of connections that each slot gets.
    pub fn shares(&self) -> Vec<f64> {
        let mut shares = vec![0.0; self.slots() as usize];
        let mut left = 1.0;
        for group in self.groups() {
            let taken = left * f64::from(group.chance) / f64::from(WHOLE);
            let (first, slots) = (group.first as usize, group.slots as usize);
            shares[first..first + slots].fill(taken / f64::from(group.slots));
            left -= taken;
        }
        shares
    }
}

/// The share of a weight in `left`, but neither zero nor one: each endpoint must stay reachable, in
/// this group and in later ones.
fn chance(weight: u64, left: u64) -> u32 {
    let whole = u128::from(WHOLE);
    let left = u128::from(left.max(1));
    let part = (u128::from(weight) * whole + left / 2) / left;
    part.clamp(1, whole - 1) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_group_or_no_group_is_drawn_evenly() {
        assert_eq!(Draw::by_weight(&[]), Draw::Even(0));
        assert_eq!(Draw::by_weight(&[(7, 3)]), Draw::Even(7));
    }

    #[test]
    fn the_heaviest_group_is_drawn_first() {
        let group = |first, slots, chance| Group { first, slots, chance };
        let expected = [
            group(5, 3, 600_000_000),
            // 30 of the remaining 40.
            group(0, 5, 750_000_000),
            group(8, 1, WHOLE),
        ];
        assert_eq!(Draw::by_weight(&[(5, 30), (3, 60), (1, 10)]).groups(), expected);
    }

    #[test]
    fn every_group_gets_a_share() {
        for groups in [[(1, u64::from(u32::MAX)), (1, 1)], [(1, 1), (1, 0)], [(1, 0), (1, 0)]] {
            let shares = Draw::by_weight(&groups).shares();
            assert!(shares.iter().all(|share| *share > 0.0), "{groups:?}: {shares:?}");
        }
    }
}
