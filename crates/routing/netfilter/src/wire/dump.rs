//! Decodes tables, chains, rules, sets and elements that the kernel lists. Unknown attributes are
//! ignored.

use std::collections::BTreeSet;

use nearhop_core::Name;

use crate::object::{Bytes, Data, Element, Hook, Set, SetData, Table, Verdict};

use super::abi::{chain, data, element, family_number, family_of, list, message, rule, set, table};
use super::attr::{Attr, Attrs, DecodeError, body};
use super::decode::Message;
use super::encode::{bytes_of, set_flags, type_number};
use super::userdata::{COMMENT, SET_COMMENT, comment_in};

/// A table, as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpedTable {
    /// Family and name.
    pub table: Table,
    /// Its comment.
    pub comment: Option<Name>,
    /// Whether it is dormant: its chains process no packets.
    pub dormant: bool,
}

/// A chain, as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpedChain {
    /// Its name.
    pub name: Name,
    /// Its hook, if it is a base chain.
    pub hook: Option<DumpedHook>,
    /// Whether its policy is `accept`.
    pub accepts: bool,
    /// Its comment.
    pub comment: Option<Name>,
}

/// The hook of a chain, in the kernel's numbers: another program may have chosen it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpedHook {
    /// `type`.
    pub kind: Name,
    /// The number of the hook.
    pub point: u32,
    /// `priority`.
    pub priority: i32,
}

impl PartialEq<Hook> for DumpedHook {
    fn eq(&self, hook: &Hook) -> bool {
        self.kind == hook.kind.as_str()
            && self.point == hook.point as u32
            && self.priority == hook.priority
    }
}

/// A rule, as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpedRule {
    /// Its chain.
    pub chain: Name,
    /// Its handle.
    pub handle: u64,
    /// Its encoded expressions. They may differ from what was sent, because the kernel adds
    /// defaults, but stay the same until the rule changes.
    pub expressions: Vec<u8>,
    /// Its comment.
    pub comment: Option<Name>,
}

/// A set or map, as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpedSet {
    /// Its name.
    pub name: Name,
    /// `NFT_SET_*`.
    pub flags: u32,
    /// nft's type number of the key.
    pub key_type: u32,
    /// Length of a key in bytes.
    pub key_len: u32,
    /// nft's type number of the data, or the kernel's for verdicts.
    pub data_type: Option<u32>,
    /// Length of a value in bytes.
    pub data_len: u32,
    /// Its comment.
    pub comment: Option<Name>,
}

impl DumpedSet {
    /// Whether it has the definition of `set`. Comments are ignored.
    pub fn is_like(&self, set: &Set) -> bool {
        let data = match &set.data {
            SetData::None => None,
            SetData::Verdict => Some(set::VERDICT),
            SetData::Value(fields) => Some(type_number(fields)),
        };
        let same_length = match &set.data {
            SetData::Value(fields) => self.data_len == bytes_of(fields),
            // The kernel's own length, which depends on how it stores a verdict.
            SetData::None | SetData::Verdict => true,
        };
        self.name == set.name
            && self.flags == set_flags(set)
            && self.key_type == type_number(&set.key)
            && self.key_len == bytes_of(&set.key)
            && self.data_type == data
            && same_length
    }
}

/// An element, as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpedElement {
    /// The element itself.
    pub element: Element,
    /// Its timeout in milliseconds, if elements expire.
    pub timeout_ms: Option<u64>,
    /// Time until it expires, in milliseconds.
    pub expires_ms: Option<u64>,
}

/// Interned names: thousands of elements refer to the same few chains.
#[derive(Debug, Default)]
pub struct Names(BTreeSet<Name>);

impl Names {
    fn get(&mut self, text: &str) -> Name {
        if let Some(name) = self.0.get(text) {
            return name.clone();
        }
        let name = Name::from(text);
        self.0.insert(name.clone());
        name
    }
}

/// Decodes a table of a family that nearhop uses; none for other messages.
pub fn decode_table(message: &Message<'_>) -> Result<Option<DumpedTable>, DecodeError> {
    if message.kind != message::NEW_TABLE {
        return Ok(None);
    }
    let (family, attrs) = body(message.payload)?;
    let Some(family) = family_of(family) else { return Ok(None) };
    let (mut name, mut comment, mut dormant) = (None, None, false);
    for attr in attrs {
        let attr = attr?;
        match attr.kind {
            table::FLAGS => dormant = attr.be32()? & table::DORMANT != 0,
            table::NAME => name = Some(Name::from(attr.text()?)),
            table::USERDATA => comment = comment_of(attr, COMMENT),
            _ => {}
        }
    }
    let name = name.ok_or(DecodeError::Missing { object: "table", part: "name" })?;
    Ok(Some(DumpedTable { table: Table { family, name }, comment, dormant }))
}

/// Decodes a chain of this table; none for other messages.
pub fn decode_chain(message: &Message<'_>, of: &Table) -> Result<Option<DumpedChain>, DecodeError> {
    let Some(attrs) = attrs_in(message, message::NEW_CHAIN, of)? else { return Ok(None) };
    let (mut name, mut place, mut kind, mut comment) = (None, None, None, None);
    let mut accepts = true;
    for attr in attrs {
        let attr = attr?;
        match attr.kind {
            chain::NAME => name = Some(Name::from(attr.text()?)),
            chain::HOOK => place = Some(decode_hook(attr)?),
            chain::TYPE => kind = Some(Name::from(attr.text()?)),
            chain::POLICY => accepts = attr.be32()? == chain::POLICY_ACCEPT,
            chain::USERDATA => comment = comment_of(attr, COMMENT),
            _ => {}
        }
    }
    let name = name.ok_or(DecodeError::Missing { object: "chain", part: "name" })?;
    let hook = match place {
        None => None,
        Some((point, priority)) => {
            let kind = kind.ok_or(DecodeError::Missing { object: "chain", part: "type" })?;
            Some(DumpedHook { kind, point, priority })
        }
    };
    Ok(Some(DumpedChain { name, hook, accepts, comment }))
}

fn decode_hook(attr: Attr<'_>) -> Result<(u32, i32), DecodeError> {
    let (mut point, mut priority) = (None, None);
    for attr in attr.attrs() {
        let attr = attr?;
        match attr.kind {
            chain::HOOK_NUMBER => point = Some(attr.be32()?),
            chain::HOOK_PRIORITY => priority = Some(attr.be32()?.cast_signed()),
            _ => {}
        }
    }
    let missing = |part| DecodeError::Missing { object: "hook", part };
    Ok((point.ok_or(missing("number"))?, priority.ok_or(missing("priority"))?))
}

/// Decodes a rule of this table; none for other messages.
pub fn decode_rule(message: &Message<'_>, of: &Table) -> Result<Option<DumpedRule>, DecodeError> {
    let Some(attrs) = attrs_in(message, message::NEW_RULE, of)? else { return Ok(None) };
    let (mut chain, mut handle, mut comment) = (None, None, None);
    let mut expressions = Vec::new();
    for attr in attrs {
        let attr = attr?;
        match attr.kind {
            rule::CHAIN => chain = Some(Name::from(attr.text()?)),
            rule::HANDLE => handle = Some(attr.be64()?),
            rule::EXPRESSIONS => expressions = attr.bytes.to_vec(),
            rule::USERDATA => comment = comment_of(attr, COMMENT),
            _ => {}
        }
    }
    let missing = |part| DecodeError::Missing { object: "rule", part };
    let chain = chain.ok_or(missing("chain"))?;
    let handle = handle.ok_or(missing("handle"))?;
    Ok(Some(DumpedRule { chain, handle, expressions, comment }))
}

/// Decodes a set of this table; none for other messages.
pub fn decode_set(message: &Message<'_>, of: &Table) -> Result<Option<DumpedSet>, DecodeError> {
    let Some(attrs) = attrs_in(message, message::NEW_SET, of)? else { return Ok(None) };
    let (mut name, mut key_type, mut key_len) = (None, None, None);
    let (mut flags, mut data_type, mut data_len, mut comment) = (0, None, 0, None);
    for attr in attrs {
        let attr = attr?;
        match attr.kind {
            set::NAME => name = Some(Name::from(attr.text()?)),
            set::FLAGS => flags = attr.be32()?,
            set::KEY_TYPE => key_type = Some(attr.be32()?),
            set::KEY_LEN => key_len = Some(attr.be32()?),
            set::DATA_TYPE => data_type = Some(attr.be32()?),
            set::DATA_LEN => data_len = attr.be32()?,
            set::USERDATA => comment = comment_of(attr, SET_COMMENT),
            _ => {}
        }
    }
    let missing = |part| DecodeError::Missing { object: "set", part };
    let name = name.ok_or(missing("name"))?;
    let key_type = key_type.ok_or(missing("key type"))?;
    let key_len = key_len.ok_or(missing("key length"))?;
    Ok(Some(DumpedSet { name, flags, key_type, key_len, data_type, data_len, comment }))
}

/// Adds the elements that a message lists.
pub fn decode_elements(
    message: &Message<'_>,
    names: &mut Names,
    into: &mut Vec<DumpedElement>,
) -> Result<(), DecodeError> {
    if message.kind != message::NEW_ELEMENT {
        return Ok(());
    }
    for attr in body(message.payload)?.1 {
        let attr = attr?;
        if attr.kind == element::LIST_ELEMENTS {
            for item in attr.attrs() {
                let item = item?;
                if item.kind == list::ITEM {
                    into.push(decode_element(item, names)?);
                }
            }
        }
    }
    Ok(())
}

fn decode_element(item: Attr<'_>, names: &mut Names) -> Result<DumpedElement, DecodeError> {
    let (mut key, mut end, mut data, mut comment) = (None, None, Data::None, None);
    let (mut timeout_ms, mut expires_ms) = (None, None);
    for attr in item.attrs() {
        let attr = attr?;
        match attr.kind {
            element::KEY => key = Some(decode_value(attr)?),
            element::KEY_END => end = Some(Box::new(decode_value(attr)?)),
            element::DATA => data = decode_data(attr, names)?,
            element::TIMEOUT => timeout_ms = Some(attr.be64()?),
            element::EXPIRATION => expires_ms = Some(attr.be64()?),
            element::USERDATA => comment = comment_of(attr, COMMENT),
            _ => {}
        }
    }
    let key = key.ok_or(DecodeError::Missing { object: "element", part: "key" })?;
    Ok(DumpedElement { element: Element { key, end, data, comment }, timeout_ms, expires_ms })
}

fn decode_value(attr: Attr<'_>) -> Result<Bytes, DecodeError> {
    for part in attr.attrs() {
        let part = part?;
        if part.kind == data::VALUE {
            return bytes(part);
        }
    }
    Err(DecodeError::Missing { object: "element", part: "value" })
}

fn bytes(attr: Attr<'_>) -> Result<Bytes, DecodeError> {
    Bytes::from_slice(attr.bytes).ok_or(DecodeError::TooLong(attr.bytes.len()))
}

fn decode_data(attr: Attr<'_>, names: &mut Names) -> Result<Data, DecodeError> {
    for part in attr.attrs() {
        let part = part?;
        match part.kind {
            data::VALUE => return bytes(part).map(Data::Value),
            data::VERDICT => return decode_verdict(part, names).map(Data::Verdict),
            _ => {}
        }
    }
    Err(DecodeError::Missing { object: "element", part: "data" })
}

fn decode_verdict(attr: Attr<'_>, names: &mut Names) -> Result<Verdict, DecodeError> {
    let (mut code, mut chain) = (None, None);
    for part in attr.attrs() {
        let part = part?;
        match part.kind {
            data::VERDICT_CODE => code = Some(part.be32()?.cast_signed()),
            data::VERDICT_CHAIN => chain = Some(names.get(part.text()?)),
            _ => {}
        }
    }
    let missing = |part| DecodeError::Missing { object: "verdict", part };
    match code.ok_or(missing("code"))? {
        data::DROP => Ok(Verdict::Drop),
        data::JUMP => chain.map(Verdict::Jump).ok_or(missing("chain")),
        data::GOTO => chain.map(Verdict::Goto).ok_or(missing("chain")),
        other => Err(DecodeError::Verdict(other)),
    }
}

/// The attributes of a message about an object in this table. The table's name has the same
/// attribute type everywhere.
fn attrs_in<'a>(
    message: &Message<'a>,
    kind: u16,
    of: &Table,
) -> Result<Option<Attrs<'a>>, DecodeError> {
    if message.kind != kind {
        return Ok(None);
    }
    let (family, attrs) = body(message.payload)?;
    if family != family_number(of.family) {
        return Ok(None);
    }
    for attr in attrs.clone() {
        let attr = attr?;
        if attr.kind == table::NAME {
            return Ok((of.name == attr.text()?).then_some(attrs));
        }
    }
    Err(DecodeError::Missing { object: "object", part: "table" })
}

fn comment_of(attr: Attr<'_>, kind: u8) -> Option<Name> {
    comment_in(attr.bytes, kind).map(Name::from)
}
