//! KEP-536 "DNS server changes", with real packets: for a Pod, a headless name resolves to the
//! endpoints that the proxy of its node would choose, and `explain` prints the same.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use nearhop_tests::lab::{ECHO, Lab, Room, TIMEOUT};
use serde_json::{Value, json};

/// Nodes with rack, zone and region: each shares one level less with `here`.
const PLACES: [(&str, [&str; 3]); 5] = [
    ("here", ["r1", "z1", "g1"]),
    ("rack", ["r1", "z1", "g1"]),
    ("zone", ["r2", "z1", "g1"]),
    ("region", ["r3", "z2", "g1"]),
    ("far", ["r4", "z3", "g2"]),
];

const KEYS: [&str; 4] = [
    "kubernetes.io/hostname",
    "rack",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
];

/// Services, and whether their keys end with `*`; each has a headless twin.
const SERVICES: [(&str, bool); 2] = [("soft", true), ("hard", false)];

/// Enough to reach all of five endpoints, except once in 100,000 times; then the check is repeated.
const CONNECTIONS: &str = "64";

#[test]
fn dns_answers_match_the_routes() {
    crate::run(async {
        let scratch = tempfile::tempdir()?;
        let config = scratch.path().join("places");
        let nodes = PLACES.map(|(node, [rack, zone, region])| {
            format!("node {node} rack={rack} zone={zone} region={region}\n")
        });
        std::fs::write(&config, nodes.concat())?;
        let lab = Lab::up(&["--config", &config.display().to_string()])?;
        let room = Room::new(&lab.kubeconfig).await?;
        let pods = create(&room).await?;
        for available in 0..16 {
            let there = set_available(&room, available).await?;
            for (service, soft) in SERVICES {
                for (node, _) in PLACES {
                    let wanted = expected(node, &there, soft);
                    let client = Client { lab: &lab, room: &room, pods: &pods, node };
                    let case = format!("{available:04b}, {service} from {node}: {wanted:?}");
                    client.check(service, &wanted).await.context(case)?;
                }
            }
        }
        Ok(())
    });
}

/// Creates servers, clients and Services; returns the servers' names by their address.
async fn create(room: &Room) -> Result<BTreeMap<String, String>> {
    let echo = || json!({"name": "echo", "image": ECHO});
    for (node, _) in PLACES {
        room.pod(&format!("server-{node}"), node, &json!({"in": "yes"}), echo()).await?;
        room.pod(&format!("client-{node}"), node, &json!({}), echo()).await?;
    }
    for (service, soft) in SERVICES {
        let keys: Vec<&str> = KEYS.into_iter().chain(soft.then_some("*")).collect();
        let spec = json!({
            "selector": {"in": "yes"},
            "topologyKeys": keys,
            "ports": [{"name": "http", "port": 80, "targetPort": 8080}],
        });
        room.service(service, spec.clone()).await?;
        let mut twin = spec;
        twin["clusterIP"] = json!("None");
        room.service(&format!("{service}-twin"), twin).await?;
    }
    let names: Vec<String> = PLACES
        .iter()
        .flat_map(|(node, _)| [format!("server-{node}"), format!("client-{node}")])
        .collect();
    room.until_ready(&names.iter().map(String::as_str).collect::<Vec<_>>()).await?;
    let list = room.get("pods").await?;
    let pods = list["items"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let pair = |pod: &Value| (text(&pod["status"]["podIP"]), text(&pod["metadata"]["name"]));
    Ok(pods.iter().map(pair).collect())
}

/// Makes the servers available whose bits are set, and the last one; waits until the slices list them.
async fn set_available(room: &Room, available: u8) -> Result<BTreeSet<&'static str>> {
    let mut there = BTreeSet::new();
    for (i, (node, _)) in PLACES.into_iter().enumerate() {
        let is_in = i == 4 || available & (1 << i) != 0;
        if is_in {
            there.insert(node);
        }
        let label = if is_in { "yes" } else { "no" };
        let patch = json!({"metadata": {"labels": {"in": label}}});
        room.patch(&format!("pods/server-{node}"), &patch).await?;
    }
    for (service, _) in SERVICES {
        room.until_endpoints(service, there.len()).await?;
        room.until_endpoints(&format!("{service}-twin"), there.len()).await?;
    }
    Ok(there)
}

/// The servers on nodes that share the value of the first possible key with this node.
fn expected(from: &str, there: &BTreeSet<&str>, soft: bool) -> BTreeSet<String> {
    let values = |node: &str| {
        let (_, labels) =
            PLACES.into_iter().find(|(name, _)| *name == node).expect("the node is in PLACES");
        [&[node], &labels[..]].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let here = values(from);
    for (key, value) in here.iter().enumerate() {
        let shares = |node: &&&str| values(node)[key] == *value;
        let found: BTreeSet<String> =
            there.iter().filter(shares).map(|node| format!("server-{node}")).collect();
        if !found.is_empty() {
            return found;
        }
    }
    let all = there.iter().map(|node| format!("server-{node}"));
    if soft { all.collect() } else { BTreeSet::new() }
}

/// A client Pod on a node.
struct Client<'a> {
    lab: &'a Lab,
    room: &'a Room,
    pods: &'a BTreeMap<String, String>,
    node: &'a str,
}

impl Client<'_> {
    async fn check(&self, service: &str, wanted: &BTreeSet<String>) -> Result<()> {
        let same = |what: &str, found: BTreeSet<String>| {
            if found == *wanted { Ok(()) } else { Err(format!("{what}: {found:?}")) }
        };
        let look = || async {
            let by_packet = same("connections reach", self.connect(service)?);
            let by_name = same("the name resolves to", self.resolve(service).await?);
            let explained = same("explain prints", self.explain(service, wanted)?);
            Ok(by_packet.and(by_name).and(explained))
        };
        self.room.until("all three to agree", TIMEOUT, look).await
    }

    /// The Pods that answer at the cluster IP.
    fn connect(&self, service: &str) -> Result<BTreeSet<String>> {
        let service = format!("{}/{service}", self.room.namespace);
        let from = format!("pod/{}/client-{}", self.room.namespace, self.node);
        let report = self.lab.drive(&[&service, "--from", &from, "-n", CONNECTIONS])?;
        let pods = report["pods"].as_object().cloned().unwrap_or_default();
        let failed = report["failures"].as_object().is_none_or(|failures| !failures.is_empty());
        ensure!(pods.is_empty() == failed, "some connections fail and others do not: {report}");
        Ok(pods.keys().cloned().collect())
    }

    /// The Pods that the headless twin's name resolves to, with the C library's resolver.
    async fn resolve(&self, service: &str) -> Result<BTreeSet<String>> {
        let name = format!("{service}-twin.{}.svc.cluster.local", self.room.namespace);
        let client = format!("client-{}", self.node);
        let (output, _) = self.room.exec(&client, &["getent", "ahostsv4", &name]).await?;
        let addresses = output.lines().filter_map(|line| line.split_whitespace().next());
        let named = |address: &str| self.pods.get(address).cloned().unwrap_or(address.to_owned());
        Ok(addresses.map(named).collect())
    }

    /// The Pods that are in the answer according to `nearhop explain dns`.
    fn explain(&self, service: &str, wanted: &BTreeSet<String>) -> Result<BTreeSet<String>> {
        let name = format!("{service}-twin");
        let pod = format!("{}/client-{}", self.room.namespace, self.node);
        let kubeconfig = self.lab.kubeconfig.display().to_string();
        let args = ["explain", "dns", &name, "--from-pod", &pod, "-o", "json", "--kubeconfig"];
        let output = self.lab.run(&[&args[..], &[&kubeconfig]].concat())?;
        let answer: Value = serde_json::from_slice(&output.stdout)
            .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
        ensure!(answer["asker"]["node"] == self.node, "{answer}");
        ensure!(answer["asker"]["located"] == "locator", "{answer}");
        let none = wanted.is_empty();
        ensure!(output.status.code() == Some(if none { 1 } else { 0 }), "{answer}");
        let endpoints = answer["endpoints"].as_array().cloned().unwrap_or_default();
        let answered = endpoints.iter().filter(|one| one["answered"] == true);
        let named = |one: &Value| self.pods.get(one["address"].as_str().unwrap_or_default());
        Ok(answered.filter_map(named).cloned().collect())
    }
}
