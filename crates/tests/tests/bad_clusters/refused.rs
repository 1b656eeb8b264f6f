//! Status writes that the API server refuses, and slices that other clients hold or relabel.

use std::fs::File;
use std::time::Duration;

use anyhow::Result;
use nearhop_core::Family;
use nearhop_tests::scene::{ControllerProcess, Scene, TIMEOUT, read_metric};
use serde_json::json;

use crate::Bad;

/// Number of requests with the answer 403, from the metrics of the process.
async fn refusals(process: &ControllerProcess) -> Result<f64> {
    let text = process.get("/metrics").await?;
    let series = text.lines().filter(|line| line.starts_with("rest_client_requests_total{"));
    let refused = series.filter(|line| line.contains("code=\"403\""));
    Ok(refused.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_status_writes_do_not_stop_slices_and_the_log_names_the_cure() -> Result<()> {
    let scene = Scene::new().await?;
    let refuse = json!({
        "answers": [{"code": 403, "share": 1.0}], "path": "/status", "userAgent": "nearhop-controller",
    });
    scene.cluster.server.fault(&refuse).await?;
    scene.node("n1", Some("a")).await?;
    for i in 0..20 {
        let name = format!("s{i}");
        scene.service(&name, json!({"trafficDistribution": "PreferSameZone"})).await?;
        scene.pod(&format!("p{i}"), "n1", &format!("10.1.0.{i}"), &name).await?;
    }
    let scratch = tempfile::tempdir()?;
    let log = scratch.path().join("log");
    let arguments = ["--leader-elect=false"];
    let server = &scene.cluster.server;
    let mut process =
        ControllerProcess::start_logged(server, &arguments, File::create(&log)?.into())?;
    scene.settled().await?;
    let warned = || async {
        let text = std::fs::read_to_string(&log)?;
        Ok(if text.contains("nearhop manifests") { Ok(()) } else { Err(text) })
    };
    scene.until("the log names the cure", TIMEOUT, warned).await?;
    // By now each Service was refused at most a few times; in the next five seconds there are few retries.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = refusals(&process).await?;
    assert!(before >= 1.0, "nothing was refused");
    for i in 0..20 {
        scene.report_pod(&format!("p{i}"), &format!("10.1.0.{i}"), false).await?;
    }
    scene.settled().await?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let after = refusals(&process).await?;
    println!("{before} refusals at first, {} in five seconds", after - before);
    assert!(before <= 40.0 && after - before <= 20.0, "{before}, then {after}");
    let text = std::fs::read_to_string(&log)?;
    let warnings = text.lines().filter(|line| line.contains("nearhop manifests")).count();
    assert_eq!(warnings, 1, "{text}");
    assert!(process.process.try_wait()?.is_none(), "the controller ended");
    let depth =
        read_metric(&process.get("/metrics").await?, "workqueue_depth{name=\"endpoint_slice\"}");
    assert_eq!(depth, 0.0, "no slice waits in the queue");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slice_with_a_finalizer_does_not_block_its_service() -> Result<()> {
    let bad = Bad::new().await?;
    bad.scene.node("n1", Some("a")).await?;
    bad.scene.service("web", json!({})).await?;
    bad.scene.pod("p1", "n1", "10.1.0.1", "web").await?;
    bad.settled().await?;
    let cluster = &bad.scene.cluster;
    let slices = bad.scene.slices("web").await?;
    let path = format!("endpointslices/{}", slices[0].name);
    let path = cluster.group("discovery.k8s.io/v1", &path);
    let hold = json!({"metadata": {"finalizers": ["example.com/hold"]}});
    cluster.admin.merge(&path, &hold).await?.ok()?;
    cluster.admin.delete(&path).await?.ok()?;
    let lingering = cluster.admin.get(&path).await?.expect(200)?.json();
    assert!(lingering["metadata"]["deletionTimestamp"].is_string());
    bad.settled().await?;
    // A new slice has the endpoints of the deleted one, and follows the pods.
    for i in 2..5 {
        bad.scene.pod(&format!("p{i}"), "n1", &format!("10.1.0.{i}"), "web").await?;
        bad.settled().await?;
    }
    let live = || async {
        let slices = bad.scene.slices("web").await?;
        let live = slices.iter().filter(|slice| !slice.deleting);
        let mut found: Vec<String> = live.flat_map(crate::addresses_of).collect();
        found.sort();
        anyhow::Ok(found)
    };
    assert_eq!(live().await?, ["10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4"]);
    // The controller does not write in a loop.
    let before = bad.controller.writes();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(bad.controller.writes(), before);
    let release = json!({"metadata": {"finalizers": null}});
    cluster.admin.merge(&path, &release).await?.ok()?;
    bad.settled().await?;
    assert_eq!(bad.addresses("web", Family::Ipv4).await?.len(), 4);
    // The Service is deleted: no slices remain.
    cluster.admin.delete(&cluster.core("services/web")).await?.ok()?;
    bad.settled().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slice_relabelled_to_a_busy_service_is_replaced() -> Result<()> {
    let bad = Bad::new().await?;
    bad.scene.node("n1", Some("a")).await?;
    for (i, name) in ["robbed", "busy"].into_iter().enumerate() {
        bad.scene.service(name, json!({})).await?;
        bad.scene.pod(&format!("p-{name}"), "n1", &format!("10.1.0.{i}"), name).await?;
    }
    bad.settled().await?;
    // The write for `busy` is delayed, so that the slice gets its new label during the write.
    let cluster = &bad.scene.cluster;
    cluster.server.fault(&json!({"delayMs": 1500, "userAgent": "nearhop-controller"})).await?;
    bad.scene.report_pod("p-busy", "10.1.0.1", false).await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let slice = bad.scene.slices("robbed").await?.remove(0);
    let path = cluster.group("discovery.k8s.io/v1", &format!("endpointslices/{}", slice.name));
    let given = json!({"metadata": {"labels": {"kubernetes.io/service-name": "busy"}}});
    cluster.admin.merge(&path, &given).await?.ok()?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    cluster.server.fault(&json!({})).await?;
    bad.settled().await?;
    assert_eq!(bad.addresses("robbed", Family::Ipv4).await?, ["10.1.0.0"]);
    assert_eq!(bad.addresses("busy", Family::Ipv4).await?, ["10.1.0.1"]);
    Ok(())
}
