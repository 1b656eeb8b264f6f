//! Parsers for addresses, quantities and times.

use std::net::IpAddr;

use jiff::Timestamp;
use nearhop_core::ip::parse_ip_sloppy;

/// The format of [`parse_address`], for messages.
pub(super) const ADDRESS: &str = "an IP address";

/// The format of [`nearhop_core::Cidr::parse_sloppy`], for messages.
pub(super) const CIDR: &str = "an address range such as 10.0.0.0/8";

/// The format of [`parse_time`], for messages.
pub(super) const TIME: &str = "a time such as 2025-01-31T12:00:00Z";

pub(super) fn parse_time(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}

/// Parses an address as Kubernetes does; an IPv4-mapped IPv6 address becomes the IPv4 address.
pub(super) fn parse_address(text: &str) -> Option<IpAddr> {
    parse_ip_sloppy(text).map(|address| address.to_canonical())
}

/// The format of [`nearhop_core::quantity::parse_cpu`], for messages.
pub(super) const CPU: &str = "an amount of CPU such as 4, 0.5 or 500m";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_mapped_addresses_become_ipv4() {
        for text in ["1.2.3.4", "01.2.3.4", "::ffff:1.2.3.4", "::ffff:01.2.3.4", "::ffff:102:304"] {
            assert_eq!(parse_address(text), Some([1, 2, 3, 4].into()), "{text:?}");
        }
        assert_eq!(parse_address("00fd::1"), "fd::1".parse().ok());
        assert_eq!(parse_address("example.com"), None);
    }
}
