//! Established connections survive all changes of their Service.

use anyhow::{Context, Result, ensure};
use nearhop_tests::lab::{ECHO, Lab, Room, TIMEOUT};
use serde_json::{Value, json};

use crate::rollout::{Gap, deployment, names, roll, service, until_rolled, zone};

const FLOWS: usize = 400;
const SECONDS: u64 = 60;

#[test]
fn four_hundred_flows_survive_policy_changes() {
    crate::run(async {
        let lab = Lab::up(&[])?;
        let room = Room::new(&lab.kubeconfig).await?;
        let address = service(&room, "PreferSameZone").await?;
        for letter in ["a", "b", "c"] {
            let name = format!("web-{letter}");
            let mut object = deployment(&name, &zone(letter), 2, Gap::None);
            // Longer than the test: a Pod that exceeds its grace period ends with its flows.
            object["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = json!(300);
            room.create(&object).await?;
            until_rolled(&room, &name).await?;
        }
        hold(&room, &address).await?;

        for _ in 0..3 {
            set_distribution(&room, &json!("PreferSameNode")).await?;
            set_distribution(&room, &Value::Null).await?;
            set_distribution(&room, &json!("PreferSameZone")).await?;
        }
        for mode in [json!("Auto"), Value::Null] {
            let annotations = json!({"service.kubernetes.io/topology-mode": mode});
            room.patch("services/web", &json!({"metadata": {"annotations": annotations}})).await?;
            pause().await;
        }
        for node in ["node-a1", "node-a2", "node-b1", "node-b2", "node-c1", "node-c2"] {
            lab.fault(&["restart", &format!("proxy/{node}")])?;
        }
        let before = names(&room).await?;
        for letter in ["a", "b", "c"] {
            roll(&room, &format!("web-{letter}"), "2").await?;
        }
        for letter in ["a", "b", "c"] {
            until_rolled(&room, &format!("web-{letter}")).await?;
        }
        let after = names(&room).await?;
        ensure!(before.is_disjoint(&after), "not rolled: {before:?} {after:?}");
        let log = room.log("holder", "").await?;
        ensure!(log.trim() == format!("open {FLOWS}"), "the changes took longer than the flows");

        let held = until_reported(&room).await?;
        ensure!(held["kept"] == FLOWS && held["lost"] == json!([]), "{held}");
        let answers = held["answers"].as_u64().unwrap_or_default();
        ensure!(answers > FLOWS as u64 * 20, "too few answers on the busy flows: {answers}");
        Ok(())
    });
}

/// Creates a Pod that opens the flows, and waits until they are open.
async fn hold(room: &Room, address: &str) -> Result<()> {
    let job = json!({"target": format!("{address}:81"), "flows": FLOWS, "seconds": SECONDS});
    let command = ["/.nearhop", "lab-hold", "--job", &job.to_string()];
    let container = json!({"name": "holder", "image": ECHO, "command": command});
    room.create(&json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "holder"},
        "spec": {"nodeName": "node-a1", "restartPolicy": "Never", "containers": [container]},
    }))
    .await?;
    room.until("flows to be open", TIMEOUT, || async {
        let log = room.log("holder", "").await?;
        Ok(if log.starts_with(&format!("open {FLOWS}")) { Ok(()) } else { Err(log) })
    })
    .await
}

async fn set_distribution(room: &Room, value: &Value) -> Result<()> {
    room.patch("services/web", &json!({"spec": {"trafficDistribution": value}})).await?;
    pause().await;
    Ok(())
}

/// Usually long enough to update slices and rules; no result depends on it.
async fn pause() {
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
}

/// Waits for the holder's report, its last line.
async fn until_reported(room: &Room) -> Result<Value> {
    room.until("the holder's report", TIMEOUT * 2, || async {
        let log = room.log("holder", "").await?;
        let last = log.lines().last().context("the holder's log is empty")?;
        Ok(serde_json::from_str(last).map_err(|_| last.to_owned()))
    })
    .await
}
