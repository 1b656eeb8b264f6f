//! The effect of a policy on a Service's traffic: load per zone and endpoint, cross-zone share,
//! worst overload.
//!
//! The prediction uses the production code: it plans the slices like the controller, lets every
//! node choose like its proxy, and adds up the demand. It only predicts; the lab measures.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::hint::HintOutcome;
use crate::hint::capacity::Capacity;
use crate::key::{EndpointKey, Family, Name, ServiceKey};
use crate::model::{Node, Slice};
use crate::route::table::decide;
use crate::route::{Backend, Place, Verdict, port_endpoints};
use crate::world::{PlanTime, World};

/// Load of one endpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct EndpointLoad {
    /// Its zone; empty if unknown.
    pub zone: Name,
    /// Its part of the total demand, 0 to 1.
    pub share: f64,
    /// Its load as a multiple of the mean over all endpoints.
    pub relative: f64,
}

/// Predicted traffic of one Service port in one family.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadPlan {
    /// Part of the total demand by client zone and endpoint zone.
    pub matrix: BTreeMap<Name, BTreeMap<Name, f64>>,
    /// All ready endpoints, used or not.
    pub endpoints: BTreeMap<EndpointKey, EndpointLoad>,
    /// Part of the served demand that leaves its zone.
    pub cross_zone: f64,
    /// Load of the busiest endpoint, as a multiple of the mean.
    pub worst: f64,
    /// Part of the demand for which no endpoint is allowed.
    pub unserved: f64,
    /// The outcome of the hints.
    pub outcome: Option<HintOutcome>,
}

impl LoadPlan {
    /// The part of the total demand that goes to a zone.
    pub fn arriving(&self, zone: &str) -> f64 {
        self.matrix.values().filter_map(|row| row.get(zone)).sum()
    }
}

/// Which traffic to predict.
#[derive(Clone, Copy, Debug)]
pub struct LoadQuestion<'a> {
    /// The Service.
    pub service: &'a ServiceKey,
    /// Position of the port in the Service.
    pub port: usize,
    /// The family.
    pub family: Family,
}

/// Predicts the traffic of one Service port. Returns `None` if the Service or port does not exist.
pub fn plan_load(world: &World, question: LoadQuestion<'_>, now: PlanTime) -> Option<LoadPlan> {
    let service = world.service(question.service)?;
    let port = service.ports.get(question.port)?;
    let plan = world.plan(question.service, now)?;
    let written = plan.create.iter().chain(&plan.update);
    let kept = plan.unchanged.iter().map(Arc::as_ref);
    let foreign = world
        .routed_slices(question.service)
        .filter(|slice| slice.managed_by() != Some(&world.settings().controller));
    let slices: Vec<&Slice> = written.chain(kept).chain(foreign).collect();

    let mut load =
        LoadPlan { outcome: plan.outcome.get(&question.family).cloned(), ..LoadPlan::default() };
    let nodes: Vec<&Node> =
        world.nodes().map(Arc::as_ref).filter(|node| node.counts_as_capacity()).collect();
    let demands = node_demand(&nodes, world.capacity());
    for (node, demand) in nodes.iter().zip(demands) {
        let place = Place::of(node);
        let decision = decide(world, service, question.port, question.family, &slices, &place);
        let backends = match decision.internal {
            Verdict::Cluster => decision.cluster.map(|set| set.backends),
            Verdict::Local => decision.local.map(|set| set.backends),
            Verdict::Reject | Verdict::Drop => None,
        };
        load.send(place.zone.as_ref(), demand, &backends.unwrap_or_default());
    }
    let port = (&port.name, port.protocol);
    for endpoint in port_endpoints(slices.iter().copied(), question.family, port, None) {
        // An idle endpoint has no load, and counts for the mean.
        if endpoint.ready {
            load.endpoint(endpoint.key, endpoint.endpoint.zone.as_ref());
        }
    }
    load.summarise();
    Some(load)
}

/// Each node's part of the total demand, in proportion to its capacity.
fn node_demand(nodes: &[&Node], capacity: &Capacity) -> Vec<f64> {
    let demands: Vec<f64> = nodes.iter().map(|node| capacity.milli_of(node) as f64).collect();
    let sum: f64 = demands.iter().sum();
    demands.into_iter().map(|demand| if sum > 0.0 { demand / sum } else { 0.0 }).collect()
}

fn zone_name(zone: Option<&Name>) -> Name {
    zone.cloned().unwrap_or_else(|| Name::from(""))
}

impl LoadPlan {
    /// Distributes one node's demand over the endpoints that it chose.
    fn send(&mut self, from: Option<&Name>, demand: f64, backends: &[Backend]) {
        let weights: f64 = backends.iter().map(|backend| f64::from(backend.weight)).sum();
        if weights == 0.0 {
            self.unserved += demand;
            return;
        }
        for backend in backends {
            let part = demand * f64::from(backend.weight) / weights;
            let zone = backend.zone.as_ref();
            self.endpoint(backend.key, zone).share += part;
            let row = self.matrix.entry(zone_name(from)).or_default();
            *row.entry(zone_name(zone)).or_default() += part;
        }
    }

    fn endpoint(&mut self, key: EndpointKey, zone: Option<&Name>) -> &mut EndpointLoad {
        let new = || EndpointLoad { zone: zone_name(zone), share: 0.0, relative: 0.0 };
        self.endpoints.entry(key).or_insert_with(new)
    }

    fn summarise(&mut self) {
        let served: f64 = self.matrix.values().flat_map(BTreeMap::values).sum();
        let home: f64 = self.matrix.iter().filter_map(|(zone, row)| row.get(zone)).sum();
        self.cross_zone = if served > 0.0 { (served - home).max(0.0) / served } else { 0.0 };
        let mean = served / self.endpoints.len().max(1) as f64;
        for endpoint in self.endpoints.values_mut() {
            endpoint.relative = if mean > 0.0 { endpoint.share / mean } else { 0.0 };
        }
        self.worst = self.endpoints.values().map(|load| load.relative).fold(0.0, f64::max);
    }
}
