//! Short constructors of objects, for tests.

use std::net::{IpAddr, SocketAddr};

use nearhop_core::{Family, Name};

use nearhop_netfilter::object::{
    Base, Batch, Bytes, Chain, ChainKind, CmpOp, CtKey, Data, Element, Expr, FibAddress, Field,
    Hit, Hook, HookPoint, MetaKey, Op, Reg, Rule, Set, SetData, SetKind, Table, Verdict,
};

pub(crate) const V4: Field = Field::Address(Family::Ipv4);
pub(crate) const V6: Field = Field::Address(Family::Ipv6);
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;

pub(crate) fn table(name: &str) -> Table {
    Table { family: Family::Ipv4, name: name.into() }
}

pub(crate) fn batch(table: &Table, ops: Vec<Op>) -> Batch {
    Batch { table: table.clone(), ops }
}

pub(crate) fn add_table() -> Op {
    Op::AddTable { comment: "test".into() }
}

pub(crate) fn set(name: &str, key: &[Field]) -> Set {
    let (name, key) = (name.into(), key.to_vec());
    Set { name, key, data: SetData::None, kind: SetKind::Exact, comment: None }
}

pub(crate) fn map(name: &str, key: &[Field], data: &[Field]) -> Set {
    Set { data: SetData::Value(data.to_vec()), ..set(name, key) }
}

pub(crate) fn vmap(name: &str, key: &[Field]) -> Set {
    Set { data: SetData::Verdict, ..set(name, key) }
}

pub(crate) fn rule(exprs: impl IntoIterator<Item = Vec<Expr>>) -> Rule {
    Rule { exprs: exprs.into_iter().flatten().collect(), comment: None }
}

pub(crate) fn chain(name: &str, rules: Vec<Rule>) -> Op {
    Op::AddChain(Chain { name: name.into(), hook: None, rules, comment: None })
}

pub(crate) fn base(
    name: &str,
    kind: ChainKind,
    point: HookPoint,
    priority: i32,
    rules: Vec<Rule>,
) -> Op {
    let hook = Some(Hook { kind, point, priority });
    Op::AddChain(Chain { name: name.into(), hook, rules, comment: None })
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// `address . protocol . port`.
pub(crate) fn service(address: &str, protocol: u8) -> Bytes {
    let address = addr(address);
    Bytes::EMPTY.address(address.ip()).protocol(protocol).port(address.port())
}

/// `address . port`.
pub(crate) fn endpoint(address: &str) -> Data {
    let address = addr(address);
    Data::Value(Bytes::EMPTY.address(address.ip()).port(address.port()))
}

pub(crate) fn element(key: Bytes, data: Data) -> Element {
    Element { key, end: None, data, comment: None }
}

pub(crate) fn goto(chain: &str) -> Data {
    Data::Verdict(Verdict::Goto(chain.into()))
}

pub(crate) fn add(set: &str, elements: Vec<Element>) -> Op {
    Op::AddElements { set: set.into(), elements }
}

pub(crate) fn delete(set: &str, elements: Vec<Element>) -> Op {
    Op::DeleteElements { set: set.into(), elements }
}

// Expressions, in the combinations that nft generates.

pub(crate) fn saddr(to: u8) -> Vec<Expr> {
    vec![Expr::Payload { base: Base::Network, offset: 12, len: 4, to: Reg(to) }]
}

pub(crate) fn daddr(to: u8) -> Vec<Expr> {
    vec![Expr::Payload { base: Base::Network, offset: 16, len: 4, to: Reg(to) }]
}

pub(crate) fn dport(to: u8) -> Vec<Expr> {
    vec![Expr::Payload { base: Base::Transport, offset: 2, len: 2, to: Reg(to) }]
}

pub(crate) fn meta(key: MetaKey, to: u8) -> Vec<Expr> {
    vec![Expr::Meta { key, to: Reg(to) }]
}

pub(crate) fn ct(key: CtKey, to: u8) -> Vec<Expr> {
    vec![Expr::Ct { key, to: Reg(to) }]
}

pub(crate) fn fib(address: FibAddress, to: u8) -> Vec<Expr> {
    vec![Expr::FibType { address, to: Reg(to) }]
}

pub(crate) fn random(modulus: u32, to: u8) -> Vec<Expr> {
    vec![Expr::Random { modulus, offset: 0, to: Reg(to) }]
}

pub(crate) fn lookup(set: &str, then: Hit) -> Vec<Expr> {
    vec![Expr::Lookup { set: set.into(), from: Reg(0), then }]
}

pub(crate) fn cmp(op: CmpOp, with: &[u8]) -> Vec<Expr> {
    vec![Expr::Cmp { from: Reg(0), op, with: with.to_vec() }]
}

pub(crate) fn bitwise(mask: u32, xor: u32) -> Vec<Expr> {
    let (mask, xor) = (mask.to_ne_bytes().to_vec(), xor.to_ne_bytes().to_vec());
    vec![Expr::Bitwise { from: Reg(0), to: Reg(0), mask, xor }]
}

/// `ip daddr . meta l4proto . th dport`.
pub(crate) fn service_key() -> Vec<Expr> {
    [daddr(0), meta(MetaKey::L4Proto, 1), dport(2)].concat()
}

/// `meta mark set meta mark | bits`.
pub(crate) fn mark_or(bits: u32) -> Vec<Expr> {
    [meta(MetaKey::Mark, 0), bitwise(!bits, bits), vec![Expr::SetMark { from: Reg(0) }]].concat()
}

/// `meta mark & bits != 0`.
pub(crate) fn mark_has(bits: u32) -> Vec<Expr> {
    [meta(MetaKey::Mark, 0), bitwise(bits, 0), cmp(CmpOp::Neq, &[0; 4])].concat()
}

/// `ct state new` or `ct status dnat`.
pub(crate) fn ct_has(key: CtKey, bits: u32) -> Vec<Expr> {
    [ct(key, 0), bitwise(bits, 0), cmp(CmpOp::Neq, &[0; 4])].concat()
}

pub(crate) fn dnat() -> Vec<Expr> {
    vec![Expr::Dnat { family: Family::Ipv4, address: Reg(0), port: Reg(1) }]
}

pub(crate) fn verdict(verdict: Verdict) -> Vec<Expr> {
    vec![Expr::Verdict(verdict)]
}

pub(crate) fn go(chain: &str) -> Vec<Expr> {
    verdict(Verdict::Goto(Name::from(chain)))
}
