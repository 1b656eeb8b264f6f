//! Ranges of addresses, such as `10.0.0.0/8`.
//!
//! Always in canonical form: bits behind the prefix are zero, and a range of IPv4 addresses that
//! was written as IPv6 is one of IPv4. So equal ranges compare as equal and print alike. Leading
//! zeros in addresses, which the API tolerates, are `nearhop-api`'s business.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::key::Family;

/// Bits in front of the IPv4 address in an IPv4-mapped IPv6 address.
const MAPPED: u8 = 96;

/// A range of addresses: all that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cidr {
    first: IpAddr,
    prefix: u8,
}

impl Cidr {
    /// The range of the addresses that share so many bits with this one. Where an address has
    /// fewer, it is this address alone.
    pub fn new(address: IpAddr, prefix: u8) -> Self {
        let prefix = prefix.min(bits(address));
        match address {
            IpAddr::V6(v6) if prefix >= MAPPED => match v6.to_ipv4_mapped() {
                Some(v4) => Self::masked(IpAddr::V4(v4), prefix - MAPPED),
                None => Self::masked(address, prefix),
            },
            _ => Self::masked(address, prefix),
        }
    }

    /// Sets the bits behind the prefix to zero.
    fn masked(address: IpAddr, prefix: u8) -> Self {
        let first = match address {
            IpAddr::V4(v4) => Ipv4Addr::from_bits(v4.to_bits() & !free_v4(prefix)).into(),
            IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !free_v6(prefix)).into(),
        };
        Self { first, prefix }
    }

    /// Reads `ADDRESS/PREFIX`. Bits behind the prefix may be set.
    pub fn parse(text: &str) -> Option<Self> {
        Self::parse_with(text, |address| address.parse().ok())
    }

    /// As [`Cidr::parse`], with another idea of how addresses are written.
    pub fn parse_with(text: &str, read: impl FnOnce(&str) -> Option<IpAddr>) -> Option<Self> {
        let (address, prefix) = text.split_once('/')?;
        // `u8` would also read a sign.
        let digits = prefix.bytes().all(|c| c.is_ascii_digit());
        let prefix = prefix.parse().ok().filter(|_| digits)?;
        let address = read(address)?;
        (prefix <= bits(address)).then(|| Self::new(address, prefix))
    }

    /// The first address.
    pub fn first(self) -> IpAddr {
        self.first
    }

    /// The last address.
    pub fn last(self) -> IpAddr {
        match self.first {
            IpAddr::V4(v4) => Ipv4Addr::from_bits(v4.to_bits() | free_v4(self.prefix)).into(),
            IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() | free_v6(self.prefix)).into(),
        }
    }

    /// How many bits its addresses have in common.
    pub fn prefix(self) -> u8 {
        self.prefix
    }

    /// The family of its addresses.
    pub fn family(self) -> Family {
        Family::of(self.first)
    }

    /// Whether an address is in it.
    pub fn contains(self, address: IpAddr) -> bool {
        Family::of(address) == self.family() && Self::masked(address, self.prefix) == self
    }
}

/// Bits of an address.
fn bits(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

/// The bits behind a prefix.
fn free_v4(prefix: u8) -> u32 {
    u32::MAX.checked_shr(prefix.into()).unwrap_or_default()
}

/// The bits behind a prefix.
fn free_v6(prefix: u8) -> u128 {
    u128::MAX.checked_shr(prefix.into()).unwrap_or_default()
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_printed_in_canonical_form() {
        for (text, printed) in [
            ("10.0.0.0/8", Some("10.0.0.0/8")),
            ("10.1.2.3/8", Some("10.0.0.0/8")),
            ("10.1.2.3/31", Some("10.1.2.2/31")),
            ("10.1.2.3/32", Some("10.1.2.3/32")),
            ("10.1.2.3/0", Some("0.0.0.0/0")),
            ("10.0.0.0/008", Some("10.0.0.0/8")),
            ("fd00:1::1/16", Some("fd00::/16")),
            ("fd00::1/128", Some("fd00::1/128")),
            ("fd00::1/0", Some("::/0")),
            ("::ffff:10.1.2.3/104", Some("10.0.0.0/8")),
            ("::ffff:10.1.2.3/96", Some("0.0.0.0/0")),
            ("::ffff:10.1.2.3/95", Some("::fffe:0:0/95")),
            ("10.0.0.0/33", None),
            ("fd00::/129", None),
            ("10.0.0.0/256", None),
            ("10.0.0.0/+8", None),
            ("10.0.0.0/-1", None),
            ("10.0.0.0/", None),
            ("10.0.0.0", None),
            ("10.0.0.0/8/8", None),
            ("/8", None),
            (" 10.0.0.0/8", None),
            ("fe80::1%eth0/64", None),
            ("example.com/8", None),
            ("", None),
        ] {
            let read = Cidr::parse(text).map(|range| range.to_string());
            assert_eq!(read.as_deref(), printed, "{text:?}");
        }
    }

    #[test]
    fn an_address_is_in_a_range_or_not() {
        for (range, address, inside) in [
            ("10.0.0.0/8", "10.255.255.255", true),
            ("10.0.0.0/8", "11.0.0.0", false),
            ("192.0.2.8/31", "192.0.2.9", true),
            ("192.0.2.8/31", "192.0.2.10", false),
            ("0.0.0.0/0", "203.0.113.1", true),
            ("0.0.0.0/0", "::1", false),
            ("::/0", "203.0.113.1", false),
            ("::/0", "fd00::1", true),
            ("fd00::/64", "fd00::ffff:0:0:1", true),
            ("fd00::/64", "fd00:0:0:1::1", false),
        ] {
            let range = Cidr::parse(range).unwrap();
            assert_eq!(range.contains(address.parse().unwrap()), inside, "{range} {address}");
        }
    }

    #[test]
    fn a_range_begins_and_ends() {
        for (range, first, last) in [
            ("10.1.0.0/16", "10.1.0.0", "10.1.255.255"),
            ("10.1.2.3/32", "10.1.2.3", "10.1.2.3"),
            ("0.0.0.0/0", "0.0.0.0", "255.255.255.255"),
            ("fd00::/126", "fd00::", "fd00::3"),
            ("::/0", "::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
        ] {
            let range = Cidr::parse(range).unwrap();
            let [first, last] = [first, last].map(|text| text.parse::<IpAddr>().unwrap());
            assert_eq!((range.first(), range.last()), (first, last), "{range}");
            assert_eq!(range.family(), Family::of(last), "{range}");
        }
    }

    #[test]
    fn too_long_a_prefix_leaves_one_address() {
        for (address, text) in [
            ("10.1.2.3", "10.1.2.3/32"),
            ("fd00::1", "fd00::1/128"),
            ("::ffff:1.2.3.4", "1.2.3.4/32"),
        ] {
            assert_eq!(Cidr::new(address.parse().unwrap(), 200).to_string(), text);
        }
    }
}
