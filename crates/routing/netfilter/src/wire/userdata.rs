//! User data, which the kernel stores for the nft program and does not read: comments, and the
//! types of a set's key, so that nft can read the output of `nft list`.
//!
//! The format is a sequence of type byte, length byte and value. The type numbers are those of nft
//! 1.0.6, taken from what it sends; later versions can read them.

use nearhop_core::Family;

use super::attr::Writer;
use crate::object::{Field, Set, SetData};

/// Type of a comment of tables, chains, rules and elements.
pub(super) const COMMENT: u8 = 0;
/// Type of a comment of sets.
pub(super) const SET_COMMENT: u8 = 7;

const KEY_BYTE_ORDER: u8 = 0;
const DATA_BYTE_ORDER: u8 = 1;
const KEY_TYPE_OF: u8 = 3;
const DATA_TYPE_OF: u8 = 4;
const DATA_INTERVAL: u8 = 6;

/// The longest comment that nft can read from its own output, without the terminating zero.
const LONGEST_COMMENT: usize = 127;
/// `NFT_USERDATA_MAXLEN`.
const LONGEST: usize = 256;
/// The type byte, the length byte and the terminating zero.
const AROUND_COMMENT: usize = 3;

/// Writes a user data attribute with a comment.
pub(super) fn write_comment(w: &mut Writer, attribute: u16, comment: &str) {
    let mut bytes = [0; AROUND_COMMENT + LONGEST_COMMENT];
    let len = comment_bytes(&mut bytes, COMMENT, comment);
    w.put(attribute, &bytes[..len]);
}

/// Writes a comment and returns its length. The text is truncated to the available space.
///
/// Characters that nft could not read again are replaced: a quotation mark ends the text, and a
/// line break ends the line.
fn comment_bytes(bytes: &mut [u8], kind: u8, comment: &str) -> usize {
    let room = LONGEST_COMMENT.min(bytes.len() - AROUND_COMMENT);
    let text = &comment.as_bytes()[..comment.floor_char_boundary(room)];
    for (to, from) in bytes[2..].iter_mut().zip(text) {
        *to = match from {
            b'"' => b'\'',
            byte if byte.is_ascii_control() => b' ',
            byte => *byte,
        };
    }
    bytes[0] = kind;
    bytes[1] = (text.len() + 1) as u8;
    bytes[text.len() + 2] = 0;
    text.len() + AROUND_COMMENT
}

/// The comment in user data. None if it is missing, or the user data is not in nft's format.
pub(super) fn comment_in(mut bytes: &[u8], kind: u8) -> Option<&str> {
    while let [what, len, rest @ ..] = bytes {
        let (value, rest) = rest.split_at_checked(usize::from(*len))?;
        if *what == kind {
            return std::str::from_utf8(value.strip_suffix(&[0]).unwrap_or(value)).ok();
        }
        bytes = rest;
    }
    None
}

/// The types of a set for nft, as far as they fit.
pub(super) fn set_userdata(set: &Set) -> Vec<u8> {
    let mut parts = vec![(KEY_BYTE_ORDER, byte_order(&set.key).to_ne_bytes().to_vec())];
    let data_order = match &set.data {
        SetData::None => None,
        SetData::Verdict => Some(0_u32),
        SetData::Value(fields) => Some(byte_order(fields)),
    };
    parts.extend(data_order.map(|order| (DATA_BYTE_ORDER, order.to_ne_bytes().to_vec())));
    if needs_type_of(set) {
        parts.push((KEY_TYPE_OF, type_of(&set.key)));
        match &set.data {
            SetData::None => {}
            SetData::Verdict => parts.push((DATA_TYPE_OF, expression(EXPR_VERDICT, &[]))),
            SetData::Value(fields) => parts.push((DATA_TYPE_OF, type_of(fields))),
        }
    }
    parts.extend(data_order.map(|_| (DATA_INTERVAL, vec![0; 4])));
    let mut bytes = Vec::with_capacity(LONGEST);
    for (kind, value) in parts {
        if bytes.len() + 2 + value.len() <= LONGEST {
            part(&mut bytes, kind, &value);
        }
    }
    add_comment(&mut bytes, set);
    bytes
}

fn add_comment(bytes: &mut Vec<u8>, set: &Set) {
    let at = bytes.len();
    if let Some(comment) = &set.comment
        && at + AROUND_COMMENT < LONGEST
    {
        bytes.resize(LONGEST, 0);
        let len = comment_bytes(&mut bytes[at..], SET_COMMENT, comment);
        bytes.truncate(at + len);
    }
}

/// Writes a 32-bit number in the machine's byte order, as always in user data.
fn number(bytes: &mut Vec<u8>, kind: u8, number: u32) {
    part(bytes, kind, &number.to_ne_bytes());
}

/// Adds a part, unless it is too long: nft then prints `integer`.
fn part(bytes: &mut Vec<u8>, kind: u8, value: &[u8]) {
    if let Ok(len) = u8::try_from(value.len()) {
        bytes.extend_from_slice(&[kind, len]);
        bytes.extend_from_slice(value);
    }
}

/// The byte order of a field's values. A concatenation has none.
fn byte_order(fields: &[Field]) -> u32 {
    const UNKNOWN: u32 = 0;
    const MACHINE: u32 = 1;
    const NETWORK: u32 = 2;
    match fields {
        [Field::Slot] => MACHINE,
        [Field::Address(_) | Field::Port] => NETWORK,
        _ => UNKNOWN,
    }
}

/// Whether a set needs `typeof`: the type of a slot has no name that nft can read.
fn needs_type_of(set: &Set) -> bool {
    let data: &[Field] = match &set.data {
        SetData::Value(fields) => fields,
        SetData::None | SetData::Verdict => &[],
    };
    set.key.iter().chain(data).any(|field| *field == Field::Slot)
}

/// nft's numbers of expression kinds.
const EXPR_VERDICT: u32 = 1;
const EXPR_PAYLOAD: u32 = 7;
const EXPR_META: u32 = 9;
const EXPR_CONCAT: u32 = 13;
const EXPR_NUMGEN: u32 = 23;

/// `ip daddr . meta l4proto . th dport . numgen random mod 2`.
fn type_of(fields: &[Field]) -> Vec<u8> {
    if let [field] = fields {
        return type_of_field(*field);
    }
    let mut parts = Vec::new();
    for (index, field) in fields.iter().enumerate() {
        part(&mut parts, index as u8, &type_of_field(*field));
    }
    expression(EXPR_CONCAT, &parts)
}

fn type_of_field(field: Field) -> Vec<u8> {
    // nft's numbers of headers, their fields, and keys.
    match field {
        Field::Address(Family::Ipv4) => expression(EXPR_PAYLOAD, &numbers(&[12, 12])),
        Field::Address(Family::Ipv6) => expression(EXPR_PAYLOAD, &numbers(&[13, 9])),
        Field::Port => expression(EXPR_PAYLOAD, &numbers(&[11, 2])),
        Field::Protocol => expression(EXPR_META, &numbers(&[16])),
        Field::Slot => expression(EXPR_NUMGEN, &numbers(&[1, 2, 0])),
    }
}

fn expression(kind: u32, inside: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    number(&mut bytes, 0, kind);
    part(&mut bytes, 1, inside);
    bytes
}

fn numbers(values: &[u32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (index, value) in values.iter().enumerate() {
        number(&mut bytes, index as u8, *value);
    }
    bytes
}

// The expected bytes are little-endian.
#[cfg(all(test, target_endian = "little"))]
mod tests {
    use super::*;
    use crate::object::SetKind;

    fn set(key: &[Field], data: SetData, comment: Option<&str>) -> Set {
        let comment = comment.map(Into::into);
        Set { name: "x".into(), key: key.to_vec(), data, kind: SetKind::Exact, comment }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// What nft 1.0.6 sends for `map x { typeof ip daddr . meta l4proto . th dport . numgen random
    /// mod 2 : ip daddr . th dport; }`.
    const SLOTS_V4: &str = "000400000000010400000000036000040d000000015800140004070000000\
        10c00040c00000001040c000000010e00040900000001060004100000000214000407000000010c00040b000\
        000010402000000031a0004170000000112000401000000010402000000020400000000043400040d0000000\
        12c0014000407000000010c00040c00000001040c0000000114000407000000010c00040b000000010402000\
        000060400000000";

    /// The same with `ip6 daddr` and `comment "c"`.
    const SLOTS_V6: &str = "000400000000010400000000036000040d000000015800140004070000000\
        10c00040d000000010409000000010e00040900000001060004100000000214000407000000010c00040b000\
        000010402000000031a0004170000000112000401000000010402000000020400000000043400040d0000000\
        12c0014000407000000010c00040d0000000104090000000114000407000000010c00040b000000010402000\
        00006040000000007026300";

    #[test]
    fn userdata_of_a_slot_map_matches_nft() {
        let of = |family, comment| {
            let address = Field::Address(family);
            let key = [address, Field::Protocol, Field::Port, Field::Slot];
            let data = SetData::Value(vec![address, Field::Port]);
            hex(&set_userdata(&set(&key, data, comment)))
        };
        assert_eq!(of(Family::Ipv4, None), SLOTS_V4);
        assert_eq!(of(Family::Ipv6, Some("c")), SLOTS_V6);
    }

    #[test]
    fn userdata_of_a_single_field_has_its_byte_order() {
        let of = |key, data| hex(&set_userdata(&set(&[key], data, None)));
        assert_eq!(of(Field::Address(Family::Ipv4), SetData::None), "000402000000");
        let verdict = "000401000000010400000000031a00041700000001120004010000000104020000\
            0002040000000004080004010000000100060400000000";
        assert_eq!(of(Field::Slot, SetData::Verdict), verdict);
        let value = SetData::Value(vec![Field::Port]);
        assert_eq!(of(Field::Port, value), "000402000000010402000000060400000000");
    }

    #[test]
    fn comments_are_truncated_and_cleaned_for_nft() {
        let cut = |comment: &str| {
            let mut w = Writer::default();
            write_comment(&mut w, 6, comment);
            let bytes = w.finish();
            let attr = super::super::attr::Attrs::new(&bytes).next().unwrap().unwrap();
            comment_in(attr.bytes, COMMENT).unwrap().to_owned()
        };
        assert_eq!(cut("ns/svc:p"), "ns/svc:p");
        assert_eq!(cut("a \"b\"\n\u{0}c"), "a 'b'  c");
        assert_eq!(cut(&"x".repeat(500)), "x".repeat(127));
        // A multi-byte character that does not fit is omitted.
        assert_eq!(cut(&format!("{}ü", "x".repeat(126))), "x".repeat(126));
        assert_eq!(cut(""), "");
    }

    #[test]
    fn userdata_of_a_set_fits_the_kernel_limit() {
        let long = "long comment ".repeat(50);
        for count in 1..40 {
            for field in [Field::Port, Field::Slot, Field::Address(Family::Ipv6)] {
                let key = vec![field; count];
                let data = SetData::Value(key.clone());
                let bytes = set_userdata(&set(&key, data, Some(&long)));
                assert!(bytes.len() <= LONGEST, "{count} of {field:?}: {}", bytes.len());
            }
        }
    }

    #[test]
    fn invalid_userdata_has_no_comment() {
        for bytes in [&[][..], &[0], &[0, 5, b'a'], &[1, 200, 0, 1, b'a'], &[0, 2, 0xff, 0]] {
            assert_eq!(comment_in(bytes, COMMENT), None, "{bytes:?}");
        }
    }
}
