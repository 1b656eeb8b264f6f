//! Tests of which chains a packet passes, and in which order.

use super::*;

#[test]
fn packets_of_local_processes_are_translated_in_output() {
    let fake = with(vec![]);
    let sent = packet("192.168.0.1:4000", "10.0.0.1:80");
    let walk = go_through(&fake, &sent).unwrap();
    assert_eq!(walk.outcome, to("10.2.0.1:8080"));
    assert_eq!(walk.trace[0], "Output: ip t Output-nat (nat -100)");
    assert!(walk.trace.iter().all(|line| !line.starts_with("Prerouting")), "{:#?}", walk.trace);
}

/// The hooks that a packet passes: a chain in each hook sets a bit of the mark.
fn visited(packet: &Packet) -> Vec<&'static str> {
    let points = [
        (HookPoint::Prerouting, "prerouting"),
        (HookPoint::Input, "input"),
        (HookPoint::Forward, "forward"),
        (HookPoint::Output, "output"),
        (HookPoint::Postrouting, "postrouting"),
    ];
    let bit = |point: HookPoint| 1 << point as u32;
    let ops = points.map(|(point, _)| filter(point, 0, vec![rule([mark_or(bit(point))])]));
    let mark = go_through(&load(ops.into()), packet).unwrap().mark;
    let met = points.into_iter().filter(|(point, _)| mark & bit(*point) != 0);
    met.map(|(_, name)| name).collect()
}

#[test]
fn the_hooks_depend_on_source_and_destination() {
    let pod = "10.2.0.9:1";
    let node = "192.168.0.1:1";
    assert_eq!(visited(&packet(pod, "10.2.0.1:2")), ["prerouting", "forward", "postrouting"]);
    assert_eq!(visited(&packet(pod, node)), ["prerouting", "input"]);
    assert_eq!(visited(&packet(node, pod)), ["output", "postrouting"]);
    let all_but_forward = ["prerouting", "input", "output", "postrouting"];
    assert_eq!(visited(&packet(node, "127.0.0.1:2")), all_but_forward);
    assert_eq!(visited(&packet("127.0.0.1:1", node)), all_but_forward);
}

#[test]
fn chains_of_a_hook_run_by_priority_across_tables() {
    let mut fake = Fake::new();
    let base = |priority| filter(HookPoint::Prerouting, priority, vec![]);
    let other = table("other");
    fake.apply(&batch(&table("t"), vec![add_table(), base(10), base(-200), base(-50)])).unwrap();
    fake.apply(&batch(&other, vec![add_table(), base(0), nat(HookPoint::Prerouting, vec![])]))
        .unwrap();
    let six = Table { family: Family::Ipv6, ..table("six") };
    fake.apply(&batch(&six, vec![add_table(), base(5)])).unwrap();
    let walk = go_through(&fake, &packet("10.2.0.9:1", "10.2.0.1:2")).unwrap();
    let order = [
        "Prerouting: ip t Prerouting--200 (filter -200)",
        "Prerouting: ip other Prerouting-nat (nat -100)",
        "Prerouting: ip t Prerouting--50 (filter -50)",
        "Prerouting: ip other Prerouting-0 (filter 0)",
        "Prerouting: ip t Prerouting-10 (filter 10)",
    ];
    assert_eq!(walk.trace[..5], order);
}

#[test]
fn nat_chains_run_at_the_fixed_priority_of_the_kernel() {
    // The nat chain has priority 50, the filter chain 0; the kernel still translates at -100.
    let late = base(
        "late",
        ChainKind::Nat,
        HookPoint::Prerouting,
        50,
        vec![rule([service_key(), lookup("services", Hit::Verdict)])],
    );
    let ops: Vec<Op> = one_service().into_iter().take(6).collect();
    let seen = rule([ct_has(CtKey::Status, CT_STATUS_DNAT), drop_it()]);
    let fake = load([ops, vec![late, filter(HookPoint::Prerouting, 0, vec![seen])]].concat());
    assert_eq!(outcome(&fake, &packet("10.2.0.9:1", "10.0.0.1:80")), Outcome::Dropped);
}

#[test]
fn later_nat_chains_are_skipped_after_a_translation() {
    let second = base(
        "second",
        ChainKind::Nat,
        HookPoint::Prerouting,
        -90,
        vec![rule([vec![Expr::Reject(Family::Ipv4)]])],
    );
    let fake = with(vec![second]);
    assert_eq!(outcome(&fake, &packet("10.2.0.9:1", "10.0.0.1:80")), to("10.2.0.1:8080"));
    assert_eq!(outcome(&fake, &packet("10.2.0.9:1", "10.0.0.1:81")), Outcome::Rejected);
}

#[test]
fn loopback_packets_are_not_translated_in_prerouting() {
    let key = service("192.168.0.1:80", TCP);
    let fake = load(
        one_service()
            .into_iter()
            .filter(|op| !matches!(op, Op::AddChain(chain) if chain.name == "Output-nat"))
            .chain([
                add("services", vec![element(key, goto("pick-3"))]),
                add("endpoints", vec![slot("192.168.0.1:80", 0, "10.2.0.7:7")]),
            ])
            .collect(),
    );
    let from_here = packet("127.0.0.1:1", "192.168.0.1:80");
    assert_eq!(outcome(&fake, &from_here), untouched("192.168.0.1:80"));
    assert_eq!(outcome(&fake, &packet("10.9.9.9:1", "192.168.0.1:80")), to("10.2.0.7:7"));
}

#[test]
fn later_chains_see_the_masqueraded_source() {
    let seen = rule([saddr(0), cmp(CmpOp::Eq, &[192, 168, 0, 1]), drop_it()]);
    let fake = load(vec![
        nat(HookPoint::Postrouting, vec![masquerade_by_mark()]),
        filter(HookPoint::Postrouting, 200, vec![seen]),
    ]);
    let marked = Packet { mark: MARK, ..packet("10.2.0.9:1", "10.9.9.9:80") };
    assert_eq!(outcome(&fake, &marked), Outcome::Dropped);
}

#[test]
fn packets_of_local_processes_have_no_input_interface_before_lo() {
    let by = |point, name: &[u8]| {
        let exprs = [meta(MetaKey::IifName, 0), cmp(CmpOp::Eq, name)];
        let fake = load(vec![filter(point, 0, vec![rule([exprs.concat(), drop_it()])])]);
        outcome(&fake, &packet("192.168.0.1:1", "192.168.0.1:2")) == Outcome::Dropped
    };
    assert!(by(HookPoint::Output, &[0; 16]));
    assert!(by(HookPoint::Input, b"lo\0"));
}
