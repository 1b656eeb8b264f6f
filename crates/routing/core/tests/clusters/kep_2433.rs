//! KEP-2433 "Test Plan": both tables, one test per row, in the same order.

use crate::common::*;
use nearhop_core::{Change, Gate, Name, ObjectRef, PodKey};

/// Zones a and b with two equal nodes each; the Service has the request `ask` and two endpoints in
/// each zone.
fn two_zones(ask: &str) -> String {
    format!(
        "nodes a x2 zone=a cpu=4\n\
         nodes b x2 zone=b cpu=4\n\
         service web {ask}\n\
         pods web x4 for=web on=a-0,b-0\n"
    )
}

/// `count` endpoints over equal zones, round robin.
fn spread(count: usize, zones: &[&str]) -> String {
    let nodes: String =
        zones.iter().map(|zone| format!("node {zone} zone={zone} cpu=4\n")).collect();
    let on = zones.join(",");
    format!("{nodes}service web topology-mode=Auto\npods web x{count} for=web on={on}\n")
}

mod controller {
    use super::*;

    #[test]
    fn gate_on_prefer_zone_two_zones_sets_hints() {
        let world = world(&two_zones("traffic-policy=PreferZone"));
        assert_eq!(hints(&world, "web"), counts(&[("a", 2), ("b", 2)]));
    }

    #[test]
    fn gate_on_prefer_zone_one_zone_sets_none() {
        let world = world(
            "nodes a x4 zone=a cpu=4\nservice web traffic-policy=PreferZone\n\
             pods web x4 for=web on=a-0,a-1",
        );
        assert_eq!(hints(&world, "web"), counts(&[]));
    }

    #[test]
    fn gate_on_policy_local_two_zones_sets_none() {
        let world = world(&two_zones("traffic-policy=Local"));
        assert_eq!(hints(&world, "web"), counts(&[]));
    }

    #[test]
    fn gate_on_policy_unset_two_zones_sets_none() {
        assert_eq!(hints(&world(&two_zones("")), "web"), counts(&[]));
    }

    #[test]
    fn gate_off_prefer_zone_two_zones_sets_none() {
        let text = two_zones("traffic-policy=PreferZone");
        let world = world_without(&text, Gate::TopologyAwareHints);
        assert_eq!(hints(&world, "web"), counts(&[]));
    }

    #[test]
    fn gate_off_policy_unset_two_zones_sets_none() {
        let world = world_without(&two_zones(""), Gate::TopologyAwareHints);
        assert_eq!(hints(&world, "web"), counts(&[]));
    }

    /// The table has this row twice. The second is read as the request by annotation.
    #[test]
    fn gate_off_annotation_auto_two_zones_sets_none() {
        let world = world_without(&two_zones("topology-mode=Auto"), Gate::TopologyAwareHints);
        assert_eq!(hints(&world, "web"), counts(&[]));
    }

    #[test]
    fn two_endpoints_three_zones_sets_none() {
        assert_eq!(hints(&world(&spread(2, &["a", "b", "c"])), "web"), counts(&[]));
    }

    #[test]
    fn three_endpoints_three_zones_sets_hints() {
        let world = world(&spread(3, &["a", "b", "c"]));
        assert_eq!(hints(&world, "web"), counts(&[("a", 1), ("b", 1), ("c", 1)]));
    }

    #[test]
    fn four_endpoints_three_zones_sets_none() {
        assert_eq!(hints(&world(&spread(4, &["a", "b", "c"])), "web"), counts(&[]));
    }

    #[test]
    fn four_endpoints_two_zones_sets_hints() {
        let world = world(&spread(4, &["a", "b"]));
        assert_eq!(hints(&world, "web"), counts(&[("a", 2), ("b", 2)]));
    }

    #[test]
    fn four_endpoints_all_from_one_of_two_zones_sets_hints() {
        let world = world(
            "node a zone=a cpu=4\nnode b zone=b cpu=4\nservice web topology-mode=Auto\n\
             pods web x4 for=web on=a",
        );
        assert_eq!(hints(&world, "web"), counts(&[("a", 2), ("b", 2)]));
    }

    #[test]
    fn four_endpoints_three_zones_one_with_twice_the_cores_sets_hints() {
        let world = world(
            "node a zone=a cpu=8\nnode b zone=b cpu=4\nnode c zone=c cpu=4\n\
             service web topology-mode=Auto\npods web x4 for=web on=a,b,c",
        );
        assert_eq!(hints(&world, "web"), counts(&[("a", 2), ("b", 1), ("c", 1)]));
    }

    #[test]
    fn four_hundred_endpoints_four_slightly_different_zones_sets_hints() {
        let world = world(
            "node a zone=a cpu=40\nnode b zone=b cpu=41\nnode c zone=c cpu=42\nnode d zone=d cpu=43\n\
             service web topology-mode=Auto\npods web x400 for=web on=a,b,c,d",
        );
        let all: Vec<(&str, usize)> = ["a", "b", "c", "d"].map(|zone| (zone, 100)).to_vec();
        assert_eq!(hints(&world, "web"), counts(&all));
    }

    #[test]
    fn node_removal_without_threshold_transition_changes_no_slice() {
        let mut world = world(
            "nodes a x10 zone=a cpu=4\nnodes b x10 zone=b cpu=4\nservice web topology-mode=Auto\n\
             pods web x10 for=web on=a-0,b-0",
        );
        let touched = world.apply(Change::Gone(ObjectRef::Node(Name::from("a-9"))));
        assert!(touched.plan.is_empty(), "{touched:?}");
        assert!(plan(&world, "web").is_noop());
    }

    #[test]
    fn node_removal_with_threshold_transition_updates_slices() {
        let mut world = world(
            "nodes a x4 zone=a cpu=4\nnodes b x4 zone=b cpu=4\nservice web topology-mode=Auto\n\
             pods web x10 for=web on=a-0,b-0",
        );
        let mut touched = world.apply(Change::Gone(ObjectRef::Node(Name::from("a-3"))));
        touched.merge(world.apply(Change::Gone(ObjectRef::Node(Name::from("a-2")))));
        assert!(touched.plan.contains(&key("web")), "{touched:?}");
        assert!(!plan(&world, "web").is_noop());
        converge(&mut world, touched);
        assert_eq!(hints(&world, "web"), counts(&[("a", 4), ("b", 6)]));
    }

    #[test]
    fn node_without_way_to_determine_cores_all_nodes_treated_equally() {
        let world = world(
            "node a zone=a cpu=64\nnode b zone=b\nservice web topology-mode=Auto\n\
             pods web x4 for=web on=a,b",
        );
        assert_eq!(hints(&world, "web"), counts(&[("a", 2), ("b", 2)]));
        assert_eq!(
            world.capacity().without_cpu,
            [Name::from("b")],
            "the node without CPU is named"
        );
    }

    #[test]
    fn endpoint_additions_that_require_redistribution_update_hints() {
        let mut world = world(&spread(2, &["a", "b"]));
        assert_eq!(hints(&world, "web"), counts(&[("a", 1), ("b", 1)]));
        let more: String =
            (0..4).map(|i| format!("pod m{i} for=web on=a ip=10.9.0.{i}\n")).collect();
        let touched = apply_text(&mut world, &more);
        converge(&mut world, touched);
        assert_eq!(hints(&world, "web"), counts(&[("a", 3), ("b", 3)]));
    }

    #[test]
    fn endpoint_removals_that_require_redistribution_update_hints() {
        let mut world = world(&spread(6, &["a", "b"]));
        for pod in ["web-1", "web-3"] {
            let touched = world.apply(Change::Gone(ObjectRef::Pod(PodKey::new("default", pod))));
            converge(&mut world, touched);
        }
        assert_eq!(hints(&world, "web"), counts(&[("a", 2), ("b", 2)]));
    }
}

mod kube_proxy {
    use super::*;

    #[test]
    fn gate_on_prefer_zone_hints_matching_zone_filters() {
        let world = world(&two_zones("traffic-policy=PreferZone"));
        assert_eq!(chosen(&world, "a-1", "web"), ["web-0", "web-2"]);
        assert_eq!(chosen(&world, "b-1", "web"), ["web-1", "web-3"]);
    }

    /// `Local` is a traffic policy: it uses the endpoints of this node and ignores the hints.
    #[test]
    fn gate_on_policy_local_hints_matching_zone_does_not_filter_by_zone() {
        let world = world(&two_zones("topology-mode=Auto itp=Local"));
        let decision = route(&world, "a-0", "web").decision;
        assert_eq!(decision.cluster, None);
        assert_eq!(decision.local.expect("the local set is used").backends.len(), 2);
    }

    /// The slices still have hints, but the proxy ignores them (KEP-2433 "Version Skew Strategy").
    /// When the table was written, it had the only gate. Since KEP-4444 a proxy uses hints if any
    /// feature that writes them is on, so this test turns all of them off.
    #[test]
    fn gate_off_prefer_zone_hints_matching_zone_does_not_filter() {
        use nearhop_core::Gates;
        use nearhop_core::route::{HintGates, Place, RouteInput, agreed_routing, port_endpoints};
        let world = world(&two_zones("traffic-policy=PreferZone"));
        let off = Gates::default()
            .without(Gate::TopologyAwareHints)
            .without(Gate::ServiceTopology)
            .without(Gate::ServiceTrafficDistribution);
        let node = world.node("a-1").expect("the node is in the fixture");
        let slices: Vec<_> = world.slices(&key("web")).map(|slice| &**slice).collect();
        let service = world.service(&key("web")).expect("the Service is in the fixture");
        let port = &service.ports[0];
        let family = nearhop_core::Family::Ipv4;
        let endpoints =
            port_endpoints(slices.iter().copied(), family, (&port.name, port.protocol), None);
        let decision = nearhop_core::choose_route(RouteInput {
            policy: nearhop_core::route::PortPolicy::of(service, port),
            endpoints: &endpoints,
            routing: agreed_routing(slices.iter().copied(), family),
            place: &Place::of(node),
            gates: HintGates::from(&off),
        });
        assert_eq!(decision.cluster.expect("the cluster set is used").backends.len(), 4);
    }

    #[test]
    fn gate_on_prefer_zone_no_hints_matching_zone_does_not_filter() {
        let mut world = world(&two_zones("traffic-policy=PreferZone"));
        // The node is not ready, so it adds no capacity and gets no hints, but its proxy runs.
        apply_text(&mut world, "node c zone=c cpu=4 notready");
        assert_eq!(chosen(&world, "c", "web").len(), 4);
    }
}
