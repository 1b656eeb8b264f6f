//! Address ranges such as `10.0.0.0/8`.

use std::fmt;
use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};

use crate::ip::parse_ip_sloppy;
use crate::key::Family;

/// Length of the prefix `::ffff:0:0/96` of IPv4-mapped IPv6 addresses.
const MAPPED: u8 = 96;

/// An address range in canonical form, so that equal ranges compare equal: host bits are zero, and
/// a range of IPv4-mapped IPv6 addresses is an IPv4 range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cidr(IpNet);

impl Cidr {
    /// The range of all addresses with this prefix. A prefix that is longer than the address gives
    /// the range of this address alone.
    pub fn new(address: IpAddr, prefix: u8) -> Self {
        IpNet::new(address, prefix).unwrap_or_else(|_| address.into()).into()
    }

    /// Parses `ADDRESS/PREFIX`. Host bits may be set; leading zeros in the address are rejected.
    pub fn parse(text: &str) -> Option<Self> {
        parse_net(text, |address| address.parse().ok()).map(Self::from)
    }

    /// Like [`Cidr::parse`], but accepts all address formats of [`parse_ip_sloppy`].
    pub fn parse_sloppy(text: &str) -> Option<Self> {
        parse_net_sloppy(text).map(Self::from)
    }

    /// The first address.
    pub fn first(self) -> IpAddr {
        self.0.network()
    }

    /// The last address.
    pub fn last(self) -> IpAddr {
        self.0.broadcast()
    }

    /// Length of the prefix in bits.
    pub fn prefix(self) -> u8 {
        self.0.prefix_len()
    }

    /// Number of bits after the prefix.
    pub fn host_bits(self) -> u8 {
        self.0.max_prefix_len() - self.0.prefix_len()
    }

    /// The family of its addresses.
    pub fn family(self) -> Family {
        Family::of(self.0.addr())
    }

    /// Whether the range contains an address.
    pub fn contains(self, address: IpAddr) -> bool {
        self.0.contains(&address)
    }
}

impl From<IpNet> for Cidr {
    fn from(net: IpNet) -> Self {
        let mapped = match net {
            IpNet::V6(v6) => v6.addr().to_ipv4_mapped().zip(v6.prefix_len().checked_sub(MAPPED)),
            IpNet::V4(_) => None,
        };
        let v4 = mapped.and_then(|(address, prefix)| Ipv4Net::new(address, prefix).ok());
        Self(v4.map_or(net, IpNet::V4).trunc())
    }
}

/// Parses `ADDRESS/PREFIX` as [`Cidr::parse_sloppy`] does, and keeps the address as written.
pub fn parse_net_sloppy(text: &str) -> Option<IpNet> {
    parse_net(text, parse_ip_sloppy)
}

fn parse_net(text: &str, parse_ip: impl FnOnce(&str) -> Option<IpAddr>) -> Option<IpNet> {
    let (address, prefix) = text.split_once('/')?;
    // `u8` would also accept a sign.
    let digits = prefix.bytes().all(|c| c.is_ascii_digit());
    let prefix = prefix.parse().ok().filter(|_| digits)?;
    IpNet::new(parse_ip(address)?, prefix).ok()
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_and_prints_the_canonical_form() {
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
    fn sloppy_ranges_may_have_leading_zeros() {
        for (text, strict, sloppy) in [
            ("10.0.0.0/8", Some("10.0.0.0/8"), Some("10.0.0.0/8")),
            ("010.0.0.0/8", None, Some("10.0.0.0/8")),
            ("010.001.2.03/16", None, Some("10.1.0.0/16")),
            ("::ffff:010.1.2.3/112", None, Some("10.1.0.0/16")),
            ("::ffff:10.1.2.3/16", Some("::/16"), Some("::/16")),
            ("fd00::1/64", Some("fd00::/64"), Some("fd00::/64")),
            ("10.0.0.1", None, None),
            ("10.0.0.0/33", None, None),
            (" 10.0.0.0/8", None, None),
            ("ten/8", None, None),
        ] {
            let read = [Cidr::parse(text), Cidr::parse_sloppy(text)];
            let read = read.map(|range| range.map(|range| range.to_string()));
            assert_eq!(read.each_ref().map(Option::as_deref), [strict, sloppy], "{text:?}");
        }
    }

    #[test]
    fn contains_addresses_with_the_same_prefix() {
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
    fn first_and_last_address_are_computed() {
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
    fn an_overlong_prefix_gives_one_address() {
        for (address, text) in [
            ("10.1.2.3", "10.1.2.3/32"),
            ("fd00::1", "fd00::1/128"),
            ("::ffff:1.2.3.4", "1.2.3.4/32"),
        ] {
            assert_eq!(Cidr::new(address.parse().unwrap(), 200).to_string(), text);
        }
    }
}
