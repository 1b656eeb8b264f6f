//! User data: what the kernel keeps for the nft program and does not read. Comments, and of what a
//! set's key is made, so that `nft list` prints tables that it can read again.
//!
//! It has a grammar of its own: a byte that says what, a byte that says how long. The numbers are
//! those of nft 1.0.6, taken from what it sends; later versions read them.

use nearhop_core::Family;

use super::attr::Writer;
use crate::object::{Field, Set, SetData};

/// Of tables, chains, rules and elements.
pub(super) const COMMENT: u8 = 0;
/// Of sets.
pub(super) const SET_COMMENT: u8 = 7;

const KEY_BYTE_ORDER: u8 = 0;
const DATA_BYTE_ORDER: u8 = 1;
const KEY_TYPE_OF: u8 = 3;
const DATA_TYPE_OF: u8 = 4;
const DATA_INTERVAL: u8 = 6;

/// The longest that nft takes when it reads its own output, without the zero.
const LONGEST_COMMENT: usize = 127;
/// `NFT_USERDATA_MAXLEN`.
const LONGEST: usize = 256;
/// The byte that says what, the one that says how long, and the zero.
const AROUND_COMMENT: usize = 3;

/// Writes an attribute that holds a comment.
pub(super) fn write_comment(w: &mut Writer, attribute: u16, comment: &str) {
    let mut bytes = [0; AROUND_COMMENT + LONGEST_COMMENT];
    let len = comment_bytes(&mut bytes, COMMENT, comment);
    w.put(attribute, &bytes[..len]);
}

/// Fills in a comment and returns how long it is: as much of the text as there is room for.
///
/// What nft could not read again is replaced: a quotation mark ends the text for it, and a line's
/// end the line.
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

/// The comment in user data. None where there is none, or what is there is not from nft.
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

/// What nft wants to know of a set.
pub(super) fn set_userdata(set: &Set) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(LONGEST);
    number(&mut bytes, KEY_BYTE_ORDER, byte_order(&set.key));
    match &set.data {
        SetData::None => {}
        SetData::Verdict => number(&mut bytes, DATA_BYTE_ORDER, 0),
        SetData::Value(fields) => number(&mut bytes, DATA_BYTE_ORDER, byte_order(fields)),
    }
    if needs_type_of(set) {
        part(&mut bytes, KEY_TYPE_OF, &type_of(&set.key));
        match &set.data {
            SetData::None => {}
            SetData::Verdict => part(&mut bytes, DATA_TYPE_OF, &expression(EXPR_VERDICT, &[])),
            SetData::Value(fields) => part(&mut bytes, DATA_TYPE_OF, &type_of(fields)),
        }
    }
    if set.data != SetData::None {
        number(&mut bytes, DATA_INTERVAL, 0);
    }
    if let Some(comment) = &set.comment
        && bytes.len() + AROUND_COMMENT < LONGEST
    {
        let at = bytes.len();
        bytes.resize(LONGEST, 0);
        let len = comment_bytes(&mut bytes[at..], SET_COMMENT, comment);
        bytes.truncate(at + len);
    }
    bytes
}

/// A number of 32 bits in the machine's order, as everything in user data.
fn number(bytes: &mut Vec<u8>, kind: u8, number: u32) {
    part(bytes, kind, &number.to_ne_bytes());
}

/// Adds a part, unless it is longer than parts can be: nft then knows less and prints `integer`.
fn part(bytes: &mut Vec<u8>, kind: u8, value: &[u8]) {
    if let Ok(len) = u8::try_from(value.len()) {
        bytes.extend_from_slice(&[kind, len]);
        bytes.extend_from_slice(value);
    }
}

/// How the values of a field lie in memory. A concatenation says nothing about its parts.
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

/// The type of a slot has no name with which nft could read it again; an expression says it.
fn needs_type_of(set: &Set) -> bool {
    let data: &[Field] = match &set.data {
        SetData::Value(fields) => fields,
        SetData::None | SetData::Verdict => &[],
    };
    set.key.iter().chain(data).any(|field| *field == Field::Slot)
}

/// nft's numbers of kinds of expressions.
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
    // Numbers of headers and of fields in them, and of keys: nft's own.
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
