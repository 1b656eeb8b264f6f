//! Core's prediction for a Service, from the cluster's Nodes, Pods and slices: the slices that the
//! controller writes, the choice of every node's proxy, and where the traffic goes. The prediction
//! starts from the existing slices, because the hints depend on earlier ones.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use nearhop_api::convert_json;
use nearhop_core::fixture::apply_plan;
use nearhop_core::model::Slice;
use nearhop_core::plan::{LoadPlan, LoadQuestion, plan_load};
use nearhop_core::route::Place;
use nearhop_core::route::table::decide;
use nearhop_core::world::{PlanTime, Settings, World};
use nearhop_core::{Change, Family, ServiceKey};
use serde_json::{Value, json};

use crate::LabError;
use crate::cluster::Cluster;

const DISCOVERY: &str = "discovery.k8s.io/v1";

/// The prediction.
#[derive(Debug)]
pub(crate) struct Prediction {
    /// Traffic between zones.
    pub(super) load: LoadPlan,
    /// Endpoints and their weights, by node.
    pub(crate) choices: BTreeMap<String, Choice>,
}

/// Endpoints, each with its weight.
pub(crate) type Choice = BTreeSet<(String, u64)>;

pub(crate) async fn predict(
    cluster: &Cluster,
    settings: Settings,
    namespace: &str,
    name: &str,
) -> Result<Prediction, LabError> {
    let mut world = World::new(settings);
    let core = format!("/api/v1/namespaces/{namespace}");
    let nodes = cluster.list("/api/v1/nodes").await?;
    let pods = cluster.list(&format!("{core}/pods")).await?;
    let service = cluster.get(&format!("{core}/services/{name}")).await?;
    let slices = format!("/apis/{DISCOVERY}/namespaces/{namespace}/endpointslices");
    let slices = cluster.list(&slices).await?;
    let objects = nodes.into_iter().map(|node| ("v1", "Node", node));
    let objects = objects.chain(pods.into_iter().map(|pod| ("v1", "Pod", pod)));
    let objects = objects.chain([("v1", "Service", service)]);
    let slices = slices.into_iter().map(|slice| (DISCOVERY, "EndpointSlice", slice));
    for (version, kind, mut object) in objects.chain(slices) {
        // Items of a list have no apiVersion and kind.
        object["apiVersion"] = json!(version);
        object["kind"] = json!(kind);
        let (object, _) = convert_json(object.to_string().as_bytes());
        world.apply_all(object.map(Change::Put));
    }
    let key = ServiceKey::new(namespace, name);
    let now = PlanTime::at(Timestamp::UNIX_EPOCH);
    let plan = world.plan(&key, now).ok_or_else(|| gone(&key))?;
    apply_plan(&mut world, &key, plan);
    let question = LoadQuestion { service: &key, port: 0, family: Family::Ipv4 };
    let load = plan_load(&world, question, now).ok_or_else(|| gone(&key))?;
    Ok(Prediction { load, choices: choices(&world, &key) })
}

fn gone(key: &ServiceKey) -> LabError {
    LabError::Drive { what: format!("Service {key}"), why: "it was deleted".to_owned() }
}

fn choices(world: &World, key: &ServiceKey) -> BTreeMap<String, Choice> {
    let Some(service) = world.service(key) else { return BTreeMap::new() };
    let slices: Vec<&Slice> = world.routed_slices(key).collect();
    let choose = |node: &nearhop_core::model::Node| -> Choice {
        let decision = decide(world, service, 0, Family::Ipv4, &slices, &Place::of(node));
        let backends = decision.cluster.map(|set| set.backends).unwrap_or_default();
        backends.iter().map(|one| (one.key.to_string(), u64::from(one.weight))).collect()
    };
    world.nodes().map(|node| (node.name.to_string(), choose(node))).collect()
}

/// The choice that a proxy reports at `/debug/services`; None while its rules are not applied.
pub(crate) fn read_choice(answer: &Value) -> Option<Choice> {
    let ports = answer["ports"].as_array()?;
    let port = ports.iter().find(|port| port["family"] == "IPv4")?;
    let frontends = port["frontends"].as_array()?;
    if frontends.is_empty() || frontends.iter().any(|one| one["inStep"] != true) {
        return None;
    }
    let desired = port["cluster"]["desired"].as_array().map_or(&[][..], Vec::as_slice);
    desired
        .iter()
        .map(|one| Some((one["endpoint"].as_str()?.to_owned(), one["weight"].as_u64()?)))
        .collect()
}
