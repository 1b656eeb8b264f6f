//! Tests that send packets through small rulesets.

mod exprs;
mod hooks;
mod layout;
mod real;

use nearhop_core::{Family, Protocol};

use super::hooks::Manip;
use super::*;
use crate::testing::*;
use nearhop_netfilter::object::{
    Bytes, CT_STATE_NEW, CT_STATUS_DNAT, ChainKind, CmpOp, CtKey, Data, Element, Expr, FIB_LOCAL,
    FibAddress, Field, Hit, HookPoint, MetaKey, Op, Rule, Set, SetKind, Table, Verdict,
};

const MARK: u32 = 0x4000;
const NODE: &str = "192.168.0.1";

fn packet(source: &str, destination: &str) -> Packet {
    Packet {
        source: addr(source),
        destination: addr(destination),
        protocol: Protocol::Tcp,
        iif: "eth0".into(),
        mark: 0,
    }
}

fn here() -> Host {
    Host { node_addresses: vec![ip(NODE), ip("fd00::1")] }
}

fn to(destination: &str) -> Outcome {
    let (masqueraded, translated) = (false, true);
    Outcome::Delivered { destination: addr(destination), masqueraded, translated }
}

fn masqueraded(destination: &str) -> Outcome {
    Outcome::Delivered { destination: addr(destination), masqueraded: true, translated: true }
}

fn untouched(destination: &str) -> Outcome {
    let (masqueraded, translated) = (false, false);
    Outcome::Delivered { destination: addr(destination), masqueraded, translated }
}

fn load(ops: Vec<Op>) -> Fake {
    let mut fake = Fake::new();
    fake.apply(&batch(&table("t"), [vec![add_table()], ops].concat())).unwrap();
    fake
}

fn go_through(fake: &Fake, packet: &Packet) -> Result<Walk, WalkError> {
    walk(fake, packet, &here(), &mut |_| 0)
}

fn outcome(fake: &Fake, packet: &Packet) -> Outcome {
    go_through(fake, packet).unwrap().outcome
}

fn filter(point: HookPoint, priority: i32, rules: Vec<Rule>) -> Op {
    base(&format!("{point:?}-{priority}"), ChainKind::Filter, point, priority, rules)
}

fn nat(point: HookPoint, rules: Vec<Rule>) -> Op {
    let priority = if Manip::of(point) == Manip::Destination { -100 } else { 100 };
    base(&format!("{point:?}-nat"), ChainKind::Nat, point, priority, rules)
}

fn drop_it() -> Vec<Expr> {
    verdict(Verdict::Drop)
}

/// The rule that picks one of a Service's slots, as in `pick-N`.
fn pick(slots: u32) -> Rule {
    rule([service_key(), random(slots, 3), lookup("endpoints", Hit::Load(Reg(0))), dnat()])
}

fn slot(service_address: &str, slot: u32, to: &str) -> Element {
    element(service(service_address, TCP).slot(slot), endpoint(to))
}

/// One Service, 10.0.0.1:80, with three slots of two endpoints, dispatched from both hooks.
fn one_service() -> Vec<Op> {
    let dispatch = || rule([service_key(), lookup("services", Hit::Verdict)]);
    let key = [V4, Field::Protocol, Field::Port];
    vec![
        Op::AddSet(vmap("services", &key)),
        Op::AddSet(map("endpoints", &[&key[..], &[Field::Slot]].concat(), &[V4, Field::Port])),
        Op::AddSet(set("hairpin", &[V4, V4])),
        chain("pick-3", vec![pick(3)]),
        add("services", vec![element(service("10.0.0.1:80", TCP), goto("pick-3"))]),
        add(
            "endpoints",
            vec![
                slot("10.0.0.1:80", 0, "10.2.0.1:8080"),
                slot("10.0.0.1:80", 1, "10.2.0.2:8080"),
                slot("10.0.0.1:80", 2, "10.2.0.1:8080"),
            ],
        ),
        nat(HookPoint::Prerouting, vec![dispatch()]),
        nat(HookPoint::Output, vec![dispatch()]),
    ]
}

fn with(more: Vec<Op>) -> Fake {
    load([one_service(), more].concat())
}

fn masquerade_by_mark() -> Rule {
    rule([mark_has(MARK), vec![Expr::Masquerade]])
}
