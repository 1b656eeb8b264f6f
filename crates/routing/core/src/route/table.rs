//! All route decisions of one node. The proxy compiles its rules from them.
//!
//! Updates are incremental, and the result equals a table built from scratch; `Affected` only
//! reduces the work.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::choose::{HintGates, Place, PortPolicy, RouteDecision, RouteInput, choose_route};
use super::collect::{PortEndpoints, RouteEndpoint, agreed_routing, port_endpoints};
use crate::key::{Family, Name, Protocol, ServiceKey, ServicePortKey};
use crate::model::{Service, ServicePort, ServiceType, Slice};
use crate::world::{Affected, World};

/// The key of a decision: Service port and family.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RouteKey {
    /// The Service port.
    pub port: ServicePortKey,
    /// The family.
    pub family: Family,
}

/// One entry of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The Service, for its addresses.
    pub service: Arc<Service>,
    /// Position of the port in `service.ports`.
    pub port: usize,
    /// The decision.
    pub decision: RouteDecision,
    /// The endpoints that it is based on.
    pub endpoints: PortEndpoints,
}

impl Route {
    /// The port of the Service.
    pub fn service_port(&self) -> &ServicePort {
        &self.service.ports[self.port]
    }
}

/// All decisions of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteTable {
    place: Place,
    routes: BTreeMap<RouteKey, Route>,
}

impl RouteTable {
    /// Builds the table of a place from scratch.
    pub fn build(world: &World, place: Place) -> Self {
        let mut table = Self { place, routes: BTreeMap::new() };
        for service in world.services() {
            table.insert(world, service);
        }
        table
    }

    /// Updates the table for the affected Services.
    pub fn refresh(&mut self, world: &World, touched: &Affected) {
        let moved = self.place.node.as_ref().is_some_and(|node| touched.nodes.contains(node));
        if moved && let Some(node) = self.place.node.as_ref().and_then(|node| world.node(node)) {
            let place = Place::of(node);
            if place != self.place {
                *self = Self::build(world, place);
                return;
            }
        }
        for key in &touched.routes {
            self.remove(key);
            if let Some(service) = world.service(key) {
                self.insert(world, service);
            }
        }
    }

    /// The node's topology.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// All entries, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&RouteKey, &Route)> {
        self.routes.iter()
    }

    /// One entry.
    pub fn get(&self, key: &RouteKey) -> Option<&Route> {
        self.routes.get(key)
    }

    /// The entries of one Service, sorted by key.
    pub fn of_service<'a>(
        &'a self,
        service: &'a ServiceKey,
    ) -> impl Iterator<Item = (&'a RouteKey, &'a Route)> {
        let from = self.routes.range(first_key(service)..);
        from.take_while(move |(key, _)| key.port.service == *service)
    }

    fn remove(&mut self, service: &ServiceKey) {
        let keys: Vec<RouteKey> = self.of_service(service).map(|(key, _)| key.clone()).collect();
        for key in keys {
            self.routes.remove(&key);
        }
    }

    fn insert(&mut self, world: &World, service: &Arc<Service>) {
        if service.service_type == ServiceType::ExternalName {
            return;
        }
        let slices: Arc<[Arc<Slice>]> = world.routed_slices_shared(&service.key).cloned().collect();
        for family in service.families() {
            for (at, port) in service.ports.iter().enumerate().filter(|(_, port)| port.port != 0) {
                let key = RouteKey {
                    port: ServicePortKey {
                        service: service.key.clone(),
                        port: port.name.clone(),
                        protocol: port.protocol,
                    },
                    family,
                };
                let shared = slices.iter().map(Arc::as_ref);
                let (decision, endpoints) =
                    decide_port(world, service, at, family, shared, &self.place);
                let endpoints = PortEndpoints::new(&slices, &endpoints);
                let route = Route { service: service.clone(), port: at, decision, endpoints };
                self.routes.insert(key, route);
            }
        }
    }
}

/// The smallest key of a Service.
fn first_key(service: &ServiceKey) -> RouteKey {
    let port =
        ServicePortKey { service: service.clone(), port: Name::from(""), protocol: Protocol::Tcp };
    RouteKey { port, family: Family::Ipv4 }
}

/// Decides one port of a Service for a place.
pub fn decide(
    world: &World,
    service: &Service,
    port: usize,
    family: Family,
    slices: &[&Slice],
    place: &Place,
) -> RouteDecision {
    decide_port(world, service, port, family, slices.iter().copied(), place).0
}

/// The decision for one port of a Service, and the endpoints that it is based on.
fn decide_port<'a>(
    world: &World,
    service: &Service,
    port: usize,
    family: Family,
    slices: impl Iterator<Item = &'a Slice> + Clone,
    place: &Place,
) -> (RouteDecision, Vec<RouteEndpoint<'a>>) {
    let port = &service.ports[port];
    let port_key = (&port.name, port.protocol);
    let endpoints = port_endpoints(slices.clone(), family, port_key, place.node.as_ref());
    let decision = choose_route(RouteInput {
        policy: PortPolicy::of(service, port),
        endpoints: &endpoints,
        routing: agreed_routing(slices, family),
        place,
        gates: HintGates::from(&world.settings().gates),
    });
    (decision, endpoints)
}
