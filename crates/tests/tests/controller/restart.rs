//! A new process and the hints that it finds: Auto keeps hints by the hysteresis of KEP-2433, which
//! must not depend on the memory of one process.

use anyhow::Result;
use nearhop_tests::scene::{Scene, replace};
use serde_json::{Value, json};

use super::common::{ask_for_auto, pods_in, three_zones};

const OWN_ZONES: [&str; 7] = [
    "10.0.0.1 a",
    "10.0.0.2 a",
    "10.0.0.3 a",
    "10.0.0.4 b",
    "10.0.0.5 b",
    "10.0.0.6 c",
    "10.0.0.7 c",
];

/// A Service with Auto and seven endpoints, 3/2/2, whose hints are within 30 % but not within 20 %,
/// because zone b has grown to 36 %: existing hints are kept, new ones would not be set. The
/// controller has ended.
async fn kept_by_hysteresis() -> Result<Scene> {
    let scene = Scene::new().await?;
    three_zones(&scene).await?;
    scene.service("web", json!({})).await?;
    ask_for_auto(&scene, "web").await?;
    pods_in(&scene, "web", "10.0.0", "aaabbcc").await?;
    let controller = scene.start(replace()).await?;
    scene.until_hints("web", &OWN_ZONES).await?;
    until_enabled(&scene).await?;
    controller.stop().await?;
    scene.report_node("n-b", &json!({"allocatable": {"cpu": "4500m"}})).await?;
    Ok(scene)
}

/// Reasons of the Service's events.
async fn reasons(scene: &Scene) -> Result<Vec<Value>> {
    let list = scene.cluster.read("events").await?.ok()?.json();
    let events = list["items"].as_array().cloned().unwrap_or_default();
    Ok(events.into_iter().map(|event| event["reason"].clone()).collect())
}

async fn until_enabled(scene: &Scene) -> Result<()> {
    scene
        .until("the event of Auto", nearhop_tests::scene::TIMEOUT, || async {
            let found = reasons(scene).await?;
            let expected = found == ["TopologyAwareHintsEnabled"];
            Ok(if expected { Ok(()) } else { Err(format!("they are {found:?}")) })
        })
        .await
}

/// Runs a new controller until it has set the conditions of another Service.
async fn run_again(scene: &Scene) -> Result<()> {
    let controller = scene.start(replace()).await?;
    scene.settled().await?;
    scene.service("late", json!({"trafficDistribution": "PreferSameZone"})).await?;
    scene
        .until("conditions of the marker", nearhop_tests::scene::TIMEOUT, || async {
            let late = scene.cluster.read("services/late").await?.ok()?.json();
            let set = late["status"]["conditions"].is_array();
            Ok(if set { Ok(()) } else { Err("there are none".to_owned()) })
        })
        .await?;
    controller.stop().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn hints_kept_by_hysteresis_survive_a_restart() -> Result<()> {
    let scene = kept_by_hysteresis().await?;
    let mut writes = scene.count_writes().await?;
    run_again(&scene).await?;
    writes.catch_up().await;
    writes
        .events
        .retain(|(_, slice)| slice["metadata"]["labels"]["kubernetes.io/service-name"] == "web");
    assert_eq!(writes.events, []);
    assert_eq!(scene.hints("web").await?, OWN_ZONES);
    assert_eq!(reasons(&scene).await?, ["TopologyAwareHintsEnabled"], "one event");
    Ok(())
}

/// A controller that ran all the time would also assign one endpoint of zone a to zone b.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_created_during_the_restart_does_not_remove_hints() -> Result<()> {
    let scene = kept_by_hysteresis().await?;
    scene.pod("web-8", "n-a", "10.0.0.8", "web").await?;
    run_again(&scene).await?;
    let hints = scene.hints("web").await?;
    assert_eq!(hints.len(), 8);
    let for_zone = |zone: &str| hints.iter().filter(|hint| hint.ends_with(zone)).count();
    assert_eq!([" a", " b", " c"].map(for_zone), [3, 3, 2], "{hints:?}");
    assert_eq!(reasons(&scene).await?, ["TopologyAwareHintsEnabled"], "one event");
    Ok(())
}
