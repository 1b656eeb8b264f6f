//! Small rulesets with the structure of the real one.

use super::*;

#[test]
fn dnat_in_prerouting_uses_the_random_number() {
    let fake = with(vec![]);
    let packet = packet("10.2.0.9:4000", "10.0.0.1:80");
    for (random, endpoint) in [(0, "10.2.0.1:8080"), (1, "10.2.0.2:8080"), (2, "10.2.0.1:8080")] {
        let walk = walk(&fake, &packet, &here(), &mut |modulus| {
            assert_eq!(modulus, 3);
            random
        });
        assert_eq!(walk.unwrap().outcome, to(endpoint));
    }
}

#[test]
fn every_outcome_returns_the_share_of_each_endpoint() {
    let packet = packet("10.2.0.9:4000", "10.0.0.1:80");
    let shares = every_outcome(&with(vec![]), &packet, &here()).unwrap();
    let expected = [(to("10.2.0.1:8080"), 2.0 / 3.0), (to("10.2.0.2:8080"), 1.0 / 3.0)];
    assert_eq!(shares, BTreeMap::from(expected));
}

#[test]
fn other_ports_and_protocols_are_not_translated() {
    let fake = with(vec![]);
    let other = packet("10.2.0.9:4000", "10.0.0.1:81");
    assert_eq!(outcome(&fake, &other), untouched("10.0.0.1:81"));
    let udp = Packet { protocol: Protocol::Udp, ..packet("10.2.0.9:4000", "10.0.0.1:80") };
    assert_eq!(outcome(&fake, &udp), untouched("10.0.0.1:80"));
    let key = service("10.0.0.1:80", UDP);
    let fake = with(vec![
        add("services", vec![element(key, goto("pick-3"))]),
        add("endpoints", vec![element(key.slot(0), endpoint("10.2.0.5:5"))]),
    ]);
    assert_eq!(outcome(&fake, &udp), to("10.2.0.5:5"));
}

#[test]
fn a_mark_set_in_prerouting_masquerades_in_postrouting() {
    let not_from_pods = [saddr(0), cmp(CmpOp::Neq, &[10, 2])].concat();
    let marking = filter(
        HookPoint::Prerouting,
        -110,
        vec![rule([not_from_pods, service_key(), lookup("hot", Hit::Match), mark_or(MARK)])],
    );
    let fake = with(vec![
        Op::AddSet(set("hot", &[V4, Field::Protocol, Field::Port])),
        add("hot", vec![element(service("10.0.0.1:80", TCP), Data::None)]),
        marking,
        nat(HookPoint::Postrouting, vec![masquerade_by_mark()]),
    ]);
    let outside = packet("172.16.0.1:1", "10.0.0.1:80");
    assert_eq!(outcome(&fake, &outside), masqueraded("10.2.0.1:8080"));
    assert_eq!(go_through(&fake, &outside).unwrap().mark, MARK);
    assert_eq!(outcome(&fake, &packet("10.2.0.9:1", "10.0.0.1:80")), to("10.2.0.1:8080"));
    let marked_before = Packet { mark: MARK, ..packet("10.2.0.9:1", "10.9.9.9:80") };
    let plain = Outcome::Delivered {
        destination: addr("10.9.9.9:80"),
        masqueraded: true,
        translated: false,
    };
    assert_eq!(outcome(&fake, &marked_before), plain);
}

#[test]
fn an_endpoint_that_connects_to_itself_is_masqueraded() {
    let hairpin = rule([
        ct_has(CtKey::Status, CT_STATUS_DNAT),
        saddr(0),
        daddr(1),
        lookup("hairpin", Hit::Match),
        vec![Expr::Masquerade],
    ]);
    let own = Bytes::EMPTY.address(ip("10.2.0.1")).address(ip("10.2.0.1"));
    let fake = with(vec![
        add("hairpin", vec![element(own, Data::None)]),
        nat(HookPoint::Postrouting, vec![hairpin]),
    ]);
    let itself = packet("10.2.0.1:1", "10.0.0.1:80");
    let shares = every_outcome(&fake, &itself, &here()).unwrap();
    let expected = [(masqueraded("10.2.0.1:8080"), 2.0 / 3.0), (to("10.2.0.2:8080"), 1.0 / 3.0)];
    assert_eq!(shares, BTreeMap::from(expected));
    let direct = packet("10.2.0.1:1", "10.2.0.1:8080");
    assert_eq!(
        outcome(&fake, &direct),
        untouched("10.2.0.1:8080"),
        "a packet that was not translated is not masqueraded"
    );
}

#[test]
fn services_without_endpoints_are_rejected_in_forward_and_output() {
    let without_endpoints = || {
        let key = [service_key(), lookup("no-endpoints", Hit::Match)].concat();
        vec![rule([key, vec![Expr::Reject(Family::Ipv4)]])]
    };
    let fake = with(vec![
        Op::AddSet(set("no-endpoints", &[V4, Field::Protocol, Field::Port])),
        add("no-endpoints", vec![element(service("10.0.0.2:80", TCP), Data::None)]),
        filter(HookPoint::Forward, 0, without_endpoints()),
        filter(HookPoint::Output, 0, without_endpoints()),
    ]);
    assert_eq!(outcome(&fake, &packet("10.2.0.9:1", "10.0.0.2:80")), Outcome::Rejected);
    assert_eq!(outcome(&fake, &packet("192.168.0.1:1", "10.0.0.2:80")), Outcome::Rejected);
    assert_eq!(outcome(&fake, &packet("10.2.0.9:1", "10.0.0.1:80")), to("10.2.0.1:8080"));
}

/// The firewall of the layout: allowed ranges, at a priority before translation.
fn firewall() -> Vec<Op> {
    let key = [V4, Field::Protocol, Field::Port];
    let allow =
        Set { kind: SetKind::Interval, ..set("firewall-allow", &[&key[..], &[V4]].concat()) };
    let service = service("10.0.0.1:80", TCP);
    let allowed = Element {
        end: Some(Box::new(service.address(ip("172.16.255.255")))),
        ..element(service.address(ip("172.16.0.0")), Data::None)
    };
    let guard = rule([
        ct_has(CtKey::State, CT_STATE_NEW),
        service_key(),
        lookup("firewall", Hit::Match),
        service_key(),
        saddr(3),
        lookup("firewall-allow", Hit::Mismatch),
        drop_it(),
    ]);
    vec![
        Op::AddSet(set("firewall", &key)),
        Op::AddSet(allow),
        add("firewall", vec![element(service, Data::None)]),
        add("firewall-allow", vec![allowed]),
        filter(HookPoint::Prerouting, -110, vec![guard]),
    ]
}

#[test]
fn the_firewall_drops_before_translation() {
    let fake = with(firewall());
    let from = |source: &str| outcome(&fake, &packet(source, "10.0.0.1:80"));
    assert_eq!(from("172.15.255.255:1"), Outcome::Dropped);
    assert_eq!(from("172.16.0.0:1"), to("10.2.0.1:8080"));
    assert_eq!(from("172.16.255.255:1"), to("10.2.0.1:8080"));
    assert_eq!(from("172.17.0.0:1"), Outcome::Dropped);
    assert_eq!(
        outcome(&fake, &packet("172.17.0.0:1", "10.0.0.3:80")),
        untouched("10.0.0.3:80"),
        "this Service has no firewall"
    );
}

#[test]
fn the_next_rule_applies_if_a_map_has_no_entry() {
    // The affinity of the layout: use the recorded endpoint, otherwise pick one.
    let aff = Set {
        kind: SetKind::Dynamic,
        ..map("affinity", &[V4, V4, Field::Protocol, Field::Port], &[V4, Field::Port])
    };
    let use_record = rule([
        saddr(0),
        daddr(1),
        meta(MetaKey::L4Proto, 2),
        dport(3),
        lookup("affinity", Hit::Load(Reg(0))),
        dnat(),
    ]);
    let record = rule([
        ct_has(CtKey::State, CT_STATE_NEW),
        ct_has(CtKey::Status, CT_STATUS_DNAT),
        ct(CtKey::OriginalSource, 0),
        ct(CtKey::OriginalDestination, 1),
        meta(MetaKey::L4Proto, 2),
        ct(CtKey::OriginalPort, 3),
        ct(CtKey::ReplySource, 4),
        ct(CtKey::ReplyPort, 5),
        vec![Expr::Update {
            set: "affinity".into(),
            key: Reg(0),
            data: Reg(4),
            timeout_ms: 10_000,
        }],
    ]);
    let mut fake = with(vec![
        Op::AddSet(aff),
        chain("sticky-3", vec![use_record, rule([go("pick-3")])]),
        delete("services", vec![element(service("10.0.0.1:80", TCP), Data::None)]),
        add("services", vec![element(service("10.0.0.1:80", TCP), goto("sticky-3"))]),
        filter(HookPoint::Postrouting, 90, vec![record]),
    ]);
    let packet = packet("10.2.0.9:4000", "10.0.0.1:80");
    let first = walk(&fake, &packet, &here(), &mut |_| 1).unwrap();
    assert_eq!(first.outcome, to("10.2.0.2:8080"));
    let [record] = &first.affinity[..] else { panic!("{:?}", first.affinity) };
    assert_eq!((record.set.as_str(), record.timeout_ms), ("affinity", 10_000));
    let key = Bytes::EMPTY.address(ip("10.2.0.9")).address(ip("10.0.0.1")).protocol(TCP).port(80);
    assert_eq!(record.key, key);
    assert_eq!(Data::Value(record.data), endpoint("10.2.0.2:8080"));

    assert!(fake.record(record));
    let only_recorded = BTreeMap::from([(to("10.2.0.2:8080"), 1.0)]);
    assert_eq!(every_outcome(&fake, &packet, &here()).unwrap(), only_recorded);
    assert!(fake.expire(&table("t"), "affinity", &key));
    assert_eq!(every_outcome(&fake, &packet, &here()).unwrap().len(), 2);
}

#[test]
fn the_trace_lists_hooks_rules_and_outcome() {
    let fake = with(vec![]);
    let walk = go_through(&fake, &packet("10.2.0.9:4000", "10.0.0.1:80")).unwrap();
    let trace = walk.trace.join("\n");
    let begins = [
        "Prerouting: ip t Prerouting-nat (nat -100)",
        "  Prerouting-nat 0: ip daddr . meta l4proto . th dport vmap @services: Goto(\"pick-3\")",
        "  pick-3 0: dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 3 \
         map @endpoints: Accept",
    ];
    let begins = begins.join("\n");
    assert!(trace.starts_with(&begins), "{trace}");
    let ends = "Delivered { destination: 10.2.0.1:8080, masqueraded: false, translated: true }";
    assert!(trace.ends_with(ends), "{trace}");
}

#[test]
fn the_trace_shows_a_rule_up_to_the_condition_that_failed() {
    let fake = with(firewall());
    let walk = go_through(&fake, &packet("10.2.0.9:4000", "10.0.0.2:80")).unwrap();
    let line =
        "  Prerouting--110 0: ct state new ip daddr . meta l4proto . th dport @firewall: no match";
    assert_eq!(walk.trace[1], line);
}
