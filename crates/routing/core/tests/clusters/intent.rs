//! All fields and annotations for an intent: precedence, gates, conflicts and unknown values.

use crate::common::{key, world_with};
use nearhop_core::intent::{Accepted, IntentDecision, MaxOverload, PassedOver, Spelling};
use nearhop_core::{Gate, Gates};

fn decide_with(asks: &str, gates: Gates) -> IntentDecision {
    let world = world_with(&format!("service web {asks}"), gates);
    world.intent(&key("web")).expect("the Service is in the fixture").clone()
}

fn decide(asks: &str) -> IntentDecision {
    decide_with(asks, Gates::default())
}

fn with_draft() -> Gates {
    Gates::default().with(Gate::ServiceRoutingPreference)
}

#[test]
fn every_field_and_annotation_sets_its_intent() {
    let nearest = "Keys [kubernetes.io/hostname, topology.kubernetes.io/zone, \
                   topology.kubernetes.io/region, *]";
    let cases = [
        ("", "Default", Spelling::Nowhere),
        ("topology-mode=Auto", "Auto", Spelling::TopologyModeAnnotation),
        ("topology-mode=auto", "Auto", Spelling::TopologyModeAnnotation),
        ("topology-aware-hints=Auto", "Auto", Spelling::TopologyAwareHintsAnnotation),
        ("topology-mode=Disabled", "Default", Spelling::Nowhere),
        ("traffic-policy=PreferZone", "Auto", Spelling::TrafficPolicyField),
        ("traffic-policy=Cluster", "Default", Spelling::Nowhere),
        ("topology-keys=rack,*", "Keys [rack, *]", Spelling::TopologyKeysField),
        ("topology-keys-annotation=rack", "Keys [rack]", Spelling::TopologyKeysAnnotation),
        (
            "traffic-distribution-annotation=PreferSameNode",
            "SameNode",
            Spelling::TrafficDistributionAnnotation,
        ),
        ("traffic-distribution=PreferClose", "SameZone", Spelling::TrafficDistributionField),
        ("traffic-distribution=PreferSameZone", "SameZone", Spelling::TrafficDistributionField),
        ("traffic-distribution=PreferSameNode", "SameNode", Spelling::TrafficDistributionField),
        (
            "traffic-distribution=nearhop.dev/Balanced",
            "Balanced (max overload 20%)",
            Spelling::TrafficDistributionField,
        ),
        (
            "traffic-distribution=nearhop.dev/Balanced max-overload=12.5%",
            "Balanced (max overload 12.5%)",
            Spelling::TrafficDistributionField,
        ),
        ("traffic-distribution=nearhop.dev/Nearest", nearest, Spelling::TrafficDistributionField),
        (
            "traffic-distribution=nearhop.dev/RequireZone",
            "Keys [topology.kubernetes.io/zone]",
            Spelling::TrafficDistributionField,
        ),
        ("routing-preference=Zone", "SameZone", Spelling::RoutingPreferenceField),
        ("routing-preference=Spread", "Spread", Spelling::RoutingPreferenceField),
        ("traffic-distribution=nearhop.dev/None", "Spread", Spelling::TrafficDistributionField),
        ("routing-preference=nearhop.dev/None", "Spread", Spelling::RoutingPreferenceField),
        ("routing-preference=Default", "Default", Spelling::Nowhere),
        (
            "routing-preference=nearhop.dev/Balanced",
            "Balanced (max overload 20%)",
            Spelling::RoutingPreferenceField,
        ),
        ("routing-preference-annotation=Zone", "SameZone", Spelling::RoutingPreferenceAnnotation),
    ];
    for (asks, intent, spelling) in cases {
        let decision = decide_with(asks, with_draft());
        assert_eq!(decision.intent.to_string(), intent, "{asks}");
        assert_eq!(decision.spelling, spelling, "{asks}");
        assert_eq!(decision.accepted, Accepted::Yes, "{asks}");
        assert!(decision.problems.is_empty(), "{asks}: {:?}", decision.problems);
    }
}

/// Each row has priority over all rows below it.
#[test]
fn earlier_rows_take_precedence() {
    let rows = [
        ("topology-mode=Auto", Spelling::TopologyModeAnnotation),
        ("traffic-policy=PreferZone", Spelling::TrafficPolicyField),
        ("topology-keys=rack", Spelling::TopologyKeysField),
        ("topology-keys-annotation=rack,*", Spelling::TopologyKeysAnnotation),
        ("traffic-distribution-annotation=PreferSameNode", Spelling::TrafficDistributionAnnotation),
        ("traffic-distribution=PreferClose", Spelling::TrafficDistributionField),
        ("routing-preference=Spread", Spelling::RoutingPreferenceField),
        ("routing-preference-annotation=Zone", Spelling::RoutingPreferenceAnnotation),
    ];
    for first in 0..rows.len() {
        let asks: Vec<&str> = rows[first..].iter().map(|(ask, _)| *ask).collect();
        let decision = decide_with(&asks.join(" "), with_draft());
        assert_eq!(decision.spelling, rows[first].1);
        let below: Vec<_> = rows[first + 1..]
            .iter()
            .map(|(_, spelling)| (*spelling, PassedOver::Overruled(rows[first].1)))
            .collect();
        let ignored = decision.passed_over.iter().map(|ignored| (ignored.spelling, ignored.why));
        let ignored = ignored.map(|(spelling, why)| match why {
            PassedOver::Repeated(by) => (spelling, PassedOver::Overruled(by)),
            why => (spelling, why),
        });
        assert_eq!(ignored.collect::<Vec<_>>(), below);
    }
}

/// If both annotations are present, the older one has priority, even if it is empty.
#[test]
fn the_older_annotation_takes_precedence() {
    let decision = decide("topology-aware-hints=\"\" topology-mode=Auto");
    assert_eq!(decision.spelling, Spelling::Nowhere);
}

#[test]
fn fields_of_a_disabled_feature_gate_are_ignored() {
    let cases = [
        ("topology-mode=Auto", Gate::TopologyAwareHints),
        ("traffic-policy=PreferZone", Gate::TopologyAwareHints),
        ("topology-keys=rack", Gate::ServiceTopology),
        ("topology-keys-annotation=rack", Gate::ServiceTopology),
        ("traffic-distribution=PreferClose", Gate::ServiceTrafficDistribution),
        ("traffic-distribution-annotation=PreferClose", Gate::ServiceTrafficDistribution),
        ("routing-preference=Zone", Gate::ServiceRoutingPreference),
        ("routing-preference-annotation=Zone", Gate::ServiceRoutingPreference),
    ];
    for (asks, gate) in cases {
        let decision = decide_with(asks, with_draft().without(gate));
        assert_eq!(decision.intent.to_string(), "Default", "{asks}");
        let why = decision.passed_over.first().map(|ignored| ignored.why);
        assert_eq!(why, Some(PassedOver::GateOff(gate)), "{asks}");
    }
    let off = with_draft().without(Gate::ServiceTrafficDistribution);
    let decision = decide_with("routing-preference=nearhop.dev/Balanced", off);
    assert_eq!(decision.intent.to_string(), "Default");
    assert!(decision.problems[0].cause.contains("ServiceTrafficDistribution"));
    let off = Gates::default().without(Gate::PreferSameTrafficDistribution);
    assert_eq!(
        decide_with("traffic-distribution=PreferClose", off.clone()).intent.to_string(),
        "SameZone"
    );
    let decision = decide_with("traffic-distribution=PreferSameNode", off);
    assert_eq!(decision.intent.to_string(), "Default");
    assert!(decision.problems[0].cause.contains("PreferSameTrafficDistribution"));
}

#[test]
fn unknown_values_are_reported_and_ignored() {
    let cases = [
        ("topology-mode=aUto", "metadata.annotations[service.kubernetes.io/topology-mode]"),
        (
            "topology-aware-hints=on",
            "metadata.annotations[service.kubernetes.io/topology-aware-hints]",
        ),
        ("traffic-policy=Near", "spec.trafficPolicy"),
        ("traffic-policy=Local", "spec.trafficPolicy"),
        ("traffic-distribution=Closest", "spec.trafficDistribution"),
        ("traffic-distribution=example.com/Fast", "spec.trafficDistribution"),
        ("routing-preference=Rack", "spec.routingPreference"),
        ("topology-keys=*,rack", "spec.topologyKeys"),
    ];
    for (asks, field) in cases {
        let decision = decide_with(
            &format!("{asks} traffic-distribution-annotation=PreferClose"),
            with_draft(),
        );
        assert_eq!(decision.intent.to_string(), "SameZone", "{asks}: the next field decides");
        assert_eq!(decision.problems.len(), 1, "{asks}");
        assert_eq!(decision.problems[0].field, field, "{asks}");
        assert!(matches!(decision.accepted, Accepted::UnknownValue(_)), "{asks}");
    }
}

#[test]
fn namespace_and_cluster_defaults_apply() {
    use nearhop_core::fixture::Fixture;
    use nearhop_core::world::Settings;
    let decide = |namespace: &str, cluster: Option<&str>, asks: &str| {
        let text = format!("namespace default {namespace}\nservice web {asks}");
        let settings = Settings {
            default_traffic_distribution: cluster.map(Into::into),
            ..Settings::default()
        };
        let world = Fixture::parse(&text).unwrap().world(settings);
        world.intent(&key("web")).expect("the Service is in the fixture").clone()
    };
    let same_node = Some("PreferSameNode");
    let zone = "traffic-distribution=PreferSameZone";
    assert_eq!(decide("", same_node, "").spelling, Spelling::ClusterDefault);
    assert_eq!(decide(zone, same_node, "").spelling, Spelling::NamespaceDefault);
    assert_eq!(decide(zone, same_node, zone).spelling, Spelling::TrafficDistributionField);
    let wrong = decide("traffic-distribution=Oops", same_node, "");
    assert_eq!(wrong.spelling, Spelling::ClusterDefault);
    assert_eq!(wrong.problems[0].subject.to_string(), "Namespace default");
    assert_eq!(wrong.accepted, Accepted::UnknownValue(Spelling::NamespaceDefault));
    let own = decide("traffic-distribution=Oops", None, zone);
    assert_eq!(own.accepted, Accepted::Yes, "the Service does not use the default");
    assert_eq!(own.problems, []);
    let out = decide(zone, same_node, "traffic-distribution=nearhop.dev/None");
    assert_eq!(out.intent.to_string(), "Spread");
    let wrong = decide("", Some("Oops"), "");
    assert_eq!(wrong.problems[0].subject.to_string(), "setting --default-traffic-distribution");
}

#[test]
fn topology_keys_and_auto_exclude_each_other() {
    for auto in ["topology-mode=Auto", "traffic-policy=PreferZone"] {
        let decision = decide(&format!("{auto} topology-keys=rack"));
        assert_eq!(decision.intent.to_string(), "Auto");
        assert!(matches!(decision.accepted, Accepted::Conflict(Spelling::TopologyKeysField, _)));
        assert_eq!(decision.problems[0].field, "spec.topologyKeys");
    }
}

#[test]
fn max_overload_is_a_percentage_or_inf() {
    let good = [
        ("20%", MaxOverload::Permille(200)),
        ("0%", MaxOverload::Permille(0)),
        ("12.5%", MaxOverload::Permille(125)),
        (" inf ", MaxOverload::Unlimited),
    ];
    for (text, value) in good {
        assert_eq!(MaxOverload::parse(text), Some(value), "{text}");
    }
    for text in ["20", "%", "-1%", "1.25%", "1.%", ".5%", "99999999999%", "20000%", "x", ""] {
        assert_eq!(MaxOverload::parse(text), None, "{text}");
    }
    let decision = decide("traffic-distribution=nearhop.dev/Balanced max-overload=lots");
    assert_eq!(decision.intent.to_string(), "Balanced (max overload 20%)");
    assert_eq!(decision.problems[0].field, "metadata.annotations[nearhop.dev/max-overload]");
}
