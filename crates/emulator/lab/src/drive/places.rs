//! The locations of nodes and Pods, from the cluster's objects.

use std::collections::BTreeMap;
use std::net::IpAddr;

use nearhop_core::labels::well_known;
use nearhop_core::quantity::parse_cpu;
use serde_json::Value;

use super::worker::Family;
use crate::LabError;
use crate::cluster::{Cluster, name_of};

/// The locations of nodes and Pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Places {
    /// By the node's name.
    pub(super) nodes: BTreeMap<String, NodePlace>,
    /// By the Pod's name.
    pub(super) pods: BTreeMap<String, PodPlace>,
    /// Pod or node, by address.
    pub(super) owners: BTreeMap<IpAddr, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NodePlace {
    pub(super) address: Option<IpAddr>,
    pub(super) zone: String,
    pub(super) cpu_milli: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PodPlace {
    pub(super) node: String,
    pub(super) zone: String,
    pub(super) phase: String,
}

impl Places {
    /// Pods that run on a node.
    pub(super) fn running_on(&self, node: &str) -> u64 {
        let on = |pod: &&PodPlace| pod.node == node && pod.phase == "Running";
        self.pods.values().filter(on).count() as u64
    }

    pub(super) fn zone_of(&self, node: &str) -> String {
        self.nodes.get(node).map(|node| node.zone.clone()).unwrap_or_default()
    }
}

/// The current locations of nodes, and of the Pods of a namespace.
pub(super) async fn find_places(cluster: &Cluster, namespace: &str) -> Result<Places, LabError> {
    let mut places = Places::default();
    for node in cluster.list("/api/v1/nodes").await? {
        let name = name_of(&node).to_owned();
        for family in [Family::V4, Family::V6] {
            let own = internal_ips(&node, family).into_iter();
            places.owners.extend(own.map(|address| (address, format!("node/{name}"))));
        }
        places.nodes.insert(name, node_place(&node));
    }
    for pod in cluster.list(&format!("/api/v1/namespaces/{namespace}/pods")).await? {
        let place = pod_place(&pod, &places);
        let addresses = pod["status"]["podIPs"].as_array().map_or(&[][..], Vec::as_slice);
        if pod["spec"]["hostNetwork"] != true {
            let owner = format!("pod/{namespace}/{}", name_of(&pod));
            let own = addresses.iter().filter_map(|one| text(&one["ip"]).parse().ok());
            places.owners.extend(own.map(|address: IpAddr| (address, owner.clone())));
        }
        places.pods.insert(name_of(&pod).to_owned(), place);
    }
    Ok(places)
}

fn node_place(node: &Value) -> NodePlace {
    NodePlace {
        address: internal_ips(node, Family::V4).first().copied(),
        zone: text(&node["metadata"]["labels"][well_known::ZONE]).to_owned(),
        cpu_milli: parse_cpu(text(&node["status"]["allocatable"]["cpu"])).unwrap_or_default(),
    }
}

fn pod_place(pod: &Value, places: &Places) -> PodPlace {
    let node = text(&pod["spec"]["nodeName"]).to_owned();
    let phase = text(&pod["status"]["phase"]).to_owned();
    PodPlace { zone: places.zone_of(&node), node, phase }
}

/// The addresses of a family in a list.
pub(super) fn addresses(list: &Value, family: Family) -> Vec<IpAddr> {
    let texts = list.as_array().map_or(&[][..], Vec::as_slice).iter().filter_map(Value::as_str);
    texts.filter_map(|text| text.parse().ok()).filter(|address| family.contains(address)).collect()
}

/// A node's InternalIPs of a family.
fn internal_ips(node: &Value, family: Family) -> Vec<IpAddr> {
    let own = node["status"]["addresses"].as_array().map_or(&[][..], Vec::as_slice);
    let internal = own.iter().filter(|one| one["type"] == "InternalIP");
    addresses(&internal.map(|one| one["address"].clone()).collect(), family)
}

/// A string; empty if it is none.
pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
