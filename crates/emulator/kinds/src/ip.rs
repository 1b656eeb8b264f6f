//! Validation of IP addresses and CIDRs: legacy, strict and canonical forms, and addresses that
//! endpoints cannot have.
//!
//! Legacy fields are parsed leniently (leading zeros, IPv4 in IPv6) and then must have the strict
//! form, unless the stored object has the value.

use std::net::IpAddr;

use ipnet::IpNet;
use nearhop_core::cidr::parse_net_sloppy;
use nearhop_core::ip::parse_ip_sloppy;
use nearhop_core::{Cidr, Family};
use nearhop_object::FieldError;
use serde_json::Value;

use crate::errors::Errors;

/// The family of an address; IPv4 in IPv6 counts as IPv4.
pub(crate) fn family_of(ip: IpAddr) -> Family {
    Family::of(ip.to_canonical())
}

/// The family of an address in legacy form.
pub(crate) fn family_of_text(text: &str) -> Option<Family> {
    parse_ip_sloppy(text).map(family_of)
}

/// The other family.
pub(crate) fn other_family(family: Family) -> Family {
    match family {
        Family::Ipv4 => Family::Ipv6,
        Family::Ipv6 => Family::Ipv4,
    }
}

fn is_v4_in_v6(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some())
}

const NOT_AN_IP: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
pub(crate) const NOT_A_CIDR: &str =
    "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";

/// Validates an address in a legacy field. The values `was_there` of the stored object are accepted.
pub(crate) fn check_legacy_ip(field: &str, text: &str, was_there: &[&str]) -> Errors {
    if was_there.contains(&text) { Vec::new() } else { check_strict_ip(field, text).1 }
}

/// Validates an address that must have the canonical form.
pub(crate) fn check_canonical_ip(field: &str, text: &str) -> Errors {
    let (ip, mut wrong) = check_strict_ip(field, text);
    if let (Some(ip), true) = (ip, wrong.is_empty()) {
        let canonical = ip.to_canonical().to_string();
        if canonical != text {
            wrong.push(invalid(field, text, &format!("must be in canonical form ({canonical:?})")));
        }
    }
    wrong
}

fn check_strict_ip(field: &str, text: &str) -> (Option<IpAddr>, Vec<FieldError>) {
    let Some(ip) = parse_ip_sloppy(text) else {
        return (None, vec![invalid(field, text, NOT_AN_IP)]);
    };
    let mut wrong = Vec::new();
    match text.parse::<IpAddr>() {
        Err(_) => wrong.push(invalid(field, text, "must not have leading 0s")),
        Ok(ip) if is_v4_in_v6(ip) => {
            wrong.push(invalid(field, text, "must not be an IPv4-mapped IPv6 address"));
        }
        Ok(_) => {}
    }
    (Some(ip), wrong)
}

/// The special range that an address is in, as messages describe it.
fn special_range(ip: IpAddr) -> Option<&'static str> {
    let (link_local, link_local_multicast) = match ip {
        IpAddr::V4(v4) => (v4.is_link_local(), v4.octets().starts_with(&[224, 0, 0])),
        IpAddr::V6(v6) => {
            let [first, ..] = v6.segments();
            (first & 0xffc0 == 0xfe80, first & 0xff0f == 0xff02)
        }
    };
    let ranges = [
        (ip.is_unspecified(), "unspecified"),
        (ip.is_loopback(), "in the loopback range (127.0.0.0/8, ::1/128)"),
        (link_local, "in the link-local range (169.254.0.0/16, fe80::/10)"),
        (link_local_multicast, "in the link-local multicast range (224.0.0.0/24, ff02::/10)"),
    ];
    ranges.iter().find(|(inside, _)| *inside).map(|(_, range)| *range)
}

/// Whether an address is canonical, of a family, and can be an endpoint's. Slices hold many: this
/// settles all but the odd ones without spelling out a field.
pub(crate) fn is_plain_endpoint(text: &str, family: Family) -> bool {
    let canonical = |ip: IpAddr| ip.is_ipv4() || ip.to_string() == text;
    text.parse::<IpAddr>().is_ok_and(|ip| {
        Family::of(ip) == family && !is_v4_in_v6(ip) && special_range(ip).is_none() && canonical(ip)
    })
}

/// Checks that an address can be an endpoint's: not one of the special ranges.
pub(crate) fn check_endpoint_ip(field: &str, text: &str) -> Errors {
    let Some(ip) = parse_ip_sloppy(text).map(|ip| ip.to_canonical()) else {
        return vec![invalid(field, text, "must be a valid IP address")];
    };
    match special_range(ip) {
        None => Vec::new(),
        Some("unspecified") => {
            vec![invalid(field, text, &format!("may not be unspecified ({text})"))]
        }
        Some(range) => vec![invalid(field, text, &format!("may not be {range}"))],
    }
}

/// Warnings about odd spellings of an address that was checked with [`check_legacy_ip`].
pub(crate) fn warn_ip(field: &str, text: &str) -> Option<String> {
    let ip = parse_ip_sloppy(text)?;
    let canonical = ip.to_canonical().to_string();
    match text.parse::<IpAddr>() {
        Ok(strict) if !is_v4_in_v6(strict) => (strict.is_ipv6() && canonical != text).then(|| {
            format!(
                "{field}: IPv6 address {text:?} should be in RFC 5952 canonical format ({canonical:?})"
            )
        }),
        _ => Some(format!(
            "{field}: non-standard IP address {text:?} is invalid: use {canonical:?}"
        )),
    }
}

/// Parses a CIDR in the strict form: no leading zeros, no IPv4-mapped address, no host bits.
pub(crate) fn parse_strict_cidr(text: &str) -> Option<Cidr> {
    let net = parse_net_sloppy(text)?;
    cidr_problem(text, net).is_none().then(|| net.into())
}

fn cidr_problem(text: &str, net: IpNet) -> Option<&'static str> {
    if !is_strict_cidr(text) {
        Some("must not have leading 0s in IP or prefix length")
    } else if is_v4_in_v6(net.addr()) {
        Some("must not have an IPv4-mapped IPv6 address")
    } else if net.addr() != net.network() {
        Some("must not have bits set beyond the prefix length")
    } else {
        None
    }
}

/// Whether the spelling is strict: no leading zeros in the address or the prefix.
fn is_strict_cidr(text: &str) -> bool {
    text.split_once('/').is_some_and(|(ip, prefix)| {
        let zeros = prefix.len() > 1 && prefix.starts_with('0');
        ip.parse::<IpAddr>().is_ok() && !zeros
    })
}

/// Checks a CIDR in a field older than the strict rules; see `check_legacy_ip`.
pub fn check_legacy_cidr(field: &str, text: &str, was_there: &[&str]) -> Errors {
    if was_there.contains(&text) {
        return Vec::new();
    }
    let problem = parse_net_sloppy(text).map_or(Some(NOT_A_CIDR), |net| cidr_problem(text, net));
    problem.map(|detail| invalid(field, text, detail)).into_iter().collect()
}

/// Warnings about odd spellings of a CIDR that was checked with [`check_legacy_cidr`].
pub fn warn_cidr(field: &str, text: &str) -> Vec<String> {
    let Some(net) = parse_net_sloppy(text) else { return Vec::new() };
    let mut warnings = Vec::new();
    let canonical = Cidr::from(net).to_string();
    let address = net.addr().to_canonical();
    if address != net.network().to_canonical() {
        let single = format!("{address}/{}", net.max_prefix_len());
        warnings.push(format!(
            "{field}: CIDR value {text:?} is ambiguous in this context (should be {canonical:?} or \
             {single:?}?)"
        ));
    }
    if !is_strict_cidr(text) || is_v4_in_v6(net.addr()) {
        warnings.push(format!(
            "{field}: non-standard CIDR value {text:?} is invalid: use {canonical:?}"
        ));
    }
    if warnings.is_empty() && net.addr().is_ipv6() && canonical != text {
        warnings.push(format!(
            "{field}: IPv6 CIDR value {text:?} should be in RFC 5952 canonical format \
             ({canonical:?})"
        ));
    }
    warnings
}

fn invalid(field: &str, text: &str, detail: &str) -> FieldError {
    FieldError::invalid(field, &Value::from(text), detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn details(wrong: &[FieldError]) -> Vec<&str> {
        wrong.iter().map(|e| e.message.rsplit(": ").next().unwrap()).collect()
    }

    #[test]
    fn ip_forms_are_checked_like_kubernetes() {
        let legacy = |text| check_legacy_ip("f", text, &[]);
        assert!(legacy("10.0.0.1").is_empty());
        assert!(legacy("FD00:0:0::1").is_empty());
        assert_eq!(details(&legacy("010.0.0.1")), ["must not have leading 0s"]);
        assert!(check_legacy_ip("f", "010.0.0.1", &["010.0.0.1"]).is_empty());
        assert_eq!(details(&legacy("::ffff:1.2.3.4")), ["must not be an IPv4-mapped IPv6 address"]);
        assert!(check_canonical_ip("f", "fd00::1").is_empty());
        let wrong = check_canonical_ip("f", "FD00:0:0::1");
        assert_eq!(
            wrong[0].to_string(),
            r#"f: Invalid value: "FD00:0:0::1": must be in canonical form ("fd00::1")"#
        );
        assert_eq!(
            warn_ip("f", "FD00:0:0::1").unwrap(),
            r#"f: IPv6 address "FD00:0:0::1" should be in RFC 5952 canonical format ("fd00::1")"#
        );
        assert_eq!(
            warn_ip("f", "010.0.0.1").unwrap(),
            r#"f: non-standard IP address "010.0.0.1" is invalid: use "10.0.0.1""#
        );
        assert_eq!(warn_ip("f", "10.0.0.1"), None);
    }

    #[test]
    fn endpoint_addresses_in_special_ranges_are_rejected() {
        for text in ["0.0.0.0", "::", "127.0.0.1", "::1", "169.254.1.1", "fe80::1", "224.0.0.1"] {
            assert_eq!(check_endpoint_ip("f", text).len(), 1, "{text}");
        }
        assert_eq!(check_endpoint_ip("f", "ff12::1").len(), 1);
        for text in ["10.0.0.1", "224.0.1.1", "fd00::1", "ff05::1"] {
            assert!(check_endpoint_ip("f", text).is_empty(), "{text}");
        }
        assert_eq!(
            check_endpoint_ip("f", "0.0.0.0")[0].message,
            r#"Invalid value: "0.0.0.0": may not be unspecified (0.0.0.0)"#
        );
    }

    #[test]
    fn cidrs_are_checked_like_kubernetes() {
        assert_eq!(parse_strict_cidr("10.96.0.0/16").unwrap().to_string(), "10.96.0.0/16");
        assert_eq!(parse_strict_cidr("::ffff:10.0.0.0/104"), None);
        let check = |text| check_legacy_cidr("f", text, &[]);
        assert!(check("0.0.0.0/0").is_empty());
        assert!(check("::/0").is_empty());
        assert_eq!(
            details(&check("10.0.0.1/8")),
            ["must not have bits set beyond the prefix length"]
        );
        assert_eq!(
            details(&check("10.0.0.0/08")),
            ["must not have leading 0s in IP or prefix length"]
        );
        assert_eq!(details(&check("10.0.0.0/33")).len(), 1);
        assert_eq!(details(&check("nope")).len(), 1);
        assert_eq!(
            warn_cidr("f", "10.0.0.1/8"),
            [
                r#"f: CIDR value "10.0.0.1/8" is ambiguous in this context (should be "10.0.0.0/8" or "10.0.0.1/32"?)"#
            ]
        );
        assert_eq!(
            warn_cidr("f", "FD00::/64"),
            [
                r#"f: IPv6 CIDR value "FD00::/64" should be in RFC 5952 canonical format ("fd00::/64")"#
            ]
        );
        assert_eq!(warn_cidr("f", "::ffff:10.0.0.0/104").len(), 1);
        assert!(warn_cidr("f", " 10.0.0.0/8").is_empty());
    }
}
