//! Evaluates a chain, a rule, an expression.

use std::net::{IpAddr, SocketAddr};

use nearhop_core::{Family, Name};

use super::hooks::{Journey, Manip, Nat};
use super::packet::Header;
use super::registers::Registers;
use super::{Fault, WalkError};
use crate::fake::{Record, SetState, TableState, data_len, key_len, label};
use crate::text;
use nearhop_netfilter::layout::protocol_number;
use nearhop_netfilter::object::{
    CT_STATE_NEW, CT_STATUS_DNAT, Chain, ChainKind, CmpOp, CtKey, Data, Element, Expr, FibAddress,
    Hit, HookPoint, MetaKey, Reg, Rule, Table, Verdict,
};

/// Maximum depth of jumps between chains.
const DEPTH: usize = 16;
/// `ct status`: the source was changed; source and destination are decided.
const CT_STATUS_SNAT: u32 = 1 << 4;
const CT_STATUS_SRC_DONE: u32 = 1 << 7;
const CT_STATUS_DST_DONE: u32 = 1 << 8;

/// What happens to a packet after a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// The end of the chain: return to the chain that jumped here.
    Return,
    /// Accepted by this base chain.
    Accept,
    Drop,
    Reject,
}

/// What happens to a packet after an expression.
enum Next {
    /// Continue with the next expression.
    Go,
    /// The rule does not match.
    Break,
    /// The rule has a verdict.
    Verdict(Verdict),
    /// The packet leaves this base chain, or is dropped.
    Flow(Flow),
}

/// The position of a rule, for errors.
#[derive(Clone, Copy)]
struct Place<'a> {
    table: &'a Table,
    state: &'a TableState,
    chain: &'a Chain,
    rule: usize,
}

impl Place<'_> {
    fn fail(&self, fault: Fault) -> WalkError {
        let (table, chain) = (label(self.table), self.chain.name.clone());
        WalkError::Rule { table, chain, rule: self.rule, fault }
    }
}

impl<'a> Journey<'a> {
    pub(super) fn chain(
        &mut self,
        table: &'a Table,
        state: &'a TableState,
        chain: &'a Chain,
        depth: usize,
    ) -> Result<Flow, WalkError> {
        for (index, rule) in chain.rules.iter().enumerate() {
            let place = Place { table, state, chain, rule: index };
            match self.rule(place, rule)? {
                Next::Go | Next::Break => {}
                Next::Flow(flow) => return Ok(flow),
                Next::Verdict(Verdict::Drop) => return Ok(Flow::Drop),
                Next::Verdict(Verdict::Goto(name)) => return self.enter(place, &name, depth),
                Next::Verdict(Verdict::Jump(name)) => match self.enter(place, &name, depth)? {
                    Flow::Return => {}
                    flow => return Ok(flow),
                },
            }
        }
        Ok(Flow::Return)
    }

    fn enter(&mut self, from: Place<'a>, name: &Name, depth: usize) -> Result<Flow, WalkError> {
        if depth + 1 >= DEPTH {
            return Err(from.fail(Fault::TooDeep(name.clone())));
        }
        let chain = from.state.chains.get(name);
        let chain = chain.ok_or_else(|| from.fail(Fault::NoSuchChain(name.clone())))?;
        self.chain(from.table, from.state, chain, depth + 1)
    }

    fn rule(&mut self, place: Place<'a>, rule: &'a Rule) -> Result<Next, WalkError> {
        let mut registers = Registers::default();
        for (index, expr) in rule.exprs.iter().enumerate() {
            let next = self.expr(place, &mut registers, expr);
            match next.map_err(|fault| place.fail(fault))? {
                Next::Go => {}
                Next::Break => {
                    self.note(place, rule, index, "no match");
                    return Ok(Next::Break);
                }
                Next::Verdict(verdict) => {
                    self.note(place, rule, index, &format!("{verdict:?}"));
                    return Ok(Next::Verdict(verdict));
                }
                Next::Flow(flow) => {
                    self.note(place, rule, index, &format!("{flow:?}"));
                    return Ok(Next::Flow(flow));
                }
            }
        }
        self.note(place, rule, rule.exprs.len(), "passed");
        Ok(Next::Go)
    }

    /// Traces how far a packet came in a rule: the last condition shown is the one that decided.
    fn note(&mut self, place: Place<'a>, rule: &Rule, last: usize, about: &str) {
        let Some(trace) = &mut self.trace else { return };
        let shown = &rule.exprs[..rule.exprs.len().min(last + 1)];
        let shown = text::rule(place.table.family, shown);
        let comment = rule.comment.as_ref().map(|text| format!(" ({text})")).unwrap_or_default();
        let name = &place.chain.name;
        trace.push(format!("  {name} {}{comment}: {shown}: {about}", place.rule));
    }

    fn expr(
        &mut self,
        place: Place<'a>,
        registers: &mut Registers,
        expr: &Expr,
    ) -> Result<Next, Fault> {
        if let Some((to, value)) = self.read(expr)? {
            return go(registers.store(to, &value));
        }
        match expr {
            Expr::SetMark { from } => {
                self.mark = registers.load_u32(*from)?;
                Ok(Next::Go)
            }
            Expr::Cmp { from, op, with } => {
                let equal = registers.load(*from, with.len())? == *with;
                Ok(if equal == (*op == CmpOp::Eq) { Next::Go } else { Next::Break })
            }
            Expr::Chance { whole: 0, .. } => Err(Fault::NoSlots),
            Expr::Chance { part, whole } => {
                Ok(if self.dice.happens(*part, *whole) { Next::Go } else { Next::Break })
            }
            Expr::Bitwise { from, to, mask, xor } => go(bitwise(registers, *from, *to, mask, xor)),
            Expr::Lookup { set, from, then } => {
                lookup(find(place.state, set)?, registers, *from, *then)
            }
            Expr::Dnat { family, address, port } => self.dnat(registers, *family, *address, *port),
            Expr::Masquerade => self.masquerade(),
            Expr::Reject(_) => Ok(Next::Flow(Flow::Reject)),
            Expr::Verdict(verdict) => Ok(Next::Verdict(verdict.clone())),
            Expr::Update { set, key, data, timeout_ms } => {
                let definition = &find(place.state, set)?.set;
                self.affinity.push(Record {
                    table: place.table.clone(),
                    set: set.clone(),
                    key: registers.load_bytes(*key, key_len(definition))?,
                    data: registers.load_bytes(*data, data_len(definition))?,
                    timeout_ms: *timeout_ms,
                });
                Ok(Next::Go)
            }
            _ => unreachable!("read() takes the expressions that only read: {expr:?}"),
        }
    }

    /// The register and the bytes that a loading expression writes.
    fn read(&mut self, expr: &Expr) -> Result<Option<(Reg, Vec<u8>)>, Fault> {
        Ok(match expr {
            Expr::Payload { base, offset, len, to } => {
                let (base, offset, len) = (*base, *offset, *len);
                let header = Header::of(base, self.source, self.destination, self.protocol);
                let bytes = header.read(offset, len);
                Some((*to, bytes.ok_or(Fault::NoSuchBytes { base, offset, len })?.to_vec()))
            }
            Expr::Meta { key, to } => Some((*to, self.meta(*key))),
            Expr::Ct { key, to } => Some((*to, self.ct(*key))),
            Expr::FibType { address, to } => {
                let asked = match address {
                    FibAddress::Source => self.source.ip(),
                    FibAddress::Destination => self.destination.ip(),
                };
                Some((*to, self.host.fib_type(asked).to_ne_bytes().to_vec()))
            }
            Expr::Random { modulus: 0, .. } => return Err(Fault::NoSlots),
            Expr::Random { modulus, offset, to } => {
                let thrown = self.dice.throw(*modulus) % modulus;
                Some((*to, offset.wrapping_add(thrown).to_ne_bytes().to_vec()))
            }
            _ => None,
        })
    }

    fn meta(&self, key: MetaKey) -> Vec<u8> {
        match key {
            MetaKey::L4Proto => vec![protocol_number(self.protocol)],
            MetaKey::Mark => self.mark.to_ne_bytes().to_vec(),
            MetaKey::IifName => {
                let mut name = self.iif.as_bytes().to_vec();
                name.resize(16, 0);
                name
            }
        }
    }

    fn ct(&self, key: CtKey) -> Vec<u8> {
        // A reply comes from the current destination of the packet.
        let (source, destination) = self.original;
        match key {
            CtKey::State => CT_STATE_NEW.to_ne_bytes().to_vec(),
            CtKey::Status => self.status().to_ne_bytes().to_vec(),
            CtKey::OriginalSource => octets(source),
            CtKey::OriginalDestination => octets(destination),
            CtKey::OriginalPort => destination.port().to_be_bytes().to_vec(),
            CtKey::ReplySource => octets(self.destination),
            CtKey::ReplyPort => self.destination.port().to_be_bytes().to_vec(),
        }
    }

    fn status(&self) -> u32 {
        let bit = |is: bool, bit: u32| if is { bit } else { 0 };
        bit(self.destination_nat == Nat::Changed, CT_STATUS_DNAT)
            | bit(self.source_nat == Nat::Changed, CT_STATUS_SNAT)
            | bit(self.destination_nat != Nat::Open, CT_STATUS_DST_DONE)
            | bit(self.source_nat != Nat::Open, CT_STATUS_SRC_DONE)
    }

    fn dnat(
        &mut self,
        registers: &Registers,
        family: Family,
        address: Reg,
        port: Reg,
    ) -> Result<Next, Fault> {
        if self.kind != ChainKind::Nat || Manip::of(self.point) != Manip::Destination {
            return Err(Fault::WrongHook("dnat"));
        }
        let address: IpAddr = match family {
            Family::Ipv4 => load_array::<4>(registers, address)?.into(),
            Family::Ipv6 => load_array::<16>(registers, address)?.into(),
        };
        let port = u16::from_be_bytes(load_array(registers, port)?);
        let before = std::mem::replace(&mut self.destination, SocketAddr::new(address, port));
        let changed = before != self.destination;
        self.destination_nat = if changed { Nat::Changed } else { Nat::Kept };
        Ok(Next::Flow(Flow::Accept))
    }

    fn masquerade(&mut self) -> Result<Next, Fault> {
        if self.kind != ChainKind::Nat || self.point != HookPoint::Postrouting {
            return Err(Fault::WrongHook("masquerade"));
        }
        if let Some(address) = self.host.masquerade_as(self.family) {
            self.source.set_ip(address);
        }
        self.source_nat = Nat::Changed;
        Ok(Next::Flow(Flow::Accept))
    }
}

fn go(result: Result<(), Fault>) -> Result<Next, Fault> {
    result.map(|()| Next::Go)
}

fn octets(address: SocketAddr) -> Vec<u8> {
    match address.ip() {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn load_array<const N: usize>(registers: &Registers, from: Reg) -> Result<[u8; N], Fault> {
    Ok(registers.load(from, N)?.try_into().expect("as many as asked for were read"))
}

fn bitwise(
    registers: &mut Registers,
    from: Reg,
    to: Reg,
    mask: &[u8],
    xor: &[u8],
) -> Result<(), Fault> {
    if mask.len() != xor.len() {
        return Err(Fault::MaskLength);
    }
    let value = registers.load(from, mask.len())?;
    let combine = |((value, mask), xor): ((u8, &u8), &u8)| (value & mask) ^ xor;
    let result: Vec<u8> = value.into_iter().zip(mask).zip(xor).map(combine).collect();
    registers.store(to, &result)
}

fn find<'a>(state: &'a TableState, set: &Name) -> Result<&'a SetState, Fault> {
    state.sets.get(set).ok_or_else(|| Fault::NoSuchSet(set.clone()))
}

fn lookup(set: &SetState, registers: &mut Registers, from: Reg, then: Hit) -> Result<Next, Fault> {
    let key = registers.load_bytes(from, key_len(&set.set))?;
    let wrong = || Fault::WrongData(set.set.name.clone());
    let data = |element: &'_ Element| element.data.clone();
    match (then, set.hit(&key).map(data)) {
        (Hit::Match, Some(_)) | (Hit::Mismatch, None) => Ok(Next::Go),
        (Hit::Match | Hit::Load(_) | Hit::Verdict, None) | (Hit::Mismatch, Some(_)) => {
            Ok(Next::Break)
        }
        (Hit::Load(to), Some(Data::Value(value))) => go(registers.store(to, value.as_slice())),
        (Hit::Verdict, Some(Data::Verdict(verdict))) => Ok(Next::Verdict(verdict)),
        (Hit::Load(_) | Hit::Verdict, Some(_)) => Err(wrong()),
    }
}
