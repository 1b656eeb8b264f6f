//! The clients and targets of a drive, from the cluster's objects.

use std::net::{IpAddr, SocketAddr};

use nearhop_core::labels::well_known;
use serde_json::Value;

use super::places::{Places, PodPlace, addresses, find_places, text};
use super::question::{By, From, Question, ServiceRef, Split};
use super::split::split;
use super::worker::{Family, Job, Protocol};
use crate::LabError;
use crate::cluster::{Cluster, name_of};
use crate::control::Place;

/// Port of DNS servers.
const DNS_PORT: u16 = 53;

/// The name and the zone of clients outside the cluster.
pub(super) const EXTERNAL: &str = "external";

/// Names in an error message.
const LISTED: usize = 20;

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

/// The location of a client.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Client {
    /// `node/NAME`, `pod/NAMESPACE/NAME` or [`EXTERNAL`].
    pub(super) name: String,
    /// Its node, or [`EXTERNAL`].
    pub(super) node: String,
    /// Its zone, or [`EXTERNAL`]; empty if the node has none.
    pub(super) zone: String,
}

/// A worker.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    pub(super) client: Client,
    pub(super) place: Where,
    pub(super) job: Job,
}

/// The workers, and the locations of what answers them.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) origins: Vec<Origin>,
    pub(super) places: Places,
    /// Ready endpoints of the Service and family, at the start; None for external clients.
    pub(super) endpoints: Endpoints,
}

/// The endpoints of a Service in its slices of one family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Endpoints {
    pub(super) all: usize,
    pub(super) ready: usize,
}

/// Finds the workers and the locations of Pods. `nodes` are the lab's; the cluster may have others.
pub(super) async fn find(
    cluster: &Cluster,
    nodes: &[String],
    question: &Question,
) -> Result<Plan, LabError> {
    let service = find_service(cluster, question).await?;
    let port = choose_port(&service, question)?;
    let mut places = find_places(cluster, &question.service.namespace).await?;
    let slices = slices(cluster, question).await?;
    let targets = targets(&service, port, &slices, &places, question)?;
    places.owners.extend(address_of(&service, question.family));
    let mut here = places.clone();
    here.nodes.retain(|name, _| nodes.contains(name));
    let clients = clients(cluster, question, &here).await?;
    let weights = weights(&clients, &here, question)?;
    let origins = divide(clients, &weights, &targets, &places, question);
    Ok(Plan { origins, places, endpoints: count_endpoints(&slices, question.family) })
}

/// Gives each client its part of the connections.
fn divide(
    clients: Vec<(Client, Where)>,
    weights: &[u64],
    targets: &[String],
    places: &Places,
    question: &Question,
) -> Vec<Origin> {
    let amount = question.amount;
    let counts = amount.connections.map(|total| split(total, weights));
    let lanes = split(question.concurrency() as u64, weights);
    let (all, sum) = (clients.len() as f64, weights.iter().sum::<u64>() as f64);
    let origins = clients.into_iter().enumerate().map(|(n, (client, place))| Origin {
        job: Job {
            targets: targets.to_vec(),
            connections: counts.as_ref().map(|counts| counts[n]),
            concurrency: lanes[n].max(1) as usize,
            timeout_ms: question.timeout.as_millis() as u64,
            rate: amount.rate.unwrap_or_default() * weights[n] as f64 / sum,
            phase: n as f64 / all,
            duration_ms: amount.duration.map(|duration| duration.as_millis() as u64),
            name_server: name_server(&place, places),
            ..Job::new(question.protocol, question.family)
        },
        client,
        place,
    });
    let used = origins.zip(weights).filter(|(_, weight)| **weight > 0);
    used.map(|(origin, _)| origin).filter(|origin| origin.job.connections != Some(0)).collect()
}

/// The weight of each client.
fn weights(
    clients: &[(Client, Where)],
    places: &Places,
    question: &Question,
) -> Result<Vec<u64>, LabError> {
    let weight = |(client, _): &(Client, Where)| match question.split {
        // A single client has all connections.
        _ if clients.len() == 1 => 1,
        Split::Node => 1,
        Split::Cpu => places.nodes.get(&client.node).map_or(0, |node| node.cpu_milli),
        Split::Pod => places.running_on(&client.node),
    };
    let weights: Vec<u64> = clients.iter().map(weight).collect();
    if weights.iter().any(|weight| *weight > 0) {
        return Ok(weights);
    }
    Err(wrong(
        question,
        match question.split {
            Split::Cpu => "--by cpu: no client's node has allocatable CPU. Cure: --by node",
            Split::Pod => {
                "--by pod: no Pod of its namespace runs on the nodes of the clients. Cure: --by node"
            }
            Split::Node => "the lab's nodes are not registered yet. Cure: nearhop lab status",
        },
    ))
}

async fn find_service(cluster: &Cluster, question: &Question) -> Result<Value, LabError> {
    let ServiceRef { namespace, name, .. } = &question.service;
    let found = cluster.get(&format!("/api/v1/namespaces/{namespace}/services/{name}")).await;
    let error = match found {
        Ok(service) => return Ok(service),
        Err(error) => error,
    };
    let Ok(all) = cluster.list("/api/v1/services").await else { return Err(error) };
    let path = |one: &Value| format!("{}/{}", text(&one["metadata"]["namespace"]), name_of(one));
    let known: Vec<String> = all.iter().map(path).collect();
    let wanted = format!("{namespace}/{name}");
    Err(if known.contains(&wanted) { error } else { missing("Service", &wanted, known) })
}

fn missing(what: &'static str, name: &str, mut known: Vec<String>) -> LabError {
    known.sort();
    known.dedup();
    let more = known.len().saturating_sub(LISTED);
    known.truncate(LISTED);
    let mut list = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    if more > 0 {
        list += &format!(" and {more} more");
    }
    LabError::NotFound { what, name: name.to_owned(), known: list }
}

fn wrong(question: &Question, why: &str) -> LabError {
    let ServiceRef { namespace, name, .. } = &question.service;
    LabError::Drive { what: format!("Service {namespace}/{name}"), why: why.to_owned() }
}

fn on_node(name: &str, places: &Places) -> (Client, Where) {
    let client =
        Client { name: format!("node/{name}"), node: name.to_owned(), zone: places.zone_of(name) };
    (client, Where::Lab(Place::Node(name.to_owned())))
}

async fn clients(
    cluster: &Cluster,
    question: &Question,
    places: &Places,
) -> Result<Vec<(Client, Where)>, LabError> {
    let nodes = places.nodes.keys();
    match &question.from {
        From::External => {
            let [name, node, zone] = [EXTERNAL; 3].map(str::to_owned);
            Ok(vec![(Client { name, node, zone }, Where::Lab(Place::External))])
        }
        From::Everywhere => Ok(nodes.map(|name| on_node(name, places)).collect()),
        From::Node(name) if places.nodes.contains_key(name) => Ok(vec![on_node(name, places)]),
        From::Node(name) => Err(missing("node", name, nodes.cloned().collect())),
        From::Zone(zone) => {
            let inside = places.nodes.iter().filter(|(_, place)| place.zone == *zone);
            let found: Vec<_> = inside.map(|(name, _)| on_node(name, places)).collect();
            let known = || places.nodes.values().map(|place| place.zone.clone()).collect();
            if found.is_empty() { Err(missing("zone", zone, known())) } else { Ok(found) }
        }
        From::Pod(namespace, name) => {
            let namespace = namespace.as_ref().unwrap_or(&question.service.namespace);
            let mut found = find_places(cluster, namespace).await?;
            let Some(PodPlace { node, zone, .. }) = found.pods.remove(name) else {
                let known = found.pods.keys().map(|pod| format!("{namespace}/{pod}")).collect();
                return Err(missing("Pod", &format!("{namespace}/{name}"), known));
            };
            let client = Client { name: format!("pod/{namespace}/{name}"), node, zone };
            Ok(vec![(client, Where::Pod { namespace: namespace.clone(), name: name.clone() })])
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
        let there = ports.iter().map(describe_port).collect::<Vec<_>>().join(", ");
        let there = if there.is_empty() { "none".to_owned() } else { there };
        wrong(question, &format!("it has no {protocol} port{of}; it has {there}"))
    })
}

/// `80/TCP`, or `80/TCP (http)`.
fn describe_port(port: &Value) -> String {
    let number = format!("{}/{}", port["port"], text(&port["protocol"]));
    match text(&port["name"]) {
        "" => number,
        name => format!("{number} ({name})"),
    }
}

async fn slices(cluster: &Cluster, question: &Question) -> Result<Vec<Value>, LabError> {
    let ServiceRef { namespace, name, .. } = &question.service;
    let path = format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices");
    let label = format!("{}={name}", well_known::SERVICE_NAME);
    cluster.list(&format!("{path}?labelSelector={label}")).await
}

fn count_endpoints(slices: &[Value], family: Family) -> Endpoints {
    let family = match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    };
    let same = slices.iter().filter(|slice| slice["addressType"] == family);
    let all: Vec<&Value> =
        same.filter_map(|slice| slice["endpoints"].as_array()).flatten().collect();
    // A missing condition counts as true.
    let ready = all.iter().filter(|endpoint| endpoint["conditions"]["ready"] != false).count();
    Endpoints { all: all.len(), ready }
}

fn targets(
    service: &Value,
    port: &Value,
    slices: &[Value],
    places: &Places,
    question: &Question,
) -> Result<Vec<String>, LabError> {
    match question.from {
        From::External if question.by == By::Name => {
            let why =
                "its name resolves inside the cluster only. Cure: omit --dns or --from external";
            Err(wrong(question, why))
        }
        From::External => external_targets(port, places, question),
        _ => Ok(vec![inner_target(service, port, slice_port(slices, port), question)?]),
    }
}

/// The target port, from the Service's slices.
fn slice_port(slices: &[Value], port: &Value) -> Option<u64> {
    let same = |one: &&Value| text(&one["name"]) == text(&port["name"]);
    let ports = slices.iter().filter_map(|slice| slice["ports"].as_array()).flatten();
    ports.into_iter().find(same).and_then(|one| one["port"].as_u64())
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

/// The Service as the owner of its cluster IP.
fn address_of(service: &Value, family: Family) -> Option<(IpAddr, String)> {
    let address = addresses(&service["spec"]["clusterIPs"], family).into_iter().next()?;
    let namespace = text(&service["metadata"]["namespace"]);
    Some((address, format!("service/{namespace}/{}", name_of(service))))
}

/// The DNS server on the node, for workers on nodes. Pods have an `/etc/resolv.conf`.
fn name_server(place: &Where, places: &Places) -> Option<SocketAddr> {
    let Where::Lab(Place::Node(node)) = place else { return None };
    places.nodes.get(node)?.address.map(|address| SocketAddr::new(address, DNS_PORT))
}

/// The Service's port on every node.
fn external_targets(
    port: &Value,
    places: &Places,
    question: &Question,
) -> Result<Vec<String>, LabError> {
    let number = port["nodePort"].as_u64().and_then(|port| u16::try_from(port).ok());
    let Some(number) = number.filter(|port| *port != 0) else {
        let why = "it has no node port, so external clients cannot reach it. Cure: type: NodePort";
        return Err(wrong(question, why));
    };
    let nodes = places
        .owners
        .iter()
        .filter(|(address, owner)| question.family.contains(address) && owner.starts_with("node/"));
    Ok(nodes.map(|(address, _)| SocketAddr::new(*address, number).to_string()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive::places::NodePlace;
    use crate::drive::question::Amount;
    use serde_json::json;
    use std::time::Duration;

    fn places(nodes: [(&str, u64, usize); 3]) -> Places {
        let mut places = Places::default();
        for (name, cpu_milli, pods) in nodes {
            let place = NodePlace { cpu_milli, zone: "a".to_owned(), address: None };
            places.nodes.insert(name.to_owned(), place);
            for n in 0..pods {
                let pod = PodPlace {
                    node: name.to_owned(),
                    phase: "Running".to_owned(),
                    ..PodPlace::default()
                };
                places.pods.insert(format!("{name}-{n}"), pod);
            }
        }
        places
    }

    fn question(split: Split, amount: Amount) -> Question {
        Question {
            service: "web".parse().unwrap(),
            from: From::Everywhere,
            amount,
            split,
            concurrency: None,
            timeout: Duration::from_secs(3),
            protocol: Protocol::Tcp,
            by: By::Address,
            family: Family::V4,
        }
    }

    /// Connections and lanes by client.
    fn divided(question: &Question, places: &Places) -> Vec<(String, Option<u64>, usize)> {
        let clients: Vec<_> = places.nodes.keys().map(|name| on_node(name, places)).collect();
        let weights = weights(&clients, places, question).unwrap();
        let origins = divide(clients, &weights, &["10.0.0.1:80".to_owned()], places, question);
        let part = |one: Origin| (one.client.node, one.job.connections, one.job.concurrency);
        origins.into_iter().map(part).collect()
    }

    #[test]
    fn connections_are_divided_by_cpu_node_or_pod() {
        let places = places([("n1", 8000, 0), ("n2", 4000, 1), ("n3", 4000, 3)]);
        let total = Amount { connections: Some(400), duration: None, rate: None };
        let part = |name: &str, count, lanes| (name.to_owned(), Some(count), lanes);
        assert_eq!(
            divided(&question(Split::Cpu, total), &places),
            [part("n1", 200, 12), part("n2", 100, 6), part("n3", 100, 6)]
        );
        assert_eq!(
            divided(&question(Split::Node, total), &places),
            [part("n1", 134, 8), part("n2", 133, 8), part("n3", 133, 8)]
        );
        assert_eq!(
            divided(&question(Split::Pod, total), &places),
            [part("n2", 100, 6), part("n3", 300, 18)],
            "a node without Pods has no connections"
        );
    }

    #[test]
    fn without_a_number_every_client_gets_its_part_of_the_rate() {
        let places = places([("n1", 8000, 0), ("n2", 4000, 0), ("n3", 4000, 0)]);
        let duration = Some(Duration::from_secs(5));
        let amount = Amount { connections: None, duration, rate: Some(10.0) };
        let question = question(Split::Cpu, amount);
        let clients: Vec<_> = places.nodes.keys().map(|name| on_node(name, &places)).collect();
        let weights = weights(&clients, &places, &question).unwrap();
        let origins = divide(clients, &weights, &[], &places, &question);
        let rates: Vec<f64> = origins.iter().map(|origin| origin.job.rate).collect();
        assert_eq!(rates, [5.0, 2.5, 2.5]);
        assert!(origins.iter().all(|origin| origin.job.duration_ms == Some(5000)));
    }

    #[test]
    fn a_split_without_any_weight_is_refused() {
        let places = places([("n1", 0, 0), ("n2", 0, 0), ("n3", 0, 0)]);
        let clients: Vec<_> = places.nodes.keys().map(|name| on_node(name, &places)).collect();
        let total = Amount { connections: Some(1), duration: None, rate: None };
        for (split, cure) in [(Split::Cpu, "allocatable CPU"), (Split::Pod, "no Pod")] {
            let error = weights(&clients, &places, &question(split, total)).unwrap_err();
            assert!(error.to_string().contains(cure), "{error}");
        }
    }

    #[test]
    fn ready_endpoints_are_counted_in_one_family() {
        let slices = [
            json!({"addressType": "IPv4", "endpoints": [
                {"conditions": {"ready": true}}, {"conditions": {"ready": false}}, {}]}),
            json!({"addressType": "IPv6", "endpoints": [{}]}),
            json!({"addressType": "IPv4", "endpoints": null}),
        ];
        assert_eq!(count_endpoints(&slices, Family::V4), Endpoints { all: 3, ready: 2 });
        assert_eq!(count_endpoints(&slices, Family::V6), Endpoints { all: 1, ready: 1 });
    }

    #[test]
    fn errors_list_what_exists_up_to_a_limit() {
        let known = (0..25).map(|n| format!("web-{n:02}")).collect();
        let error = missing("Pod", "default/web", known).to_string();
        assert!(error.contains("web-19 and 5 more") && !error.contains("web-20"), "{error}");
        assert!(missing("Pod", "default/web", Vec::new()).to_string().contains("it has none"));
    }
}
