//! The string values of `format` that Kubernetes supports, and their checks.
//!
//! Some checks are simpler than Go's parsers: `email` and `uri` check only the basic form,
//! `hostname` allows no symbols, and `isbn`, `creditcard` and `bsonobjectid` accept everything.

use std::net::{Ipv4Addr, Ipv6Addr};

use base64::Engine as _;
use nearhop_core::Cidr;
use serde_json::Value;

use super::check::children;
use super::keywords::Keywords;
use super::{MAX_DEPTH, pattern};
use crate::names::{dns1123_label, dns1123_subdomain};

/// String formats, without dashes, as Kubernetes compares them.
const STRING_FORMATS: &str = "bsonobjectid byte cidr creditcard date datetime duration email hexcolor hostname ipv4 \
    ipv6 isbn isbn10 isbn13 k8slongname k8sshortname mac password rgbcolor ssn uri uuid \
    uuid3 uuid4 uuid5";

/// The format of a schema, if it is known for its type: Kubernetes ignores other formats.
pub(super) fn effective<'a>(keywords: &Keywords<'a>) -> &'a str {
    let format = keywords.format;
    if format.is_empty() {
        return "";
    }
    let type_ = if keywords.int_or_string { "" } else { keywords.type_ };
    let known = match type_ {
        "" | "string" => STRING_FORMATS.split(' ').any(|known| known == normal(format)),
        "integer" => matches!(format, "int32" | "int64"),
        "number" => matches!(format, "float" | "double"),
        _ => false,
    };
    if known { format } else { "" }
}

/// The formats in a schema without effect, for which Kubernetes warns `unrecognized format`.
pub fn unrecognized_formats(schema: &Value) -> Vec<String> {
    let mut found = Vec::new();
    collect_unrecognized(schema, 0, &mut found);
    found
}

fn collect_unrecognized(schema: &Value, depth: usize, found: &mut Vec<String>) {
    let keywords = Keywords::of(schema);
    if depth > MAX_DEPTH {
        return;
    }
    let format = keywords.format;
    if !format.is_empty() && effective(&keywords).is_empty() && !found.iter().any(|f| f == format) {
        found.push(format.to_owned());
    }
    for below in children(&keywords) {
        collect_unrecognized(below, depth + 1, found);
    }
}

fn normal(format: &str) -> String {
    format.replace('-', "")
}

/// Whether a string is valid for a format.
pub(super) fn has_format(format: &str, text: &str) -> bool {
    match &*normal(format) {
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => Cidr::parse(text).is_some(),
        "datetime" => is_date_time(text),
        "date" => text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok(),
        "duration" => is_duration(text),
        "byte" => base64::engine::general_purpose::STANDARD.decode(text).is_ok(),
        "mac" => is_mac(text),
        "email" => is_email(text),
        "uri" => is_uri(text),
        "hostname" => is_hostname(text),
        "k8sshortname" => dns1123_label(text).is_empty(),
        "k8slongname" => dns1123_subdomain(text).is_empty(),
        other => pattern_of(other).is_none_or(|p| pattern::matches(p, text) != Some(false)),
    }
}

fn pattern_of(format: &str) -> Option<&'static str> {
    Some(match format {
        "uuid" => "(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$",
        "uuid3" => "(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?3[0-9a-f]{3}-?[0-9a-f]{4}-?[0-9a-f]{12}$",
        "uuid4" => "(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$",
        "uuid5" => "(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?5[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$",
        "ssn" => r"^[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}$",
        "hexcolor" => "^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$",
        "rgbcolor" => r"^rgb\(\s*[0-9]{1,3}\s*,\s*[0-9]{1,3}\s*,\s*[0-9]{1,3}\s*\)$",
        _ => return None,
    })
}

/// RFC 3339. The parser alone would also accept other forms of ISO 8601.
fn is_date_time(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_separator = |at: usize, wanted: &[u8]| bytes.get(at).is_some_and(|b| wanted.contains(b));
    is_separator(4, b"-")
        && is_separator(7, b"-")
        && is_separator(10, b"Tt ")
        && is_separator(13, b":")
        && is_separator(16, b":")
        && text.parse::<jiff::Timestamp>().is_ok()
}

/// Accepts the syntax of Go's `time.ParseDuration` (`1h30m`), or a number and a unit (`22 ns`).
fn is_duration(text: &str) -> bool {
    let go = r"^[-+]?(0|(([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$";
    let words = r"^[0-9]+\s*(ns|nanos?|nanoseconds?|us|µs|micros?|microseconds?|ms|millis?|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?|w|weeks?)$";
    [go, words].into_iter().any(|form| pattern::matches(form, text) == Some(true))
}

fn is_mac(text: &str) -> bool {
    let pair = |part: &str, digits: usize| {
        part.len() == digits && part.bytes().all(|b| b.is_ascii_hexdigit())
    };
    let octets = |by: char| {
        let parts = text.split(by);
        matches!(parts.clone().count(), 6 | 8 | 20) && parts.clone().all(|part| pair(part, 2))
    };
    let words = text.split('.');
    let dotted = matches!(words.clone().count(), 3 | 4 | 10) && words.clone().all(|w| pair(w, 4));
    octets(':') || octets('-') || dotted
}

fn is_email(text: &str) -> bool {
    let address = match text.rsplit_once('<') {
        Some((_, rest)) => rest.strip_suffix('>').unwrap_or_default(),
        None => text,
    };
    let Some((local, host)) = address.rsplit_once('@') else { return false };
    let blank = |part: &str| part.is_empty() || part.contains(char::is_whitespace);
    !blank(local) && !blank(host)
}

/// An absolute URI or an absolute path.
fn is_uri(text: &str) -> bool {
    let scheme = text.split_once(':').is_some_and(|(scheme, rest)| {
        let mut bytes = scheme.bytes();
        bytes.next().is_some_and(|b| b.is_ascii_alphabetic())
            && bytes.all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
            && !rest.is_empty()
    });
    let clean = text.chars().all(|c| !c.is_control() && c != ' ');
    clean && (scheme || text.starts_with('/'))
}

fn is_hostname(text: &str) -> bool {
    let label = |part: &str| {
        let inner = part.chars().all(|c| c.is_alphanumeric() || c == '-');
        !part.is_empty()
            && part.len() <= 63
            && inner
            && !part.starts_with('-')
            && !part.ends_with('-')
    };
    let last = text.rsplit('.').next().unwrap_or_default();
    let tld = !text.contains('.') || (last.len() >= 2 && last.chars().all(char::is_alphabetic));
    text.len() <= 255 && tld && text.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_validated() {
        let cases: &[(&str, &[&str], &[&str])] = &[
            ("ipv4", &["10.0.0.1"], &["fd00::1", "x"]),
            ("ipv6", &["fd00::1"], &["10.0.0.1"]),
            ("cidr", &["10.0.0.0/8", "fd00::/64"], &["10.0.0.0", "10.0.0.0/33"]),
            (
                "date-time",
                &["2026-01-02T03:04:05Z", "2026-01-02T03:04:05.123+02:00"],
                &["2026-01-02", "yesterday"],
            ),
            ("date", &["2026-01-02"], &["2026-13-02"]),
            ("duration", &["1h30m", "22 ns", "0"], &["soon"]),
            ("byte", &["aGVsbG8="], &["%"]),
            ("mac", &["01:23:45:67:89:ab", "0123.4567.89ab"], &["01:23"]),
            ("email", &["a@b.example"], &["a"]),
            ("uri", &["https://example.com/x", "/x"], &["x y", "relative"]),
            ("hostname", &["example.com", "localhost"], &["-x", "a_b"]),
            ("k8s-short-name", &["a-1"], &["A"]),
            ("k8s-long-name", &["a.b-c"], &["a..b"]),
            ("uuid", &["6ae110f3-a418-4722-b401-7a1cd0820739"], &["x"]),
            ("uuid4", &["6ae110f3-a418-4722-b401-7a1cd0820739"], &[]),
            ("password", &["x"], &[]),
            ("hexcolor", &["#fff"], &[]),
            ("uuid3", &[], &["6ae110f3-a418-4722-b401-7a1cd0820739"]),
        ];
        for (format, valid, invalid) in cases {
            for text in *valid {
                assert!(has_format(format, text), "{format}: {text}");
            }
            for text in *invalid {
                assert!(!has_format(format, text), "{format}: {text}");
            }
        }
    }
}
