//! IP addresses as text, in all formats that the Kubernetes API accepts.

use std::net::IpAddr;

/// Parses an address like `ParseIPSloppy` of Kubernetes: numbers may have leading zeros and are
/// still decimal (IPv4) or hexadecimal (IPv6). An IPv4-mapped IPv6 address stays IPv6.
pub fn parse_ip_sloppy(text: &str) -> Option<IpAddr> {
    text.parse().ok().or_else(|| without_leading_zeros(text).parse().ok())
}

fn without_leading_zeros(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut number_starts = true;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let more_digits = chars.peek().is_some_and(char::is_ascii_hexdigit);
        if number_starts && c == '0' && more_digits {
            continue;
        }
        kept.push(c);
        number_starts = matches!(c, '.' | ':');
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sloppy_addresses_may_have_leading_zeros() {
        for (text, ip) in [
            ("10.0.0.1", Some("10.0.0.1")),
            ("010.0.0.001", Some("10.0.0.1")),
            ("010.001.2.03", Some("10.1.2.3")),
            ("000.0000.00.0", Some("0.0.0.0")),
            ("00000::1", Some("::1")),
            ("fd00::1", Some("fd00::1")),
            ("::ffff:1.2.3.4", Some("::ffff:1.2.3.4")),
            ("::ffff:01.2.3.4", Some("::ffff:1.2.3.4")),
            ("::ffff:102:304", Some("::ffff:1.2.3.4")),
            ("64:ff9b::10.0.0.1", Some("64:ff9b::a00:1")),
            ("::", Some("::")),
            ("1:2:3:4:5:6:7:8", Some("1:2:3:4:5:6:7:8")),
            ("1:2:3:4:5:6:7::", Some("1:2:3:4:5:6:7:0")),
            ("1:2:3:4:5:6:1.2.3.4", Some("1:2:3:4:5:6:102:304")),
            ("1::2::3", None),
            ("1:2:3:4::5:6:7:8", None),
            (":::", None),
            ("1:2", None),
            ("1.2.3.4::", None),
            (":1.2.3.4", None),
            ("256.1.1.1", None),
            ("10.1.2.256", None),
            ("0a.1.2.3", None),
            ("1.2.3", None),
            ("1.2.3.4.5", None),
            ("+1.2.3.4", None),
            ("10.1.2.+3", None),
            ("10.1.2.3 ", None),
            ("fe80::1%eth0", None),
            ("example.com", None),
            ("", None),
            (":", None),
        ] {
            assert_eq!(parse_ip_sloppy(text), ip.map(|ip| ip.parse().unwrap()), "{text:?}");
        }
    }
}
