//! Random clusters, as Kubernetes objects: a few Nodes, a Service with any topology settings, its Pods or
//! slices.

use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use serde_json::{Value, json};

pub(crate) const NAMESPACE: &str = "default";
pub(crate) const SERVICE: &str = "web";

/// A cluster with one Service.
#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Value>,
    pub(crate) namespace: Value,
    pub(crate) service: Value,
    pub(crate) pods: Vec<Value>,
}

impl Cluster {
    pub(crate) fn new(random: &mut SmallRng) -> Self {
        let zones = random.random_range(1..=4);
        let sort = NodeSort {
            zones,
            cpu: *[Cpu::Equal, Cpu::Random, Cpu::SomeUnknown].choose(random).expect("not empty"),
            irregular: random.random_bool(0.3),
        };
        let count = random.random_range(1..=6);
        let nodes: Vec<Value> = (0..count).map(|i| node(random, i, &sort)).collect();
        let namespace = namespace(random);
        let mut cluster = Self { nodes, namespace, service: service(random), pods: Vec::new() };
        for i in 0..random.random_range(0..=12) {
            let pod = cluster.pod(random, i);
            cluster.pods.push(pod);
        }
        cluster
    }

    fn pod(&self, random: &mut SmallRng, number: usize) -> Value {
        let node = self.nodes.choose(random).expect("there is a Node");
        let ready = random.random_bool(0.85);
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": format!("web-{number}"), "namespace": NAMESPACE, "uid": format!("pod-{number}"),
                "labels": {"app": if random.random_bool(0.95) { "web" } else { "other" }},
            },
            "spec": {"nodeName": node["metadata"]["name"], "containers": []},
            "status": {
                "phase": if random.random_bool(0.96) { "Running" } else { "Succeeded" },
                "podIP": format!("10.0.0.{}", number + 1), "podIPs": [{"ip": format!("10.0.0.{}", number + 1)}],
                "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}],
            },
        });
        if random.random_bool(0.12) {
            pod["metadata"]["deletionTimestamp"] = "2025-01-01T00:00:00Z".into();
        }
        pod
    }

    /// Changes Pods, Nodes and sometimes the settings of the Service.
    pub(crate) fn change(&mut self, random: &mut SmallRng) {
        for _ in 0..random.random_range(0..4) {
            if !self.pods.is_empty() && random.random_bool(0.6) {
                let gone = random.random_range(0..self.pods.len());
                self.pods.remove(gone);
            }
        }
        let number = 1 + self.pods.len() + 20;
        for i in 0..random.random_range(0..4) {
            let pod = self.pod(random, number + i);
            self.pods.push(pod);
        }
        for pod in &mut self.pods {
            if random.random_bool(0.1) {
                pod["status"]["conditions"][0]["status"] = "False".into();
            }
        }
        if random.random_bool(0.4) {
            let node = random.random_range(0..self.nodes.len());
            let cpu = random.random_range(1..=8).to_string();
            self.nodes[node]["status"]["allocatable"] = json!({"cpu": cpu});
        }
        if random.random_bool(0.2) {
            self.service = service(random);
        }
    }

    /// Slices that another controller wrote, with all kinds of hints.
    pub(crate) fn foreign_slices(&self, random: &mut SmallRng) -> Vec<Value> {
        let style = random.random_range(0..6);
        // No endpoint is ready, and most of them terminate and still serve.
        let draining = random.random_range(0..6) == 0;
        let mut number = 0;
        (0..random.random_range(1..=3))
            .map(|slice| {
                let endpoints: Vec<Value> = (0..random.random_range(0..=4))
                    .map(|_| {
                        number += 1;
                        self.foreign_endpoint(random, number, style, draining)
                    })
                    .collect();
                json!({
                    "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                    "metadata": {
                        "name": format!("web-{slice}"), "namespace": NAMESPACE,
                        "labels": {"kubernetes.io/service-name": SERVICE},
                    },
                    "addressType": "IPv4",
                    "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
                    "endpoints": endpoints,
                })
            })
            .collect()
    }

    fn foreign_endpoint(
        &self,
        random: &mut SmallRng,
        number: usize,
        style: u32,
        draining: bool,
    ) -> Value {
        let node = self.nodes.choose(random).expect("there is a Node");
        let zone = node["metadata"]["labels"]["topology.kubernetes.io/zone"].clone();
        let condition = |random: &mut SmallRng, usual: bool| match random.random_range(0..10) {
            0 => json!(!usual),
            1 => Value::Null,
            _ => json!(usual),
        };
        let elsewhere = json!(["a", "b", "c"].choose(random).expect("not empty"));
        let (zones, nodes) = match (style, random.random_range(0..8)) {
            // Partial: an endpoint without hints is among the others.
            (0, _) | (5, 0) => (Vec::new(), Vec::new()),
            (1, _) => (vec![zone.clone()], Vec::new()),
            (2, _) => (vec![zone.clone()], vec![node["metadata"]["name"].clone()]),
            (3, _) => (vec![elsewhere], Vec::new()),
            (4, 0..4) => (vec![elsewhere, zone.clone()], Vec::new()),
            (4, _) => (Vec::new(), vec![node["metadata"]["name"].clone()]),
            _ => (vec![elsewhere], vec![node["metadata"]["name"].clone()]),
        };
        let names = |list: Vec<Value>| -> Vec<Value> {
            list.into_iter().filter(Value::is_string).map(|name| json!({"name": name})).collect()
        };
        json!({
            "addresses": [format!("10.1.0.{number}")],
            "nodeName": node["metadata"]["name"],
            "zone": zone,
            "conditions": {
                "ready": if draining { json!(false) } else { condition(random, true) },
                "serving": condition(random, true),
                "terminating": condition(random, draining),
            },
            "hints": {"forZones": names(zones), "forNodes": names(nodes)},
        })
    }

    /// All objects except slices.
    pub(crate) fn objects(&self) -> impl Iterator<Item = &Value> {
        self.nodes.iter().chain([&self.namespace, &self.service]).chain(&self.pods)
    }
}

struct NodeSort {
    zones: u8,
    cpu: Cpu,
    /// Whether some are not ready, of the control plane, or without a zone.
    irregular: bool,
}

#[derive(Clone, Copy)]
enum Cpu {
    Equal,
    Random,
    SomeUnknown,
}

fn node(random: &mut SmallRng, number: usize, sort: &NodeSort) -> Value {
    let name = format!("node-{number}");
    let mut labels = json!({"kubernetes.io/hostname": name});
    if !(sort.irregular && random.random_bool(0.2)) {
        let zone = char::from(b'a' + random.random_range(0..sort.zones));
        labels["topology.kubernetes.io/zone"] = zone.to_string().into();
        labels["topology.kubernetes.io/region"] = if zone < 'c' { "north" } else { "south" }.into();
    }
    if random.random_bool(0.5) {
        labels["rack"] = random.random_range(0..3).to_string().into();
    }
    if sort.irregular && random.random_bool(0.1) {
        labels["node-role.kubernetes.io/control-plane"] = "".into();
    }
    let cpu = match sort.cpu {
        Cpu::Equal => json!("4"),
        Cpu::Random => {
            json!(["1", "2", "4", "500m", "3500m", "16"].choose(random).expect("not empty"))
        }
        Cpu::SomeUnknown if random.random_bool(0.3) => Value::Null,
        Cpu::SomeUnknown => json!("8"),
    };
    let ready = !(sort.irregular && random.random_bool(0.15));
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {
            "allocatable": {"cpu": cpu},
            "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}],
        },
    })
}

fn namespace(random: &mut SmallRng) -> Value {
    let mut annotations = json!({});
    if random.random_bool(0.1) {
        annotations["nearhop.dev/traffic-distribution"] = distribution(random);
    }
    json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": NAMESPACE, "annotations": annotations},
    })
}

fn distribution(random: &mut SmallRng) -> Value {
    let values = [
        "PreferClose",
        "PreferSameZone",
        "PreferSameNode",
        "nearhop.dev/Nearest",
        "nearhop.dev/RequireZone",
        "nearhop.dev/Balanced",
        "nearhop.dev/None",
        "example.com/Unknown",
        "",
    ];
    json!(values.choose(random).expect("not empty"))
}

fn keys(random: &mut SmallRng) -> Vec<&'static str> {
    let all = [
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/region",
        "rack",
        "example.com/unused",
        "*",
    ];
    (0..random.random_range(1..=3)).filter_map(|_| all.choose(random).copied()).collect()
}

/// A Service with up to three topology settings, any traffic policies and any type.
fn service(random: &mut SmallRng) -> Value {
    let mut annotations = json!({});
    let mut spec = json!({
        "selector": {"app": "web"},
        "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"], "ipFamilies": ["IPv4"],
        "ports": [{"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"}],
    });
    let settings = *[0, 1, 1, 1, 1, 1, 2, 3].choose(random).expect("not empty");
    for _ in 0..settings {
        let mode = json!(["Auto", "Auto", "auto", "Disabled", "Nonsense"].choose(random));
        match random.random_range(0..10) {
            0 | 1 => annotations["service.kubernetes.io/topology-mode"] = mode,
            2 => annotations["service.kubernetes.io/topology-aware-hints"] = mode,
            3 => {
                let values = ["PreferZone", "Cluster", "Local", "Nonsense"];
                spec["trafficPolicy"] = json!(values.choose(random));
            }
            4 => spec["topologyKeys"] = json!(keys(random)),
            5 => annotations["nearhop.dev/topology-keys"] = keys(random).join(", ").into(),
            6 => annotations["nearhop.dev/traffic-distribution"] = distribution(random),
            // Behind a gate that is off: without effect.
            7 => spec["routingPreference"] = json!(["Zone", "Spread"].choose(random)),
            _ => spec["trafficDistribution"] = distribution(random),
        }
    }
    let policy = |random: &mut SmallRng| if random.random_bool(0.25) { "Local" } else { "Cluster" };
    spec["internalTrafficPolicy"] = policy(random).into();
    let mut status = json!({});
    match random.random_range(0..6) {
        0 => {
            spec["type"] = "NodePort".into();
            spec["ports"][0]["nodePort"] = 30080.into();
        }
        1 => {
            spec["type"] = "LoadBalancer".into();
            spec["allocateLoadBalancerNodePorts"] = false.into();
            status = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}});
        }
        2 => spec["externalIPs"] = json!(["192.0.2.2"]),
        _ => {}
    }
    if random.random_bool(0.7) {
        spec["externalTrafficPolicy"] = policy(random).into();
    }
    if random.random_bool(0.08) {
        spec["publishNotReadyAddresses"] = true.into();
    }
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": SERVICE, "namespace": NAMESPACE, "uid": "web", "annotations": annotations},
        "spec": spec, "status": status,
    })
}
