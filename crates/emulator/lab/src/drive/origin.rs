//! The clients and targets of a drive, from the cluster's objects.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use nearhop_core::labels::well_known;
use serde_json::Value;

use super::worker::{Family, Job, Protocol};
use crate::LabError;
use crate::cluster::{Cluster, name_of};
use crate::control::Place;

/// Port of DNS servers.
const DNS_PORT: u16 = 53;

/// Timeout of a connection.
const TIMEOUT_MS: u64 = 3000;

/// The zone of clients outside the cluster.
pub(super) const EXTERNAL: &str = "external";

/// `--from`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum From {
    /// Every node, evenly.
    Everywhere,
    /// A Pod of the Service's namespace, or of the one that is named.
    Pod(Option<String>, String),
    /// A node.
    Node(String),
    /// Every node of a zone, evenly.
    Zone(String),
    /// Outside the cluster, through node ports.
    External,
}

impl FromStr for From {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split('/').collect();
        match parts.as_slice() {
            ["external"] => Ok(Self::External),
            ["node", name] => Ok(Self::Node((*name).to_owned())),
            ["zone", name] => Ok(Self::Zone((*name).to_owned())),
            ["pod", name] => Ok(Self::Pod(None, (*name).to_owned())),
            ["pod", namespace, name] => {
                Ok(Self::Pod(Some((*namespace).to_owned()), (*name).to_owned()))
            }
            _ => Err("expected pod/NAME, pod/NAMESPACE/NAME, node/NAME, zone/NAME or external"
                .to_owned()),
        }
    }
}

/// `[NAMESPACE/]NAME[:PORT]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceRef {
    /// Default: `default`.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Name or number of the port. Default: the first of the protocol.
    pub port: Option<String>,
}

impl FromStr for ServiceRef {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (path, port) = match text.split_once(':') {
            Some((path, port)) => (path, Some(port.to_owned())),
            None => (text, None),
        };
        let (namespace, name) = path.split_once('/').unwrap_or(("default", path));
        if namespace.is_empty() || name.is_empty() || name.contains('/') {
            return Err("expected NAME, NAMESPACE/NAME or NAMESPACE/NAME:PORT".to_owned());
        }
        Ok(Self { namespace: namespace.to_owned(), name: name.to_owned(), port })
    }
}

/// The request of `lab drive`.
#[derive(Clone, Debug)]
pub struct Question {
    /// Target.
    pub service: ServiceRef,
    /// Clients.
    pub from: From,
    /// Total number of connections.
    pub connections: u64,
    /// Connections at the same time, over all clients.
    pub concurrency: usize,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// By cluster IP or by name.
    pub by: By,
    /// Address family.
    pub family: Family,
}

/// How clients address the Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// By its cluster IP.
    Address,
    /// By its name, resolved for each connection.
    Name,
}

/// Where a worker runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Where {
    /// In a network namespace of the lab.
    Lab(Place),
    Pod {
        namespace: String,
        name: String,
    },
}

/// A worker.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    /// The client's zone, or [`EXTERNAL`].
    pub(super) zone: String,
    pub(super) place: Where,
    pub(super) job: Job,
}

/// The locations of nodes and Pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Places {
    /// Address, by the node's name.
    pub(super) nodes: BTreeMap<String, IpAddr>,
    /// Zone, by the node's name.
    pub(super) zones: BTreeMap<String, String>,
    /// Node and zone, by the Pod's name.
    pub(super) pods: BTreeMap<String, (String, String)>,
}

/// Finds the workers and the locations of Pods. `nodes` are the lab's; the cluster may have others.
pub(super) async fn find(
    cluster: &Cluster,
    nodes: &[String],
    question: &Question,
) -> Result<(Vec<Origin>, Places), LabError> {
    let ServiceRef { namespace, name, .. } = &question.service;
    let service = cluster.get(&format!("/api/v1/namespaces/{namespace}/services/{name}")).await;
    let service = service.map_err(|error| wrong(question, &format!("{error}")))?;
    let port = choose_port(&service, question)?;
    let places = find_places(cluster, namespace).await?;
    let here = places.zones.iter().filter(|(node, _)| nodes.contains(node));
    let here = here.map(|(node, zone)| (node.clone(), zone.clone())).collect();
    let clients = clients(cluster, question, &here).await?;
    let targets = match question.from {
        From::External if question.by == By::Name => {
            let why =
                "its name resolves inside the cluster only. Cure: omit --dns or --from external";
            return Err(wrong(question, why));
        }
        From::External => external_targets(cluster, port, question).await?,
        _ => {
            let behind = slice_port(cluster, port, question).await?;
            vec![inner_target(&service, port, behind, question)?]
        }
    };
    if clients.is_empty() {
        return Err(wrong(question, "the lab's nodes are not registered yet"));
    }
    let count = clients.len() as u64;
    let origins = (0u64..).zip(clients).map(|(n, (zone, place))| {
        let extra = u64::from(n < question.connections % count);
        let job = Job {
            targets: targets.clone(),
            protocol: question.protocol,
            connections: question.connections / count + extra,
            concurrency: question.concurrency.div_ceil(count as usize),
            timeout_ms: TIMEOUT_MS,
            rate: 0,
            family: question.family,
            name_server: name_server(&place, &places),
        };
        Origin { zone, place, job }
    });
    Ok((origins.filter(|origin| origin.job.connections > 0).collect(), places))
}

/// The current locations of nodes, and of the Pods of a namespace.
pub(super) async fn find_places(cluster: &Cluster, namespace: &str) -> Result<Places, LabError> {
    let nodes = cluster.list("/api/v1/nodes").await?;
    let zones = zones_of(&nodes);
    let pods = cluster.list(&format!("/api/v1/namespaces/{namespace}/pods")).await?;
    let pods = pods.iter().map(|pod| place_of(pod, &zones)).collect();
    let address =
        |node: &Value| Some((name_of(node).to_owned(), *internal_ips(node, Family::V4).first()?));
    Ok(Places { nodes: nodes.iter().filter_map(address).collect(), zones, pods })
}

fn wrong(question: &Question, why: &str) -> LabError {
    let ServiceRef { namespace, name, .. } = &question.service;
    LabError::Drive { what: format!("Service {namespace}/{name}"), why: why.to_owned() }
}

fn zones_of(nodes: &[Value]) -> BTreeMap<String, String> {
    let zone = |node: &Value| {
        node["metadata"]["labels"][well_known::ZONE].as_str().unwrap_or_default().to_owned()
    };
    nodes.iter().map(|node| (name_of(node).to_owned(), zone(node))).collect()
}

fn place_of(pod: &Value, zones: &BTreeMap<String, String>) -> (String, (String, String)) {
    let node = pod["spec"]["nodeName"].as_str().unwrap_or_default().to_owned();
    let zone = zones.get(&node).cloned().unwrap_or_default();
    (name_of(pod).to_owned(), (node, zone))
}

/// Zone and place of each client.
async fn clients(
    cluster: &Cluster,
    question: &Question,
    zones: &BTreeMap<String, String>,
) -> Result<Vec<(String, Where)>, LabError> {
    let on_node = |node: &String| Where::Lab(Place::Node(node.clone()));
    let missing = |what: &'static str, name: &str, known: Vec<&str>| LabError::NotFound {
        what,
        name: name.to_owned(),
        known: known.join(", "),
    };
    match &question.from {
        From::External => Ok(vec![(EXTERNAL.to_owned(), Where::Lab(Place::External))]),
        From::Everywhere => {
            Ok(zones.iter().map(|(node, zone)| (zone.clone(), on_node(node))).collect())
        }
        From::Node(name) => {
            let known = || zones.keys().map(String::as_str).collect();
            let zone = zones.get(name).ok_or_else(|| missing("node", name, known()))?;
            Ok(vec![(zone.clone(), on_node(name))])
        }
        From::Zone(name) => {
            let inside = zones.iter().filter(|(_, zone)| *zone == name);
            let found: Vec<_> = inside.map(|(node, zone)| (zone.clone(), on_node(node))).collect();
            let mut known: Vec<&str> = zones.values().map(String::as_str).collect();
            known.dedup();
            if found.is_empty() { Err(missing("zone", name, known)) } else { Ok(found) }
        }
        From::Pod(namespace, name) => {
            let namespace = namespace.clone().unwrap_or(question.service.namespace.clone());
            let pod = cluster.get(&format!("/api/v1/namespaces/{namespace}/pods/{name}")).await?;
            let (_, (_, zone)) = place_of(&pod, zones);
            Ok(vec![(zone, Where::Pod { namespace, name: name.clone() })])
        }
    }
}

fn choose_port<'a>(service: &'a Value, question: &Question) -> Result<&'a Value, LabError> {
    let protocol = match question.protocol {
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
    };
    let ports = service["spec"]["ports"].as_array().map_or(&[][..], Vec::as_slice);
    let named = |port: &Value| match &question.service.port {
        None => true,
        Some(wanted) => port["name"] == *wanted || port["port"].as_u64() == wanted.parse().ok(),
    };
    let chosen = ports.iter().find(|port| port["protocol"] == protocol && named(port));
    chosen.ok_or_else(|| {
        let of = question.service.port.as_ref().map_or(String::new(), |port| format!(" {port}"));
        let there = ports.iter().map(|one| format!("{}/{}", one["port"], text(&one["protocol"])));
        let there = there.collect::<Vec<_>>().join(", ");
        let there = if there.is_empty() { "none".to_owned() } else { there };
        wrong(question, &format!("it has no {protocol} port{of}; it has {there}"))
    })
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The target port, from the Service's slices.
async fn slice_port(
    cluster: &Cluster,
    port: &Value,
    question: &Question,
) -> Result<Option<u64>, LabError> {
    let ServiceRef { namespace, name, .. } = &question.service;
    let path = format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices");
    let label = format!("{}={name}", well_known::SERVICE_NAME);
    let slices = cluster.list(&format!("{path}?labelSelector={label}")).await?;
    let same = |one: &&Value| text(&one["name"]) == text(&port["name"]);
    let ports = slices.iter().filter_map(|slice| slice["ports"].as_array()).flatten();
    Ok(ports.into_iter().find(same).and_then(|one| one["port"].as_u64()))
}

fn inner_target(
    service: &Value,
    port: &Value,
    behind: Option<u64>,
    question: &Question,
) -> Result<String, LabError> {
    let headless = service["spec"]["clusterIP"] == "None";
    // The name of a headless Service resolves to its Pods, which listen on the target port.
    let number = behind.filter(|_| headless).or_else(|| port["port"].as_u64()).unwrap_or_default();
    if question.by == By::Name {
        let ServiceRef { namespace, name, .. } = &question.service;
        return Ok(format!("{name}.{namespace}.svc.cluster.local:{number}"));
    }
    if headless {
        return Err(wrong(question, "it is headless and has no cluster IP. Cure: --dns"));
    }
    let address = addresses(&service["spec"]["clusterIPs"], question.family).into_iter().next();
    let address = address.ok_or_else(|| {
        wrong(
            question,
            "it has no cluster IP of this family. Cure: ipFamilyPolicy: PreferDualStack",
        )
    })?;
    Ok(SocketAddr::new(address, u16::try_from(number).unwrap_or_default()).to_string())
}

fn addresses(list: &Value, family: Family) -> Vec<IpAddr> {
    let texts = list.as_array().map_or(&[][..], Vec::as_slice).iter().filter_map(Value::as_str);
    texts.filter_map(|text| text.parse().ok()).filter(|address| family.contains(address)).collect()
}

/// A node's InternalIPs of a family.
fn internal_ips(node: &Value, family: Family) -> Vec<IpAddr> {
    let own = node["status"]["addresses"].as_array().map_or(&[][..], Vec::as_slice);
    let internal = own.iter().filter(|one| one["type"] == "InternalIP");
    addresses(&internal.map(|one| one["address"].clone()).collect(), family)
}

/// The DNS server on the node, for workers on nodes. Pods have an `/etc/resolv.conf`.
fn name_server(place: &Where, places: &Places) -> Option<SocketAddr> {
    let Where::Lab(Place::Node(node)) = place else { return None };
    places.nodes.get(node).map(|address| SocketAddr::new(*address, DNS_PORT))
}

/// The Service's port on every node.
async fn external_targets(
    cluster: &Cluster,
    port: &Value,
    question: &Question,
) -> Result<Vec<String>, LabError> {
    let number = |field: &str| port[field].as_u64().and_then(|port| u16::try_from(port).ok());
    let at = |address: IpAddr, port: u16| SocketAddr::new(address, port).to_string();
    let mut targets = Vec::new();
    if let Some(node_port) = number("nodePort").filter(|port| *port != 0) {
        for node in cluster.list("/api/v1/nodes").await? {
            let first = internal_ips(&node, question.family).into_iter().next();
            targets.extend(first.map(|address| at(address, node_port)));
        }
    }
    if targets.is_empty() {
        let why = "it has no node port, so external clients cannot reach it. Cure: type: NodePort";
        return Err(wrong(question, why));
    }
    Ok(targets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_services_are_parsed() {
        let pod = |ns: Option<&str>| From::Pod(ns.map(str::to_owned), "web-0".to_owned());
        assert_eq!("pod/web-0".parse(), Ok(pod(None)));
        assert_eq!("pod/shop/web-0".parse(), Ok(pod(Some("shop"))));
        assert_eq!("zone/zone-a".parse(), Ok(From::Zone("zone-a".to_owned())));
        assert_eq!("external".parse(), Ok(From::External));
        assert!("rack/r1".parse::<From>().unwrap_err().contains("zone/NAME"));
        let service: ServiceRef = "shop/cart:http".parse().unwrap();
        assert_eq!((service.namespace.as_str(), service.name.as_str()), ("shop", "cart"));
        assert_eq!(service.port.as_deref(), Some("http"));
        assert_eq!("cart".parse::<ServiceRef>().unwrap().namespace, "default");
        assert!("a/b/c".parse::<ServiceRef>().is_err());
    }
}
