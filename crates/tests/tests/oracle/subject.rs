//! The decisions of nearhop about the same objects, in the types of the oracle.

use std::collections::BTreeMap;

use jiff::Timestamp;
use nearhop_api::convert_json;
use nearhop_core::fixture::apply_plan;
use nearhop_core::model::Slice;
use nearhop_core::plan::{LoadQuestion, plan_load};
use nearhop_core::route::{Place, RouteDecision, RouteSet, RouteTable, Verdict};
use nearhop_core::world::{PlanTime, Settings};
use nearhop_core::{Change, Family, ObjectRef, PodKey, ServiceKey, World};
use nearhop_tests::oracle::{Endpoint, Outcome};
use serde_json::Value;

use crate::random::{NAMESPACE, SERVICE};

/// The implementation under test.
pub(crate) struct Subject(World);

fn key() -> ServiceKey {
    ServiceKey::new(NAMESPACE, SERVICE)
}

fn now() -> PlanTime {
    PlanTime::at(Timestamp::UNIX_EPOCH)
}

impl Subject {
    pub(crate) fn new() -> Self {
        Self(World::new(Settings::default()))
    }

    /// Adds or updates objects, as a watch would.
    pub(crate) fn show<'a>(&mut self, objects: impl IntoIterator<Item = &'a Value>) {
        for object in objects {
            self.0.apply_all(convert_json(object.to_string().as_bytes()).0.map(Change::Put));
        }
    }

    pub(crate) fn remove_pod(&mut self, name: &str) {
        let key = PodKey::new(NAMESPACE, name);
        self.0.apply(Change::Gone(ObjectRef::Pod(key)));
    }

    /// Publishes the slices as the controller would.
    pub(crate) fn publish(&mut self) {
        let plan = self.0.plan(&key(), now()).expect("the Service exists");
        apply_plan(&mut self.0, &key(), plan);
    }

    /// The endpoints that are published, sorted.
    pub(crate) fn published(&self) -> Vec<Endpoint> {
        let slices: Vec<&Slice> = self.0.slices(&key()).map(AsRef::as_ref).collect();
        let mut endpoints: Vec<Endpoint> = slices.iter().flat_map(|slice| read(slice)).collect();
        endpoints.sort_by(|a, b| a.key.cmp(&b.key));
        endpoints
    }

    /// The outcomes of connections on a node, to the cluster address and from outside.
    pub(crate) fn route(&self, node: &str) -> (Outcome, Option<Outcome>) {
        let node = self.0.node(node).expect("the Node exists");
        let table = RouteTable::build(&self.0, Place::of(node));
        let mut routes = table.iter().map(|(_, route)| &route.decision);
        let decision = routes.next().expect("a Service has a route");
        let external = decision.external.map(|verdict| outcome(verdict, decision));
        (outcome(decision.internal, decision), external)
    }

    /// Predicted traffic by client zone and endpoint zone.
    pub(crate) fn traffic(&self) -> BTreeMap<(String, String), f64> {
        let key = key();
        let question = LoadQuestion { service: &key, port: 0, family: Family::Ipv4 };
        let load = plan_load(&self.0, question, now()).expect("the Service has a port");
        let rows = load.matrix.iter().flat_map(|(from, row)| {
            row.iter().map(|(to, part)| ((from.to_string(), to.to_string()), *part))
        });
        rows.collect()
    }
}

fn outcome(verdict: Verdict, decision: &RouteDecision) -> Outcome {
    let keys = |set: &Option<RouteSet>| {
        let backends = set.iter().flat_map(|set| &set.backends);
        Outcome::To(backends.map(|backend| backend.key.to_string()).collect())
    };
    match verdict {
        Verdict::Cluster => keys(&decision.cluster),
        Verdict::Local => keys(&decision.local),
        Verdict::Reject => Outcome::Reject,
        Verdict::Drop => Outcome::Drop,
    }
}

fn read(slice: &Slice) -> Vec<Endpoint> {
    let Some(port) = slice.ports.first().and_then(|port| port.port) else { return Vec::new() };
    let names = |names: &[nearhop_core::Name]| names.iter().map(ToString::to_string).collect();
    let endpoints = slice.endpoints.iter().filter_map(|endpoint| {
        Some(Endpoint {
            key: format!("{}:{port}", endpoint.addresses.first()?),
            node: endpoint.node.as_ref().map(ToString::to_string),
            zone: endpoint.zone.as_ref().map(ToString::to_string),
            ready: endpoint.conditions.ready.unwrap_or(true),
            serving: endpoint.conditions.serving.unwrap_or(true),
            terminating: endpoint.conditions.terminating.unwrap_or(false),
            for_zones: names(endpoint.hint_zones()),
            for_nodes: names(endpoint.hint_nodes()),
        })
    });
    endpoints.collect()
}
