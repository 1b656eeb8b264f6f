//! Traffic distribution as in Kubernetes' own end-to-end tests: Pods connect to a Service by name once
//! a second, and the test reads their logs. It uses only the API, so `NEARHOP_TEST_KUBECONFIG` runs
//! the same against any cluster of three zones.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nearhop_skip::skip;
use nearhop_tests::lab::{AGNHOST, Lab, Room};
use nearhop_tests::server::GIVEN;
use serde_json::{Value, json};

const SERVICE: &str = "traffic-dist-test-service";
const ZONE: &str = "topology.kubernetes.io/zone";

/// The answers and log lines that a client needs, and the time limit, as in Kubernetes' own tests.
const ANSWERS: usize = 10;
const TAIL: usize = 20;
const TIMEOUT: Duration = Duration::from_secs(120);

/// The cluster under test, and its schedulable nodes by zone.
struct Site {
    kubeconfig: PathBuf,
    zones: Vec<Vec<String>>,
    _lab: Option<Lab>,
}

impl Site {
    async fn new() -> Result<Self> {
        let given = std::env::var_os(GIVEN).map(PathBuf::from);
        let lab = if given.is_none() { Some(Lab::up(&[])?) } else { None };
        let own = lab.as_ref().map(|lab| lab.kubeconfig.clone());
        let kubeconfig = given.or(own).context("neither a lab nor a kubeconfig")?;
        let room = Room::new(&kubeconfig).await?;
        let mut zones: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for node in schedulable(&room).await? {
            let zone = node["metadata"]["labels"][ZONE].as_str().unwrap_or_default();
            let name = node["metadata"]["name"].as_str().unwrap_or_default();
            zones.entry(zone.to_owned()).or_default().push(name.to_owned());
        }
        ensure!(zones.len() >= 3, "three zones are needed: {zones:?}");
        Ok(Self { kubeconfig, zones: zones.into_values().collect(), _lab: lab })
    }
}

async fn schedulable(room: &Room) -> Result<Vec<Value>> {
    let list = room.admin.get("/api/v1/nodes").await?.ok()?.json();
    let nodes = list["items"].as_array().cloned().unwrap_or_default();
    let open = |node: &Value| {
        let taints = node["spec"]["taints"].as_array().is_some_and(|taints| !taints.is_empty());
        node["spec"]["unschedulable"] != true && !taints
    };
    Ok(nodes.into_iter().filter(open).collect())
}

/// Which server Pods a client is expected to reach.
struct Client<'a> {
    node: &'a str,
    expected: Vec<String>,
}

/// One Service with its servers and clients.
struct Scene {
    room: Room,
    servers: usize,
    clients: usize,
}

impl Scene {
    async fn new(site: &Site, distribution: &str) -> Result<Self> {
        let room = Room::new(&site.kubeconfig).await?;
        room.service(
            SERVICE,
            json!({
                "selector": {"app": SERVICE},
                "trafficDistribution": distribution,
                "ports": [{"name": "http", "port": 80, "targetPort": 9376, "protocol": "TCP"}],
            }),
        )
        .await?;
        Ok(Self { room, servers: 0, clients: 0 })
    }

    async fn server(&mut self, node: &str) -> Result<String> {
        let name = format!("server-{}", self.servers);
        self.servers += 1;
        self.room.server(&name, node, SERVICE, &["serve-hostname", "--port", "9376"]).await?;
        Ok(name)
    }

    /// Creates a client Pod with a node affinity: the scheduler binds it.
    async fn client(&mut self, node: &str) -> Result<String> {
        let name = format!("client-{}", self.clients);
        self.clients += 1;
        let ask = format!(
            "for i in $(seq 1 3000); do echo \"Date: $(date) Try: $i\"; \
             curl -q -s --connect-timeout 2 http://{SERVICE}:80/; echo; sleep 1; done"
        );
        let term = json!({"matchFields": [
            {"key": "metadata.name", "operator": "In", "values": [node]},
        ]});
        self.room
            .create(&json!({
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name},
                "spec": {
                    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                        {"nodeSelectorTerms": [term]}}},
                    "terminationGracePeriodSeconds": 0,
                    "containers": [{"name": "client", "image": AGNHOST, "command": ["/bin/sh", "-c", ask]}],
                },
            }))
            .await?;
        Ok(name)
    }

    /// Starts a client for each expectation, and waits until each has reached the expected servers.
    async fn expect(&mut self, clients: &[Client<'_>]) -> Result<()> {
        let mut started = Vec::new();
        for client in clients {
            started.push(self.client(client.node).await?);
        }
        let names: Vec<&str> = started.iter().map(String::as_str).collect();
        self.room.until_ready(&names).await?;
        for (name, client) in started.iter().zip(clients) {
            self.until_satisfied(name, &client.expected).await?;
        }
        Ok(())
    }

    async fn until_satisfied(&self, client: &str, expected: &[String]) -> Result<()> {
        let what = format!("{client} to reach {expected:?} only");
        let expected: BTreeSet<&str> = expected.iter().map(String::as_str).collect();
        self.room
            .until(&what, TIMEOUT, || async {
                let log = self.room.log(client, "").await?;
                Ok(judge(&log, &expected))
            })
            .await
    }
}

/// Checks the newest answers: they are all from expected servers, from each of them, and there are
/// enough of them.
fn judge(log: &str, expected: &BTreeSet<&str>) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    let mut answers = 0;
    if log.lines().count() < TAIL {
        return Err(format!("only {} lines", log.lines().count()));
    }
    let is_answer = |line: &&str| !line.is_empty() && !line.starts_with("Date:");
    for line in log.lines().rev().map(str::trim).filter(is_answer) {
        if !expected.contains(line) {
            return Err(format!("after {answers} good answers there is {line}"));
        }
        seen.insert(line);
        answers += 1;
        if answers >= ANSWERS && seen == *expected {
            return Ok(());
        }
    }
    Err(format!("{answers} answers from {seen:?}"))
}

/// S1 and S3: one node in each zone.
async fn one_node_per_zone(site: &Site, distribution: &str) -> Result<()> {
    let mut scene = Scene::new(site, distribution).await?;
    let [a, b, c] = [0, 1, 2].map(|zone: usize| site.zones[zone][0].as_str());
    let (server_a, server_b) = (scene.server(a).await?, scene.server(b).await?);
    scene.room.until_endpoints(SERVICE, 2).await?;
    scene
        .expect(&[
            Client { node: a, expected: vec![server_a.clone()] },
            Client { node: b, expected: vec![server_b.clone()] },
            Client { node: c, expected: vec![server_a, server_b] },
        ])
        .await
        .with_context(|| format!("one node per zone, {distribution}"))
}

/// S2, S4 and S5: several nodes in each zone. `near` is what clients prefer.
async fn several_nodes_per_zone(site: &Site, distribution: &str, near: Near) -> Result<()> {
    let mut scene = Scene::new(site, distribution).await?;
    let node = |zone: usize, n: usize| site.zones[zone][n].as_str();
    let first = scene.server(node(0, 0)).await?;
    let second = scene.server(node(0, 1)).await?;
    let third = scene.server(node(1, 1)).await?;
    scene.room.until_endpoints(SERVICE, 3).await?;
    let own = |server: &String| match near {
        Near::Node => vec![server.clone()],
        Near::Zone => vec![first.clone(), second.clone()],
    };
    scene
        .expect(&[
            Client { node: node(0, 0), expected: own(&first) },
            Client { node: node(0, 1), expected: own(&second) },
            Client { node: node(1, 0), expected: vec![third.clone()] },
            Client { node: node(2, 0), expected: vec![first.clone(), second.clone(), third] },
        ])
        .await
        .with_context(|| format!("several nodes per zone, {distribution}"))
}

#[derive(Clone, Copy)]
enum Near {
    Zone,
    Node,
}

/// S6: the endpoint on a client's own node is deleted, and another one is created.
async fn local_endpoint_is_replaced(site: &Site) -> Result<()> {
    let mut scene = Scene::new(site, "PreferSameNode").await?;
    let (one, two) = (site.zones[0][0].as_str(), site.zones[0][1].as_str());
    let first = scene.server(one).await?;
    let second = scene.server(two).await?;
    scene.room.until_endpoints(SERVICE, 2).await?;
    let both = |first: &String| {
        [
            Client { node: one, expected: vec![first.clone()] },
            Client { node: two, expected: vec![second.clone()] },
        ]
    };
    scene.expect(&both(&first)).await?;
    scene.room.delete_pod(&first).await?;
    scene.room.until_endpoints(SERVICE, 1).await?;
    for client in ["client-0", "client-1"] {
        scene.until_satisfied(client, std::slice::from_ref(&second)).await?;
    }
    let again = scene.server(one).await?;
    scene.room.until_endpoints(SERVICE, 2).await?;
    scene.until_satisfied("client-0", std::slice::from_ref(&again)).await?;
    scene.until_satisfied("client-1", std::slice::from_ref(&second)).await
}

/// Section 12: topology-mode Auto, a server on each node by a DaemonSet.
async fn topology_hints(site: &Site) -> Result<()> {
    let room = Room::new(&site.kubeconfig).await?;
    let nodes = schedulable(&room).await?;
    let cpus: BTreeSet<String> =
        nodes.iter().map(|node| node["status"]["allocatable"]["cpu"].to_string()).collect();
    if cpus.len() > 1 {
        skip(&format!("nodes have unequal CPU {cpus:?}"));
        return Ok(());
    }
    room.create(&json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "topology-serve-hostname"},
        "spec": {
            "selector": {"matchLabels": {"app": "topology-hints"}},
            "template": {
                "metadata": {"labels": {"app": "topology-hints"}},
                "spec": {"containers": [
                    {"name": "server", "image": AGNHOST, "args": ["serve-hostname", "--port", "9376"]},
                ]},
            },
        },
    }))
    .await?;
    room.create(&json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": "topology-hints",
            "annotations": {"service.kubernetes.io/topology-mode": "Auto"},
        },
        "spec": {
            "selector": {"app": "topology-hints"},
            "publishNotReadyAddresses": true,
            "ports": [{"name": "http", "port": 80, "targetPort": 9376, "protocol": "TCP"}],
        },
    }))
    .await?;
    room.until_endpoints("topology-hints", nodes.len()).await?;
    room.until("hints equal to zones", TIMEOUT, || async {
        let endpoints = room.endpoints("topology-hints").await?;
        let wrong = endpoints.iter().find(|one| {
            one["zone"].is_null() || one["hints"]["forZones"] != json!([{"name": one["zone"]}])
        });
        Ok(wrong.map_or(Ok(()), |one| Err(one.to_string())))
    })
    .await?;
    let pods = room.pods_of("topology-hints").await?;
    for zone in &site.zones {
        let in_zone = |pod: &&Value| zone.iter().any(|node| pod["spec"]["nodeName"] == **node);
        let own: Vec<String> =
            pods.iter().filter(in_zone).map(|pod| text(&pod["metadata"]["name"])).collect();
        until_reached(&room, &zone[0], &own).await?;
    }
    Ok(())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Waits for five answers in a row from Pods of the client's own zone, with curl by exec.
async fn until_reached(room: &Room, node: &str, expected: &[String]) -> Result<()> {
    let name = format!("curl-from-{node}");
    let container = json!({"name": "client", "image": AGNHOST, "args": ["pause"]});
    room.pod(&name, node, &json!({}), container).await?;
    room.until_ready(&[&name]).await?;
    let ask = ["/bin/sh", "-c", "curl -q -s --connect-timeout 2 http://topology-hints:80/"];
    let in_a_row = async |count: usize| -> Result<Result<(), String>> {
        for _ in 0..count {
            let (answer, succeeded) = room.exec(&name, &ask).await?;
            if !succeeded || !expected.iter().any(|pod| pod == answer.trim()) {
                return Ok(Err(format!("{answer:?}")));
            }
        }
        Ok(Ok(()))
    };
    room.until(&format!("{name} to reach {expected:?}"), TIMEOUT, || in_a_row(5)).await?;
    // Five may be chance; from now on all answers must be from there.
    in_a_row(20).await?.map_err(anyhow::Error::msg)
}

/// All scenarios on one cluster at the same time; they are independent.
#[test]
fn traffic_distribution_of_all_scenarios() {
    crate::run(async {
        if std::process::Command::new("curl").arg("--version").output().is_err() {
            bail!("the clients of Kubernetes' own scenarios use `curl`: install it");
        }
        let site = Site::new().await?;
        let several = site.zones.iter().take(3).all(|zone| zone.len() >= 2);
        ensure!(several, "two nodes in each zone are needed: {:?}", site.zones);
        tokio::try_join!(
            one_node_per_zone(&site, "PreferClose"),
            several_nodes_per_zone(&site, "PreferClose", Near::Zone),
            one_node_per_zone(&site, "PreferSameZone"),
            several_nodes_per_zone(&site, "PreferSameZone", Near::Zone),
            several_nodes_per_zone(&site, "PreferSameNode", Near::Node),
            local_endpoint_is_replaced(&site),
            topology_hints(&site),
        )?;
        Ok(())
    });
}

#[test]
fn logs_are_judged_from_the_newest_answer() {
    let line = |pod: &str| format!("Date: now Try: 1\n{pod}\n");
    let expected = BTreeSet::from(["a", "b"]);
    let good = line("c") + &line("a").repeat(6) + &line("b").repeat(6);
    assert_eq!(judge(&good, &expected), Ok(()), "older answers do not count");
    let stray = good + &line("c");
    assert!(judge(&stray, &expected).unwrap_err().contains("there is c"));
    assert!(judge(&line("a").repeat(30), &expected).is_err(), "b was not seen");
    assert!(judge(&(line("a") + &line("b")).repeat(4), &expected).is_err(), "too few");
}
