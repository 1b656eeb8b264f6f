//! Tests of the text output. The expectations are what nft 1.0.6 prints for the same objects.

use nearhop_core::Family;

use crate::fake::Fake;
use crate::testing::*;
use crate::text;
use nearhop_netfilter::object::{
    Base, Bytes, CT_STATE_NEW, CT_STATUS_DNAT, Chain, ChainKind, CmpOp, CtKey, Data, Element, Expr,
    FIB_LOCAL, FibAddress, Field, Hit, Hook, HookPoint, MetaKey, Op, Reg, Rule, Set, SetKind,
    Verdict,
};

fn v4(exprs: impl IntoIterator<Item = Vec<Expr>>) -> String {
    text::rule(Family::Ipv4, &exprs.into_iter().flatten().collect::<Vec<_>>())
}

fn v6(exprs: impl IntoIterator<Item = Vec<Expr>>) -> String {
    text::rule(Family::Ipv6, &exprs.into_iter().flatten().collect::<Vec<_>>())
}

fn mask_bytes(mask: &[u8], with: &[u8], op: CmpOp) -> Vec<Expr> {
    let (mask, xor) = (mask.to_vec(), vec![0; mask.len()]);
    let bitwise = Expr::Bitwise { from: Reg(0), to: Reg(0), mask, xor };
    [vec![bitwise], cmp(op, with)].concat()
}

fn is(key: MetaKey, op: CmpOp, with: &[u8]) -> Vec<Expr> {
    [meta(key, 0), cmp(op, with)].concat()
}

fn whole(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize(16, 0);
    bytes
}

fn local(address: FibAddress, op: CmpOp) -> Vec<Expr> {
    [fib(address, 0), cmp(op, &FIB_LOCAL.to_ne_bytes())].concat()
}

fn network(offset: u32, len: u32) -> Vec<Expr> {
    vec![Expr::Payload { base: Base::Network, offset, len, to: Reg(0) }]
}

fn drops() -> Vec<Expr> {
    verdict(Verdict::Drop)
}

/// `… timeout T : …` of an `update` of `affinity`.
fn update(timeout_ms: u64) -> Vec<Expr> {
    let to = [ct(CtKey::ReplySource, 4), ct(CtKey::ReplyPort, 5)].concat();
    let from = [
        ct(CtKey::OriginalSource, 0),
        ct(CtKey::OriginalDestination, 1),
        meta(MetaKey::L4Proto, 2),
        ct(CtKey::OriginalPort, 3),
    ];
    let set = "affinity".into();
    let update = Expr::Update { set, key: Reg(0), data: Reg(4), timeout_ms };
    [from.concat(), to, vec![update]].concat()
}

#[test]
fn rules_of_the_layout_print_like_nft() {
    let eq_tcp = || is(MetaKey::L4Proto, CmpOp::Eq, &[TCP]);
    let hit = |set: &str| lookup(set, Hit::Load(Reg(0)));
    let ports = |to| [meta(MetaKey::L4Proto, to), dport(to + 1)].concat();
    let xor = |bits: u32| {
        [meta(MetaKey::Mark, 0), bitwise(u32::MAX, bits), vec![Expr::SetMark { from: Reg(0) }]]
            .concat()
    };
    let masquerade = || vec![Expr::Masquerade];
    let lines = [
        (v4([vec![Expr::Reject(Family::Ipv4)]]), "reject"),
        (
            v4([service_key(), random(2, 3), hit("endpoints"), dnat()]),
            "dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 2 map @endpoints",
        ),
        (
            v4([
                vec![Expr::Chance { part: 3, whole: 10 }],
                service_key(),
                vec![Expr::Random { modulus: 5, offset: 7, to: Reg(3) }],
                hit("endpoints"),
                dnat(),
            ]),
            "numgen random mod 10 < 3 \
             dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 5 offset 7 \
             map @endpoints",
        ),
        (
            v4([ports(0), random(2, 2), hit("nodeport-endpoints"), dnat()]),
            "dnat ip to meta l4proto . th dport . numgen random mod 2 map @nodeport-endpoints",
        ),
        (
            v4([saddr(0), daddr(1), ports(2), hit("affinity"), dnat()]),
            "dnat ip to ip saddr . ip daddr . meta l4proto . th dport map @affinity",
        ),
        (v4([go("pick-2")]), "goto pick-2"),
        (v4([mark_or(0x4000)]), "meta mark set meta mark | 0x00004000"),
        (
            v4([service_key(), lookup("services", Hit::Verdict)]),
            "ip daddr . meta l4proto . th dport vmap @services",
        ),
        (
            v4([
                [network(12, 1), cmp(CmpOp::Neq, &[10])].concat(),
                [daddr(0), lookup("cluster-ips", Hit::Match)].concat(),
                mark_or(0x4000),
            ]),
            "ip saddr != 10.0.0.0/8 ip daddr @cluster-ips meta mark set meta mark | 0x00004000",
        ),
        (
            v4([
                local(FibAddress::Destination, CmpOp::Eq),
                [network(16, 1), cmp(CmpOp::Neq, &[127])].concat(),
                [ports(0), lookup("nodeports", Hit::Verdict)].concat(),
            ]),
            "fib daddr type local ip daddr != 127.0.0.0/8 meta l4proto . th dport vmap @nodeports",
        ),
        (
            v4([is(MetaKey::IifName, CmpOp::Eq, &whole("br0")), go("ext")]),
            "iifname \"br0\" goto ext",
        ),
        (v4([is(MetaKey::IifName, CmpOp::Eq, b"cali"), go("ext")]), "iifname \"cali*\" goto ext"),
        (v4([local(FibAddress::Source, CmpOp::Eq), go("ext")]), "fib saddr type local goto ext"),
        (
            v4([mark_has(0x4000), xor(0x4000), masquerade()]),
            "meta mark & 0x00004000 != 0x00000000 meta mark set meta mark ^ 0x00004000 \
             masquerade fully-random",
        ),
        (
            v4([
                ct_has(CtKey::Status, CT_STATUS_DNAT),
                [saddr(0), daddr(1), ports(2), lookup("hairpin", Hit::Match)].concat(),
                masquerade(),
            ]),
            "ct status dnat ip saddr . ip daddr . meta l4proto . th dport @hairpin \
             masquerade fully-random",
        ),
        (
            v4([eq_tcp(), update(10_000)]),
            "meta l4proto tcp update @affinity { ct original ip saddr . ct original ip daddr . \
             meta l4proto . ct original proto-dst timeout 10s : ct reply ip saddr . \
             ct reply proto-src }",
        ),
        (
            v4([
                [ct_has(CtKey::State, CT_STATE_NEW), ct_has(CtKey::Status, CT_STATUS_DNAT)]
                    .concat(),
                eq_tcp(),
                ct(CtKey::OriginalDestination, 0),
                [meta(MetaKey::L4Proto, 1), ct(CtKey::OriginalPort, 2)].concat(),
                lookup("affinity-services", Hit::Verdict),
            ]),
            "ct state new ct status dnat meta l4proto tcp ct original ip daddr . meta l4proto . \
             ct original proto-dst vmap @affinity-services",
        ),
        (
            v4([
                ct_has(CtKey::State, CT_STATE_NEW),
                [service_key(), lookup("firewall", Hit::Match)].concat(),
                [service_key(), saddr(3), lookup("firewall-allow", Hit::Mismatch)].concat(),
                drops(),
            ]),
            "ct state new ip daddr . meta l4proto . th dport @firewall ip daddr . meta l4proto . \
             th dport . ip saddr != @firewall-allow drop",
        ),
    ];
    for (written, expected) in lines {
        assert_eq!(written, expected);
    }
}

#[test]
fn other_comparisons_print_like_nft() {
    let mark = |op, with: u32| is(MetaKey::Mark, op, &with.to_ne_bytes());
    let mark_is = |mask, op, with: u32| {
        [meta(MetaKey::Mark, 0), bitwise(mask, 0), cmp(op, &with.to_ne_bytes())].concat()
    };
    let set_mark = |mask, xor| {
        [meta(MetaKey::Mark, 0), bitwise(mask, xor), vec![Expr::SetMark { from: Reg(0) }]].concat()
    };
    let state = |op, with: u32| [ct(CtKey::State, 0), cmp(op, &with.to_ne_bytes())].concat();
    let state_bits = |bits, op| [ct(CtKey::State, 0), bitwise(bits, 0), cmp(op, &[0; 4])].concat();
    let lines = [
        (v4([daddr(0), cmp(CmpOp::Eq, &[10, 0, 0, 1])]), "ip daddr 10.0.0.1"),
        (
            v4([daddr(0), mask_bytes(&[255, 240, 0, 0], &[10, 0, 0, 0], CmpOp::Neq)]),
            "ip daddr != 10.0.0.0/12",
        ),
        (v4([saddr(0), mask_bytes(&[0; 4], &[0; 4], CmpOp::Eq)]), "ip saddr 0.0.0.0/0"),
        (v4([mark(CmpOp::Eq, 1)]), "meta mark 0x00000001"),
        (v4([mark_is(4, CmpOp::Eq, 4)]), "meta mark & 0x00000004 == 0x00000004"),
        (v4([set_mark(0, 5)]), "meta mark set 0x00000005"),
        (v4([set_mark(0xff, 0)]), "meta mark set meta mark & 0x000000ff"),
        (v4([set_mark(0xff, 3)]), "meta mark set meta mark & 0x000000ff ^ 0x00000003"),
        (v4([state(CmpOp::Neq, CT_STATE_NEW)]), "ct state != new"),
        (v4([state_bits(10, CmpOp::Neq)]), "ct state established,new"),
        (v4([state_bits(8, CmpOp::Eq)]), "ct state ! new"),
        (v4([is(MetaKey::L4Proto, CmpOp::Neq, &[UDP])]), "meta l4proto != udp"),
        (v4([is(MetaKey::L4Proto, CmpOp::Eq, &[200])]), "meta l4proto 200"),
        (v4([is(MetaKey::IifName, CmpOp::Neq, &whole("br0"))]), "iifname != \"br0\""),
        (v4([is(MetaKey::IifName, CmpOp::Neq, b"cali")]), "iifname != \"cali*\""),
        (v4([local(FibAddress::Destination, CmpOp::Neq)]), "fib daddr type != local"),
        (v4([dport(0), cmp(CmpOp::Eq, &[0, 80])]), "th dport 80"),
        (v6([network(24, 16), cmp(CmpOp::Neq, &one())]), "ip6 daddr != ::1"),
        (v6([network(8, 16), mask_bytes(&twenty(), &[0xfd], CmpOp::Eq)]), "ip6 saddr fd00::/20"),
        (v4([verdict(Verdict::Jump("a".into()))]), "jump a"),
    ];
    for (written, expected) in lines {
        assert_eq!(written, expected);
    }
}

/// `::1`.
fn one() -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[15] = 1;
    bytes
}

fn twenty() -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..3].copy_from_slice(&[255, 255, 0xf0]);
    bytes
}

#[test]
fn ipv6_rules_print_like_nft() {
    let key = [network(24, 16), meta(MetaKey::L4Proto, 4), dport(5), random(7, 6)].concat();
    let to = vec![Expr::Dnat { family: Family::Ipv6, address: Reg(0), port: Reg(4) }];
    assert_eq!(
        v6([key, lookup("sl", Hit::Load(Reg(0))), to]),
        "dnat ip6 to ip6 daddr . meta l4proto . th dport . numgen random mod 7 map @sl"
    );
    assert_eq!(
        v6([ct(CtKey::OriginalSource, 0), lookup("s", Hit::Match)]),
        "ct original ip6 saddr @s"
    );
}

#[test]
fn timeouts_are_printed_with_units() {
    for (milliseconds, expected) in
        [(10_000, "10s"), (10_800_000, "3h"), (90_000, "1m30s"), (93_784_005, "1d2h3m4s5ms")]
    {
        assert!(v4([update(milliseconds)]).contains(&format!(" timeout {expected} : ")));
    }
}

#[test]
fn expressions_without_nft_syntax_are_printed() {
    let odd = Expr::Payload { base: Base::Network, offset: 8, len: 1, to: Reg(0) };
    assert_eq!(v4([vec![odd], cmp(CmpOp::Eq, &[64])]), "@nh,64,8 0x40");
    assert_eq!(v4([cmp(CmpOp::Eq, &[1, 2])]), "reg 0 0x0102");
    assert_eq!(v4([daddr(0)]), "ip daddr");
    assert_eq!(v4([lookup("x", Hit::Match)]), "reg 0 @x");
    assert_eq!(v4([]), "");
}

#[test]
fn sets_and_maps_are_typed_by_their_fields() {
    let services = Set {
        comment: Some("where a Service address goes".into()),
        ..vmap("services", &[V4, Field::Protocol, Field::Port])
    };
    let named = Element {
        comment: Some("ns/svc:p".into()),
        ..element(service("10.0.0.1:80", TCP), goto("pick-2"))
    };
    assert_eq!(
        text::set(&services, [&named]),
        "\tmap services {
\t\ttype ipv4_addr . inet_proto . inet_service : verdict
\t\tcomment \"where a Service address goes\"
\t\telements = { 10.0.0.1 . tcp . 80 comment \"ns/svc:p\" : goto pick-2 }
\t}\n"
    );
    let endpoints =
        map("endpoints", &[V4, Field::Protocol, Field::Port, Field::Slot], &[V4, Field::Port]);
    let slot = |slot, to: &str| element(service("10.0.0.1:80", TCP).slot(slot), endpoint(to));
    let second = Element { comment: Some("hello".into()), ..slot(1, "10.2.0.2:80") };
    assert_eq!(
        text::set(&endpoints, [&slot(256, "10.2.0.3:80"), &second, &slot(0, "10.2.0.1:80")]),
        "\tmap endpoints {
\t\ttypeof ip daddr . meta l4proto . th dport . numgen random mod 2 : ip daddr . th dport
\t\telements = { 10.0.0.1 . tcp . 80 . 0 : 10.2.0.1 . 80,
\t\t\t     10.0.0.1 . tcp . 80 . 1 comment \"hello\" : 10.2.0.2 . 80,
\t\t\t     10.0.0.1 . tcp . 80 . 256 : 10.2.0.3 . 80 }
\t}\n"
    );
    let affinity = Set {
        kind: SetKind::Dynamic,
        ..map("affinity", &[V4, V4, Field::Protocol, Field::Port], &[V4, Field::Port])
    };
    assert_eq!(
        text::set(&affinity, []),
        "\tmap affinity {
\t\ttype ipv4_addr . ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service
\t\tsize 65536
\t\tflags dynamic,timeout
\t}\n"
    );
}

#[test]
fn ipv4_elements_are_printed_two_per_line() {
    let addresses = ["10.0.0.9", "10.0.0.1", "9.9.9.9"];
    let elements = addresses.map(|one| element(Bytes::EMPTY.address(ip(one)), Data::None));
    assert_eq!(
        text::set(&set("cluster-ips", &[V4]), &elements),
        "\tset cluster-ips {
\t\ttype ipv4_addr
\t\telements = { 9.9.9.9, 10.0.0.1,
\t\t\t     10.0.0.9 }
\t}\n"
    );
    let elements = ["fd00::1", "::1"].map(|one| element(Bytes::EMPTY.address(ip(one)), Data::None));
    let text = text::set(&set("six", &[V6]), &elements);
    assert!(text.contains("elements = { ::1,\n\t\t\t     fd00::1 }"), "{text}");
}

#[test]
fn ranges_are_printed_as_prefixes_if_possible() {
    let key = Bytes::EMPTY.address(ip("10.0.0.1"));
    let ranges = Set { kind: SetKind::Interval, ..set("ranges", &[V4, Field::Port, V4]) };
    let between = |ports: (u16, u16), first: &str, last: &str| {
        let end = key.port(ports.1).address(ip(last));
        let first = element(key.port(ports.0).address(ip(first)), Data::None);
        text::element(&ranges, &Element { end: Some(Box::new(end)), ..first })
    };
    let all = (80, 80);
    assert_eq!(between(all, "10.1.0.0", "10.1.255.255"), "10.0.0.1 . 80 . 10.1.0.0/16");
    assert_eq!(between(all, "10.1.0.1", "10.1.0.1"), "10.0.0.1 . 80 . 10.1.0.1");
    assert_eq!(between(all, "10.2.0.3", "10.2.0.5"), "10.0.0.1 . 80 . 10.2.0.3-10.2.0.5");
    assert_eq!(between(all, "10.2.0.1", "10.2.0.2"), "10.0.0.1 . 80 . 10.2.0.1-10.2.0.2");
    assert_eq!(between(all, "0.0.0.0", "255.255.255.255"), "10.0.0.1 . 80 . 0.0.0.0/0");
    assert_eq!(between((90, 100), "1.1.1.1", "1.1.1.1"), "10.0.0.1 . 90-100 . 1.1.1.1");
}

#[test]
fn priorities_are_printed_with_the_names_of_nft() {
    let at = |point, priority| super::hook(Hook { kind: ChainKind::Filter, point, priority });
    let lines = [
        (HookPoint::Prerouting, -100, "prerouting priority dstnat"),
        (HookPoint::Prerouting, -110, "prerouting priority dstnat - 10"),
        (HookPoint::Prerouting, -111, "prerouting priority -111"),
        (HookPoint::Prerouting, -145, "prerouting priority mangle + 5"),
        (HookPoint::Prerouting, -300, "prerouting priority raw"),
        (HookPoint::Output, -100, "output priority -100"),
        (HookPoint::Postrouting, 90, "postrouting priority srcnat - 10"),
        (HookPoint::Input, 100, "input priority 100"),
        (HookPoint::Input, 45, "input priority security - 5"),
        (HookPoint::Input, 11, "input priority 11"),
        (HookPoint::Forward, 0, "forward priority filter"),
    ];
    for (point, priority, expected) in lines {
        assert_eq!(at(point, priority), format!("type filter hook {expected}"));
    }
}

#[test]
fn tables_are_printed_with_sets_and_chains_sorted_by_name() {
    let mut fake = Fake::new();
    let post = base(
        "post",
        ChainKind::Nat,
        HookPoint::Postrouting,
        100,
        vec![
            Rule { comment: Some("first".into()), ..rule([mark_or(1)]) },
            rule([vec![Expr::Masquerade]]),
        ],
    );
    let empty =
        Chain { name: "a".into(), hook: None, rules: vec![], comment: Some("nothing".into()) };
    let ops = vec![
        Op::AddTable { comment: "x".into() },
        post,
        Op::AddChain(empty),
        Op::AddSet(set("hosts", &[V4])),
        add("hosts", vec![element(Bytes::EMPTY.address(ip("10.0.0.1")), Data::None)]),
    ];
    fake.apply(&batch(&table("nearhop"), ops)).unwrap();
    let expected = "table ip nearhop {
\tcomment \"x\"
\tset hosts {
\t\ttype ipv4_addr
\t\telements = { 10.0.0.1 }
\t}

\tchain a {
\t\tcomment \"nothing\"
\t}

\tchain post {
\t\ttype nat hook postrouting priority srcnat; policy accept;
\t\tmeta mark set meta mark | 0x00000001 comment \"first\"
\t\tmasquerade fully-random
\t}
}\n";
    assert_eq!(fake.to_string(), expected);
    assert_eq!(text::table(&fake, &table("other")), None);
}
