//! Encodes a batch for one `sendmsg`: a begin message, one or more messages for each change, an end
//! message.
//!
//! Every message has its own sequence number, so that an answer identifies the change. The kernel
//! validates the changes.

use nearhop_core::Family;

use crate::object::{
    Batch, Chain, Data, Element, Field, MOST_DYNAMIC, Op, Rule, Set, SetData, SetKind, Timed,
};

use super::abi::{chain, data, element, family_number, list, message, rule, set, table};
use super::attr::{Attr, Attrs, Head, Open, Writer};
use super::expr::{write_expr, write_verdict};
use super::userdata::{set_userdata, write_comment};

/// Maximum length of an element list: it is an attribute, which is limited to 64 KiB. An element
/// has a few hundred bytes at most.
const FULL: usize = 60 * 1024;
/// Maximum number of elements in a message. More elements are not faster.
const MOST_ELEMENTS: usize = 900;
/// Estimated size of an element, to allocate memory.
const ELEMENT_BYTES: usize = 80;
const OTHER_BYTES: usize = 1024;
const BEFORE_ATTRS: usize = message::HEADER + message::FAMILY_HEADER;

/// What the kernel does with a valid batch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Commit,
    /// Without an end message, the kernel validates the batch and undoes it.
    Undo,
}

/// An encoded batch, and the data to decode the answers.
#[derive(Clone, Debug)]
pub struct Encoded {
    /// The bytes for one `sendmsg`.
    pub bytes: Vec<u8>,
    /// Sequence number of the first message. Answers to it are about the whole batch.
    pub first_seq: u32,
    /// Sequence number of the message that is always answered last.
    pub ack_seq: u32,
    messages: Vec<Place>,
}

/// The position of a message, and its change.
#[derive(Clone, Copy, Debug)]
struct Place {
    op: usize,
    /// Offset of its first byte.
    at: usize,
    /// Number of elements or rules of the same change in earlier messages.
    before: usize,
}

/// The part of a change that the kernel refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefusedPart {
    /// A rule, by its index in the chain.
    Rule(usize),
    /// An expression of a rule.
    Expression {
        /// The rule, by its index in the chain.
        rule: usize,
        /// The kernel's name of the expression.
        name: String,
    },
    /// An element, by its index in the change.
    Element(usize),
}

impl Encoded {
    /// Whether the batch has no changes. The kernel does not answer an empty batch.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// The first sequence number after this batch.
    pub fn next_seq(&self) -> u32 {
        // Two more: the begin and the end message.
        self.first_seq.wrapping_add(self.messages.len() as u32 + 2)
    }

    /// The index of the change that a message belongs to.
    pub fn op_of(&self, seq: u32) -> Option<usize> {
        self.place_of(seq).map(|place| place.op)
    }

    /// The part that the kernel refused, by the offset in the message that it reports.
    pub fn refused_part(&self, seq: u32, offset: Option<usize>) -> Option<RefusedPart> {
        let place = self.place_of(seq)?;
        let (kind, attrs) = self.attrs_at(place.at)?;
        let offset = offset.and_then(|offset| offset.checked_sub(BEFORE_ATTRS));
        match kind {
            message::NEW_RULE => {
                let rule = place.before;
                let name = offset.and_then(|offset| expression_at(attrs, offset));
                Some(match name {
                    Some(name) => RefusedPart::Expression { rule, name },
                    None => RefusedPart::Rule(rule),
                })
            }
            message::NEW_ELEMENT | message::DELETE_ELEMENT => {
                let (_, list, inside) = find(attrs, offset?, element::LIST_ELEMENTS)?;
                let (index, _, _) = find(list.bytes, inside, list::ITEM)?;
                Some(RefusedPart::Element(place.before + index))
            }
            _ => None,
        }
    }

    /// The type and the attributes of the message at an offset.
    fn attrs_at(&self, at: usize) -> Option<(u16, &[u8])> {
        let rest = self.bytes.get(at..)?;
        let head = rest.first_chunk::<{ message::HEADER }>()?;
        let len = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]) as usize;
        Some((u16::from_ne_bytes([head[4], head[5]]), rest.get(BEFORE_ATTRS..len)?))
    }

    fn place_of(&self, seq: u32) -> Option<&Place> {
        let index = seq.wrapping_sub(self.first_seq).checked_sub(1)?;
        self.messages.get(index as usize)
    }
}

/// The name of the expression at an offset.
fn expression_at(attrs: &[u8], offset: usize) -> Option<String> {
    let (_, list, inside) = find(attrs, offset, rule::EXPRESSIONS)?;
    let (_, expr, _) = find(list.bytes, inside, list::ITEM)?;
    let name = expr.attrs().flatten().find(|attr| attr.kind == list::EXPR_NAME)?;
    name.text().ok().map(str::to_owned)
}

/// The attribute of this type at an offset: how many precede it, and the offset within it.
fn find(bytes: &[u8], offset: usize, kind: u16) -> Option<(usize, Attr<'_>, usize)> {
    let mut end = 0;
    for (index, attr) in Attrs::new(bytes).enumerate() {
        let attr = attr.ok()?;
        let head = end + 4;
        end = (head + attr.bytes.len()).next_multiple_of(4);
        if offset < end {
            return (attr.kind == kind).then(|| (index, attr, offset.saturating_sub(head)));
        }
    }
    None
}

/// Encodes a batch that the kernel applies.
pub fn encode_batch(batch: &Batch, first_seq: u32) -> Encoded {
    encode(batch, first_seq, 0, Ending::Commit)
}

/// Encodes a batch that the kernel only validates.
pub fn encode_check(batch: &Batch, first_seq: u32) -> Encoded {
    encode(batch, first_seq, 0, Ending::Undo)
}

/// Like [`encode_batch`], for a table that the sending socket owns: no other process can change it,
/// and the kernel deletes it when the socket closes. Kernels before 5.12 answer EOPNOTSUPP.
pub fn encode_owned(batch: &Batch, first_seq: u32) -> Encoded {
    encode(batch, first_seq, table::OWNER, Ending::Commit)
}

fn encode(batch: &Batch, first_seq: u32, table_flags: u32, ending: Ending) -> Encoded {
    let mut encoder = Encoder {
        w: Writer::with_capacity(guess(batch)),
        batch,
        table_flags,
        seq: first_seq,
        op: 0,
        messages: Vec::with_capacity(batch.ops.len()),
    };
    let begin = encoder.w.open_message(edge(message::BATCH_BEGIN, first_seq));
    encoder.w.close_message(begin);
    for (index, op) in batch.ops.iter().enumerate() {
        encoder.op = index;
        encoder.op(op);
    }
    let ack_seq = encoder.seq;
    if let Some(last) = encoder.messages.last() {
        encoder.w.add_flags(last.at, message::ACK);
    }
    if ending == Ending::Commit {
        let end = encoder.w.open_message(edge(message::BATCH_END, ack_seq.wrapping_add(1)));
        encoder.w.close_message(end);
    }
    Encoded { bytes: encoder.w.finish(), first_seq, ack_seq, messages: encoder.messages }
}

/// The first or the last message of a batch.
fn edge(kind: u16, seq: u32) -> Head {
    Head { kind, flags: message::REQUEST, seq, family: 0, resource: message::NFTABLES }
}

fn guess(batch: &Batch) -> usize {
    let bytes = |op: &Op| match op {
        Op::AddElements { elements, .. } | Op::DeleteElements { elements, .. } => {
            elements.len() * ELEMENT_BYTES
        }
        Op::AddTimed { elements, .. } => elements.len() * ELEMENT_BYTES,
        Op::AddChain(chain) => chain.rules.len() * OTHER_BYTES,
        _ => 0,
    };
    batch.ops.iter().map(|op| OTHER_BYTES / 4 + bytes(op)).sum()
}

/// Which parts of an element are encoded.
#[derive(Clone, Copy)]
enum Part {
    Key,
    All,
}

struct Encoder<'a> {
    w: Writer,
    batch: &'a Batch,
    table_flags: u32,
    /// Sequence number of the last message.
    seq: u32,
    /// Index of the change that is being encoded.
    op: usize,
    messages: Vec<Place>,
}

impl Encoder<'_> {
    fn op(&mut self, op: &Op) {
        match op {
            Op::AddTable { comment } => {
                let flags = self.table_flags;
                self.simple(message::NEW_TABLE, message::CREATE, |w| {
                    w.be32(table::FLAGS, flags);
                    write_comment(w, table::USERDATA, comment);
                });
            }
            Op::DeleteTable => self.simple(message::DELETE_TABLE, 0, |_| {}),
            Op::AddSet(set) => {
                // The kernel requires an id that is unique among the sets of the batch.
                let id = self.op as u32 + 1;
                self.simple(message::NEW_SET, message::CREATE, |w| write_set(w, id, set));
            }
            Op::DeleteSet(name) => {
                self.simple(message::DELETE_SET, 0, |w| w.text(set::NAME, name));
            }
            Op::AddChain(chain) => {
                self.simple(message::NEW_CHAIN, message::CREATE, |w| write_chain(w, chain));
                self.rules(chain);
            }
            Op::FlushChain(name) => {
                self.simple(message::DELETE_RULE, 0, |w| w.text(rule::CHAIN, name));
            }
            Op::DeleteChain(name) => {
                self.simple(message::DELETE_CHAIN, 0, |w| w.text(chain::NAME, name));
            }
            Op::AddElements { set, elements } => {
                let write =
                    |w: &mut Writer, element: &Element| write_element(w, element, Part::All);
                self.elements((message::NEW_ELEMENT, message::CREATE), set, elements, write);
            }
            Op::AddTimed { set, elements } => {
                self.elements((message::NEW_ELEMENT, message::CREATE), set, elements, write_timed);
            }
            Op::DeleteElements { set, elements } => {
                let write =
                    |w: &mut Writer, element: &Element| write_element(w, element, Part::Key);
                self.elements((message::DELETE_ELEMENT, 0), set, elements, write);
            }
        }
    }

    /// A message with the table's name, which has the same attribute type everywhere, and `inside`.
    fn simple(&mut self, kind: u16, flags: u16, inside: impl FnOnce(&mut Writer)) {
        let open = self.open(kind, flags, 0);
        inside(&mut self.w);
        self.w.close_message(open);
    }

    fn rules(&mut self, chain: &Chain) {
        for (index, rule) in chain.rules.iter().enumerate() {
            let open = self.open(message::NEW_RULE, message::CREATE | message::APPEND, index);
            write_rule(&mut self.w, self.batch.table.family, &chain.name, rule);
            self.w.close_message(open);
        }
    }

    fn open(&mut self, kind: u16, flags: u16, before: usize) -> Open {
        self.seq = self.seq.wrapping_add(1);
        self.messages.push(Place { op: self.op, at: self.w.len(), before });
        let family = family_number(self.batch.table.family);
        let flags = message::REQUEST | flags;
        let open = self.w.open_message(Head { kind, flags, seq: self.seq, family, resource: 0 });
        self.w.text(table::NAME, &self.batch.table.name);
        open
    }

    fn elements<E>(
        &mut self,
        (kind, flags): (u16, u16),
        set: &str,
        all: &[E],
        write: impl Fn(&mut Writer, &E),
    ) {
        let mut written = 0;
        while written < all.len() {
            let message = self.open(kind, flags, written);
            self.w.text(element::LIST_SET, set);
            let list = self.w.open(element::LIST_ELEMENTS);
            let full = self.w.len() + FULL;
            for element in all[written..].iter().take(MOST_ELEMENTS) {
                if self.w.len() > full {
                    break;
                }
                write(&mut self.w, element);
                written += 1;
            }
            self.w.close(list);
            self.w.close_message(message);
        }
    }
}

fn write_element(w: &mut Writer, element: &Element, part: Part) {
    let item = w.open(list::ITEM);
    write_parts(w, element, part);
    w.close(item);
}

fn write_timed(w: &mut Writer, timed: &Timed) {
    let item = w.open(list::ITEM);
    write_parts(w, &timed.element, Part::All);
    w.be64(element::TIMEOUT, timed.timeout_ms);
    w.be64(element::EXPIRATION, timed.expires_ms);
    w.close(item);
}

fn write_parts(w: &mut Writer, element: &Element, part: Part) {
    w.nest(element::KEY, |w| w.put(data::VALUE, element.key.as_slice()));
    if let Some(end) = &element.end {
        w.nest(element::KEY_END, |w| w.put(data::VALUE, end.as_slice()));
    }
    if let Part::All = part {
        match &element.data {
            Data::None => {}
            Data::Value(value) => {
                w.nest(element::DATA, |w| w.put(data::VALUE, value.as_slice()));
            }
            Data::Verdict(verdict) => w.nest(element::DATA, |w| write_verdict(w, verdict)),
        }
        if let Some(comment) = &element.comment {
            write_comment(w, element::USERDATA, comment);
        }
    }
}

fn write_chain(w: &mut Writer, chain: &Chain) {
    w.text(chain::NAME, &chain.name);
    if let Some(hook) = chain.hook {
        w.text(chain::TYPE, hook.kind.as_str());
        w.be32(chain::POLICY, chain::POLICY_ACCEPT);
        w.nest(chain::HOOK, |w| {
            w.be32(chain::HOOK_NUMBER, hook.point as u32);
            w.put(chain::HOOK_PRIORITY, &hook.priority.to_be_bytes());
        });
    }
    if let Some(comment) = &chain.comment {
        write_comment(w, chain::USERDATA, comment);
    }
}

fn write_rule(w: &mut Writer, family: Family, chain: &str, rule: &Rule) {
    w.text(rule::CHAIN, chain);
    w.nest(rule::EXPRESSIONS, |w| {
        // One more than the kernel accepts: enough for a refusal, and less than 64 KiB.
        for expr in rule.exprs.iter().take(rule::MOST_EXPRESSIONS + 1) {
            write_expr(w, family, expr);
        }
    });
    if let Some(comment) = &rule.comment {
        write_comment(w, rule::USERDATA, comment);
    }
}

fn write_set(w: &mut Writer, id: u32, set: &Set) {
    w.text(set::NAME, &set.name);
    w.be32(set::FLAGS, set_flags(set));
    w.be32(set::KEY_TYPE, type_number(&set.key));
    w.be32(set::KEY_LEN, bytes_of(&set.key));
    match &set.data {
        SetData::None => {}
        SetData::Verdict => {
            w.be32(set::DATA_TYPE, set::VERDICT);
            w.be32(set::DATA_LEN, 0);
        }
        SetData::Value(fields) => {
            w.be32(set::DATA_TYPE, type_number(fields));
            w.be32(set::DATA_LEN, bytes_of(fields));
        }
    }
    w.be32(set::ID, id);
    match set.kind {
        SetKind::Exact => {}
        SetKind::Interval => {
            w.nest(set::DESC, |w| w.nest(set::DESC_CONCAT, |w| write_lengths(w, &set.key)));
        }
        SetKind::Dynamic => w.nest(set::DESC, |w| w.be32(set::DESC_SIZE, MOST_DYNAMIC)),
    }
    w.put(set::USERDATA, &set_userdata(set));
}

/// The field lengths, which the kernel needs if a field may be a range.
fn write_lengths(w: &mut Writer, fields: &[Field]) {
    for field in fields {
        w.nest(list::ITEM, |w| w.be32(set::FIELD_LEN, field.len() as u32));
    }
}

/// The flags of a set. As in nft, the flag for a concatenation is set only if fields may be ranges:
/// the kernel then requires the field lengths, and needs neither for exact keys.
pub(super) fn set_flags(set: &Set) -> u32 {
    let kind = match set.kind {
        SetKind::Exact => 0,
        SetKind::Interval => set::INTERVAL | set::CONCAT,
        SetKind::Dynamic => set::EVAL | set::TIMEOUT,
    };
    kind | if set.data == SetData::None { 0 } else { set::MAP }
}

/// nft's type number; a concatenation has six bits for each field.
pub(super) fn type_number(fields: &[Field]) -> u32 {
    fields.iter().fold(0, |number, field| number << 6 | field_type(*field))
}

fn field_type(field: Field) -> u32 {
    match field {
        Field::Slot => 4,
        Field::Address(Family::Ipv4) => 7,
        Field::Address(Family::Ipv6) => 8,
        Field::Protocol => 12,
        Field::Port => 13,
    }
}

/// Length of a key or value. Only the fields of a concatenation are padded.
pub(super) fn bytes_of(fields: &[Field]) -> u32 {
    match fields {
        [field] => field.len() as u32,
        _ => fields.iter().map(|field| field.padded_len() as u32).sum(),
    }
}
