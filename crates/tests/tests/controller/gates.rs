//! Feature gates that are turned off and on again in a running cluster: the steps of KEP-4444 and
//! KEP-3015 ("Was the upgrade->downgrade->upgrade path tested?"), with the controller's gates.
//!
//! Upstream's controller corrects a Service at its next event; nearhop plans every Service when it
//! starts, so a restart is enough.

use std::collections::BTreeSet;

use anyhow::Result;
use nearhop_core::Gates;
use nearhop_tests::scene::{RunningController, Scene, replace};
use serde_json::json;

use super::common::{assert_reached, versions};

/// Starts a controller with these gates; later checks of the scene use them, too.
async fn start_with(scene: &mut Scene, gates: &str) -> Result<RunningController> {
    let gates = Gates::parse(gates)?;
    scene.settings.gates = gates.clone();
    let mut options = replace();
    options.gates = gates;
    scene.start(options).await
}

async fn slice_names(scene: &Scene) -> Result<BTreeSet<String>> {
    Ok(versions(scene, "demo-svc").await?.into_keys().collect())
}

/// A control plane without a zone, a worker in each of two zones, and five Pods.
async fn kind_cluster(scene: &Scene, distribution: &str) -> Result<()> {
    scene.node("control-plane", None).await?;
    let role = json!({"node-role.kubernetes.io/control-plane": ""});
    scene.patch_node("control-plane", &json!({"metadata": {"labels": role}})).await?;
    scene.node("worker", Some("zone-a")).await?;
    scene.node("worker2", Some("zone-b")).await?;
    scene.service("demo-svc", json!({"trafficDistribution": distribution})).await?;
    for number in 1..=5 {
        let node = if number % 2 == 1 { "worker" } else { "worker2" };
        scene.pod(&format!("demo-{number}"), node, &format!("10.0.0.{number}"), "demo-svc").await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn kep_4444_hints_are_removed_and_restored_with_the_gate() -> Result<()> {
    let mut scene = Scene::new().await?;
    // 1: a cluster with the gate. 2: a Service and a Deployment.
    let controller = start_with(&mut scene, "ServiceTrafficDistribution=true").await?;
    kind_cluster(&scene, "PreferClose").await?;
    // 3: the slices have the correct hints.
    let hinted = [
        "10.0.0.1 zone-a",
        "10.0.0.2 zone-b",
        "10.0.0.3 zone-a",
        "10.0.0.4 zone-b",
        "10.0.0.5 zone-a",
    ];
    scene.until_hints("demo-svc", &hinted).await?;
    let names = slice_names(&scene).await?;
    controller.stop().await?;
    // 4: back to a release without the feature. 5: the slices still exist, without hints.
    let controller = start_with(&mut scene, "ServiceTrafficDistribution=false").await?;
    let bare = ["10.0.0.1 -", "10.0.0.2 -", "10.0.0.3 -", "10.0.0.4 -", "10.0.0.5 -"];
    scene.until_hints("demo-svc", &bare).await?;
    scene.settled().await?;
    assert_eq!(slice_names(&scene).await?, names);
    let all: &[&str] = &["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"];
    assert_reached(&scene, "demo-svc", &[("worker", all), ("worker2", all)]).await?;
    controller.stop().await?;
    // 6: forward again. 7: the field is unchanged, and the hints are back.
    let controller = start_with(&mut scene, "ServiceTrafficDistribution=true").await?;
    scene.until_hints("demo-svc", &hinted).await?;
    scene.settled().await?;
    let service = scene.cluster.read("services/demo-svc").await?.ok()?.json();
    assert_eq!(service["spec"]["trafficDistribution"], "PreferClose");
    assert_eq!(slice_names(&scene).await?, names);
    // 8: a worker uses the endpoints of its zone only.
    let in_a: &[&str] = &["10.0.0.1", "10.0.0.3", "10.0.0.5"];
    let in_b: &[&str] = &["10.0.0.2", "10.0.0.4"];
    assert_reached(&scene, "demo-svc", &[("worker", in_a), ("worker2", in_b)]).await?;
    // 8 (again) to 10 are about an older proxy, which changes nothing that the controller writes.
    controller.stop().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn kep_3015_node_hints_are_removed_and_restored_with_the_gate() -> Result<()> {
    let mut scene = Scene::new().await?;
    // Enabled: a Service with PreferSameNode, a Pod, and a slice with a hint for its node.
    let controller = start_with(&mut scene, "PreferSameTrafficDistribution=true").await?;
    scene.node("n-1", Some("a")).await?;
    scene.node("n-2", Some("b")).await?;
    scene.service("web", json!({"trafficDistribution": "PreferSameNode"})).await?;
    scene.pod("web-1", "n-1", "10.0.0.1", "web").await?;
    scene.until_hints("web", &["10.0.0.1 a node/n-1"]).await?;
    controller.stop().await?;
    // Disabled, restarted: no node hint, at once and after another Pod is added.
    let controller = start_with(&mut scene, "PreferSameTrafficDistribution=false").await?;
    scene.until_hints("web", &["10.0.0.1 -"]).await?;
    scene.pod("web-2", "n-2", "10.0.0.2", "web").await?;
    scene.until_hints("web", &["10.0.0.1 -", "10.0.0.2 -"]).await?;
    scene.settled().await?;
    controller.stop().await?;
    // Enabled again, restarted: the hints are back, and stay correct when a Pod is removed.
    let controller = start_with(&mut scene, "PreferSameTrafficDistribution=true").await?;
    scene.until_hints("web", &["10.0.0.1 a node/n-1", "10.0.0.2 b node/n-2"]).await?;
    scene.remove_pod("web-2").await?;
    scene.until_hints("web", &["10.0.0.1 a node/n-1"]).await?;
    scene.settled().await?;
    controller.stop().await?;
    Ok(())
}

/// Without KEP-3015's gate the older value `PreferClose` still works: KEP-3015 "Version Skew Strategy".
#[tokio::test(flavor = "multi_thread")]
async fn prefer_close_does_not_need_the_gate_of_prefer_same_zone() -> Result<()> {
    let mut scene = Scene::new().await?;
    let controller = start_with(&mut scene, "PreferSameTrafficDistribution=false").await?;
    scene.node("n-1", Some("a")).await?;
    for (name, value, ip) in
        [("close", "PreferClose", "10.0.0.1"), ("zone", "PreferSameZone", "10.0.0.2")]
    {
        scene.service(name, json!({"trafficDistribution": value})).await?;
        scene.pod(&format!("{name}-1"), "n-1", ip, name).await?;
    }
    scene.until_hints("close", &["10.0.0.1 a"]).await?;
    scene.until_hints("zone", &["10.0.0.2 -"]).await?;
    scene.settled().await?;
    controller.stop().await?;
    Ok(())
}
