//! Texts with a grammar of their own: addresses, quantities, times.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use jiff::Timestamp;

/// What [`parse_address`] understands, for messages.
pub(super) const ADDRESS: &str = "an IP address";

/// What [`parse_time`] understands, for messages.
pub(super) const TIME: &str = "a time such as 2025-01-31T12:00:00Z";

/// Reads a time.
pub(super) fn parse_time(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}

/// Reads an address as leniently as Kubernetes does: IPv4 may have leading zeros (they are
/// decimal all the same), and an IPv4-mapped IPv6 address is the IPv4 address.
pub fn parse_address(text: &str) -> Option<IpAddr> {
    let Some((head, tail)) = text.rsplit_once(':') else {
        return parse_ipv4(text).map(IpAddr::V4);
    };
    let address: Ipv6Addr = if tail.contains('.') {
        format!("{head}:{}", parse_ipv4(tail)?).parse().ok()?
    } else {
        text.parse().ok()?
    };
    Some(IpAddr::V6(address).to_canonical())
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

/// What [`parse_cpu_milli`] understands, for messages.
pub(super) const CPU: &str = "an amount of CPU such as 4, 0.5 or 500m";

/// Reads a Kubernetes quantity of CPU as thousandths of a core, rounded up. Negative ones, and
/// those beyond the range, are not read.
pub fn parse_cpu_milli(text: &str) -> Option<u64> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{whole}{fraction}");
    if !is_digits(&digits) {
        return None;
    }
    let mantissa: u128 = digits.parse().ok()?;
    let (exponent, multiplier) = read_suffix(suffix)?;
    let exponent = exponent + 3 - i32::try_from(fraction.len()).ok()?;
    u64::try_from(scale(mantissa.checked_mul(multiplier)?, exponent)?).ok()
}

/// A suffix as a power of ten and a multiplier.
fn read_suffix(suffix: &str) -> Option<(i32, u128)> {
    let decimal = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
    let binary = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    if let Some(at) = decimal.iter().position(|known| *known == suffix) {
        return Some((i32::try_from(at).ok()? * 3 - 9, 1));
    }
    if let Some(at) = binary.iter().position(|known| *known == suffix) {
        return Some((0, 1024_u128.pow(u32::try_from(at).ok()? + 1)));
    }
    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    (-1000..=1000).contains(&exponent).then_some((exponent, 1))
}

/// `mantissa` times ten to the power of `exponent`, rounded up.
fn scale(mantissa: u128, exponent: i32) -> Option<u128> {
    let power = 10_u128.checked_pow(exponent.unsigned_abs());
    match (mantissa, power) {
        (0, _) => Some(0),
        (_, Some(power)) if exponent >= 0 => mantissa.checked_mul(power),
        (_, Some(power)) => Some(mantissa.div_ceil(power)),
        // Less than any thousandth, or more than any machine.
        (_, None) => (exponent < 0).then_some(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn cpu_is_read_as_a_quantity() {
        for (text, milli) in [
            ("4", Some(4000)),
            ("0.5", Some(500)),
            (".5", Some(500)),
            ("4.", Some(4000)),
            ("500m", Some(500)),
            ("+2", Some(2000)),
            ("1.5m", Some(2)),
            ("1n", Some(1)),
            ("1500u", Some(2)),
            ("1000000n", Some(1)),
            ("0n", Some(0)),
            ("2k", Some(2_000_000)),
            ("1M", Some(1_000_000_000)),
            ("1G", Some(1_000_000_000_000)),
            ("1Ki", Some(1_024_000)),
            ("1e3", Some(1_000_000)),
            ("1E3", Some(1_000_000)),
            ("1e-3", Some(1)),
            ("1e-999", Some(1)),
            ("0e999", Some(0)),
            ("1E", Some(1_000_000_000_000_000_000_000_u128)),
            ("", None),
            (".", None),
            ("-1", None),
            ("1.2.3", None),
            ("lots", None),
            ("1mm", None),
            ("1e", None),
            ("1e99999", None),
            ("1e30", None),
            ("1 ", None),
        ]
        .map(|(text, milli)| (text, milli.and_then(|milli: u128| u64::try_from(milli).ok())))
        {
            assert_eq!(parse_cpu_milli(text), milli, "{text:?}");
        }
    }
}
