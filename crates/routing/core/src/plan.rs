//! The effect of a policy on a Service's traffic: load per zone and endpoint, cross-zone share,
//! worst overload.
//!
//! The prediction uses the production code: it plans the slices like the controller, lets every
//! node choose like its proxy, and adds up the demand. It only predicts; the lab measures.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::hint::HintOutcome;
use crate::hint::capacity::Capacity;
use crate::intent::IntentDecision;
use crate::key::{EndpointKey, Family, Name, ServiceKey};
use crate::model::{Node, Slice};
use crate::route::table::decide;
use crate::route::{Backend, Place, Verdict};
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
    /// An intent that replaces the Service's own.
    pub what_if: Option<&'a IntentDecision>,
}

/// Predicts the traffic of one Service port. Returns `None` if the Service or port does not exist.
pub fn plan_load(world: &World, question: LoadQuestion<'_>, now: PlanTime<'_>) -> Option<LoadPlan> {
    let service = world.service(question.service)?;
    service.ports.get(question.port)?;
    let plan = match question.what_if {
        Some(intent) => world.plan_what_if(question.service, intent, now)?,
        None => world.plan(question.service, now)?,
    };
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
    let demands = node_demand(&nodes, world.capacity(), now.measured());
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
    load.add_idle(world, question, &slices);
    load.summarise();
    Some(load)
}

/// Each node's part of the total demand: the measured connections of its zone, split by the
/// capacity of its nodes. Without measurements, it is proportional to the capacity of the node.
fn node_demand(
    nodes: &[&Node],
    capacity: &Capacity,
    measured: Option<&BTreeMap<Name, u64>>,
) -> Vec<f64> {
    let demand = |node: &&Node| {
        let own = capacity.milli_of(node) as f64;
        let Some(measured) = measured else { return own };
        let zone =
            node.zone().and_then(|zone| Some((measured.get(zone)?, capacity.zones.get(zone)?)));
        zone.map_or(0.0, |(connections, all)| *connections as f64 * own / *all as f64)
    };
    let demands: Vec<f64> = nodes.iter().map(demand).collect();
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
        let row = self.matrix.entry(zone_name(from)).or_default();
        for backend in backends {
            let part = demand * f64::from(backend.weight) / weights;
            let zone = zone_name(backend.zone.as_ref());
            *row.entry(zone.clone()).or_default() += part;
            let new = EndpointLoad { zone, share: 0.0, relative: 0.0 };
            self.endpoints.entry(backend.key).or_insert(new).share += part;
        }
    }

    /// Adds ready endpoints that no client chose. They have no load, and count for the mean.
    fn add_idle(&mut self, world: &World, question: LoadQuestion<'_>, slices: &[&Slice]) {
        let Some(service) = world.service(question.service) else { return };
        let port = &service.ports[question.port];
        let key = (&port.name, port.protocol);
        let all = crate::route::port_endpoints(slices.iter().copied(), question.family, key, None);
        for endpoint in all.iter().filter(|endpoint| endpoint.ready) {
            let zone = zone_name(endpoint.endpoint.zone.as_ref());
            let new = EndpointLoad { zone, share: 0.0, relative: 0.0 };
            self.endpoints.entry(endpoint.key).or_insert(new);
        }
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
