//! A Service that selects five thousand pods.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use nearhop_tests::http::Request;
use serde_json::json;
use tokio::task::JoinSet;

use crate::Bad;

const PODS: usize = 5_000;
const CLIENTS: usize = 8;
/// Time limit for publishing all pods, in a debug build on two busy cores.
const LONG: Duration = Duration::from_secs(120);

fn ip(number: usize) -> String {
    format!("10.1.{}.{}", number / 250, number % 250 + 1)
}

fn pod(number: usize) -> (String, Bytes, Bytes) {
    let name = format!("p{number}");
    let body = json!({
        "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {"nodeName": format!("n{}", number % 3), "containers": [{"name": "main", "image": "nearhop/echo"}]},
    });
    let status = json!({"status": {"phase": "Running", "podIP": ip(number), "podIPs": [{"ip": ip(number)}],
        "conditions": [{"type": "Ready", "status": "True"}]}});
    (name, body.to_string().into(), status.to_string().into())
}

async fn create_pods(bad: &Bad) -> Result<()> {
    let pods: Arc<Vec<_>> = Arc::new((0..PODS).map(pod).collect());
    let path = bad.scene.cluster.core("pods");
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let mut connection = bad.scene.cluster.admin.connect().await?;
        let (pods, path) = (pods.clone(), path.clone());
        clients.spawn(async move {
            for (name, body, status) in pods.iter().skip(client).step_by(CLIENTS) {
                let create = Request::new("POST", &path).bytes("application/json", body.clone());
                connection.send(create).await?.expect(201)?;
                let report = Request::new("PATCH", &format!("{path}/{name}/status"))
                    .bytes("application/merge-patch+json", status.clone());
                connection.send(report).await?.expect(200)?;
            }
            anyhow::Ok(())
        });
    }
    for result in clients.join_all().await {
        result?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn five_thousand_pods_are_fifty_slices_and_a_change_is_one_write() -> Result<()> {
    let bad = Bad::new().await?;
    for i in 0..3 {
        bad.scene.node(&format!("n{i}"), Some(&format!("zone-{i}"))).await?;
    }
    let start = Instant::now();
    create_pods(&bad).await?;
    println!("{PODS} pods after {:?}", start.elapsed());
    // Created last, so that one plan publishes all pods, in full slices.
    bad.scene.service("web", json!({"trafficDistribution": "PreferSameZone"})).await?;
    let start = Instant::now();
    let complete = || async {
        let writes = bad.controller.writes();
        Ok(if writes >= 50.0 { Ok(()) } else { Err(format!("{writes} writes")) })
    };
    bad.scene.until("all slices are written", LONG, complete).await?;
    println!("{PODS} endpoints after {:?}", start.elapsed());
    bad.settled().await?;
    let slices = bad.scene.slices("web").await?;
    let sizes: Vec<usize> = slices.iter().map(|slice| slice.endpoints.len()).collect();
    assert_eq!(sizes, [100; 50]);
    assert_eq!(bad.controller.writes(), 50.0);

    let mut writes = bad.scene.count_writes().await?;
    bad.scene.report_pod("p4321", &ip(4321), false).await?;
    bad.settled().await?;
    assert_eq!(writes.catch_up().await, 1, "one pod's change is one write");
    let (kind, object) = writes.events.first().context("counted")?;
    assert_eq!(kind, "MODIFIED");
    let endpoints = object["endpoints"].as_array().context("no endpoints")?;
    let changed = endpoints.iter().filter(|e| e["conditions"]["ready"] == false);
    let changed: Vec<&str> = changed.filter_map(|e| e["addresses"][0].as_str()).collect();
    assert_eq!(changed, [ip(4321)]);
    Ok(())
}
