//! Random changes of the cluster: all that users, the scheduler, kubelets and other clients do, in an order that the
//! seed fixes.
//!
//! The API server refuses many of these steps, because the object is missing or exists already. Such steps are counted
//! and otherwise ignored.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use nearhop_tests::http::{Connection, Request};
use nearhop_tests::scene::Scene;
use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use serde_json::{Value, json};

const NODES: u32 = 6;
const ZONES: [&str; 3] = ["a", "b", "c"];
const SERVICES: u32 = 8;
const PODS: u32 = 60;
const SLICES: &str = "/apis/discovery.k8s.io/v1";
const ZONE: &str = "topology.kubernetes.io/zone";
const AUTO: &str = "service.kubernetes.io/topology-mode";
const DISTRIBUTION: &str = "nearhop.dev/traffic-distribution";
const KEYS: &str = "nearhop.dev/topology-keys";
const OVERLOAD: &str = "nearhop.dev/max-overload";
/// A pause after each step: about fifty steps a second.
const PAUSE: Duration = Duration::from_millis(15);
/// Steps at the end, without a pause: enough to include every kind of step.
const LAST_BURST: u32 = 100;

/// Values of trafficDistribution, in the field or the annotation.
const DISTRIBUTIONS: [&str; 6] = [
    "PreferClose",
    "PreferSameZone",
    "PreferSameNode",
    "nearhop.dev/Balanced",
    "nearhop.dev/Nearest",
    "nearhop.dev/RequireZone",
];

/// Number of accepted and of refused requests.
#[derive(Default)]
pub(crate) struct Tally {
    done: u32,
    refused: u32,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} changes, {} refused", self.done, self.refused)
    }
}

/// A client that makes the changes.
pub(crate) struct Changes {
    connection: Connection,
    namespace: String,
    random: SmallRng,
    tally: Tally,
}

impl Changes {
    /// Creates some nodes, pods and Services.
    pub(crate) async fn new(scene: &Scene, random: SmallRng) -> Result<Self> {
        let connection = scene.cluster.admin.connect().await?;
        let namespace = scene.cluster.namespace.clone();
        let mut changes = Self { connection, namespace, random, tally: Tally::default() };
        for node in 0..NODES {
            changes.add_node(node).await?;
        }
        for service in 0..SERVICES / 2 {
            changes.add_service(service).await?;
        }
        for pod in 0..PODS / 2 {
            changes.add_pod(pod).await?;
        }
        Ok(changes)
    }

    /// Makes steps until `stop` is set, and ends with a burst.
    pub(crate) async fn run(mut self, stop: Arc<AtomicBool>) -> Result<Tally> {
        while !stop.load(Ordering::Relaxed) {
            self.step().await?;
            tokio::time::sleep(PAUSE).await;
        }
        for _ in 0..LAST_BURST {
            self.step().await?;
        }
        ensure!(self.tally.done > self.tally.refused, "too many refused: {}", self.tally);
        Ok(self.tally)
    }

    async fn step(&mut self) -> Result<()> {
        let (pod, node) = (self.random.random_range(0..PODS), self.random.random_range(0..NODES));
        let service = self.random.random_range(0..SERVICES);
        match self.random.random_range(0..100) {
            0..22 => self.add_pod(pod).await,
            22..30 => self.delete(&format!("{}/pods/p{pod}", self.core()), "").await,
            30..38 => {
                self.delete(&format!("{}/pods/p{pod}", self.core()), "?gracePeriodSeconds=0").await
            }
            38..50 => self.report_pod(pod).await,
            50..55 => {
                let labels = json!({"metadata": {"labels": self.pod_labels()}});
                self.merge(&format!("{}/pods/p{pod}", self.core()), &labels).await
            }
            55..58 => self.add_node(node).await,
            58..60 => self.delete(&format!("/api/v1/nodes/n{node}"), "").await,
            60..63 => self.relabel_node(node).await,
            63..66 => self.report_node(node).await,
            66..71 => self.add_service(service).await,
            71..74 => self.delete(&format!("{}/services/s{service}", self.core()), "").await,
            74..88 => self.change_service(service).await,
            88..90 => self.change_namespace().await,
            _ => self.change_slice().await,
        }
    }

    fn core(&self) -> String {
        format!("/api/v1/namespaces/{}", self.namespace)
    }

    fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of.choose(&mut self.random).expect("the list is not empty")
    }

    async fn send(&mut self, request: Request) -> Result<Value> {
        let what = format!("{} {}", request.method, request.path);
        let answer = self.connection.send(request).await?;
        match answer.status {
            200..300 => self.tally.done += 1,
            404 | 409 => self.tally.refused += 1,
            _ => anyhow::bail!("{what}: {} {}", answer.status, answer.text()),
        }
        Ok(answer.json())
    }

    async fn post(&mut self, path: &str, body: &Value) -> Result<()> {
        self.send(Request::new("POST", path).json(body)).await.map(drop)
    }

    async fn merge(&mut self, path: &str, body: &Value) -> Result<()> {
        let patch = Request::new("PATCH", path);
        self.send(patch.bytes("application/merge-patch+json", body.to_string())).await.map(drop)
    }

    async fn delete(&mut self, path: &str, query: &str) -> Result<()> {
        self.send(Request::new("DELETE", &format!("{path}{query}"))).await.map(drop)
    }

    // Nodes.

    async fn add_node(&mut self, node: u32) -> Result<()> {
        let name = format!("n{node}");
        let zone = self.pick(&ZONES);
        let cpu = self.pick(&["2", "4", "8"]);
        let body = json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, ZONE: zone}},
            "status": {"allocatable": {"cpu": cpu}, "conditions": [{"type": "Ready", "status": "True"}]},
        });
        self.post("/api/v1/nodes", &body).await
    }

    async fn relabel_node(&mut self, node: u32) -> Result<()> {
        let zone = match self.random.random_range(0..4) {
            0 => Value::Null,
            _ => self.pick(&ZONES).into(),
        };
        let labels = json!({"metadata": {"labels": {ZONE: zone}}});
        self.merge(&format!("/api/v1/nodes/n{node}"), &labels).await
    }

    async fn report_node(&mut self, node: u32) -> Result<()> {
        let ready = self.pick(&["True", "True", "False", "Unknown"]);
        let status = json!({"status": {"conditions": [{"type": "Ready", "status": ready}]}});
        self.merge(&format!("/api/v1/nodes/n{node}/status"), &status).await
    }

    // Pods.

    fn pod_labels(&mut self) -> Value {
        let app = format!("s{}", self.random.random_range(0..SERVICES));
        json!({"app": app, "tier": self.pick(&["front", "back"])})
    }

    async fn add_pod(&mut self, pod: u32) -> Result<()> {
        // Sometimes on a node that does not exist.
        let node = format!("n{}", self.random.random_range(0..=NODES));
        let container = json!({"name": "main", "image": "nearhop/echo",
            "ports": [{"name": "http", "containerPort": 8080}]});
        let body = json!({
            "metadata": {"name": format!("p{pod}"), "labels": self.pod_labels()},
            "spec": {"nodeName": node, "containers": [container]},
        });
        self.post(&format!("{}/pods", self.core()), &body).await?;
        self.report_pod(pod).await
    }

    async fn report_pod(&mut self, pod: u32) -> Result<()> {
        // A pod that is replaced gets another address, and sometimes two pods have the same.
        let ip = format!("10.{}.0.{}", self.random.random_range(1..4), pod % (PODS - 5) + 1);
        let phase = self.pick(&["Running", "Running", "Running", "Running", "Succeeded"]);
        let ready = self.pick(&["True", "True", "False"]);
        let status = json!({"status": {
            "phase": phase, "podIP": ip, "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": ready}],
        }});
        self.merge(&format!("{}/pods/p{pod}/status", self.core()), &status).await
    }

    // Services and namespaces.

    async fn add_service(&mut self, service: u32) -> Result<()> {
        let target: Value = if self.random.random() { 8080.into() } else { "http".into() };
        let body = json!({
            "metadata": {"name": format!("s{service}"), "labels": {"team": self.pick(&["x", "y"])}},
            "spec": {
                "selector": {"app": format!("s{service}")},
                "ports": [{"name": "http", "port": 80, "targetPort": target}],
                "publishNotReadyAddresses": self.random.random_ratio(1, 5),
                "trafficDistribution": self.pick(&DISTRIBUTIONS),
            },
        });
        self.post(&format!("{}/services", self.core()), &body).await
    }

    async fn change_service(&mut self, service: u32) -> Result<()> {
        // Auto and topology keys exclude each other; the embedded API refuses them together.
        let annotation = |key: &str, value: Value| {
            let mut annotations = json!({key: value});
            match key {
                AUTO => annotations[KEYS] = Value::Null,
                KEYS => annotations[AUTO] = Value::Null,
                _ => {}
            }
            json!({"metadata": {"annotations": annotations}})
        };
        let none = json!({AUTO: null, DISTRIBUTION: null, KEYS: null, OVERLOAD: null});
        let app = format!("s{}", self.random.random_range(0..SERVICES));
        let patch = match self.random.random_range(0..9) {
            0 => json!({"metadata": {"labels": {"team": self.pick(&["x", "y", "z"])}}}),
            1 => json!({"spec": {"selector": {"app": app, "tier": self.pick(&["front", "back"])}}}),
            2 => json!({"spec": {"selector": {"app": app, "tier": null}}}),
            3 => json!({"spec": {"trafficDistribution": null}, "metadata": {"annotations": none}}),
            4 => {
                json!({"spec": {"trafficDistribution": self.pick(&DISTRIBUTIONS)}, "metadata": {"annotations": none}})
            }
            5 => annotation(AUTO, self.pick(&["Auto", "Disabled"]).into()),
            6 => annotation(DISTRIBUTION, self.pick(&DISTRIBUTIONS).into()),
            7 => annotation(
                KEYS,
                self.pick(&["topology.kubernetes.io/zone, *", "kubernetes.io/hostname", "!"])
                    .into(),
            ),
            _ => annotation(OVERLOAD, self.pick(&["0%", "50%", "inf", "?"]).into()),
        };
        self.merge(&format!("{}/services/s{service}", self.core()), &patch).await
    }

    async fn change_namespace(&mut self) -> Result<()> {
        let value = match self.random.random_range(0..3) {
            0 => Value::Null,
            _ => self.pick(&DISTRIBUTIONS).into(),
        };
        let patch = json!({"metadata": {"annotations": {DISTRIBUTION: value}}});
        self.merge(&format!("/api/v1/namespaces/{}", self.namespace), &patch).await
    }

    // Other clients.

    /// Another client deletes a slice, writes into it, or creates one with our labels.
    async fn change_slice(&mut self) -> Result<()> {
        let collection = format!("{SLICES}/namespaces/{}/endpointslices", self.namespace);
        let list = self.send(Request::new("GET", &collection)).await?;
        let slices = list["items"].as_array().cloned().unwrap_or_default();
        let Some(slice) = slices.choose(&mut self.random) else { return Ok(()) };
        let path =
            format!("{collection}/{}", slice["metadata"]["name"].as_str().unwrap_or_default());
        let label = |key: &str, value: Value| json!({"metadata": {"labels": {key: value}}});
        let patch = match self.random.random_range(0..10) {
            0 | 1 => return self.delete(&path, "").await,
            2 => json!({"endpoints": []}),
            3 => json!({"endpoints": [{"addresses": ["10.9.9.9"], "conditions": {"ready": true}}]}),
            4 => json!({"ports": [{"name": "http", "port": 1, "protocol": "TCP"}]}),
            5 => json!({"metadata": {"annotations": {"nearhop.dev/routing": "{"}}}),
            6 => label(
                "kubernetes.io/service-name",
                format!("s{}", self.random.random_range(0..SERVICES + 2)).into(),
            ),
            7 => label("endpointslice.kubernetes.io/managed-by", "another-manager".into()),
            8 => json!({"metadata": {"ownerReferences": null}}),
            _ => return self.forge_slice(&collection, slice).await,
        };
        self.merge(&path, &patch).await
    }

    /// Creates a slice with our labels that the controller did not write.
    async fn forge_slice(&mut self, collection: &str, like: &Value) -> Result<()> {
        let mut labels = like["metadata"]["labels"].clone();
        labels["kubernetes.io/service-name"] =
            format!("s{}", self.random.random_range(0..SERVICES + 2)).into();
        let body = json!({
            "metadata": {"generateName": "forged-", "labels": labels},
            "addressType": "IPv4", "ports": like["ports"], "endpoints": like["endpoints"],
        });
        self.post(collection, &body).await
    }
}
