//! Existing slices: the controller adopts those with its own `managed-by` label as they are, and
//! ignores those of other managers.

use std::collections::BTreeMap;

use anyhow::Result;
use futures_util::future::try_join_all;
use nearhop_core::labels::well_known::IN_TREE_CONTROLLER;
use nearhop_tests::scene::{Scene, replace};
use serde_json::{Value, json};

use super::common::{
    by_service, count_endpoints, create_slice, foreign_slice, pods_in, set_distribution,
    three_zones, until_all_synced, versions,
};

/// A Service with two ports and 100 Pods over three zones, published by another controller as ten
/// slices of ten, with ports in another order and a foreign annotation. The placement is round robin,
/// so every slice has endpoints of every zone.
async fn ten_slices_of_ten() -> Result<Scene> {
    let scene = Scene::new().await?;
    three_zones(&scene).await?;
    let ports = json!([
        {"name": "http", "port": 80, "targetPort": 8080},
        {"name": "metrics", "port": 81, "targetPort": 8081},
    ]);
    scene.service("web", json!({"ports": ports})).await?;
    for tens in 0..10 {
        try_join_all((0..10).map(|ones| web_pod(&scene, tens * 10 + ones))).await?;
    }
    for tens in 0..10 {
        // Not as nearhop would pack them: every tenth Pod.
        let pods: Vec<String> = (0..10).map(|ones| pod_name(ones * 10 + tens)).collect();
        let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
        let name = format!("web-old-{tens}");
        let manager = Some(IN_TREE_CONTROLLER);
        create_slice(&scene, &foreign_slice(&scene, "web", &name, manager, &pods).await?).await?;
    }
    Ok(scene)
}

fn pod_name(number: usize) -> String {
    format!("web-{number:02}")
}

async fn web_pod(scene: &Scene, number: usize) -> Result<()> {
    let node = ["n-a", "n-b", "n-c"][number % 3];
    scene.pod(&pod_name(number), node, &format!("10.0.0.{}", number + 1), "web").await
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_endpoints_in_another_packing_are_not_written() -> Result<()> {
    let scene = ten_slices_of_ten().await?;
    let before = versions(&scene, "web").await?;
    assert_eq!(before.len(), 10);
    let controller = scene.start(replace()).await?;
    until_all_synced(&scene, &controller).await?;
    scene.settled().await?;
    assert_eq!(controller.writes(), 0.0);
    controller.stop().await?;
    assert_eq!(versions(&scene, "web").await?, before);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn adopted_slices_get_hints_with_one_write_each() -> Result<()> {
    let scene = ten_slices_of_ten().await?;
    let controller = scene.start(replace()).await?;
    until_all_synced(&scene, &controller).await?;
    let before = versions(&scene, "web").await?;
    let mut writes = scene.count_writes().await?;
    set_distribution(&scene, "web", Some("PreferSameZone")).await?;
    scene.settled().await?;
    writes.catch_up().await;
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    for (kind, slice) in &writes.events {
        assert_eq!(kind, "MODIFIED");
        assert_eq!(slice["metadata"]["annotations"]["example.com/by"], "another-controller");
        *times.entry(slice["metadata"]["name"].as_str().unwrap_or_default().into()).or_default() +=
            1;
    }
    assert_eq!(times, before.into_keys().map(|name| (name, 1)).collect());
    let hints = scene.hints("web").await?;
    assert_eq!(hints.len(), 100);
    assert!(hints.iter().all(|hint| !hint.ends_with('-')), "{hints:?}");
    controller.stop().await?;
    Ok(())
}

/// The controller writes only slices with wrong endpoints.
#[tokio::test(flavor = "multi_thread")]
async fn one_wrong_endpoint_costs_one_write() -> Result<()> {
    let scene = ten_slices_of_ten().await?;
    scene.report_pod("web-42", "10.0.0.43", false).await?;
    let mut writes = scene.count_writes().await?;
    let controller = scene.start(replace()).await?;
    scene.settled().await?;
    writes.catch_up().await;
    let names: Vec<&Value> =
        writes.events.iter().map(|(_, slice)| &slice["metadata"]["name"]).collect();
    assert_eq!(names, ["web-old-2"]);
    assert_eq!(count_endpoints(&scene.slices("web").await?), 100);
    controller.stop().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn slices_of_other_managers_are_never_touched() -> Result<()> {
    let scene = Scene::new().await?;
    three_zones(&scene).await?;
    scene.service("web", json!({})).await?;
    pods_in(&scene, "web", "10.0.0", "abc").await?;
    for (name, manager) in [("foreign", Some("another-manager")), ("unmanaged", None)] {
        create_slice(&scene, &foreign_slice(&scene, "web", name, manager, &["web-1"]).await?)
            .await?;
    }
    let before = versions(&scene, "web").await?;
    let controller = scene.start(replace()).await?;
    scene.settled().await?;
    set_distribution(&scene, "web", Some("PreferSameNode")).await?;
    scene.remove_pod("web-1").await?;
    scene.settled().await?;
    controller.stop().await?;
    let mut after = versions(&scene, "web").await?;
    assert_eq!(after.len(), 3, "two foreign slices and one of nearhop: {after:?}");
    after.retain(|name, _| before.contains_key(name));
    assert_eq!(after, before);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_service_changes_only_its_own_slices() -> Result<()> {
    let scene = Scene::new().await?;
    three_zones(&scene).await?;
    for number in 1..=5 {
        let (app, network) = (format!("web{number}"), format!("10.0.{number}"));
        scene.service(&app, json!({})).await?;
        pods_in(&scene, &app, &network, "abc").await?;
    }
    let controller = scene.start(replace()).await?;
    scene.settled().await?;
    let mut writes = scene.count_writes().await?;
    set_distribution(&scene, "web3", Some("PreferSameZone")).await?;
    scene.until_hints("web3", &["10.0.3.1 a", "10.0.3.2 b", "10.0.3.3 c"]).await?;
    writes.catch_up().await;
    assert_eq!(by_service(&writes), [("web3".to_owned(), 1)].into());
    controller.stop().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recreated_service_gets_new_slices() -> Result<()> {
    let scene = Scene::new().await?;
    three_zones(&scene).await?;
    pods_in(&scene, "web", "10.0.0", "abc").await?;
    let controller = scene.start(replace()).await?;
    for value in ["PreferSameZone", "PreferSameNode", "PreferClose"] {
        scene.service("web", json!({"trafficDistribution": value})).await?;
        scene.settled().await?;
        let service = scene.cluster.read("services/web").await?.ok()?.json();
        let slices = scene.slice_objects("web").await?;
        assert_eq!(slices.len(), 1, "{value}");
        let owner = &slices[0]["metadata"]["ownerReferences"][0]["uid"];
        assert_eq!(*owner, service["metadata"]["uid"], "{value}");
        scene.cluster.admin.delete(&scene.cluster.core("services/web")).await?.ok()?;
    }
    controller.stop().await?;
    Ok(())
}
