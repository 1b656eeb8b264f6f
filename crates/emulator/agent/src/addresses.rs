//! Which pod has which address: the lowest number that nobody has, the same one in each range, and
//! not one that was given back a moment ago, because somebody may still send to it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};

/// How long an address rests before it is given to somebody else, unless there is no other.
const REST: SignedDuration = SignedDuration::from_secs(60);

/// The addresses of a node's pods.
#[derive(Debug)]
pub(crate) struct AddressPool {
    ranges: Vec<IpNet>,
    taken: BTreeSet<u32>,
    resting: BTreeMap<u32, Timestamp>,
}

impl AddressPool {
    pub(crate) fn new(ranges: Vec<IpNet>) -> Self {
        Self { ranges, taken: BTreeSet::new(), resting: BTreeMap::new() }
    }

    /// A number and its addresses, one of each range; none if all are taken.
    pub(crate) fn take(&mut self, now: Timestamp) -> Option<(u32, Vec<IpAddr>)> {
        self.resting.retain(|_, since| now.duration_since(*since) < REST);
        let last = self.ranges.iter().map(last_number).min()?;
        let free = |number: &u32| !self.taken.contains(number);
        let rested = |number: &u32| !self.resting.contains_key(number);
        let number = (1..=last).filter(free).find(rested);
        let number = number.or_else(|| self.longest_resting())?;
        self.resting.remove(&number);
        self.taken.insert(number);
        Some((number, self.ranges.iter().map(|range| nth(range, number)).collect()))
    }

    fn longest_resting(&self) -> Option<u32> {
        self.resting.iter().min_by_key(|(_, since)| **since).map(|(number, _)| *number)
    }

    pub(crate) fn release(&mut self, number: u32, now: Timestamp) {
        if self.taken.remove(&number) {
            self.resting.insert(number, now);
        }
    }
}

/// Numbers count from the range itself, which is 0; an IPv4 range's last address is everybody's.
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
    fn the_lowest_that_has_rested_is_given_in_both_families() {
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
    fn a_full_range_gives_what_rests_and_then_nothing() {
        let mut pool = pool(&["10.0.0.0/29"]);
        let numbers: Vec<u32> = (0..6).map(|_| pool.take(at(0)).unwrap().0).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5, 6], "neither the range nor everybody's address");
        assert!(pool.take(at(0)).is_none());
        pool.release(5, at(1));
        pool.release(2, at(2));
        pool.release(2, at(9));
        assert_eq!(pool.take(at(3)).unwrap().0, 5);
        assert_eq!(pool.take(at(3)).unwrap().0, 2);
        assert!(pool.take(at(3)).is_none());
    }
}
