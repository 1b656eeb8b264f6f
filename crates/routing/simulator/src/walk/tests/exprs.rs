//! Tests of single expressions, or of a few.

use super::*;

/// Whether a packet matches all these expressions in a rule, in prerouting.
fn matches(exprs: Vec<Expr>, packet: &Packet) -> bool {
    let fake = load(vec![filter(HookPoint::Prerouting, 0, vec![rule([exprs, drop_it()])])]);
    outcome(&fake, packet) == Outcome::Dropped
}

#[test]
fn every_outcome_multiplies_consecutive_probabilities() {
    let one_in = |modulus| [random(modulus, 0), cmp(CmpOp::Eq, &0u32.to_ne_bytes())].concat();
    let rules = vec![
        rule([one_in(2), one_in(5), drop_it()]),
        rule([one_in(4), vec![Expr::Reject(Family::Ipv4)]]),
    ];
    let fake = load(vec![filter(HookPoint::Prerouting, 0, rules)]);
    let shares = every_outcome(&fake, &packet("10.2.0.9:1", "10.2.0.1:2"), &here()).unwrap();
    assert_eq!(shares[&Outcome::Dropped], 0.1);
    assert!((shares[&Outcome::Rejected] - 0.9 / 4.0).abs() < 1e-12);
    assert!((shares.values().sum::<f64>() - 1.0).abs() < 1e-12);
}

#[test]
fn every_outcome_computes_small_probabilities_exactly() {
    let rules = vec![
        rule([vec![Expr::Chance { part: 250_000_001, whole: 1_000_000_000 }], drop_it()]),
        rule([vec![Expr::Chance { part: 0, whole: 10 }], drop_it()]),
        rule([vec![Expr::Chance { part: 10, whole: 10 }], vec![Expr::Reject(Family::Ipv4)]]),
    ];
    let fake = load(vec![filter(HookPoint::Prerouting, 0, rules)]);
    let shares = every_outcome(&fake, &packet("10.2.0.9:1", "10.2.0.1:2"), &here()).unwrap();
    assert_eq!(shares.len(), 2);
    assert!((shares[&Outcome::Dropped] - 0.250_000_001).abs() < 1e-12);
    assert!((shares[&Outcome::Rejected] - 0.749_999_999).abs() < 1e-12);
}

#[test]
fn chance_compares_with_less_than_and_random_adds_its_offset() {
    let chance = rule([vec![Expr::Chance { part: 3, whole: 10 }], drop_it()]);
    let fake = load(vec![filter(HookPoint::Prerouting, 0, vec![chance])]);
    let to = packet("10.2.0.9:1", "10.2.0.1:2");
    let ends = |random| walk(&fake, &to, &here(), &mut |_| random).unwrap().outcome;
    assert_eq!(ends(2), Outcome::Dropped);
    assert_ne!(ends(3), Outcome::Dropped);
    let random = Expr::Random { modulus: 5, offset: 70, to: Reg(0) };
    let seventy_two = cmp(CmpOp::Eq, &72u32.to_ne_bytes());
    let rules = vec![rule([vec![random], seventy_two, drop_it()])];
    let fake = load(vec![filter(HookPoint::Prerouting, 0, rules)]);
    let shares = every_outcome(&fake, &to, &here()).unwrap();
    assert_eq!(shares[&Outcome::Dropped], 0.2);
}

#[test]
fn ranges_are_compared_field_by_field() {
    // As one number, (1, 250) is between (1, 100) and (2, 200), but not field by field.
    let ranges = Set { kind: SetKind::Interval, ..set("ranges", &[V4, Field::Port]) };
    let key = |address: &str, port| Bytes::EMPTY.address(ip(address)).port(port);
    let element = Element {
        end: Some(Box::new(key("10.0.0.2", 200))),
        ..element(key("10.0.0.1", 100), Data::None)
    };
    let hit = rule([daddr(0), dport(1), lookup("ranges", Hit::Match), drop_it()]);
    let fake = load(vec![
        Op::AddSet(ranges),
        add("ranges", vec![element]),
        filter(HookPoint::Forward, 0, vec![hit]),
    ]);
    let hits =
        |destination: &str| outcome(&fake, &packet("10.2.0.9:1", destination)) == Outcome::Dropped;
    assert!(hits("10.0.0.1:100") && hits("10.0.0.2:200") && hits("10.0.0.1:150"));
    assert!(!hits("10.0.0.1:250") && !hits("10.0.0.2:99") && !hits("10.0.0.3:150"));
}

#[test]
fn a_jump_returns_and_a_goto_does_not() {
    let jump = |chain: &str| verdict(Verdict::Jump(chain.into()));
    let ops = |way: Vec<Expr>| {
        let after = rule([drop_it()]);
        vec![
            chain("inner", vec![rule([mark_or(1)])]),
            chain("middle", vec![rule([way]), rule([mark_or(2)])]),
            filter(HookPoint::Prerouting, 0, vec![rule([jump("middle")]), after]),
        ]
    };
    let packet = packet("10.2.0.9:1", "10.2.0.1:2");
    let jumped = go_through(&load(ops(jump("inner"))), &packet).unwrap();
    assert_eq!((jumped.mark, jumped.outcome), (3, Outcome::Dropped));
    // A goto does not return to `middle`, but the jump to `middle` returns.
    let gone = go_through(&load(ops(go("inner"))), &packet).unwrap();
    assert_eq!((gone.mark, gone.outcome), (1, Outcome::Dropped));
    let last = vec![
        chain("inner", vec![]),
        filter(HookPoint::Prerouting, 0, vec![rule([go("inner")]), rule([drop_it()])]),
    ];
    assert_eq!(outcome(&load(last), &packet), untouched("10.2.0.1:2"));
}

#[test]
fn fib_finds_local_addresses() {
    let local = |address, op| [fib(address, 0), cmp(op, &FIB_LOCAL.to_ne_bytes())].concat();
    let to_node = packet("10.2.0.9:1", "192.168.0.1:2");
    let to_pod = packet("10.2.0.9:1", "10.2.0.1:2");
    let to_loopback = packet("10.2.0.9:1", "127.0.0.5:2");
    assert!(matches(local(FibAddress::Destination, CmpOp::Eq), &to_node));
    assert!(matches(local(FibAddress::Destination, CmpOp::Eq), &to_loopback));
    assert!(!matches(local(FibAddress::Destination, CmpOp::Eq), &to_pod));
    assert!(matches(local(FibAddress::Destination, CmpOp::Neq), &to_pod));
    assert!(!matches(local(FibAddress::Source, CmpOp::Eq), &to_node));
}

#[test]
fn interfaces_are_compared_by_name_or_prefix() {
    let on = |iif: &str| Packet { iif: iif.into(), ..packet("10.2.0.9:1", "10.2.0.1:2") };
    let name = |with: &[u8]| [meta(MetaKey::IifName, 0), cmp(CmpOp::Eq, with)].concat();
    let whole = b"br0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    assert!(matches(name(whole), &on("br0")));
    assert!(!matches(name(whole), &on("br01")));
    assert!(matches(name(b"cali"), &on("cali123")));
    assert!(!matches(name(b"cali"), &on("cal")));
}

#[test]
fn payload_reads_header_fields_by_offset() {
    let packet = packet("10.2.0.9:4000", "10.2.0.1:80");
    let bytes = |base, offset, len, with: &[u8]| {
        vec![
            Expr::Payload { base, offset, len, to: Reg(0) },
            Expr::Cmp { from: Reg(0), op: CmpOp::Eq, with: with.to_vec() },
        ]
    };
    assert!(matches(bytes(Base::Network, 9, 1, &[TCP]), &packet));
    assert!(matches(bytes(Base::Network, 12, 4, &[10, 2, 0, 9]), &packet));
    assert!(matches(bytes(Base::Network, 16, 2, &[10, 2, 0, 0]), &packet), "padded with zeros");
    assert!(matches(bytes(Base::Transport, 0, 2, &4000u16.to_be_bytes()), &packet));
    assert!(matches(bytes(Base::Transport, 2, 2, &[0, 80]), &packet));
    assert!(!matches(bytes(Base::Transport, 2, 2, &[0, 81]), &packet));
    let protocol = [meta(MetaKey::L4Proto, 0), cmp(CmpOp::Eq, &[132])].concat();
    assert!(!matches(protocol.clone(), &packet));
    assert!(matches(protocol, &Packet { protocol: Protocol::Sctp, ..packet }));
}

#[test]
fn bitwise_applies_the_mask_before_xor() {
    let mark = |mark| Packet { mark, ..packet("10.2.0.9:1", "10.2.0.1:2") };
    let gives = |result: u32| {
        let with = result.to_ne_bytes();
        [meta(MetaKey::Mark, 0), bitwise(0xff00, 0x0f0f), cmp(CmpOp::Eq, &with)].concat()
    };
    assert!(matches(gives(0x1d0f), &mark(0x1234)));
    assert!(!matches(gives(0x1d3b), &mark(0x1234)));
}

#[test]
fn ipv6_packets_are_translated() {
    let six = Table { family: Family::Ipv6, name: "t".into() };
    let daddr6 = Expr::Payload { base: Base::Network, offset: 24, len: 16, to: Reg(0) };
    let key = || [vec![daddr6.clone()], meta(MetaKey::L4Proto, 4), dport(5), random(2, 6)].concat();
    let translate = Expr::Dnat { family: Family::Ipv6, address: Reg(0), port: Reg(4) };
    let saddr6 = Expr::Payload { base: Base::Network, offset: 8, len: 16, to: Reg(0) };
    let own = [vec![saddr6], cmp(CmpOp::Eq, &[0xfd, 2])].concat();
    let fields = [V6, Field::Protocol, Field::Port, Field::Slot];
    let service = service("[fd01::1]:80", TCP);
    let rules = vec![
        rule([own, key(), lookup("endpoints", Hit::Load(Reg(0))), vec![translate]]),
        rule([vec![Expr::Reject(Family::Ipv6)]]),
    ];
    let ops = vec![
        add_table(),
        Op::AddSet(map("endpoints", &fields, &[V6, Field::Port])),
        add("endpoints", vec![element(service.slot(1), endpoint("[fd02::7]:8080"))]),
        nat(HookPoint::Prerouting, rules),
    ];
    let mut fake = Fake::new();
    fake.apply(&batch(&six, ops)).unwrap();
    let shares = every_outcome(&fake, &packet("[fd02::1]:4", "[fd01::1]:80"), &here()).unwrap();
    let expected = [(to("[fd02::7]:8080"), 0.5), (Outcome::Rejected, 0.5)];
    assert_eq!(shares, BTreeMap::from(expected));
    let outside = packet("[fd03::1]:4", "[fd01::1]:80");
    assert_eq!(outcome(&fake, &outside), Outcome::Rejected);
    assert_eq!(outcome(&fake, &packet("10.0.0.1:1", "10.0.0.1:80")), untouched("10.0.0.1:80"));
}

#[test]
fn errors_name_the_rule() {
    let fails = |exprs: Vec<Expr>| {
        let rules = vec![rule([]), rule([exprs])];
        let fake = load(vec![filter(HookPoint::Prerouting, 0, rules)]);
        go_through(&fake, &packet("10.2.0.9:1", "10.2.0.1:2")).unwrap_err().to_string()
    };
    let place = "table ip t, chain Prerouting-0, rule 1: ";
    assert_eq!(
        fails([daddr(0), vec![Expr::SetMark { from: Reg(1) }]].concat()),
        format!("{place}Reg(1) is read, but nothing in this rule writes it")
    );
    let time_to_live = Expr::Payload { base: Base::Network, offset: 8, len: 1, to: Reg(0) };
    assert_eq!(
        fails(vec![time_to_live]),
        format!("{place}Network header, 1 bytes from 8: the virtual packet has no such bytes")
    );
    assert!(fails(vec![Expr::SetMark { from: Reg(16) }]).ends_with("do not fit from Reg(16) on"));
}

#[test]
fn registers_are_reset_for_each_rule() {
    let rules = vec![rule([daddr(0)]), rule([cmp(CmpOp::Eq, &[10]), drop_it()])];
    let fake = load(vec![filter(HookPoint::Prerouting, 0, rules)]);
    let error = go_through(&fake, &packet("10.2.0.9:1", "10.2.0.1:2")).unwrap_err();
    assert!(matches!(
        error,
        WalkError::Rule { rule: 1, fault: Fault::Undefined { register: Reg(0) }, .. }
    ));
}

#[test]
fn a_packet_of_two_families_is_refused() {
    let error = go_through(&Fake::new(), &packet("10.2.0.9:1", "[fd01::1]:80")).unwrap_err();
    assert_eq!(error, WalkError::Families(ip("10.2.0.9"), ip("fd01::1")));
}
