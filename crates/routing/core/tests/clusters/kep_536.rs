//! KEP-536 "Test Plan", one test per row. Each filter is tested with all combinations of available
//! endpoints.

use crate::common::*;
use nearhop_core::intent::{Accepted, Intent};
use nearhop_core::route::{Candidates, Miss, Tier, Verdict};

const KEYS: [&str; 4] = [
    "kubernetes.io/hostname",
    "rack",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
];

/// Five places around the client's node `here`. Each shares one tier less with it than the place
/// before. Endpoint `pN` exists in each place N whose bit is set; `p4`, the farthest, always
/// exists.
fn around(available: u8, ask: &str) -> String {
    let mut text = String::from(
        "node here   rack=r1 zone=z1 region=g1 cpu=4\n\
         node rack   rack=r1 zone=z1 region=g1 cpu=4\n\
         node zone   rack=r2 zone=z1 region=g1 cpu=4\n\
         node region rack=r3 zone=z2 region=g1 cpu=4\n\
         node far    rack=r4 zone=z3 region=g2 cpu=4\n",
    );
    text += &format!("service web {ask}\n");
    for (i, node) in ["here", "rack", "zone", "region"].iter().enumerate() {
        if available & (1 << i) != 0 {
            text += &format!("pod p{i} for=web on={node}\n");
        }
    }
    text + "pod p4 for=web on=far\n"
}

/// The endpoints in the first of the given tiers (0 host, 1 rack, 2 zone, 3 region) that has any:
/// nearer places also belong to the farther tiers.
fn expected(available: u8, tiers: &[usize]) -> Option<Vec<String>> {
    tiers.iter().find_map(|tier| {
        let there: Vec<String> =
            (0..=*tier).filter(|i| available & (1 << i) != 0).map(|i| format!("p{i}")).collect();
        (!there.is_empty()).then_some(there)
    })
}

fn all_endpoints(available: u8) -> Vec<String> {
    (0..5).filter(|i| *i == 4 || available & (1 << i) != 0).map(|i| format!("p{i}")).collect()
}

/// Checks a list of tiers with all 16 combinations of available endpoints.
fn check(tiers: &[usize], soft: bool) {
    let mut keys: Vec<&str> = tiers.iter().map(|tier| KEYS[*tier]).collect();
    keys.extend(soft.then_some("*"));
    for ask in ["topology-keys", "topology-keys-annotation"] {
        for available in 0..16 {
            let world = world(&around(available, &format!("{ask}={}", keys.join(","))));
            let got = chosen(&world, "here", "web");
            let fallback = || if soft { all_endpoints(available) } else { Vec::new() };
            let want = expected(available, tiers).unwrap_or_else(fallback);
            assert_eq!(got, want, "{keys:?}, available {available:04b}");
        }
    }
}

#[test]
fn validation_of_topology_keys() {
    let accepted = |keys: &str| {
        let world = world(&format!("service web topology-keys={keys}"));
        let decision = world.intent(&key("web")).expect("the Service is in the fixture").clone();
        let why = decision.problems.first().map(|problem| problem.to_string());
        (decision.accepted == Accepted::Yes && matches!(decision.intent, Intent::Keys(_)), why)
    };
    let seventeen: Vec<String> = (0..17).map(|i| format!("k{i}")).collect();
    for good in ["rack", "*", "kubernetes.io/hostname,*", &seventeen[..16].join(",")] {
        assert_eq!(accepted(good), (true, None), "{good}");
    }
    let bad = [
        ("*,rack", "\"*\" at position 0 must be last"),
        ("rack,rack", "\"rack\" occurs twice"),
        ("Bad_Prefix/x", "\"Bad_Prefix/x\" is not a label key"),
        ("-x", "\"-x\" is not a label key"),
        (&seventeen.join(","), "17 keys, at most 16 are allowed"),
    ];
    for (keys, cause) in bad {
        let (ok, why) = accepted(keys);
        let why = why.expect("the keys are invalid");
        assert!(!ok, "{keys}");
        assert!(why.starts_with("Service default/web: spec.topologyKeys: "), "{why}");
        assert!(why.contains(cause), "{why}");
    }
}

#[test]
fn incompatibility_with_external_traffic_policy_local() {
    let world = world(&around(
        0b0001,
        "port=80->8080 type=NodePort node-port=30080 etp=Local topology-keys=rack,*",
    ));
    let decision = world.intent(&key("web")).expect("the Service is in the fixture");
    assert!(matches!(decision.accepted, Accepted::Conflict(..)), "{:?}", decision.accepted);
    assert!(decision.problems[0].cause.contains("externalTrafficPolicy: Local"));
    // The Local policy applies to external traffic, the keys to internal traffic.
    let route = route(&world, "rack", "web").decision;
    assert_eq!(route.external, Some(Verdict::Drop));
    assert_eq!(route.internal, Verdict::Cluster);
    assert_eq!(chosen(&world, "rack", "web"), ["p0"]);
}

#[test]
fn no_topology_constraints() {
    for available in 0..16 {
        let world = world(&around(available, ""));
        assert_eq!(chosen(&world, "here", "web"), all_endpoints(available));
    }
}

#[test]
fn a_single_hard_constraint() {
    for tier in 0..4 {
        check(&[tier], false);
    }
}

#[test]
fn a_single_star_constraint() {
    check(&[], true);
}

#[test]
fn multiple_hard_constraints() {
    check(&[0, 1, 2, 3], false);
    check(&[0, 2], false);
}

#[test]
fn multiple_constraints_plus_a_final_star() {
    check(&[0, 1, 2, 3], true);
    check(&[1, 2], true);
}

/// The user decides the order: a farther tier may come first.
#[test]
fn keys_are_tried_in_the_order_given() {
    let world =
        world(&around(0b1101, "topology-keys=topology.kubernetes.io/zone,kubernetes.io/hostname"));
    assert_eq!(chosen(&world, "here", "web"), ["p0", "p2"]);
}

#[test]
fn an_empty_zone_is_named_in_the_reason() {
    let world = world(&around(0b1000, "topology-keys=topology.kubernetes.io/zone"));
    let reason = route(&world, "here", "web").decision.cluster.expect("a set").reason;
    let expected = "no ready endpoint in zone z1, and the keys allow no other zone";
    assert_eq!(reason.to_string(), expected);
}

/// No endpoint matches the hard keys: the connection is rejected, and the reason lists every tier
/// tried.
#[test]
fn no_endpoint_in_reach_is_rejected_with_reasons() {
    let world = world(&around(0b1000, "topology-keys=example.com/cage,rack"));
    let decision = route(&world, "here", "web").decision;
    assert_eq!(decision.internal, Verdict::Reject);
    let reason = decision.cluster.expect("the cluster set is used").reason;
    assert_eq!((&reason.tier, reason.candidates), (&Tier::OutOfReach, Candidates::Ready));
    assert_eq!(
        reason.to_string(),
        "this node has no label example.com/cage, no ready endpoint has rack=r1, and the keys allow \
         no other endpoint"
    );
    let misses: Vec<Miss> = reason.tried.into_iter().map(|tried| tried.miss).collect();
    let unmatched = Miss::NoMatchingEndpoint { key: "rack".into(), value: "r1".into() };
    assert_eq!(misses, [Miss::NodeWithoutLabel("example.com/cage".into()), unmatched]);
}

/// A zone without endpoints is named as users name it.
#[test]
fn an_empty_zone_is_the_reason_under_require_zone() {
    let text = "node n1 zone=a\nnode n2 zone=b\nservice web traffic-distribution=nearhop.dev/RequireZone\n\
                pods p x2 for=web on=n2";
    let world = world(text);
    let reason = route(&world, "n1", "web").decision.cluster.expect("the set is used").reason;
    let wanted = "no ready endpoint in zone a, and the keys allow no other zone";
    assert_eq!(reason.to_string(), wanted);
}

/// A node that gets its label late switches to the nearer set.
#[test]
fn a_relabelled_node_changes_its_choice_and_its_endpoints() {
    let mut world = world(&around(0b1001, "topology-keys=rack,*"));
    assert_eq!(chosen(&world, "region", "web"), ["p3"]);
    let touched = apply_text(&mut world, "node region rack=r1 zone=z2 region=g1 cpu=4");
    assert!(touched.plan.contains(&key("web")), "an endpoint is on the node");
    assert!(touched.nodes.contains("region"), "the node itself changed");
    converge(&mut world, touched);
    assert_eq!(chosen(&world, "region", "web"), ["p0", "p3"]);
    assert_eq!(chosen(&world, "here", "web"), ["p0", "p3"]);
}
