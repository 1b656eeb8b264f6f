//! Allocates Pod addresses: the lowest free number, the same in each range. A released address is
//! not reused for a while, because clients may still send to it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};

/// How long a released address stays unused, unless no other is free.
const REST: SignedDuration = SignedDuration::from_secs(60);

#[derive(Debug)]
pub(crate) struct AddressPool {
    ranges: Vec<IpNet>,
    taken: BTreeSet<u32>,
    released: BTreeMap<u32, Timestamp>,
}

impl AddressPool {
    pub(crate) fn new(ranges: Vec<IpNet>) -> Self {
        Self { ranges, taken: BTreeSet::new(), released: BTreeMap::new() }
    }

    /// Allocates a number and its address in each range; `None` if the ranges are full.
    pub(crate) fn take(&mut self, now: Timestamp) -> Option<(u32, Vec<IpAddr>)> {
        self.released.retain(|_, since| now.duration_since(*since) < REST);
        let last = self.ranges.iter().map(last_number).min()?;
        let free = |number: &u32| !self.taken.contains(number);
        let rested = |number: &u32| !self.released.contains_key(number);
        let number = (1..=last).filter(free).find(rested);
        let number = number.or_else(|| self.oldest_released())?;
        self.released.remove(&number);
        self.taken.insert(number);
        Some((number, self.ranges.iter().map(|range| nth(range, number)).collect()))
    }

    fn oldest_released(&self) -> Option<u32> {
        self.released.iter().min_by_key(|(_, since)| **since).map(|(number, _)| *number)
    }

    pub(crate) fn release(&mut self, number: u32, now: Timestamp) {
        if self.taken.remove(&number) {
            self.released.insert(number, now);
        }
    }
}

/// The last usable number; 0 is the network address, and the last IPv4 address is the broadcast
/// address.
fn last_number(range: &IpNet) -> u32 {
    let bits = u32::from(range.max_prefix_len() - range.prefix_len());
    let count = 1u64.checked_shl(bits).unwrap_or(u64::MAX);
    let last = count.saturating_sub(if range.addr().is_ipv4() { 2 } else { 1 });
    u32::try_from(last).unwrap_or(u32::MAX)
}

fn nth(range: &IpNet, number: u32) -> IpAddr {
    match range.network() {
        IpAddr::V4(base) => Ipv4Addr::from_bits(base.to_bits() + number).into(),
        IpAddr::V6(base) => Ipv6Addr::from_bits(base.to_bits() + u128::from(number)).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(ranges: &[&str]) -> AddressPool {
        AddressPool::new(ranges.iter().map(|text| text.parse().unwrap()).collect())
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn the_lowest_free_number_is_allocated_in_both_families() {
        let mut pool = pool(&["10.244.1.0/24", "fd00:10:244:1::/64"]);
        let (first, addresses) = pool.take(at(0)).unwrap();
        assert_eq!(
            addresses,
            ["10.244.1.1", "fd00:10:244:1::1"].map(|a| a.parse::<IpAddr>().unwrap())
        );
        let (second, _) = pool.take(at(0)).unwrap();
        pool.release(first, at(1));
        assert_eq!((second, pool.take(at(2)).unwrap().0), (2, 3));
        assert_eq!(pool.take(at(61)).unwrap().0, 1);
    }

    #[test]
    fn a_full_range_reuses_released_addresses_early() {
        let mut pool = pool(&["10.0.0.0/29"]);
        let numbers: Vec<u32> = (0..6).map(|_| pool.take(at(0)).unwrap().0).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5, 6], "neither network nor broadcast address");
        assert!(pool.take(at(0)).is_none());
        pool.release(5, at(1));
        pool.release(2, at(2));
        pool.release(2, at(9));
        assert_eq!(pool.take(at(3)).unwrap().0, 5);
        assert_eq!(pool.take(at(3)).unwrap().0, 2);
        assert!(pool.take(at(3)).is_none());
    }
}
