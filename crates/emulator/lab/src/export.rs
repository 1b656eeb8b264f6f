//! A running lab as a file that `lab up --config` accepts. What the file cannot express is named in
//! its comments.
//!
//! Pods of a Deployment or another owner become one `pods` line, because the language has no owners.
//! Addresses, UIDs and cluster IPs are left out: a lab assigns them.

use std::collections::{BTreeMap, BTreeSet};

use nearhop_api::convert_json;
use nearhop_core::fixture::Fixture;
use nearhop_core::labels::{Labels, well_known};
use nearhop_core::model::{Node, Pod, Service, ServiceType};
use nearhop_core::{Name, Object};
use serde_json::{Value, json};

use crate::LabError;
use crate::cluster::{Cluster, name_of};
use crate::control::Status;
use crate::objects::ECHO;

/// Namespaces of the system.
const SYSTEM: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];

/// Labels that the node agent sets.
const AGENT_LABELS: [&str; 2] = ["kubernetes.io/os", "kubernetes.io/arch"];

/// Labels that controllers and the API server set on Pods.
const TEMPLATE_LABELS: [&str; 5] = [
    "pod-template-hash",
    "controller-revision-hash",
    "pod-template-generation",
    well_known::ZONE,
    well_known::REGION,
];

/// Annotations that the language has options for, and those that say nothing about the object.
const KNOWN_ANNOTATIONS: [&str; 7] = [
    "service.kubernetes.io/topology-mode",
    "service.kubernetes.io/topology-aware-hints",
    "nearhop.dev/topology-keys",
    "nearhop.dev/traffic-distribution",
    "nearhop.dev/routing-preference",
    "nearhop.dev/max-overload",
    "kubectl.kubernetes.io/last-applied-configuration",
];

/// Kinds that the language does not have: API root, kind, plural.
const OTHERS: [(&str, &str, &str); 10] = [
    ("/api/v1", "ConfigMap", "configmaps"),
    ("/api/v1", "Secret", "secrets"),
    ("/api/v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
    ("/apis/apps/v1", "Deployment", "deployments"),
    ("/apis/apps/v1", "DaemonSet", "daemonsets"),
    ("/apis/apps/v1", "StatefulSet", "statefulsets"),
    ("/apis/apps/v1", "ReplicaSet", "replicasets"),
    ("/apis/batch/v1", "Job", "jobs"),
    ("/apis/networking.k8s.io/v1", "Ingress", "ingresses"),
    ("/apis/networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
];

/// The objects of a lab, as its API has them.
#[derive(Debug, Default)]
struct Found {
    nodes: Vec<Value>,
    namespaces: Vec<Value>,
    services: Vec<Value>,
    pods: Vec<Value>,
    slices: Vec<Value>,
    /// Kind and object.
    others: Vec<(&'static str, Value)>,
}

/// The lab as a text of the fixture language.
pub async fn export(cluster: &Cluster, status: &Status) -> Result<String, LabError> {
    let known: BTreeSet<&String> = status.zones.values().flatten().collect();
    let mut nodes = cluster.list("/api/v1/nodes").await?;
    nodes.retain(|node| known.contains(&name_of(node).to_owned()));
    let mut found = Found {
        nodes,
        namespaces: cluster.list("/api/v1/namespaces").await?,
        services: cluster.list("/api/v1/services").await?,
        pods: cluster.list("/api/v1/pods").await?,
        slices: cluster.list("/apis/discovery.k8s.io/v1/endpointslices").await?,
        others: Vec::new(),
    };
    for (root, kind, plural) in OTHERS {
        let objects = cluster.list(&format!("{root}/{plural}")).await?;
        found.others.extend(objects.into_iter().map(|object| (kind, object)));
    }
    Ok(describe(&status.name, found))
}

fn describe(lab: &str, found: Found) -> String {
    let mut fixture = Fixture::default();
    let mut notes = Vec::new();
    fixture.nodes = found.nodes.iter().filter_map(read_node).collect();
    for namespace in found.namespaces.iter().filter(|one| !SYSTEM.contains(&name_of(one))) {
        if let Some(Object::Namespace(namespace)) = convert("Namespace", namespace)
            && (&*namespace.name != "default" || namespace.traffic_distribution.is_some())
        {
            fixture.namespaces.push(namespace);
        }
    }
    for service in found.services.iter().filter(|one| is_exported(one)) {
        fixture.services.extend(read_service(service, &mut notes));
    }
    let nodes: BTreeSet<&str> = found.nodes.iter().map(name_of).collect();
    let (lines, single) = read_pods(&found.pods, &nodes, &mut notes);
    fixture.pods = single;
    note_slices(&found.slices, &mut notes);
    note_others(&found.others, &mut notes);
    let mut text = format!(
        "# The lab `{lab}`, written by `nearhop lab export`. To start it again: nearhop lab up --config \
         FILE\n# Pods run {ECHO}; the lab assigns addresses.\n"
    );
    text += &fixture.without_addresses().to_string();
    text += &lines;
    for note in notes {
        text += &format!("# {note}\n");
    }
    text
}

fn namespace_of(object: &Value) -> &str {
    object["metadata"]["namespace"].as_str().unwrap_or_default()
}

fn path_of(object: &Value) -> String {
    format!("{}/{}", namespace_of(object), name_of(object))
}

/// Whether a user made it.
fn is_exported(object: &Value) -> bool {
    !SYSTEM.contains(&namespace_of(object)) && path_of(object) != "default/kubernetes"
}

fn convert(kind: &str, object: &Value) -> Option<Object> {
    let mut object = object.clone();
    // Items of a list have no apiVersion and kind.
    object["apiVersion"] = json!("v1");
    object["kind"] = json!(kind);
    convert_json(object.to_string().as_bytes()).0
}

fn read_node(node: &Value) -> Option<Node> {
    let Some(Object::Node(node)) = convert("Node", node) else { return None };
    let mut plain = Node::new(node.name.clone());
    plain.labels = without(&node.labels, &AGENT_LABELS);
    plain.cpu_milli = node.cpu_milli;
    Some(plain)
}

fn without(labels: &Labels, keys: &[&str]) -> Labels {
    let kept = labels.iter().filter(|(key, _)| !keys.contains(&key.as_str()));
    kept.map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn read_service(object: &Value, notes: &mut Vec<String>) -> Option<Service> {
    let path = path_of(object);
    let Some(Object::Service(mut service)) = convert("Service", object) else {
        notes.push(format!("not exported: Service {path}: it cannot be read"));
        return None;
    };
    if service.deleting || service.service_type == ServiceType::ExternalName {
        let why = if service.deleting { "it is being deleted" } else { "the type ExternalName" };
        notes.push(format!("not exported: Service {path}: {why}"));
        return None;
    }
    service.load_balancer_ips = Vec::new();
    service.health_check_node_port = 0;
    let annotations = object["metadata"]["annotations"].as_object().into_iter().flatten();
    for (key, _) in annotations.filter(|(key, _)| !KNOWN_ANNOTATIONS.contains(&key.as_str())) {
        notes.push(format!("not exported: Service {path}: the annotation {key}"));
    }
    if object["spec"]["ipFamilies"].as_array().is_some_and(|families| families.len() == 1) {
        notes.push(format!("Service {path} has one IP family; here it gets both"));
    }
    Some(*service)
}

/// Pods that become one line: namespace, owner and all options.
type Groups = BTreeMap<(String, String, String), Vec<Pod>>;

/// The `pods` lines, and the Pods of `pod` lines.
fn read_pods(
    pods: &[Value],
    nodes: &BTreeSet<&str>,
    notes: &mut Vec<String>,
) -> (String, Vec<Pod>) {
    let (mut groups, mut single) = (Groups::new(), Vec::new());
    for object in pods.iter().filter(|one| is_exported(one)) {
        // A cluster that the lab joined has nodes of its own.
        let node = object["spec"]["nodeName"].as_str();
        if let Some(node) = node.filter(|node| !nodes.contains(node)) {
            let path = path_of(object);
            notes.push(format!("not exported: Pod {path}: its node {node} is not of the lab"));
            continue;
        }
        let Some(pod) = read_pod(object, notes) else { continue };
        match owner_of(object) {
            Some(owner) if pod.node.is_some() && pod.dns.is_none() => {
                let options = options_of(&pod);
                let key = (pod.key.namespace.to_string(), owner, options);
                groups.entry(key).or_default().push(pod);
            }
            _ => single.push(pod),
        }
    }
    let mut used: BTreeSet<String> = single.iter().map(|pod| pod.key.to_string()).collect();
    let mut lines = String::new();
    for ((namespace, owner, _), pods) in groups {
        let name = |prefix: &str, n: usize| format!("{namespace}/{prefix}-{n}");
        let mut prefix = owner;
        while (0..pods.len()).any(|n| used.contains(&name(&prefix, n))) {
            prefix += "-more";
        }
        used.extend((0..pods.len()).map(|n| name(&prefix, n)));
        lines += &line_of(&namespace, &prefix, &pods);
    }
    (lines, single)
}

fn read_pod(object: &Value, notes: &mut Vec<String>) -> Option<Pod> {
    let path = path_of(object);
    let mut skip = |why: &str| {
        notes.push(format!("not exported: Pod {path}: {why}"));
        None
    };
    let Some(Object::Pod(mut pod)) = convert("Pod", object) else {
        return skip("it cannot be read");
    };
    if pod.deleting || pod.terminal {
        return skip("it has ended or is being deleted");
    }
    pod.labels = without(&pod.labels, &TEMPLATE_LABELS);
    if pod.labels.iter().next().is_none() {
        return skip("it has no label");
    }
    let container = &object["spec"]["containers"][0];
    let is_ready = container["readinessProbe"]["exec"]["command"] != json!(["/bin/false"]);
    pod.ready = is_ready;
    let image = container["image"].as_str().unwrap_or_default();
    if image != ECHO {
        notes.push(format!("Pod {path} runs {image}; here it runs {ECHO}"));
    }
    if object["spec"]["hostNetwork"] == true {
        notes.push(format!("Pod {path} uses its node's network; here it gets its own address"));
    }
    Some(*pod)
}

/// The name of the owner: of the Deployment where there is one.
fn owner_of(pod: &Value) -> Option<String> {
    let owners = pod["metadata"]["ownerReferences"].as_array()?;
    let owner = owners.iter().find(|owner| owner["controller"] == true)?["name"].as_str()?;
    let hash = pod["metadata"]["labels"]["pod-template-hash"].as_str();
    let stem = hash.and_then(|hash| owner.strip_suffix(hash)?.strip_suffix('-'));
    Some(stem.unwrap_or(owner).to_owned())
}

/// All that a line says but name and node.
fn options_of(pod: &Pod) -> String {
    let mut pod = pod.clone();
    pod.node = None;
    pod.key.name = Name::from("x");
    Fixture { pods: vec![pod], ..Fixture::default() }.without_addresses().to_string()
}

/// `pods NAMESPACE/PREFIX xN ... on=NODE,NODE...`.
fn line_of(namespace: &str, prefix: &str, pods: &[Pod]) -> String {
    let Some(first) = pods.first() else { return String::new() };
    let nodes: Vec<&str> = pods.iter().filter_map(|pod| pod.node.as_deref()).collect();
    let mut one = first.clone();
    one.node = Some(Name::from(nodes.join(",")));
    one.key = nearhop_core::key::PodKey::new(namespace, prefix);
    let line = Fixture { pods: vec![one], ..Fixture::default() }.without_addresses().to_string();
    let mut words = line.splitn(3, ' ');
    let (_, name, rest) = (words.next(), words.next().unwrap_or_default(), words.next());
    format!("pods {name} x{} {}", pods.len(), rest.unwrap_or_default())
}

fn note_slices(slices: &[Value], notes: &mut Vec<String>) {
    for slice in slices.iter().filter(|one| is_exported(one)) {
        let labels = &slice["metadata"]["labels"];
        let manager = labels["endpointslice.kubernetes.io/managed-by"].as_str().unwrap_or_default();
        let is_controllers =
            manager.contains("nearhop") || manager.starts_with("endpointslice-controller");
        if !is_controllers && path_of(slice) != "default/kubernetes" {
            notes.push(format!("not exported: EndpointSlice {}", path_of(slice)));
        }
    }
}

fn note_others(others: &[(&'static str, Value)], notes: &mut Vec<String>) {
    for (kind, object) in others.iter().filter(|(_, object)| is_exported(object)) {
        let owned =
            object["metadata"]["ownerReferences"].as_array().is_some_and(|all| !all.is_empty());
        let made = *kind == "ConfigMap" && name_of(object) == "kube-root-ca.crt";
        if owned || made {
            continue;
        }
        let has_pods = matches!(*kind, "Deployment" | "DaemonSet" | "StatefulSet" | "ReplicaSet");
        let hint = if has_pods { "; its Pods are a `pods` line" } else { "" };
        notes.push(format!("not exported: {kind} {}{hint}", path_of(object)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConfigFile;
    use crate::ranges::Ranges;

    fn pod(name: &str, node: &str, owner: Option<&str>, image: &str) -> Value {
        let owners =
            owner.map(|name| json!([{"kind": "ReplicaSet", "name": name, "controller": true}]));
        json!({
            "metadata": {
                "name": name, "namespace": "shop", "ownerReferences": owners,
                "labels": {
                    "app": "cart", "pod-template-hash": "5d8", "topology.kubernetes.io/zone": "z",
                },
            },
            "spec": {"nodeName": node, "containers": [{"name": "c", "image": image}]},
            "status": {"phase": "Running", "podIP": "10.244.0.7"},
        })
    }

    #[test]
    fn a_lab_becomes_a_file_that_describes_the_same_objects() {
        let node = |name: &str, zone: &str| {
            json!({
                "metadata": {"name": name, "labels": {
                    "topology.kubernetes.io/zone": zone, "kubernetes.io/hostname": name,
                    "kubernetes.io/os": "linux", "disk": "fast",
                }},
                "spec": {"podCIDRs": ["10.244.0.0/24"]},
                "status": {"allocatable": {"cpu": "2"}},
            })
        };
        let service = json!({
            "metadata": {"name": "cart", "namespace": "shop", "annotations": {"team": "x"}},
            "spec": {
                "clusterIP": "10.96.3.4", "clusterIPs": ["10.96.3.4"], "ipFamilies": ["IPv4", "IPv6"],
                "selector": {"app": "cart"}, "trafficDistribution": "PreferSameZone",
                "ports": [{"port": 80, "targetPort": 8080, "protocol": "TCP"}],
            },
        });
        let system = json!({"metadata": {"name": "kube-dns", "namespace": "kube-system"}});
        let secret = json!({"metadata": {"name": "token", "namespace": "shop"}});
        let text = describe(
            "lab",
            Found {
                nodes: vec![node("n1", "east"), node("n2", "west")],
                namespaces: vec![json!({"metadata": {"name": "shop"}})],
                services: vec![system, service],
                pods: vec![
                    pod("cart-5d8-a", "n1", Some("cart-5d8"), ECHO),
                    pod("cart-5d8-b", "n2", Some("cart-5d8"), ECHO),
                    pod("cart-0", "n2", None, "agnhost"),
                    pod("cart-1", "worker-1", None, ECHO),
                ],
                slices: Vec::new(),
                others: vec![("Secret", secret)],
            },
        );
        let wanted = "\
namespace shop
node n1 label:disk=fast zone=east cpu=2
node n2 label:disk=fast zone=west cpu=2
service shop/cart port=80->8080 traffic-distribution=PreferSameZone
pod shop/cart-0 for=cart on=n2
pods shop/cart-more x2 for=cart on=n1,n2
# not exported: Service shop/cart: the annotation team
# Pod shop/cart-0 runs agnhost; here it runs nearhop/echo
# not exported: Pod shop/cart-1: its node worker-1 is not of the lab
# not exported: Secret shop/token
";
        let body: Vec<&str> = text.split_inclusive('\n').skip(2).collect();
        assert_eq!(body.concat(), wanted);
        let file = ConfigFile::parse("exported", &text).expect("valid");
        file.topology(Ranges::default()).expect("a lab's nodes");
        assert_eq!(file.objects().expect("a lab's objects").len(), 5);
        assert!(file.ignored().is_empty(), "{:?}", file.ignored());
    }
}
