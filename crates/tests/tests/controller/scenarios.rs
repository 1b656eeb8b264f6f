//! The end-to-end scenarios of traffic distribution (KEP-4444, KEP-3015 "e2e tests"), at the level
//! of hints and of the routes on each client's node.

use anyhow::Result;
use nearhop_tests::scene::{Scene, replace};
use serde_json::json;

use super::common::{assert_reached, three_zones};

/// One node in each of three zones, servers in the first two of them.
async fn one_node_per_zone(distribution: &str) -> Result<()> {
    let scene = Scene::new().await?;
    let controller = scene.start(replace()).await?;
    three_zones(&scene).await?;
    scene.service("web", json!({"trafficDistribution": distribution})).await?;
    scene.pod("server-a", "n-a", "10.0.0.1", "web").await?;
    scene.pod("server-b", "n-b", "10.0.0.2", "web").await?;
    scene.settled().await?;
    assert_eq!(scene.hints("web").await?, ["10.0.0.1 a", "10.0.0.2 b"]);
    let reached: [(&str, &[&str]); 3] =
        [("n-a", &["10.0.0.1"]), ("n-b", &["10.0.0.2"]), ("n-c", &["10.0.0.1", "10.0.0.2"])];
    assert_reached(&scene, "web", &reached).await?;
    controller.stop().await?;
    Ok(())
}

/// Two nodes in each of three zones: two servers in the first, one in the second, none in the
/// third.
async fn several_nodes_per_zone(distribution: &str) -> Result<Scene> {
    let scene = Scene::new().await?;
    let controller = scene.start(replace()).await?;
    for zone in ["a", "b", "c"] {
        for number in 1..=2 {
            scene.node(&format!("n-{zone}{number}"), Some(zone)).await?;
        }
    }
    scene.service("web", json!({"trafficDistribution": distribution})).await?;
    scene.pod("server-1", "n-a1", "10.0.0.1", "web").await?;
    scene.pod("server-2", "n-a2", "10.0.0.2", "web").await?;
    scene.pod("server-3", "n-b2", "10.0.0.3", "web").await?;
    scene.settled().await?;
    controller.stop().await?;
    Ok(scene)
}

const ALL: &[&str] = &["10.0.0.1", "10.0.0.2", "10.0.0.3"];

async fn zones_are_kept_with_several_nodes(distribution: &str) -> Result<()> {
    let scene = several_nodes_per_zone(distribution).await?;
    assert_eq!(scene.hints("web").await?, ["10.0.0.1 a", "10.0.0.2 a", "10.0.0.3 b"]);
    let in_a: &[&str] = &["10.0.0.1", "10.0.0.2"];
    let reached = [("n-a1", in_a), ("n-a2", in_a), ("n-b1", &["10.0.0.3"]), ("n-c1", ALL)];
    assert_reached(&scene, "web", &reached).await
}

#[tokio::test(flavor = "multi_thread")]
async fn s1_prefer_close_keeps_to_the_zone_with_one_node_each() -> Result<()> {
    one_node_per_zone("PreferClose").await
}

#[tokio::test(flavor = "multi_thread")]
async fn s2_prefer_close_keeps_to_the_zone_with_several_nodes() -> Result<()> {
    zones_are_kept_with_several_nodes("PreferClose").await
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_prefer_same_zone_keeps_to_the_zone_with_one_node_each() -> Result<()> {
    one_node_per_zone("PreferSameZone").await
}

#[tokio::test(flavor = "multi_thread")]
async fn s4_prefer_same_zone_keeps_to_the_zone_with_several_nodes() -> Result<()> {
    zones_are_kept_with_several_nodes("PreferSameZone").await
}

#[tokio::test(flavor = "multi_thread")]
async fn s5_prefer_same_node_falls_back_to_the_zone_and_to_all() -> Result<()> {
    let scene = several_nodes_per_zone("PreferSameNode").await?;
    assert_eq!(
        scene.hints("web").await?,
        ["10.0.0.1 a node/n-a1", "10.0.0.2 a node/n-a2", "10.0.0.3 b node/n-b2"]
    );
    let reached: [(&str, &[&str]); 4] =
        [("n-a1", &["10.0.0.1"]), ("n-a2", &["10.0.0.2"]), ("n-b1", &["10.0.0.3"]), ("n-c1", ALL)];
    assert_reached(&scene, "web", &reached).await
}

#[tokio::test(flavor = "multi_thread")]
async fn s6_prefer_same_node_survives_the_loss_and_return_of_the_local_endpoint() -> Result<()> {
    let scene = Scene::new().await?;
    let controller = scene.start(replace()).await?;
    scene.node("n-1", Some("a")).await?;
    scene.node("n-2", Some("a")).await?;
    scene.service("web", json!({"trafficDistribution": "PreferSameNode"})).await?;
    scene.pod("server-1", "n-1", "10.0.0.1", "web").await?;
    scene.pod("server-2", "n-2", "10.0.0.2", "web").await?;
    scene.until_hints("web", &["10.0.0.1 a node/n-1", "10.0.0.2 a node/n-2"]).await?;
    let own: [(&str, &[&str]); 2] = [("n-1", &["10.0.0.1"]), ("n-2", &["10.0.0.2"])];
    assert_reached(&scene, "web", &own).await?;

    scene.terminate_pod("server-1").await?;
    // server-1 terminates and still serves, but server-2 is ready.
    scene.until_hints("web", &["10.0.0.1 -", "10.0.0.2 a node/n-2"]).await?;
    let other: [(&str, &[&str]); 2] = [("n-1", &["10.0.0.2"]), ("n-2", &["10.0.0.2"])];
    assert_reached(&scene, "web", &other).await?;
    scene.remove_pod("server-1").await?;
    scene.until_hints("web", &["10.0.0.2 a node/n-2"]).await?;
    assert_reached(&scene, "web", &other).await?;

    scene.pod("server-3", "n-1", "10.0.0.3", "web").await?;
    scene.until_hints("web", &["10.0.0.2 a node/n-2", "10.0.0.3 a node/n-1"]).await?;
    let own: [(&str, &[&str]); 2] = [("n-1", &["10.0.0.3"]), ("n-2", &["10.0.0.2"])];
    assert_reached(&scene, "web", &own).await?;
    scene.settled().await?;
    controller.stop().await?;
    Ok(())
}
