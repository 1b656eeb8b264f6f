//! The ranges of a cluster: addresses per family, and node ports.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use nearhop_core::{Cidr, Family};

use super::pool::{Pool, Random};

/// The addresses of one Service range, as offsets from its first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AddressRange {
    cidr: Cidr,
    pool: Pool,
}

/// Why an address or port cannot be allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unavailable {
    Taken,
    OutOfRange,
}

impl AddressRange {
    pub(super) fn new(cidr: Cidr) -> Self {
        let host_bits = u32::from(cidr.host_bits());
        // The highest offset; the configuration allows up to 64 host bits.
        let highest = u64::MAX.checked_shr(64 - host_bits.min(64)).unwrap_or(0);
        // The first address is the network's, the last one of IPv4 its broadcast address.
        let last = match cidr.family() {
            Family::Ipv4 => highest.saturating_sub(1),
            Family::Ipv6 => highest,
        };
        let reserved = reserved_band(highest.saturating_add(1), 16, 256);
        Self { cidr, pool: Pool::new(1, last, reserved) }
    }

    pub(super) fn family(&self) -> Family {
        self.cidr.family()
    }

    pub(super) fn cidr(&self) -> Cidr {
        self.cidr
    }

    pub(super) fn take(&mut self, ip: IpAddr) -> Result<(), Unavailable> {
        let distance = self.distance(ip).ok_or(Unavailable::OutOfRange)?;
        if self.pool.take(distance) { Ok(()) } else { Err(Unavailable::Taken) }
    }

    pub(super) fn take_any(&mut self, random: Random<'_>) -> Option<IpAddr> {
        let distance = self.pool.take_any(random)?;
        Some(match self.cidr.first() {
            IpAddr::V4(v4) => {
                // Distances of IPv4 ranges fit: they were made from 32 bits.
                let distance = u32::try_from(distance).ok()?;
                IpAddr::V4(u32::from(v4).wrapping_add(distance).into())
            }
            IpAddr::V6(v6) => IpAddr::V6(u128::from(v6).wrapping_add(distance.into()).into()),
        })
    }

    pub(super) fn free(&mut self, ip: IpAddr) {
        if let Some(distance) = self.distance(ip) {
            self.pool.free(distance);
        }
    }

    pub(super) fn contains(&self, ip: IpAddr) -> bool {
        self.distance(ip).is_some()
    }

    fn distance(&self, ip: IpAddr) -> Option<u64> {
        let distance = match (self.cidr.first(), ip) {
            (IpAddr::V4(base), IpAddr::V4(ip)) => {
                u64::from(u32::from(ip).checked_sub(u32::from(base))?)
            }
            (IpAddr::V6(base), IpAddr::V6(ip)) => {
                u64::try_from(u128::from(ip).checked_sub(u128::from(base))?).ok()?
            }
            _ => return None,
        };
        self.pool.contains(distance).then_some(distance)
    }
}

/// The node ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PortRange {
    range: RangeInclusive<u16>,
    pool: Pool,
}

impl PortRange {
    pub(super) fn new(range: RangeInclusive<u16>) -> Self {
        let (first, last) = (u64::from(*range.start()), u64::from(*range.end()));
        let size = last.saturating_sub(first) + 1;
        Self { range, pool: Pool::new(first, last, reserved_band(size, 32, 128)) }
    }

    pub(super) fn take(&mut self, port: i64) -> Result<(), Unavailable> {
        let number = u64::try_from(port).ok().filter(|port| self.pool.contains(*port));
        let number = number.ok_or(Unavailable::OutOfRange)?;
        if self.pool.take(number) { Ok(()) } else { Err(Unavailable::Taken) }
    }

    pub(super) fn take_any(&mut self, random: Random<'_>) -> Option<i64> {
        self.pool.take_any(random).and_then(|port| i64::try_from(port).ok())
    }

    pub(super) fn free(&mut self, port: i64) {
        if let Ok(port) = u64::try_from(port) {
            self.pool.free(port);
        }
    }

    pub(super) fn is_taken(&self, port: i64) -> bool {
        u64::try_from(port).is_ok_and(|port| self.pool.is_taken(port))
    }

    /// Why a port cannot be allocated, in the words of Kubernetes.
    pub(super) fn explain(&self, why: Unavailable) -> String {
        match why {
            Unavailable::Taken => "provided port is already allocated".to_owned(),
            Unavailable::OutOfRange => format!(
                "provided port is not in the valid range. The range of valid ports is {}-{}",
                self.range.start(),
                self.range.end()
            ),
        }
    }
}

/// The part of a range that is kept for static requests; none of a small range.
fn reserved_band(size: u64, part: u64, most: u64) -> u64 {
    const LEAST: u64 = 16;
    if size <= LEAST { 0 } else { (size / part).clamp(LEAST, most) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(cidr: &str) -> AddressRange {
        AddressRange::new(Cidr::parse(cidr).unwrap())
    }

    #[test]
    fn network_and_broadcast_addresses_are_not_allocated() {
        let mut small = range("10.0.0.0/29");
        let mut all: Vec<String> = Vec::new();
        while let Some(ip) = small.take_any(&mut |below| below / 3) {
            all.push(ip.to_string());
        }
        all.sort();
        let expected: Vec<String> = (1..=6).map(|i| format!("10.0.0.{i}")).collect();
        assert_eq!(all, expected);
        for outside in ["10.0.0.0", "10.0.0.7", "10.0.0.8", "fd00::1"] {
            let outside = outside.parse().unwrap();
            assert_eq!(small.take(outside), Err(Unavailable::OutOfRange));
        }
        assert!(range("fd00::/112").contains("fd00::ffff".parse().unwrap()));
        assert!(!range("fd00::/112").contains("fd00::".parse().unwrap()));
        assert!(range("fd00::/64").contains("fd00::ffff:ffff:ffff:ffff".parse().unwrap()));
    }

    #[test]
    fn the_lower_band_is_used_last() {
        let ip = range("10.96.0.0/16").take_any(&mut |_| 0).unwrap();
        assert_eq!(ip.to_string(), "10.96.1.1");
        assert_eq!(PortRange::new(30000..=32767).take_any(&mut |_| 0), Some(30086));
    }
}
