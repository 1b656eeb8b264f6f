//! A network namespace for a test, and a complete table layout like the one that nearhop writes.

#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test binary uses its own part, and a test may panic"
)]

use std::net::IpAddr;
use std::process::{Command, Stdio};

use nearhop_core::Family;
use nearhop_net::sandbox;
use nearhop_netfilter::object::*;
use nearhop_proxy::kernel::Kernel;

/// Runs a test in its own network namespace.
pub(crate) fn in_namespace(test: &str, body: impl FnOnce(&mut Kernel) + Send) {
    sandbox::run(test, || {
        let mut kernel = Kernel::open().expect("a sandbox may use nftables");
        body(&mut kernel);
    });
}

/// The output of the nft program. None, and the test is reported as skipped, if nft is not
/// installed. The program runs in the namespace of the calling thread.
pub(crate) fn nft(arguments: &[&str], input: &str) -> Option<String> {
    use std::io::Write as _;
    let mut command = Command::new("nft");
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut child) = command.spawn() else {
        nearhop_skip::skip("the nft program is not installed");
        return None;
    };
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "nft {arguments:?}: {}: {errors}", output.status);
    Some(String::from_utf8(output.stdout).unwrap())
}

pub(crate) fn table(family: Family, name: &str) -> Table {
    Table { family, name: name.into() }
}

pub(crate) fn batch(table: &Table, ops: Vec<Op>) -> Batch {
    Batch { table: table.clone(), ops }
}

pub(crate) fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) const TCP: u8 = 6;

/// Number of registers of an address.
fn wide(family: Family) -> u8 {
    match family {
        Family::Ipv4 => 1,
        Family::Ipv6 => 4,
    }
}

pub(crate) fn daddr(family: Family, to: u8) -> Expr {
    let (offset, len) = match family {
        Family::Ipv4 => (16, 4),
        Family::Ipv6 => (24, 16),
    };
    Expr::Payload { base: Base::Network, offset, len, to: Reg(to) }
}

pub(crate) fn saddr(family: Family, to: u8) -> Expr {
    let (offset, len) = match family {
        Family::Ipv4 => (12, 4),
        Family::Ipv6 => (8, 16),
    };
    Expr::Payload { base: Base::Network, offset, len, to: Reg(to) }
}

pub(crate) fn l4proto(to: u8) -> Expr {
    Expr::Meta { key: MetaKey::L4Proto, to: Reg(to) }
}

pub(crate) fn dport(to: u8) -> Expr {
    Expr::Payload { base: Base::Transport, offset: 2, len: 2, to: Reg(to) }
}

pub(crate) fn goto(chain: &str) -> Expr {
    Expr::Verdict(Verdict::Goto(chain.into()))
}

pub(crate) fn lookup(set: &str, then: Hit) -> Expr {
    Expr::Lookup { set: set.into(), from: Reg(0), then }
}

/// `mark & mask != 0`, `ct state new`.
fn any_bit(of: Expr, bits: u32) -> [Expr; 3] {
    let (mask, xor) = (bits.to_ne_bytes().to_vec(), vec![0; 4]);
    [
        of,
        Expr::Bitwise { from: Reg(0), to: Reg(0), mask, xor },
        Expr::Cmp { from: Reg(0), op: CmpOp::Neq, with: vec![0; 4] },
    ]
}

fn change_mark(mask: u32, xor: u32) -> [Expr; 3] {
    let (mask, xor) = (mask.to_ne_bytes().to_vec(), xor.to_ne_bytes().to_vec());
    [
        Expr::Meta { key: MetaKey::Mark, to: Reg(0) },
        Expr::Bitwise { from: Reg(0), to: Reg(0), mask, xor },
        Expr::SetMark { from: Reg(0) },
    ]
}

fn is(from: Expr, with: &[u8]) -> [Expr; 2] {
    [from, Expr::Cmp { from: Reg(0), op: CmpOp::Eq, with: with.to_vec() }]
}

fn is_not(from: Expr, with: &[u8]) -> [Expr; 2] {
    [from, Expr::Cmp { from: Reg(0), op: CmpOp::Neq, with: with.to_vec() }]
}

/// `ip daddr . meta l4proto . th dport`, and the next free register.
pub(crate) fn service_key(family: Family) -> (Vec<Expr>, u8) {
    let at = wide(family);
    (vec![daddr(family, 0), l4proto(at), dport(at + 1)], at + 2)
}

pub(crate) fn rule(parts: impl IntoIterator<Item = Vec<Expr>>) -> Rule {
    Rule { exprs: parts.into_iter().flatten().collect(), comment: None }
}

pub(crate) fn chain(name: &str, rules: Vec<Rule>) -> Op {
    Op::AddChain(Chain { name: name.into(), hook: None, rules, comment: None })
}

pub(crate) fn base_chain(
    name: &str,
    kind: ChainKind,
    point: HookPoint,
    priority: i32,
    rules: Vec<Rule>,
) -> Op {
    let hook = Some(Hook { kind, point, priority });
    Op::AddChain(Chain { name: name.into(), hook, rules, comment: Some("a base chain".into()) })
}

pub(crate) fn set(name: &str, key: &[Field], data: SetData, kind: SetKind) -> Op {
    Op::AddSet(Set { name: name.into(), key: key.to_vec(), data, kind, comment: None })
}

pub(crate) fn element(key: Bytes, data: Data) -> Element {
    Element { key, end: None, data, comment: None }
}

/// `dnat ip to <key> map @<map>`.
pub(crate) fn dnat(family: Family, key: Vec<Expr>, map: &str) -> Rule {
    let to = Expr::Dnat { family, address: Reg(0), port: Reg(wide(family)) };
    rule([key, vec![lookup(map, Hit::Load(Reg(0))), to]])
}

/// At least one object of every kind in nearhop's layout, in an order that the kernel accepts.
pub(crate) fn layout(family: Family) -> Vec<Op> {
    let mut ops = vec![Op::AddTable { comment: "made by a test, \"quoted\"\nand broken".into() }];
    ops.extend(sets(family));
    ops.extend(regular_chains(family));
    ops.extend(base_chains(family));
    ops.extend(elements(family));
    ops
}

pub(crate) fn sets(family: Family) -> Vec<Op> {
    use Field::{Port, Protocol, Slot};
    use SetKind::{Dynamic, Exact, Interval};
    let address = Field::Address(family);
    let target = || SetData::Value(vec![address, Port]);
    let slots = [address, Protocol, Port, Slot];
    let Op::AddSet(mut services) = set("services", &slots[..3], SetData::Verdict, Exact) else {
        unreachable!()
    };
    services.comment = Some("where a Service address goes".into());
    let Op::AddSet(mut local) = set("endpoints-local", &slots, target(), Exact) else {
        unreachable!()
    };
    // A comment that is longer than the maximum.
    local.comment = Some("much to say ".repeat(20).into());
    vec![
        Op::AddSet(services),
        set("endpoints", &slots, target(), Exact),
        Op::AddSet(local),
        set("nodeports", &[Protocol, Port], SetData::Verdict, Exact),
        set("nodeport-endpoints", &slots[1..], target(), Exact),
        set("affinity", &[address, address, Protocol, Port], target(), Dynamic),
        set("affinity-services", &slots[..3], SetData::Verdict, Exact),
        set("cluster-ips", &[address], SetData::None, Exact),
        set("hairpin", &[address, address, Protocol, Port], SetData::None, Exact),
        set("firewall", &slots[..3], SetData::None, Exact),
        set("firewall-allow", &[address, Protocol, Port, address], SetData::None, Interval),
    ]
}

fn regular_chains(family: Family) -> Vec<Op> {
    let (key, next) = service_key(family);
    let random = |to| vec![Expr::Random { modulus: 2, offset: 0, to: Reg(to) }];
    let port_key = vec![l4proto(0), dport(1), Expr::Random { modulus: 2, offset: 0, to: Reg(2) }];
    let wide = wide(family);
    let sticky =
        vec![saddr(family, 0), daddr(family, wide), l4proto(2 * wide), dport(2 * wide + 1)];
    vec![
        chain("reject-chain", vec![rule([vec![Expr::Reject(family)]])]),
        chain("pick-2", vec![dnat(family, [key.clone(), random(next)].concat(), "endpoints")]),
        chain("pick-2-np", vec![dnat(family, port_key, "nodeport-endpoints")]),
        chain("sticky-2", vec![dnat(family, sticky, "affinity"), rule([vec![goto("pick-2")]])]),
        chain(
            "ext",
            vec![
                rule([change_mark(!0x4000, 0x4000).to_vec()]),
                rule([key, vec![lookup("services", Hit::Verdict)]]),
            ],
        ),
        chain("rec10", vec![record(family)]),
    ]
}

/// `update @affinity { … timeout 10s : … }`.
fn record(family: Family) -> Rule {
    let ct = |key, to| Expr::Ct { key, to: Reg(to) };
    let wide = wide(family);
    // The register that nft chooses: the next 128-bit register; for IPv6, after the last one.
    let data = if family == Family::Ipv4 { 4 } else { 2 * wide + 2 };
    rule([
        is(l4proto(0), &[TCP]).to_vec(),
        vec![
            ct(CtKey::OriginalSource, 0),
            ct(CtKey::OriginalDestination, wide),
            l4proto(2 * wide),
            ct(CtKey::OriginalPort, 2 * wide + 1),
            ct(CtKey::ReplySource, data),
            ct(CtKey::ReplyPort, data + wide),
            Expr::Update {
                set: "affinity".into(),
                key: Reg(0),
                data: Reg(data),
                timeout_ms: 10_000,
            },
        ],
    ])
}

fn base_chains(family: Family) -> Vec<Op> {
    use ChainKind::{Filter, Nat};
    use HookPoint::{Postrouting, Prerouting};
    vec![
        base_chain("svc", Nat, Prerouting, -100, service_rules(family)),
        base_chain("post", Nat, Postrouting, 100, masquerade_rules(family)),
        base_chain("recpost", Filter, Postrouting, 90, vec![record_rule(family)]),
        base_chain("fw", Filter, Prerouting, -110, vec![firewall_rule(family)]),
    ]
}

fn service_rules(family: Family) -> Vec<Rule> {
    let (key, _) = service_key(family);
    let local = |address| is(Expr::FibType { address, to: Reg(0) }, &FIB_LOCAL.to_ne_bytes());
    let name = Expr::Meta { key: MetaKey::IifName, to: Reg(0) };
    let loopback: &[u8] = match family {
        Family::Ipv4 => &[127],
        Family::Ipv6 => &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
    };
    let prefix = |source: bool, len| {
        let from = if source { saddr(family, 0) } else { daddr(family, 0) };
        let Expr::Payload { base, offset, to, .. } = from else { unreachable!() };
        Expr::Payload { base, offset, len, to }
    };
    let mut device = b"br0".to_vec();
    device.resize(16, 0);
    let mut commented = rule([key, vec![lookup("services", Hit::Verdict)]]);
    commented.comment = Some("all Services".into());
    vec![
        rule([
            is_not(prefix(true, 1), &[10]).to_vec(),
            vec![daddr(family, 0), lookup("cluster-ips", Hit::Match)],
            change_mark(!0x4000, 0x4000).to_vec(),
        ]),
        commented,
        rule([
            local(FibAddress::Destination).to_vec(),
            is_not(prefix(false, loopback.len() as u32), loopback).to_vec(),
            vec![l4proto(0), dport(1), lookup("nodeports", Hit::Verdict)],
        ]),
        rule([is(name.clone(), &device).to_vec(), vec![goto("ext")]]),
        rule([is(name, b"cali").to_vec(), vec![goto("ext")]]),
        rule([local(FibAddress::Source).to_vec(), vec![goto("ext")]]),
    ]
}

fn masquerade_rules(family: Family) -> Vec<Rule> {
    let wide = wide(family);
    let mark = Expr::Meta { key: MetaKey::Mark, to: Reg(0) };
    let status = Expr::Ct { key: CtKey::Status, to: Reg(0) };
    let key = vec![saddr(family, 0), daddr(family, wide), l4proto(2 * wide), dport(2 * wide + 1)];
    vec![
        rule([
            any_bit(mark, 0x4000).to_vec(),
            change_mark(!0, 0x4000).to_vec(),
            vec![Expr::Masquerade],
        ]),
        rule([
            any_bit(status, CT_STATUS_DNAT).to_vec(),
            key,
            vec![lookup("hairpin", Hit::Match), Expr::Masquerade],
        ]),
    ]
}

fn record_rule(family: Family) -> Rule {
    let ct = |key, to| Expr::Ct { key, to: Reg(to) };
    let wide = wide(family);
    rule([
        any_bit(ct(CtKey::State, 0), CT_STATE_NEW).to_vec(),
        any_bit(ct(CtKey::Status, 0), CT_STATUS_DNAT).to_vec(),
        is(l4proto(0), &[TCP]).to_vec(),
        vec![ct(CtKey::OriginalDestination, 0), l4proto(wide), ct(CtKey::OriginalPort, wide + 1)],
        vec![lookup("affinity-services", Hit::Verdict)],
    ])
}

fn firewall_rule(family: Family) -> Rule {
    let (key, next) = service_key(family);
    let state = Expr::Ct { key: CtKey::State, to: Reg(0) };
    rule([
        any_bit(state, CT_STATE_NEW).to_vec(),
        key.clone(),
        vec![lookup("firewall", Hit::Match)],
        key,
        vec![saddr(family, next), lookup("firewall-allow", Hit::Mismatch)],
        vec![Expr::Verdict(Verdict::Drop)],
    ])
}

/// `10.0.0.N` or `fd00::N`.
pub(crate) fn service_address(family: Family, number: u8) -> IpAddr {
    match family {
        Family::Ipv4 => IpAddr::from([10, 0, 0, number]),
        Family::Ipv6 => IpAddr::from([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, number]),
    }
}

fn elements(family: Family) -> Vec<Op> {
    let ip = |number| service_address(family, number);
    let key = Bytes::EMPTY.address(ip(1)).protocol(TCP).port(80);
    let target = |number| Data::Value(Bytes::EMPTY.address(ip(number)).port(8080));
    let go = |chain: &str| Data::Verdict(Verdict::Goto(chain.into()));
    let named = |mut element: Element, comment: &str| {
        element.comment = Some(comment.into());
        element
    };
    let add = |set: &str, elements| Op::AddElements { set: set.into(), elements };
    let (low, high): (IpAddr, IpAddr) = match family {
        Family::Ipv4 => (address("10.1.0.0"), address("10.1.255.255")),
        Family::Ipv6 => (address("fd01::"), address("fd01:ffff:ffff:ffff:ffff:ffff:ffff:ffff")),
    };
    let allowed = Element {
        key: key.address(low),
        end: Some(Box::new(key.address(high))),
        data: Data::None,
        comment: None,
    };
    let rejected = Bytes::EMPTY.address(ip(9)).protocol(17).port(53);
    vec![
        add("services", vec![named(element(key, go("pick-2")), "ns/svc:p")]),
        add("services", vec![element(rejected, go("reject-chain"))]),
        add(
            "endpoints",
            vec![
                element(key.slot(0), target(11)),
                named(element(key.slot(1), target(12)), "hello \"world\""),
            ],
        ),
        add("affinity-services", vec![element(key, Data::Verdict(Verdict::Jump("rec10".into())))]),
        add("nodeports", vec![element(Bytes::EMPTY.protocol(TCP).port(30_000), go("pick-2-np"))]),
        add(
            "nodeport-endpoints",
            vec![element(Bytes::EMPTY.protocol(TCP).port(30_000).slot(1), target(13))],
        ),
        add("cluster-ips", vec![element(Bytes::EMPTY.address(ip(1)), Data::None)]),
        add("firewall", vec![element(key, Data::None)]),
        add("firewall-allow", vec![allowed]),
    ]
}
