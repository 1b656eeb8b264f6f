//! Texts with a grammar of their own: addresses, quantities, times.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use jiff::Timestamp;
use nearhop_core::Cidr;

/// What [`parse_address`] understands, for messages.
pub(super) const ADDRESS: &str = "an IP address";

/// What [`parse_cidr`] understands, for messages.
pub(super) const CIDR: &str = "an address range such as 10.0.0.0/8";

/// What [`parse_time`] understands, for messages.
pub(super) const TIME: &str = "a time such as 2025-01-31T12:00:00Z";

/// Reads a time.
pub(super) fn parse_time(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}

/// Reads an address as leniently as Kubernetes does: IPv4 may have leading zeros (they are
/// decimal all the same), and an IPv4-mapped IPv6 address is the IPv4 address.
pub fn parse_address(text: &str) -> Option<IpAddr> {
    parse_literal(text).map(|address| address.to_canonical())
}

/// Reads a range of addresses, each as leniently as [`parse_address`] does.
pub(super) fn parse_cidr(text: &str) -> Option<Cidr> {
    Cidr::parse_with(text, parse_literal)
}

/// Reads an address in the family that it is written in: a prefix counts that family's bits.
fn parse_literal(text: &str) -> Option<IpAddr> {
    let Some((head, tail)) = text.rsplit_once(':') else {
        return parse_ipv4(text).map(IpAddr::V4);
    };
    let address: Ipv6Addr = if tail.contains('.') {
        format!("{head}:{}", parse_ipv4(tail)?).parse().ok()?
    } else {
        text.parse().ok()?
    };
    Some(IpAddr::V6(address))
}

fn parse_ipv4(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        *octet = parts.next().filter(|part| is_digits(part))?.parse().ok()?;
    }
    parts.next().is_none().then(|| Ipv4Addr::from(octets))
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit())
}

/// What [`nearhop_core::quantity::parse_cpu`] understands, for messages.
pub(super) const CPU: &str = "an amount of CPU such as 4, 0.5 or 500m";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_kubernetes_reads_them() {
        for (text, range) in [
            ("10.0.0.0/8", Some("10.0.0.0/8")),
            ("010.001.2.03/16", Some("10.1.0.0/16")),
            ("::ffff:010.1.2.3/112", Some("10.1.0.0/16")),
            ("::ffff:10.1.2.3/16", Some("::/16")),
            ("fd00::1/64", Some("fd00::/64")),
            ("10.0.0.1", None),
            ("10.0.0.0/33", None),
            (" 10.0.0.0/8", None),
            ("ten/8", None),
        ] {
            let read = parse_cidr(text).map(|range| range.to_string());
            assert_eq!(read.as_deref(), range, "{text:?}");
        }
    }

    #[test]
    fn addresses_are_read_as_kubernetes_reads_them() {
        for (text, address) in [
            ("10.1.2.3", Some("10.1.2.3")),
            ("010.001.2.03", Some("10.1.2.3")),
            ("::ffff:1.2.3.4", Some("1.2.3.4")),
            ("::ffff:01.2.3.4", Some("1.2.3.4")),
            ("::ffff:102:304", Some("1.2.3.4")),
            ("fd00::1", Some("fd00::1")),
            ("64:ff9b::10.0.0.1", Some("64:ff9b::a00:1")),
            ("", None),
            ("10.1.2", None),
            ("10.1.2.3.4", None),
            ("10.1.2.256", None),
            ("10.1.2.+3", None),
            ("10.1.2.3 ", None),
            ("fe80::1%eth0", None),
            (":1.2.3.4", None),
            ("example.com", None),
        ] {
            let wanted = address.map(|address| address.parse().unwrap());
            assert_eq!(parse_address(text), wanted, "{text:?}");
        }
    }
}
