//! Prints a rule: expressions that load registers become terms, and those that use registers become
//! statements.

use std::collections::BTreeMap;

use nearhop_core::Family;

use super::value::{address, duration, hex, prefix_length, protocol};
use super::verdict;
use crate::fake::family_word;
use nearhop_netfilter::object::{Base, CmpOp, CtKey, Expr, FibAddress, Hit, MetaKey, Reg};

/// The statement of these expressions, without a comment.
pub fn rule(family: Family, exprs: &[Expr]) -> String {
    let mut writer = Writer { family, statements: Vec::new(), terms: BTreeMap::new() };
    exprs.iter().for_each(|expr| writer.expr(expr));
    // Values that were loaded and never used are printed too.
    let unused = std::mem::take(&mut writer.terms).into_values().map(|term| term.value());
    writer.statements.extend(unused);
    writer.statements.join(" ")
}

/// The format of a term's bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Address,
    Protocol,
    Port,
    Number,
    Mark,
    State,
    Status,
    FibType,
    Interface,
    Other,
}

/// The content of a register.
#[derive(Clone)]
struct Term {
    text: String,
    kind: Kind,
    /// Length in bytes.
    len: usize,
    masked: Option<(Vec<u8>, Vec<u8>)>,
}

struct Writer {
    family: Family,
    statements: Vec<String>,
    terms: BTreeMap<u8, Term>,
}

impl Writer {
    fn expr(&mut self, expr: &Expr) {
        let family = family_word(self.family);
        match expr {
            Expr::Payload { base, offset, len, to } => self.payload(*base, *offset, *len, *to),
            Expr::Meta { key, to } => self.load(*to, meta(*key)),
            Expr::Ct { key, to } => self.load(*to, ct(self.family, *key)),
            Expr::FibType { address, to } => {
                let side = match address {
                    FibAddress::Source => "saddr",
                    FibAddress::Destination => "daddr",
                };
                self.load(*to, Term::new(format!("fib {side} type"), Kind::FibType, 4));
            }
            Expr::Random { modulus, offset, to } => {
                let offset = if *offset == 0 { String::new() } else { format!(" offset {offset}") };
                let text = format!("numgen random mod {modulus}{offset}");
                self.load(*to, Term::new(text, Kind::Number, 4));
            }
            Expr::Chance { part, whole } => {
                self.statements.push(format!("numgen random mod {whole} < {part}"));
            }
            Expr::Bitwise { from, to, mask, xor } => {
                let mut term = self.take(*from);
                term.masked = Some((mask.clone(), xor.clone()));
                self.load(*to, term);
            }
            Expr::Cmp { from, op, with } => {
                let statement = self.take(*from).compare(self.family, *op, with);
                self.statements.push(statement);
            }
            Expr::SetMark { from } => {
                let value = self.take(*from).value();
                self.statements.push(format!("meta mark set {value}"));
            }
            Expr::Lookup { set, from, then } => self.lookup(set, *from, *then),
            Expr::Dnat { address, .. } => {
                let to = self.join(*address, None);
                self.statements.push(format!("dnat {family} to {to}"));
            }
            Expr::Masquerade => self.statements.push("masquerade fully-random".into()),
            Expr::Reject(_) => self.statements.push("reject".into()),
            Expr::Verdict(one) => self.statements.push(verdict(one)),
            Expr::Update { set, key, data, timeout_ms } => {
                let statement = self.update(*key, *data, *timeout_ms);
                self.statements.push(format!("update @{set} {{ {statement} }}"));
            }
        }
    }

    fn update(&mut self, key: Reg, data: Reg, timeout_ms: u64) -> String {
        let value = self.concat(data, None);
        let key = self.join(key, Some(data));
        format!("{key} timeout {} : {value}", duration(timeout_ms))
    }

    fn lookup(&mut self, set: &str, from: Reg, then: Hit) {
        let key = self.join(from, None);
        match then {
            Hit::Match => self.statements.push(format!("{key} @{set}")),
            Hit::Mismatch => self.statements.push(format!("{key} != @{set}")),
            Hit::Verdict => self.statements.push(format!("{key} vmap @{set}")),
            // Only the set knows the length of the data; no later term needs it.
            Hit::Load(to) => self.load(to, Term::new(format!("{key} map @{set}"), Kind::Other, 4)),
        }
    }

    fn payload(&mut self, base: Base, offset: u32, len: u32, to: Reg) {
        let word = family_word(self.family);
        let (source, destination, whole) = match self.family {
            Family::Ipv4 => (12, 16, 4),
            Family::Ipv6 => (8, 24, 16),
        };
        let (text, kind) = match (base, offset, len) {
            (Base::Network, at, 1..) if at == source && len <= whole => {
                (format!("{word} saddr"), Kind::Address)
            }
            (Base::Network, at, 1..) if at == destination && len <= whole => {
                (format!("{word} daddr"), Kind::Address)
            }
            (Base::Transport, 0, 2) => ("th sport".into(), Kind::Port),
            (Base::Transport, 2, 2) => ("th dport".into(), Kind::Port),
            (Base::Network, ..) => (format!("@nh,{},{}", offset * 8, len * 8), Kind::Other),
            (Base::Transport, ..) => (format!("@th,{},{}", offset * 8, len * 8), Kind::Other),
        };
        self.load(to, Term::new(text, kind, len as usize));
    }

    fn load(&mut self, to: Reg, term: Term) {
        self.terms.insert(to.0, term);
    }

    /// Takes the content of a register, which is not used again.
    fn take(&mut self, from: Reg) -> Term {
        let missing = || Term::new(format!("reg {}", from.0), Kind::Other, 4);
        self.terms.remove(&from.0).unwrap_or_else(missing)
    }

    /// Takes the content of a range of registers as a concatenation, and clears all other
    /// registers.
    fn join(&mut self, from: Reg, until: Option<Reg>) -> String {
        let text = self.concat(from, until);
        self.terms.clear();
        text
    }

    fn concat(&self, from: Reg, until: Option<Reg>) -> String {
        let mut parts = Vec::new();
        let mut next = from.0;
        while let Some(term) = self.terms.get(&next) {
            parts.push(term.value());
            next = next.saturating_add(term.len.div_ceil(4) as u8);
            if term.len == 0 || until.is_some_and(|until| next >= until.0) {
                break;
            }
        }
        if parts.is_empty() { format!("reg {}", from.0) } else { parts.join(" . ") }
    }
}

fn meta(key: MetaKey) -> Term {
    match key {
        MetaKey::L4Proto => Term::new("meta l4proto", Kind::Protocol, 1),
        MetaKey::Mark => Term::new("meta mark", Kind::Mark, 4),
        MetaKey::IifName => Term::new("iifname", Kind::Interface, 16),
    }
}

fn ct(family: Family, key: CtKey) -> Term {
    let word = family_word(family);
    let whole = if family == Family::Ipv4 { 4 } else { 16 };
    let tuple = |text: &str| Term::new(text.replace('*', word), Kind::Address, whole);
    match key {
        CtKey::State => Term::new("ct state", Kind::State, 4),
        CtKey::Status => Term::new("ct status", Kind::Status, 4),
        CtKey::OriginalSource => tuple("ct original * saddr"),
        CtKey::OriginalDestination => tuple("ct original * daddr"),
        CtKey::ReplySource => tuple("ct reply * saddr"),
        CtKey::OriginalPort => Term::new("ct original proto-dst", Kind::Port, 2),
        CtKey::ReplyPort => Term::new("ct reply proto-src", Kind::Port, 2),
    }
}

const STATES: &[(u32, &str)] =
    &[(1, "invalid"), (2, "established"), (4, "related"), (8, "new"), (64, "untracked")];
const STATUSES: &[(u32, &str)] = &[
    (1, "expected"),
    (2, "seen-reply"),
    (4, "assured"),
    (8, "confirmed"),
    (16, "snat"),
    (32, "dnat"),
    (512, "dying"),
];
const FIB_TYPES: &[(u32, &str)] = &[
    (1, "unicast"),
    (2, "local"),
    (3, "broadcast"),
    (4, "anycast"),
    (5, "multicast"),
    (6, "blackhole"),
    (7, "unreachable"),
    (8, "prohibit"),
];

impl Term {
    fn new(text: impl Into<String>, kind: Kind, len: usize) -> Self {
        Self { text: text.into(), kind, len, masked: None }
    }

    /// Formats a term as a value, in a key or in a `set` statement.
    fn value(&self) -> String {
        let text = &self.text;
        let Some((mask, xor)) = &self.masked else { return text.clone() };
        let (Some(mask), Some(xor)) = (number(mask), number(xor)) else {
            return format!("{text} & {} ^ {}", hex(mask), hex(xor));
        };
        match (mask, xor) {
            (0, xor) => format!("{xor:#010x}"),
            (mask, xor) if mask == !xor => format!("{text} | {xor:#010x}"),
            (u32::MAX, xor) => format!("{text} ^ {xor:#010x}"),
            (mask, 0) => format!("{text} & {mask:#010x}"),
            (mask, xor) => format!("{text} & {mask:#010x} ^ {xor:#010x}"),
        }
    }

    fn compare(&self, family: Family, op: CmpOp, with: &[u8]) -> String {
        if let Some((mask, xor)) = &self.masked {
            return self.compare_masked(family, op, with, mask, xor);
        }
        let sign = if op == CmpOp::Neq { "!= " } else { "" };
        format!("{} {sign}{}", self.text, self.literal(family, with))
    }

    fn compare_masked(
        &self,
        family: Family,
        op: CmpOp,
        with: &[u8],
        mask: &[u8],
        xor: &[u8],
    ) -> String {
        let text = &self.text;
        let plain = xor.iter().all(|byte| *byte == 0);
        let zero = with.iter().all(|byte| *byte == 0);
        match (self.kind, prefix_length(mask)) {
            (Kind::Address, Some(prefix)) if plain => {
                let sign = if op == CmpOp::Neq { "!= " } else { "" };
                format!("{text} {sign}{}/{prefix}", address(family, with))
            }
            (Kind::State | Kind::Status, _) if plain && zero => {
                let sign = if op == CmpOp::Neq { "" } else { "! " };
                format!("{text} {sign}{}", self.literal(family, mask))
            }
            _ => {
                let sign = if op == CmpOp::Neq { "!=" } else { "==" };
                format!("{} {sign} {}", self.value(), self.literal(family, with))
            }
        }
    }

    fn literal(&self, family: Family, bytes: &[u8]) -> String {
        match (self.kind, bytes, number(bytes)) {
            (Kind::Address, ..) => {
                let whole = if family == Family::Ipv4 { 4 } else { 16 };
                let text = address(family, bytes);
                if bytes.len() < whole { format!("{text}/{}", bytes.len() * 8) } else { text }
            }
            (Kind::Protocol, [one], _) => protocol(*one),
            (Kind::Port, [high, low], _) => u16::from_be_bytes([*high, *low]).to_string(),
            (Kind::Interface, ..) => interface(bytes),
            (Kind::Number, _, Some(number)) => number.to_string(),
            (Kind::Mark, _, Some(number)) => format!("{number:#010x}"),
            (Kind::State, _, Some(number)) => bits(STATES, number),
            (Kind::Status, _, Some(number)) => bits(STATUSES, number),
            (Kind::FibType, _, Some(number)) => {
                let known = FIB_TYPES.iter().find(|(known, _)| *known == number);
                known.map_or_else(|| number.to_string(), |(_, name)| (*name).into())
            }
            _ => hex(bytes),
        }
    }
}

fn number(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

/// Names of bits, lowest first; a number for a bit without a name.
fn bits(names: &[(u32, &str)], bits: u32) -> String {
    let known: u32 = names.iter().map(|(bit, _)| bit).sum();
    if bits == 0 || bits & !known != 0 {
        return format!("{bits:#x}");
    }
    let set = names.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| *name);
    set.collect::<Vec<_>>().join(",")
}

/// The name of an interface. Without a terminating zero it is a prefix.
fn interface(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0);
    let name = String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]);
    if end.is_some() { format!("\"{name}\"") } else { format!("\"{name}*\"") }
}
