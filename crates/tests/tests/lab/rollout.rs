//! Rolling updates while clients connect without a pause.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use nearhop_tests::lab::{ECHO, Lab, Line, Room, TIMEOUT};
use serde_json::{Value, json};

const ZONES: [&str; 3] = ["a", "b", "c"];

/// The least number of answers that a client must have.
const ENOUGH_LINES: usize = 100;

/// A Deployment for a zone or a node; its Pods belong to the Service `web`.
pub(crate) fn deployment(name: &str, node_selector: &Value, replicas: u32, gap: Gap) -> Value {
    let (surge, unavailable) = match gap {
        Gap::None => (1, 0),
        Gap::One => (0, 1),
    };
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "strategy": {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}},
            "selector": {"matchLabels": {"app": "web", "of": name}},
            "template": {
                "metadata": {"labels": {"app": "web", "of": name}},
                "spec": {
                    "nodeSelector": node_selector,
                    "containers": [{
                        "name": "echo",
                        "image": ECHO,
                        "readinessProbe": {"httpGet": {"path": "/hostname", "port": 8080}, "periodSeconds": 1},
                    }],
                },
            },
        },
    })
}

/// Whether a Deployment may have one Pod less during a rollout.
#[derive(Clone, Copy)]
pub(crate) enum Gap {
    None,
    One,
}

pub(crate) fn zone(letter: &str) -> Value {
    json!({"topology.kubernetes.io/zone": format!("zone-{letter}")})
}

/// Creates the Service; returns its address.
pub(crate) async fn service(room: &Room, distribution: &str) -> Result<String> {
    let service = room
        .service(
            "web",
            json!({
                "selector": {"app": "web"},
                "trafficDistribution": distribution,
                "ports": [
                    {"name": "http", "port": 80, "targetPort": 8080},
                    {"name": "lines", "port": 81, "targetPort": 8081},
                ],
            }),
        )
        .await?;
    Ok(service["spec"]["clusterIP"].as_str().unwrap_or_default().to_owned())
}

/// Creates a client that connects `rate` times per second, for longer than any test.
pub(crate) async fn client(room: &Room, node: &str, address: &str, rate: u32) -> Result<String> {
    let name = format!("client-{node}");
    let job = json!({
        "targets": [format!("{address}:80")],
        "protocol": "tcp",
        "connections": 1_000_000,
        "concurrency": 16,
        "timeoutMs": 5000,
        "rate": rate,
    });
    room.client_loop(&name, node, &job).await?;
    Ok(name)
}

/// Changes the Pods' template, as `kubectl rollout restart` does.
pub(crate) async fn roll(room: &Room, name: &str, version: &str) -> Result<()> {
    let annotations = json!({"annotations": {"version": version}});
    let patch = json!({"spec": {"template": {"metadata": annotations}}});
    room.patch(&format!("deployments/{name}"), &patch).await
}

/// Waits until all replicas have the newest template and are ready, and no others are left.
pub(crate) async fn until_rolled(room: &Room, name: &str) -> Result<()> {
    room.until(&format!("{name} rolled"), TIMEOUT * 2, || async {
        let path = format!("/apis/apps/v1/namespaces/{}/deployments/{name}", room.namespace);
        let object = room.admin.get(&path).await?.ok()?.json();
        let (wanted, status) = (&object["spec"]["replicas"], &object["status"]);
        let fields = ["replicas", "updatedReplicas", "readyReplicas", "availableReplicas"];
        let done = fields.iter().all(|field| status[field] == *wanted)
            && status["observedGeneration"] == object["metadata"]["generation"];
        Ok(if done { Ok(()) } else { Err(status.to_string()) })
    })
    .await
}

/// Checks that every line is an answer of a Pod whose name starts with `prefix`.
pub(crate) fn check_lines(client: &str, lines: &[Line], prefix: &str) -> Result<()> {
    let wrong: Vec<&Line> = lines.iter().filter(|line| !line.result.starts_with(prefix)).collect();
    let some = &wrong[..wrong.len().min(5)];
    ensure!(wrong.is_empty(), "{client}: {} of {} lines: {some:?}", wrong.len(), lines.len());
    ensure!(lines.len() >= ENOUGH_LINES, "{client} connected only {} times", lines.len());
    Ok(())
}

/// A Service with three Pods in each zone is rolled in all zones at once, twice.
#[test]
fn zones_keep_their_traffic_during_a_rollout() {
    crate::run(async {
        let lab = Lab::up(&[])?;
        let room = Room::new(&lab.kubeconfig).await?;
        let address = service(&room, "PreferSameZone").await?;
        for letter in ZONES {
            let name = format!("web-{letter}");
            room.create(&deployment(&name, &zone(letter), 3, Gap::None)).await?;
        }
        for letter in ZONES {
            until_rolled(&room, &format!("web-{letter}")).await?;
        }
        until_local(&lab, &room).await?;
        let mut clients = Vec::new();
        for letter in ZONES {
            let client = client(&room, &format!("node-{letter}2"), &address, 100).await?;
            clients.push((client, format!("web-{letter}-")));
        }
        let before = names(&room).await?;
        for version in ["2", "3"] {
            for letter in ZONES {
                roll(&room, &format!("web-{letter}"), version).await?;
            }
            for letter in ZONES {
                until_rolled(&room, &format!("web-{letter}")).await?;
            }
        }
        let after = names(&room).await?;
        ensure!(before.is_disjoint(&after), "some were not replaced: {before:?} {after:?}");
        for (client, prefix) in &clients {
            let lines = room.lines(client).await?;
            check_lines(client, &lines, prefix)?;
            let pods: BTreeSet<&str> = lines.iter().map(|line| line.result.as_str()).collect();
            ensure!(pods.len() >= 6, "{client} saw only {pods:?}");
        }
        Ok(())
    });
}

/// Waits until no connection leaves its zone.
pub(crate) async fn until_local(lab: &Lab, room: &Room) -> Result<()> {
    let name = format!("{}/web", room.namespace);
    room.until("no connection leaves its zone", TIMEOUT, || async {
        let report = lab.drive(&[&name, "-n", "300"])?;
        let local = report["crossZone"] == 0.0 && report["answered"] == 300;
        Ok(if local { Ok(()) } else { Err(report["matrix"].to_string()) })
    })
    .await
}

/// Names of the Pods that do not terminate.
pub(crate) async fn names(room: &Room) -> Result<BTreeSet<String>> {
    let pods = room.pods_of("web").await?;
    let living = pods.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
    Ok(living.map(|pod| pod["metadata"]["name"].as_str().unwrap_or_default().to_owned()).collect())
}

/// A node's only Pod is deleted before its replacement is ready: the node's client reaches the zone's
/// other node, and then the own node again.
#[test]
fn a_node_falls_back_to_its_zone_and_returns() {
    crate::run(async {
        let lab = Lab::up(&[])?;
        let room = Room::new(&lab.kubeconfig).await?;
        let address = service(&room, "PreferSameNode").await?;
        let on = |node: &str| json!({"kubernetes.io/hostname": node});
        let parts = [
            ("web-a1", on("node-a1"), 1, Gap::One),
            ("web-a2", on("node-a2"), 2, Gap::None),
            ("web-b", zone("b"), 3, Gap::None),
        ];
        for (name, place, replicas, gap) in &parts {
            room.create(&deployment(name, place, *replicas, *gap)).await?;
        }
        for (name, ..) in &parts {
            until_rolled(&room, name).await?;
        }
        let client = client(&room, "node-a1", &address, 100).await?;
        until_last(&room, &client, "web-a1-").await?;
        let start = room.lines(&client).await?.len();
        for (name, ..) in &parts {
            roll(&room, name, "2").await?;
        }
        for (name, ..) in &parts {
            until_rolled(&room, name).await?;
        }
        until_lines(&room, &client, start + ENOUGH_LINES).await?;
        until_last(&room, &client, "web-a1-").await?;
        let lines = room.lines(&client).await?.split_off(start);
        check_lines(&client, &lines, "web-a")?;
        let away = lines.iter().filter(|line| line.result.starts_with("web-a2-")).count();
        ensure!(away > 0, "the client never reached the zone's other node");
        Ok(())
    });
}

/// Waits until a client has `count` lines: a rollout can end earlier.
async fn until_lines(room: &Room, client: &str, count: usize) -> Result<()> {
    room.until(&format!("{client} to connect {count} times"), TIMEOUT, || async {
        let lines = room.lines(client).await?.len();
        Ok(if lines >= count { Ok(()) } else { Err(format!("{lines} lines")) })
    })
    .await
}

/// Waits until the last 50 answers of a client are from Pods whose names start with `prefix`.
async fn until_last(room: &Room, client: &str, prefix: &str) -> Result<()> {
    room.until(&format!("{client} to be answered by {prefix}*"), TIMEOUT, || async {
        let lines = room.lines(client).await?;
        let last = &lines[lines.len().saturating_sub(50)..];
        let own = last.len() == 50 && last.iter().all(|line| line.result.starts_with(prefix));
        Ok(if own { Ok(()) } else { Err(format!("{:?}", last.last())) })
    })
    .await
}
