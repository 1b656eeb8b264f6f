//! A range of numbers, some of which are allocated.
//!
//! The lower end is kept for static requests (KEP-3070, KEP-3668): dynamic allocation uses the upper
//! end first, from a random start.

use std::collections::BTreeSet;

/// Numbers `first..=last`. Dynamic allocation uses the lowest `reserved` last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pool {
    first: u64,
    last: u64,
    reserved: u64,
    taken: BTreeSet<u64>,
}

/// A random number below the argument.
pub(super) type Random<'a> = &'a mut dyn FnMut(u64) -> u64;

impl Pool {
    pub(super) fn new(first: u64, last: u64, reserved: u64) -> Self {
        Self { first, last, reserved, taken: BTreeSet::new() }
    }

    pub(super) fn contains(&self, number: u64) -> bool {
        (self.first..=self.last).contains(&number)
    }

    pub(super) fn is_taken(&self, number: u64) -> bool {
        self.taken.contains(&number)
    }

    /// Allocates a number; false if it is allocated or not in the range.
    pub(super) fn take(&mut self, number: u64) -> bool {
        self.contains(number) && self.taken.insert(number)
    }

    pub(super) fn free(&mut self, number: u64) {
        self.taken.remove(&number);
    }

    /// Allocates any number; `None` if the range is full.
    pub(super) fn take_any(&mut self, random: Random<'_>) -> Option<u64> {
        let border = self.first.saturating_add(self.reserved);
        let number = self
            .pick(border, self.last, random)
            .or_else(|| self.pick(self.first, border.checked_sub(1)?.min(self.last), random))?;
        self.taken.insert(number);
        Some(number)
    }

    fn pick(&self, low: u64, high: u64, random: Random<'_>) -> Option<u64> {
        let size = high.checked_sub(low)?.saturating_add(1);
        let start = low + random(size).min(size - 1);
        self.first_free(start, high).or_else(|| self.first_free(low, start.checked_sub(1)?))
    }

    /// The first free number from `low` on.
    fn first_free(&self, low: u64, high: u64) -> Option<u64> {
        if low > high {
            return None;
        }
        let mut free = low;
        for taken in self.taken.range(low..=high) {
            if *taken != free {
                break;
            }
            free = free.checked_add(1)?;
        }
        (free <= high).then_some(free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_upper_band_is_used_before_the_lower_band() {
        let mut pool = Pool::new(1, 10, 4);
        let mut random = |below: u64| below / 2;
        let upper: BTreeSet<u64> = (0..6).filter_map(|_| pool.take_any(&mut random)).collect();
        assert_eq!(upper, (5..=10).collect());
        let lower: BTreeSet<u64> = (0..4).filter_map(|_| pool.take_any(&mut random)).collect();
        assert_eq!(lower, (1..=4).collect());
        assert_eq!(pool.take_any(&mut random), None);
        pool.free(7);
        assert_eq!(pool.take_any(&mut random), Some(7));
    }

    #[test]
    fn the_first_and_last_number_can_be_allocated() {
        let mut pool = Pool::new(1, u64::MAX, 0);
        assert_eq!(pool.take_any(&mut |below| below), Some(u64::MAX));
        assert_eq!(pool.take_any(&mut |_| u64::MAX), Some(1));
        assert!(!pool.take(0));
        assert!(!pool.take(1));
        assert!(pool.take(2) && pool.is_taken(2));
    }
}
