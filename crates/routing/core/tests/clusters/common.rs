//! Shared helpers of these tests: worlds from text, and short queries.

use std::collections::BTreeMap;

use jiff::Timestamp;
use nearhop_core::fixture::{Fixture, apply_plan};
use nearhop_core::route::{Place, Route, RouteTable};
use nearhop_core::world::{PlanTime, Settings};
use nearhop_core::{Affected, Gate, Gates, ServiceKey, SlicePlan, World};

pub(crate) fn now() -> PlanTime {
    PlanTime::at(Timestamp::UNIX_EPOCH)
}

/// A cluster in which the controller has written all slices, with the default gates.
pub(crate) fn world(text: &str) -> World {
    world_with(text, Gates::default())
}

pub(crate) fn world_without(text: &str, gate: Gate) -> World {
    world_with(text, Gates::default().without(gate))
}

pub(crate) fn world_with(text: &str, gates: Gates) -> World {
    let fixture = Fixture::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    fixture.world(Settings { gates, ..Settings::default() })
}

pub(crate) fn key(service: &str) -> ServiceKey {
    ServiceKey::new("default", service)
}

pub(crate) fn plan(world: &World, service: &str) -> SlicePlan {
    world.plan(&key(service), now()).expect("the Service is in the fixture")
}

/// Applies the objects of a fixture text as changes.
pub(crate) fn apply_text(world: &mut World, text: &str) -> Affected {
    let fixture = Fixture::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    world.apply_all(fixture.changes())
}

pub(crate) fn converge(world: &mut World, touched: Affected) {
    for service in touched.plan {
        if let Some(plan) = world.plan(&service, now()) {
            apply_plan(world, &service, plan);
        }
    }
}

/// Zone hints of a Service's ready endpoints, counted by zone.
pub(crate) fn hints(world: &World, service: &str) -> BTreeMap<String, usize> {
    let mut count = BTreeMap::new();
    for slice in world.slices(&key(service)) {
        for endpoint in slice.endpoints.iter().filter(|endpoint| endpoint.is_ready()) {
            for zone in endpoint.hint_zones() {
                *count.entry(zone.to_string()).or_default() += 1;
            }
        }
    }
    count
}

/// Expected counts, in a short form: `counts(&[("a", 2), ("b", 1)])`.
pub(crate) fn counts(pairs: &[(&str, usize)]) -> BTreeMap<String, usize> {
    pairs.iter().map(|(zone, count)| ((*zone).to_owned(), *count)).collect()
}

/// The first route of a Service on a node.
pub(crate) fn route(world: &World, node: &str, service: &str) -> Route {
    let place = world.node(node).map(|node| Place::of(node)).expect("the node is in the fixture");
    let table = RouteTable::build(world, place);
    let (_, route) =
        table.iter().find(|(route, _)| route.port.service == key(service)).expect("a route");
    route.clone()
}

/// Pods in the cluster set of a route, sorted, by short name.
pub(crate) fn chosen(world: &World, node: &str, service: &str) -> Vec<String> {
    let decision = route(world, node, service).decision;
    let set = decision.cluster.expect("the cluster set is used");
    let pod_of = |ip: std::net::IpAddr| {
        world
            .pods(&key(service))
            .find(|(pod, _)| pod.ips.as_slice().contains(&ip))
            .map(|(pod, _)| pod.key.name.to_string())
            .expect("an endpoint of a Pod")
    };
    let mut pods: Vec<String> = set.backends.iter().map(|backend| pod_of(backend.key.ip)).collect();
    pods.sort();
    pods
}
