//! Prints values: addresses, protocols, ports, slots, and ranges of them.

use std::fmt::Write;
use std::net::IpAddr;

use nearhop_core::Family;

use nearhop_netfilter::layout::protocol_of;
use nearhop_netfilter::object::{Bytes, Field};

/// A key or value, field by field; with an end, a range for each field that differs.
pub(super) fn key(fields: &[Field], bytes: &Bytes, end: Option<&Bytes>) -> String {
    let ends: Vec<&[u8]> = split(fields, end.unwrap_or(bytes)).collect();
    let low = split(fields, bytes).collect::<Vec<_>>();
    if low.len() != fields.len() || ends.len() != fields.len() {
        // The bytes do not match the fields of the set: print them raw.
        return hex(bytes.as_slice());
    }
    let parts = fields.iter().zip(low).zip(ends);
    parts.map(|((field, low), high)| range(*field, low, high)).collect::<Vec<_>>().join(" . ")
}

/// The sort key of elements: the values of the fields as numbers.
pub(super) fn order(fields: &[Field], bytes: &Bytes) -> Vec<u128> {
    let number = |(field, part): (&Field, &[u8])| match (field, part) {
        (Field::Slot, [a, b, c, d]) => u128::from(u32::from_ne_bytes([*a, *b, *c, *d])),
        (_, part) => part.iter().fold(0, |number, byte| number << 8 | u128::from(*byte)),
    };
    fields.iter().zip(split(fields, bytes)).map(number).collect()
}

fn split<'a>(fields: &'a [Field], bytes: &'a Bytes) -> impl Iterator<Item = &'a [u8]> {
    fields.iter().scan(bytes.as_slice(), |rest, field| {
        let (part, after) = rest.split_at_checked(field.padded_len())?;
        *rest = after;
        part.get(..field.len())
    })
}

fn range(field: Field, low: &[u8], high: &[u8]) -> String {
    if low == high {
        return one(field, low);
    }
    match (field, prefix(low, high)) {
        (Field::Address(_), Some(prefix)) => format!("{}/{prefix}", one(field, low)),
        _ => format!("{}-{}", one(field, low), one(field, high)),
    }
}

/// The prefix length of a range, if the range is a prefix.
fn prefix(low: &[u8], high: &[u8]) -> Option<u32> {
    let differing: Vec<u8> = low.iter().zip(high).map(|(low, high)| low ^ high).collect();
    let length = prefix_length(&differing.iter().map(|byte| !byte).collect::<Vec<u8>>())?;
    let starts = low.iter().zip(&differing).all(|(low, host)| low & host == 0);
    starts.then_some(length)
}

/// The prefix length of a mask, if it consists of ones followed by zeros.
pub(super) fn prefix_length(mask: &[u8]) -> Option<u32> {
    let ones: u32 = mask.iter().map(|byte| byte.count_ones()).sum();
    let whole = mask.iter().take_while(|byte| **byte == u8::MAX).count();
    let leading = whole as u32 * 8 + mask.get(whole).map_or(0, |byte| byte.leading_ones());
    (ones == leading).then_some(leading)
}

fn one(field: Field, bytes: &[u8]) -> String {
    match (field, bytes) {
        (Field::Address(family), bytes) => address(family, bytes),
        (Field::Protocol, [number]) => protocol(*number),
        (Field::Port, [high, low]) => u16::from_be_bytes([*high, *low]).to_string(),
        (Field::Slot, [a, b, c, d]) => u32::from_ne_bytes([*a, *b, *c, *d]).to_string(),
        (_, bytes) => hex(bytes),
    }
}

/// An address; missing bytes at its end are zero.
pub(super) fn address(family: Family, bytes: &[u8]) -> String {
    let mut octets = [0; 16];
    octets.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    match family {
        Family::Ipv4 => IpAddr::from([octets[0], octets[1], octets[2], octets[3]]).to_string(),
        Family::Ipv6 => IpAddr::from(octets).to_string(),
    }
}

/// A protocol by name, if a Service can use it.
pub(super) fn protocol(number: u8) -> String {
    match protocol_of(number) {
        Some(protocol) => protocol.as_str().to_ascii_lowercase(),
        None => number.to_string(),
    }
}

/// Bytes in hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold("0x".into(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string cannot fail");
        text
    })
}

/// A duration in nft syntax, such as `1h30m`.
pub(super) fn duration(milliseconds: u64) -> String {
    let units = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];
    let mut rest = milliseconds;
    let mut text = String::new();
    for (unit, length) in units {
        if rest >= length {
            text.push_str(&format!("{}{unit}", rest / length));
            rest %= length;
        }
    }
    if text.is_empty() { "0s".into() } else { text }
}
