//! The status of Services says what clients see.

use anyhow::{Result, ensure};
use nearhop_tests::lab::{Lab, Room, TIMEOUT};
use serde_json::{Value, json};

/// Zone c has no Pod of the Service, and Services in zone c no reason to be refused elsewhere.
const CONFIG: &str = "\
node a1 zone=a
node b1 zone=b
node c1 zone=c
service shop/web port=80->8080 traffic-distribution=nearhop.dev/RequireZone
pod shop/web-0 for=web on=a1
pod shop/web-1 for=web on=b1
";

async fn read(room: &Room, path: &str) -> Result<Value> {
    Ok(room.admin.get(path).await?.ok()?.json())
}

fn condition<'a>(service: &'a Value, kind: &str) -> Option<&'a Value> {
    let conditions = service["status"]["conditions"].as_array()?;
    conditions.iter().find(|condition| condition["type"] == kind)
}

/// Waits until a Service has a condition with this status and message.
async fn until_condition(room: &Room, path: &str, kind: &str, wanted: (&str, &str)) -> Result<()> {
    room.until(&format!("{kind} {wanted:?}"), TIMEOUT, || async {
        let service = read(room, path).await?;
        let found = condition(&service, kind);
        let found = found.map(|c| (c["status"].as_str(), c["message"].as_str()));
        let fits = found == Some((Some(wanted.0), Some(wanted.1)));
        Ok(if fits { Ok(()) } else { Err(format!("{found:?}")) })
    })
    .await
}

#[test]
fn a_zone_without_endpoints_is_named_while_its_connections_are_refused() {
    crate::run(async {
        let scratch = tempfile::tempdir()?;
        let config = scratch.path().join("lab.conf");
        std::fs::write(&config, CONFIG)?;
        let lab = Lab::up(&["--config", &config.to_string_lossy()])?;
        let room = Room::new(&lab.kubeconfig).await?;
        let web = "/api/v1/namespaces/shop/services/web";
        let refused = "zone c: no ready endpoint, so connections from 1 of 3 nodes are refused";
        until_condition(&room, web, "nearhop.dev/Reachable", ("False", refused)).await?;

        // Pods are ready a moment before the last proxy has their endpoints.
        let drive = |zone: &'static str| lab.drive(&["shop/web", "--from", zone, "-n", "50"]);
        room.until("zone a to serve itself", TIMEOUT, || async {
            let report = drive("zone/a")?;
            Ok(if report["answered"] == 50 { Ok(()) } else { Err(report.to_string()) })
        })
        .await?;
        ensure!(drive("zone/c")?["answered"] == 0, "connections from zone c are refused");

        let label = json!({"metadata": {"labels": {"topology.kubernetes.io/zone": "a"}}});
        room.admin.merge("/api/v1/nodes/c1", &label).await?.ok()?;
        let every = "the keys lead every node to an endpoint";
        until_condition(&room, web, "nearhop.dev/Reachable", ("True", every)).await?;
        room.until("connections of node c1 to zone a", TIMEOUT, || async {
            let report = lab.drive(&["shop/web", "--from", "node/c1", "-n", "50"])?;
            Ok(if report["answered"] == 50 { Ok(()) } else { Err(report.to_string()) })
        })
        .await
    });
}

#[test]
fn a_fresh_lab_has_no_warning_event() {
    crate::run(async {
        let lab = Lab::up(&[])?;
        let room = Room::new(&lab.kubeconfig).await?;
        let spec = json!({"trafficDistribution": "PreferSameZone", "ports": [{"port": 80}]});
        // The controller writes the conditions of a Service and its events together. A Service that
        // comes later is judged later.
        room.service("late", spec).await?;
        let late = format!("/api/v1/namespaces/{}/services/late", room.namespace);
        for path in ["/api/v1/namespaces/kube-system/services/kube-dns", &late] {
            room.until(&format!("conditions of {path}"), TIMEOUT, || async {
                let service = read(&room, path).await?;
                let found = condition(&service, "nearhop.dev/TrafficDistributionProgrammed");
                Ok(if found.is_some() { Ok(()) } else { Err("it has none".to_owned()) })
            })
            .await?;
        }
        let events = read(&room, "/api/v1/events").await?;
        let events = events["items"].as_array().cloned().unwrap_or_default();
        ensure!(!events.is_empty(), "nodes report that they start");
        let warnings: Vec<&Value> = events.iter().filter(|e| e["type"] != "Normal").collect();
        ensure!(warnings.is_empty(), "{warnings:?}");
        Ok(())
    });
}
