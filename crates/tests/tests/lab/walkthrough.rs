//! The steps of KEP-4444, "Were upgrade and rollback tested?". The KEP uses other versions of
//! Kubernetes, this test uses `--feature-gates`.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use nearhop_skip::skip;
use nearhop_tests::lab::{Lab, Room, TIMEOUT};
use serde_json::{Value, json};

const OFF: &str = "--feature-gates=ServiceTrafficDistribution=false";

/// A proxy uses zone hints while any feature that writes them is on.
const PROXY_OFF: &str = "--feature-gates=ServiceTrafficDistribution=false,\
                         TopologyAwareHints=false,ServiceTopology=false";

const NODES: [(&str, &str); 2] = [("node-a1", "zone-a"), ("node-b1", "zone-b")];

#[test]
fn kep_4444_hints_and_rules_follow_the_feature_gate() {
    crate::run(async {
        let lab = Lab::up(&["--zones", "2", "--nodes-per-zone", "1"])?;
        let room = Room::new(&lab.kubeconfig).await?;
        create(&room).await?;
        room.until_endpoints("demo-svc", 5).await?;
        until_hints(&room, Hints::OwnZone).await?;

        // Without the feature the slices stay, and their hints are removed.
        lab.fault(&["restart", "apiserver", "--", OFF])?;
        lab.fault(&["restart", "controller", "--", OFF])?;
        until_hints(&room, Hints::None).await?;
        room.until_endpoints("demo-svc", 5).await?;

        // With the feature again, the field is unchanged, and the hints are back.
        lab.fault(&["restart", "apiserver"])?;
        lab.fault(&["restart", "controller"])?;
        until_hints(&room, Hints::OwnZone).await?;
        let service = room.get("services/demo-svc").await?;
        ensure!(service["spec"]["trafficDistribution"] == "PreferClose", "{service}");

        // The rules of each node lead only to its own zone.
        let zones = zones_of_pods(&room).await?;
        for (node, zone) in NODES {
            until_reached(&lab, &room, node, &pods_in(&zones, Some(zone))).await?;
            check_rules(&lab, &room, node, Some(zone)).await?;
        }

        // Proxies without the feature use all endpoints, although the field and the hints exist.
        for (node, _) in NODES {
            lab.fault(&["restart", &format!("proxy/{node}"), "--", PROXY_OFF])?;
            until_reached(&lab, &room, node, &pods_in(&zones, None)).await?;
            check_rules(&lab, &room, node, None).await?;
        }
        until_hints(&room, Hints::OwnZone).await
    });
}

async fn create(room: &Room) -> Result<()> {
    room.service(
        "demo-svc",
        json!({
            "type": "ClusterIP",
            "trafficDistribution": "PreferClose",
            "ports": [{"name": "tcp", "port": 80, "protocol": "TCP", "targetPort": 8080}],
            "selector": {"app": "demo-app"},
        }),
    )
    .await?;
    room.create(&json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "demo", "labels": {"app": "demo-app"}},
        "spec": {
            "replicas": 5,
            "selector": {"matchLabels": {"app": "demo-app"}},
            "template": {
                "metadata": {"labels": {"app": "demo-app"}},
                "spec": {"containers": [{
                    "name": "agnhost",
                    "image": "gcr.io/kubernetes-e2e-test-images/agnhost:2.8",
                    "args": ["serve-hostname", "--port", "8080"],
                }]},
            },
        },
    }))
    .await?;
    Ok(())
}

#[derive(Clone, Copy, Debug)]
enum Hints {
    OwnZone,
    None,
}

async fn until_hints(room: &Room, wanted: Hints) -> Result<()> {
    room.until(&format!("hints: {wanted:?}"), TIMEOUT, || async {
        let endpoints = room.endpoints("demo-svc").await?;
        let wrong = |one: &&Value| match wanted {
            Hints::None => !one["hints"].is_null(),
            Hints::OwnZone => one["hints"]["forZones"] != json!([{"name": one["zone"]}]),
        };
        let ready = endpoints.iter().filter(|one| one["conditions"]["ready"] == true).count();
        Ok(match endpoints.iter().find(wrong) {
            Some(one) => Err(one.to_string()),
            None if ready != 5 => Err(format!("{ready} of 5 are ready")),
            None => Ok(()),
        })
    })
    .await
}

/// Zone by Pod.
async fn zones_of_pods(room: &Room) -> Result<BTreeMap<String, String>> {
    let zone = |node: &Value| {
        let found = NODES.iter().find(|(name, _)| node == name);
        found.map_or(String::new(), |(_, zone)| (*zone).to_owned())
    };
    let pods = room.pods_of("demo-app").await?;
    let name = |pod: &Value| pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    Ok(pods.iter().map(|pod| (name(pod), zone(&pod["spec"]["nodeName"]))).collect())
}

fn pods_in(zones: &BTreeMap<String, String>, wanted: Option<&str>) -> BTreeSet<String> {
    let here = |zone: &&String| wanted.is_none_or(|wanted| wanted == *zone);
    zones.iter().filter(|(_, zone)| here(zone)).map(|(pod, _)| pod.clone()).collect()
}

/// Waits until connections from the node reach exactly these Pods.
async fn until_reached(
    lab: &Lab,
    room: &Room,
    node: &str,
    wanted: &BTreeSet<String>,
) -> Result<()> {
    let service = format!("{}/demo-svc", room.namespace);
    let from = format!("node/{node}");
    room.until(&format!("{node} to reach {wanted:?}"), TIMEOUT, || async {
        let report = lab.drive(&[&service, "--from", &from, "-n", "200"])?;
        let pods = report["pods"].as_object().cloned().unwrap_or_default();
        let reached: BTreeSet<String> = pods.keys().cloned().collect();
        let no_failures = report["failures"].as_object().is_some_and(serde_json::Map::is_empty);
        Ok(if reached == *wanted && no_failures { Ok(()) } else { Err(report.to_string()) })
    })
    .await
}

/// Checks the rules in the kernel of the node, if `nft` is installed.
async fn check_rules(lab: &Lab, room: &Room, node: &str, zone: Option<&str>) -> Result<()> {
    let shown =
        lab.run(&["lab", "exec", &format!("node/{node}"), "--", "nft", "list", "ruleset"])?;
    if !shown.status.success() {
        skip(&format!("`nft list ruleset`: {}", String::from_utf8_lossy(&shown.stderr)));
        return Ok(());
    }
    let rules = String::from_utf8(shown.stdout)?;
    for pod in room.pods_of("demo-app").await? {
        let own = NODES.iter().any(|(name, at)| {
            pod["spec"]["nodeName"] == *name && zone.is_none_or(|zone| zone == *at)
        });
        let address = format!("{} . 8080", pod["status"]["podIP"].as_str().unwrap_or_default());
        ensure!(rules.contains(&address) == own, "{node}, {address}, in its zone: {own}\n{rules}");
    }
    Ok(())
}
