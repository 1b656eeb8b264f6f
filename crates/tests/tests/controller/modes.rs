//! One Service that switches between all topology settings (upstream's integration test of
//! trafficDistribution): the controller updates the hints after each step.

use anyhow::Result;
use nearhop_tests::scene::{RunningController, Scene, replace};
use serde_json::json;

use super::common::{ask_for_auto, set_distribution};

const NONE: &[&str] = &["10.0.0.1 -"];
const ZONE: &[&str] = &["10.0.0.1 a"];
const ZONE_AND_NODE: &[&str] = &["10.0.0.1 a node/n"];
const NODE: &[&str] = &["10.0.0.1 node/n"];

/// One ready Pod on a node with a zone.
async fn one_pod() -> Result<(Scene, RunningController)> {
    let scene = Scene::new().await?;
    let controller = scene.start(replace()).await?;
    scene.node("n", Some("a")).await?;
    scene.service("web", json!({})).await?;
    scene.pod("web-1", "n", "10.0.0.1", "web").await?;
    Ok((scene, controller))
}

#[tokio::test(flavor = "multi_thread")]
async fn hints_follow_every_switch_between_modes() -> Result<()> {
    let (scene, controller) = one_pod().await?;
    // 0: no setting.
    scene.until_hints("web", NONE).await?;
    // 1
    set_distribution(&scene, "web", Some("PreferClose")).await?;
    scene.until_hints("web", ZONE).await?;
    // 2: Auto cannot work with one endpoint, and does not fall back to the field.
    ask_for_auto(&scene, "web").await?;
    scene.until_hints("web", NONE).await?;
    // 3
    let annotations = json!({"service.kubernetes.io/topology-mode": null});
    scene.patch_service("web", &json!({"metadata": {"annotations": annotations}})).await?;
    scene.until_hints("web", ZONE).await?;
    // 4
    set_distribution(&scene, "web", None).await?;
    scene.until_hints("web", NONE).await?;
    // 5
    set_distribution(&scene, "web", Some("PreferSameZone")).await?;
    scene.until_hints("web", ZONE).await?;
    // 6
    set_distribution(&scene, "web", Some("PreferSameNode")).await?;
    scene.until_hints("web", ZONE_AND_NODE).await?;
    // 7
    set_distribution(&scene, "web", None).await?;
    scene.until_hints("web", NONE).await?;
    // 8: the node loses its zone before the Service gets a setting again.
    scene.move_node("n", None).await?;
    set_distribution(&scene, "web", Some("PreferSameNode")).await?;
    scene.until_hints("web", NODE).await?;
    scene.settled().await?;
    controller.stop().await?;
    Ok(())
}

/// Upstream waits for the next event of the Service or its Pods here.
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_zone_label_alone_updates_hints() -> Result<()> {
    let (scene, controller) = one_pod().await?;
    set_distribution(&scene, "web", Some("PreferSameNode")).await?;
    scene.until_hints("web", ZONE_AND_NODE).await?;
    scene.move_node("n", None).await?;
    scene.until_hints("web", NODE).await?;
    scene.move_node("n", Some("b")).await?;
    scene.until_hints("web", &["10.0.0.1 b node/n"]).await?;
    scene.settled().await?;
    controller.stop().await?;
    Ok(())
}
