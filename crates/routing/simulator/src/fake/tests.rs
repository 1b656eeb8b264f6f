//! Tests of the fake. The expectations are the known answers of the kernel.

use super::*;
use crate::testing::*;
use nearhop_netfilter::object::{ChainKind, Expr, Hit, HookPoint, Op, Reg, SetData, Verdict};

fn key(address: &str) -> Bytes {
    Bytes::EMPTY.address(ip(address))
}

fn port(port: u16) -> Data {
    Data::Value(Bytes::EMPTY.port(port))
}

fn at(op: usize, code: Code, result: Result<(), FakeError>) {
    let error = result.expect_err("refused");
    assert_eq!((error.op, error.code), (Some(op), code), "{error}");
}

fn pre(rules: Vec<nearhop_netfilter::object::Rule>) -> Op {
    base("pre", ChainKind::Nat, HookPoint::Prerouting, -100, rules)
}

/// `ports` maps an address to a port, `ways` to a verdict, `ranges` holds address and ports.
fn sample() -> (Fake, Table) {
    let table = table("t");
    let ranges = Set {
        kind: SetKind::Interval,
        ..set("ranges", &[V4, nearhop_netfilter::object::Field::Port])
    };
    let mut fake = Fake::new();
    let ops = vec![
        add_table(),
        Op::AddSet(map("ports", &[V4], &[nearhop_netfilter::object::Field::Port])),
        Op::AddSet(vmap("ways", &[V4])),
        Op::AddSet(ranges),
        chain("a", vec![]),
        chain("b", vec![]),
        pre(vec![]),
    ];
    fake.apply(&batch(&table, ops)).unwrap();
    (fake, table)
}

fn range(low: u16, high: u16) -> Element {
    let at = |port| key("10.0.0.1").port(port);
    Element { end: Some(Box::new(at(high))), ..element(at(low), Data::None) }
}

/// Applies the operations in one batch and asserts that the last one is refused with this code.
fn refused(code: Code, ops: Vec<Op>) {
    let (mut fake, table) = sample();
    let before = format!("{fake:?}");
    let last = ops.len() - 1;
    at(last, code, fake.apply(&batch(&table, ops)));
    assert_eq!(format!("{fake:?}"), before, "a refused batch changes nothing");
}

fn accepted(ops: Vec<Op>) -> Fake {
    let (mut fake, table) = sample();
    fake.apply(&batch(&table, ops)).unwrap();
    fake
}

fn ways_rule() -> nearhop_netfilter::object::Rule {
    rule([daddr(0), lookup("ways", Hit::Verdict)])
}

#[test]
fn an_element_can_be_added_again_only_with_equal_data() {
    let one = || add("ports", vec![element(key("1.1.1.1"), port(80))]);
    let other = || add("ports", vec![element(key("1.1.1.1"), port(81))]);
    let gone = || delete("ports", vec![element(key("1.1.1.1"), Data::None)]);
    accepted(vec![one(), one()]);
    refused(Code::Exists, vec![one(), other()]);
    let fake = accepted(vec![one(), gone(), other()]);
    let elements = fake.elements(&table("t"), "ports").unwrap();
    assert_eq!(elements[&key("1.1.1.1")].data, port(81));
    refused(Code::NotFound, vec![one(), gone(), gone()]);
}

#[test]
fn adding_an_element_again_keeps_the_first_comment() {
    let with =
        |text: &str| Element { comment: Some(text.into()), ..element(key("1.1.1.1"), port(80)) };
    let fake = accepted(vec![add("ports", vec![with("old"), with("new")])]);
    let kept = &fake.elements(&table("t"), "ports").unwrap()[&key("1.1.1.1")];
    assert_eq!(kept.comment.as_deref(), Some("old"));
}

#[test]
fn missing_objects_are_refused() {
    refused(Code::NotFound, vec![add("none", vec![])]);
    refused(Code::NotFound, vec![delete("none", vec![])]);
    refused(Code::NotFound, vec![Op::DeleteSet("none".into())]);
    refused(Code::NotFound, vec![Op::DeleteChain("none".into())]);
    refused(Code::NotFound, vec![Op::FlushChain("none".into())]);
    refused(Code::NotFound, vec![chain("c", vec![rule([daddr(0), lookup("none", Hit::Match)])])]);
    refused(Code::NotFound, vec![chain("c", vec![rule([go("none")])])]);
    refused(Code::NotFound, vec![add("ways", vec![element(key("1.1.1.1"), goto("none"))])]);
    let mut fake = Fake::new();
    at(0, Code::NotFound, fake.apply(&batch(&table("none"), vec![Op::DeleteTable])));
    at(0, Code::NotFound, fake.apply(&batch(&table("none"), vec![chain("c", vec![])])));
}

#[test]
fn an_element_must_match_the_type_of_its_set() {
    let long = key("1.1.1.1").port(80);
    refused(Code::Invalid, vec![add("ports", vec![element(long, port(80))])]);
    refused(Code::Invalid, vec![delete("ports", vec![element(long, Data::None)])]);
    refused(Code::Invalid, vec![add("ports", vec![element(key("1.1.1.1"), Data::Value(long))])]);
    refused(Code::Invalid, vec![add("ports", vec![element(key("1.1.1.1"), Data::None)])]);
    refused(Code::Invalid, vec![add("ports", vec![element(key("1.1.1.1"), goto("a"))])]);
    refused(Code::Invalid, vec![add("ways", vec![element(key("1.1.1.1"), port(80))])]);
    refused(Code::Invalid, vec![add("ranges", vec![element(long, Data::None)])]);
    refused(Code::Invalid, vec![add("ranges", vec![range(90, 80)])]);
    let exact =
        Element { end: Some(Box::new(key("1.1.1.2"))), ..element(key("1.1.1.1"), port(80)) };
    refused(Code::Invalid, vec![add("ports", vec![exact])]);
}

#[test]
fn overlapping_ranges_are_refused() {
    let first = || add("ranges", vec![range(80, 90)]);
    accepted(vec![first(), first(), add("ranges", vec![range(91, 95)])]);
    refused(Code::Exists, vec![first(), add("ranges", vec![range(85, 95)])]);
    refused(Code::Exists, vec![first(), add("ranges", vec![range(70, 80)])]);
    refused(Code::Exists, vec![first(), add("ranges", vec![range(85, 86)])]);
    refused(Code::NotFound, vec![first(), delete("ranges", vec![range(80, 89)])]);
    accepted(vec![first(), delete("ranges", vec![range(80, 90)])]);
}

#[test]
fn a_chain_in_use_cannot_be_deleted() {
    let way = || element(key("1.1.1.1"), goto("a"));
    let end = || Op::DeleteChain("a".into());
    accepted(vec![end()]);
    refused(Code::Busy, vec![add("ways", vec![way()]), end()]);
    accepted(vec![add("ways", vec![way()]), delete("ways", vec![way()]), end()]);
    accepted(vec![add("ways", vec![way()]), Op::DeleteSet("ways".into()), end()]);
    refused(Code::Busy, vec![chain("b", vec![rule([go("a")])]), end()]);
    refused(Code::Busy, vec![chain("a", vec![ways_rule()]), end()]);
    accepted(vec![chain("a", vec![ways_rule()]), Op::FlushChain("a".into()), end()]);
}

#[test]
fn a_set_in_use_cannot_be_deleted() {
    let end = || Op::DeleteSet("ways".into());
    refused(Code::Busy, vec![chain("a", vec![ways_rule()]), end()]);
    let fake = accepted(vec![chain("a", vec![ways_rule()]), Op::FlushChain("a".into()), end()]);
    assert!(fake.elements(&table("t"), "ways").is_none());
}

#[test]
fn a_set_can_be_added_again_only_with_an_equal_definition() {
    let again = map("ports", &[V4], &[nearhop_netfilter::object::Field::Port]);
    accepted(vec![Op::AddSet(Set { comment: Some("new".into()), ..again.clone() })]);
    refused(Code::Exists, vec![Op::AddSet(Set { key: vec![V6], ..again.clone() })]);
    refused(Code::Exists, vec![Op::AddSet(Set { kind: SetKind::Dynamic, ..again.clone() })]);
    refused(Code::Exists, vec![Op::AddSet(Set { data: SetData::Verdict, ..again })]);
    refused(Code::Invalid, vec![Op::AddSet(set("empty", &[]))]);
}

#[test]
fn adding_an_existing_chain_appends_rules_and_cannot_change_its_hook() {
    let elsewhere = base("pre", ChainKind::Nat, HookPoint::Prerouting, -90, vec![]);
    refused(Code::HookDiffers, vec![elsewhere]);
    let hooked = base("a", ChainKind::Nat, HookPoint::Prerouting, -100, vec![]);
    refused(Code::Exists, vec![hooked]);
    let fake = accepted(vec![pre(vec![rule([go("a")])]), chain("pre", vec![rule([go("b")])])]);
    let found = fake.chains(&table("t")).find(|chain| chain.name == "pre").unwrap().clone();
    assert_eq!(found.rules, [rule([go("a")]), rule([go("b")])]);
    assert!(found.hook.is_some());
}

#[test]
fn nat_chains_are_limited_to_supported_hooks_and_priorities() {
    let nat = |point, priority| base("n", ChainKind::Nat, point, priority, vec![]);
    refused(Code::NotSupported, vec![nat(HookPoint::Forward, 0)]);
    refused(Code::NotSupported, vec![nat(HookPoint::Prerouting, -200)]);
    accepted(vec![nat(HookPoint::Prerouting, -199)]);
}

#[test]
fn loops_are_refused_if_a_base_chain_reaches_them() {
    let circle = || vec![chain("a", vec![rule([go("b")])]), chain("b", vec![rule([go("a")])])];
    accepted(circle());
    refused(Code::Loop, [circle(), vec![pre(vec![rule([go("a")])])]].concat());
    let through_map = vec![
        chain("a", vec![ways_rule()]),
        pre(vec![rule([go("a")])]),
        add("ways", vec![element(key("1.1.1.1"), goto("a"))]),
    ];
    refused(Code::Loop, through_map.clone());
    let removed = vec![delete("ways", vec![element(key("1.1.1.1"), Data::None)])];
    accepted([through_map, removed].concat());
    refused(Code::NotSupported, vec![add("ways", vec![element(key("1.1.1.1"), goto("pre"))])]);
}

#[test]
fn jumps_deeper_than_fifteen_are_refused() {
    let steps = |count: usize| -> Vec<Op> {
        let names: Vec<_> = (0..=count).map(|at| format!("c{at:02}")).collect();
        let mut ops: Vec<Op> = names.iter().map(|name| chain(name, vec![])).collect();
        ops.extend(names.windows(2).map(|pair| chain(&pair[0], vec![rule([go(&pair[1])])])));
        ops.push(pre(vec![rule([go("c00")])]));
        ops
    };
    accepted(steps(14));
    refused(Code::Loop, steps(15));
}

#[test]
fn expressions_must_be_allowed_in_their_hook() {
    let after = |kind, rules| base("post", kind, HookPoint::Postrouting, 100, rules);
    let masquerade = || rule([vec![Expr::Masquerade]]);
    let reject = || rule([vec![Expr::Reject(nearhop_core::Family::Ipv4)]]);
    let translate = || rule([daddr(0), dport(1), dnat()]);
    accepted(vec![after(ChainKind::Nat, vec![masquerade()])]);
    refused(Code::NotSupported, vec![after(ChainKind::Filter, vec![masquerade()])]);
    refused(Code::NotSupported, vec![pre(vec![masquerade()])]);
    refused(Code::NotSupported, vec![after(ChainKind::Nat, vec![translate()])]);
    accepted(vec![pre(vec![translate(), reject()])]);
    refused(Code::NotSupported, vec![after(ChainKind::Filter, vec![reject()])]);
    let there = chain("a", vec![masquerade()]);
    refused(Code::NotSupported, vec![there, pre(vec![rule([go("a")])])]);
}

#[test]
fn expressions_must_match_their_sets_and_registers() {
    let one = |exprs| vec![chain("a", vec![rule([exprs])])];
    refused(Code::Invalid, one(lookup("ports", Hit::Match)));
    refused(Code::Invalid, one(lookup("ports", Hit::Verdict)));
    refused(Code::Invalid, one(lookup("ways", Hit::Load(Reg(0)))));
    refused(Code::Range, one(lookup("ports", Hit::Load(Reg(16)))));
    refused(Code::Range, one(saddr(16)));
    refused(Code::Range, one(random(0, 0)));
    let update =
        |set: &str| Expr::Update { set: set.into(), key: Reg(0), data: Reg(1), timeout_ms: 1000 };
    refused(Code::NotSupported, one(vec![update("ports")]));
    let unequal = Expr::Bitwise { from: Reg(0), to: Reg(0), mask: vec![1], xor: vec![] };
    refused(Code::Invalid, one(vec![unequal]));
    let other = Expr::Dnat { family: nearhop_core::Family::Ipv6, address: Reg(0), port: Reg(4) };
    refused(Code::NotSupported, one(vec![other]));
}

#[test]
fn a_failed_replacement_restores_the_table() {
    let (mut fake, table) = sample();
    let add_one = add("ports", vec![element(key("1.1.1.1"), port(80))]);
    let replace = vec![add_one.clone(), Op::DeleteTable, add_table()];
    let before = format!("{fake:?}");
    at(3, Code::NotFound, fake.apply(&batch(&table, [replace.clone(), vec![add_one]].concat())));
    assert_eq!(format!("{fake:?}"), before);
    fake.apply(&batch(&table, replace)).unwrap();
    assert_eq!(fake.sets(&table).count(), 0);
}

#[test]
fn the_generation_counts_batches_with_changes() {
    let (mut fake, table) = sample();
    assert_eq!(fake.generation(), 1);
    fake.apply(&batch(&table, vec![add_table()])).unwrap();
    assert_eq!(fake.generation(), 1);
    fake.apply(&batch(&table, vec![chain("c", vec![])])).unwrap();
    assert_eq!(fake.generation(), 2);
    fake.apply(&batch(&table, vec![chain("d", vec![]), Op::DeleteTable, Op::DeleteTable]))
        .unwrap_err();
    assert_eq!(fake.generation(), 2);
}

#[test]
fn requested_faults_are_returned() {
    let (mut fake, table) = sample();
    let adding = batch(
        &table,
        vec![chain("d", vec![]), add("ports", vec![element(key("1.1.1.1"), port(80))])],
    );
    fake.refuse_elements("ports", key("1.1.1.1"));
    at(1, Code::NoMemory, fake.apply(&adding));
    at(1, Code::NoMemory, fake.apply(&adding));
    assert!(fake.chains(&table).all(|chain| chain.name != "d"));
    fake.accept_elements("ports", key("1.1.1.1"));
    fake.apply(&adding).unwrap();
}

#[test]
fn records_stay_until_they_expire() {
    let (mut fake, table) = sample();
    let sticky = Set { kind: SetKind::Dynamic, ..map("sticky", &[V4], &[V4]) };
    fake.apply(&batch(&table, vec![Op::AddSet(sticky)])).unwrap();
    let record = |set: &str, to: &str| Record {
        table: table.clone(),
        set: set.into(),
        key: key("1.1.1.1"),
        data: key(to),
        timeout_ms: 1000,
    };
    assert!(fake.record(&record("sticky", "10.0.0.1")));
    assert!(fake.record(&record("sticky", "10.0.0.2")));
    assert!(!fake.record(&record("ports", "10.0.0.2")), "the set is not dynamic");
    let kept = &fake.elements(&table, "sticky").unwrap()[&key("1.1.1.1")];
    assert_eq!(kept.data, Data::Value(key("10.0.0.1")), "update does not replace data");
    assert!(fake.expire(&table, "sticky", &key("1.1.1.1")));
    assert!(!fake.expire(&table, "sticky", &key("1.1.1.1")));
}

#[test]
fn errors_name_operation_expression_and_cause() {
    let (mut fake, table) = sample();
    let bad = rule([daddr(0), lookup("none", Hit::Match)]);
    let error = fake.apply(&batch(&table, vec![chain("c", vec![bad])])).unwrap_err();
    assert_eq!(
        error.to_string(),
        "operation 0: chain c, rule 0: expression 1: set none does not exist: ENOENT"
    );
    let drop = Verdict::Drop;
    let kept = accepted(vec![add("ways", vec![element(key("1.1.1.1"), Data::Verdict(drop))])]);
    assert_eq!(kept.elements(&table, "ways").unwrap().len(), 1);
}
