//! Hard topology keys: the status says which nodes they cut off from all endpoints, and it changes
//! with the nodes.

use anyhow::{Context as _, Result};
use nearhop_core::route::{Place, RouteTable, Verdict};
use nearhop_tests::scene::{Scene, TIMEOUT, replace};
use serde_json::json;

use super::common::{pods_in, set_distribution, three_zones};
use super::status::{conditions, message, until_conditions, until_events};

const PROGRAMMED: [&str; 2] = [
    "TrafficDistributionAccepted True Accepted",
    "TrafficDistributionProgrammed True HintsWritten",
];

/// Waits until Reachable has this status and reason, and the other conditions are True.
async fn until_reachable(scene: &Scene, wanted: &str) -> Result<()> {
    let reachable = format!("Reachable {wanted}");
    until_conditions(scene, "web", &[&reachable, PROGRAMMED[0], PROGRAMMED[1]]).await
}

async fn until_message(scene: &Scene, wanted: &str) -> Result<()> {
    let what = format!("the message {wanted:?}");
    scene
        .until(&what, TIMEOUT, || async {
            let found = message(scene, "web", "Reachable").await?;
            Ok(if found == wanted { Ok(()) } else { Err(format!("it is {found:?}")) })
        })
        .await
}

/// Whether the proxy of a node rejects connections to the Service.
async fn is_refused(scene: &Scene, node: &str) -> Result<bool> {
    let world = scene.world().await?;
    let node = world.node(node).context("no such node")?;
    let table = RouteTable::build(&world, Place::of(node));
    let mut verdicts = table.iter().map(|(_, route)| route.decision.internal);
    Ok(verdicts.all(|verdict| verdict == Verdict::Reject))
}

async fn require_zone(scene: &Scene) -> Result<()> {
    three_zones(scene).await?;
    scene.service("web", json!({"trafficDistribution": "nearhop.dev/RequireZone"})).await
}

/// Point 1 of the list "where a new user stumbles".
#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_without_a_zone_is_reported_as_what_it_means_for_hard_keys() -> Result<()> {
    let scene = Scene::new().await?;
    require_zone(&scene).await?;
    scene.node("nz", None).await?;
    pods_in(&scene, "web", "10.0.0", "abc").await?;
    scene.pod("web-9", "nz", "10.0.0.9", "web").await?;
    let controller = scene.start(replace()).await?;
    until_reachable(&scene, "False NoEndpointInZone").await?;
    until_message(
        &scene,
        "node nz without zone label: no ready endpoint, so connections from 1 of 4 nodes are \
         refused; 1 endpoint is on node nz, which has no zone label; clients cannot reach it under \
         RequireZone",
    )
    .await?;
    let programmed = message(&scene, "web", "TrafficDistributionProgrammed").await?;
    assert!(programmed.ends_with("written to 1 EndpointSlice (4 endpoints)"), "{programmed}");
    until_events(&scene, "web", &["Warning NoEndpointInZone"]).await?;
    assert!(is_refused(&scene, "nz").await?, "the proxy agrees");
    assert!(!is_refused(&scene, "n-a").await?);
    controller.stop().await?;
    Ok(())
}

/// Point 2.
#[tokio::test(flavor = "multi_thread")]
async fn a_total_outage_by_topology_keys_is_reported() -> Result<()> {
    let scene = Scene::new().await?;
    three_zones(&scene).await?;
    scene.service("web", json!({"topologyKeys": ["example.com/none"]})).await?;
    pods_in(&scene, "web", "10.0.0", "abc").await?;
    let controller = scene.start(replace()).await?;
    until_reachable(&scene, "False NoEndpointForKeys").await?;
    let why = message(&scene, "web", "Reachable").await?;
    let wanted =
        "label example.com/none: no node has it, so connections from all 3 nodes are refused";
    assert!(why.starts_with(wanted), "{why}");
    until_events(&scene, "web", &["Warning NoEndpointForKeys"]).await?;
    for node in ["n-a", "n-b", "n-c"] {
        assert!(is_refused(&scene, node).await?, "{node}");
    }
    // A label on all nodes of endpoints and clients ends the outage, without a change of the Service.
    let label = json!({"metadata": {"labels": {"example.com/none": "here"}}});
    for node in ["n-a", "n-b", "n-c"] {
        scene.patch_node(node, &label).await?;
    }
    until_reachable(&scene, "True EndpointForEveryNode").await?;
    controller.stop().await?;
    Ok(())
}

/// Point 2, for zones: the zone is named, and the condition follows endpoints and nodes.
#[tokio::test(flavor = "multi_thread")]
async fn a_zone_without_an_endpoint_is_named_until_it_has_one() -> Result<()> {
    let scene = Scene::new().await?;
    require_zone(&scene).await?;
    pods_in(&scene, "web", "10.0.0", "ab").await?;
    let controller = scene.start(replace()).await?;
    until_reachable(&scene, "False NoEndpointInZone").await?;
    let refused = "no ready endpoint, so connections from";
    until_message(&scene, &format!("zone c: {refused} 1 of 3 nodes are refused")).await?;
    // Another node in the zone changes a number, which is no event.
    scene.node("n-c2", Some("c")).await?;
    until_message(&scene, &format!("zone c: {refused} 2 of 4 nodes are refused")).await?;
    // A node in a zone of its own changes no slice, and is a transition.
    scene.node("n-d", Some("d")).await?;
    until_message(&scene, &format!("zones c, d: {refused} 3 of 5 nodes are refused")).await?;
    until_events(&scene, "web", &["Warning NoEndpointInZone", "Warning NoEndpointInZone"]).await?;
    scene.move_node("n-d", Some("a")).await?;
    scene.pod("web-3", "n-c", "10.0.0.3", "web").await?;
    until_reachable(&scene, "True EndpointForEveryNode").await?;
    set_distribution(&scene, "web", Some("PreferSameZone")).await?;
    until_conditions(&scene, "web", &PROGRAMMED).await?;
    controller.stop().await?;
    let last = scene.events("web").await?.len();
    assert!((3..=4).contains(&last), "{:?}", scene.events("web").await?);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_repeats_nothing_about_the_reach() -> Result<()> {
    let scene = Scene::new().await?;
    require_zone(&scene).await?;
    pods_in(&scene, "web", "10.0.0", "ab").await?;
    let controller = scene.start(replace()).await?;
    until_reachable(&scene, "False NoEndpointInZone").await?;
    until_events(&scene, "web", &["Warning NoEndpointInZone"]).await?;
    controller.stop().await?;
    let before = super::common::version_of(&scene, "services/web").await?;
    let controller = scene.start(replace()).await?;
    super::common::until_all_synced(&scene, &controller).await?;
    // Status writes happen in order: the one of a later Service comes after.
    scene.service("late", json!({"trafficDistribution": "PreferSameZone"})).await?;
    until_conditions(&scene, "late", &PROGRAMMED).await?;
    controller.stop().await?;
    assert_eq!(super::common::version_of(&scene, "services/web").await?, before);
    until_events(&scene, "web", &["Warning NoEndpointInZone"]).await?;
    Ok(())
}

/// A Service that has no endpoints yet is as its user made it.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_without_endpoints_raises_no_event() -> Result<()> {
    let scene = Scene::new().await?;
    require_zone(&scene).await?;
    let controller = scene.start(replace()).await?;
    until_reachable(&scene, "False NoEndpoint").await?;
    pods_in(&scene, "web", "10.0.0", "abc").await?;
    until_reachable(&scene, "True EndpointForEveryNode").await?;
    controller.stop().await?;
    let reasons: Vec<_> = scene.events("web").await?;
    let about_none = reasons.iter().filter(|event| event["reason"] == "NoEndpoint").count();
    assert_eq!(about_none, 0, "{reasons:?}");
    assert_eq!(conditions(&scene, "web").await?.len(), 3);
    Ok(())
}
