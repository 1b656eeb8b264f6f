//! `--mode=labelled`: nearhop writes slices only for Services with the label, in addition to those of
//! the cluster's own controller.

use anyhow::Result;
use nearhop_controller::{Mode, Options, SERVICE_PROXY};
use nearhop_core::labels::well_known::{
    IN_TREE_CONTROLLER, MANAGED_BY, NEARHOP_CONTROLLER, SERVICE_PROXY_NAME,
};
use nearhop_tests::scene::{Scene, TIMEOUT};
use serde_json::{Value, json};

use super::common::{create_slice, foreign_slice, pods_in, three_zones, versions};

/// Two Services, each with a slice of the cluster's own controller; `ours` has the label.
pub(crate) async fn with_in_tree_slices() -> Result<Scene> {
    let scene = Scene::new().await?;
    let scene = scene.in_mode(Mode::Labelled);
    three_zones(&scene).await?;
    for (app, network) in [("ours", "10.0.0"), ("theirs", "10.0.1")] {
        scene.service(app, json!({"trafficDistribution": "PreferSameZone"})).await?;
        pods_in(&scene, app, network, "abc").await?;
        let (name, pods) = (format!("{app}-tree"), [1, 2, 3].map(|i| format!("{app}-{i}")));
        let pods = pods.each_ref().map(String::as_str);
        let slice = foreign_slice(&scene, app, &name, Some(IN_TREE_CONTROLLER), &pods).await?;
        create_slice(&scene, &slice).await?;
    }
    label(&scene, Some(SERVICE_PROXY)).await?;
    Ok(scene)
}

async fn label(scene: &Scene, value: Option<&str>) -> Result<()> {
    let labels = json!({SERVICE_PROXY_NAME: value});
    scene.patch_service("ours", &json!({"metadata": {"labels": labels}})).await
}

/// nearhop's slices of a Service, as objects.
pub(crate) async fn nearhop_slices(scene: &Scene, service: &str) -> Result<Vec<Value>> {
    let mut slices = scene.slice_objects(service).await?;
    slices.retain(|slice| slice["metadata"]["labels"][MANAGED_BY] == NEARHOP_CONTROLLER);
    Ok(slices)
}

/// Waits until `ours` has `wanted` slices of nearhop.
pub(crate) async fn until_nearhop_slices(scene: &Scene, wanted: usize) -> Result<()> {
    let what = format!("{wanted} slices of nearhop");
    scene
        .until(&what, TIMEOUT, || async {
            let found = nearhop_slices(scene, "ours").await?.len();
            Ok(if found == wanted { Ok(()) } else { Err(format!("there are {found}")) })
        })
        .await
}

/// Asserts that the slices of the cluster's own controller are unchanged.
async fn assert_tree_untouched(scene: &Scene, before: &[(&str, String)]) -> Result<()> {
    for (service, version) in before {
        let now = versions(scene, service).await?;
        assert_eq!(now.get(&format!("{service}-tree")), Some(version), "{service}");
    }
    Ok(())
}

async fn tree_versions(scene: &Scene) -> Result<Vec<(&'static str, String)>> {
    let mut found = Vec::new();
    for service in ["ours", "theirs"] {
        let versions = versions(scene, service).await?;
        found.push((service, versions[&format!("{service}-tree")].clone()));
    }
    Ok(found)
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_labelled_service_gets_slices_of_nearhop() -> Result<()> {
    let scene = with_in_tree_slices().await?;
    let tree = tree_versions(&scene).await?;
    let controller = scene.start(Options::new(Mode::Labelled)).await?;
    scene.settled().await?;
    let slices = nearhop_slices(&scene, "ours").await?;
    assert_eq!(slices.len(), 1);
    assert_eq!(slices[0]["metadata"]["labels"][SERVICE_PROXY_NAME], SERVICE_PROXY);
    assert_eq!(scene.hints("ours").await?, ["10.0.0.1 a", "10.0.0.2 b", "10.0.0.3 c"]);
    assert_eq!(scene.reached_from("ours", "n-b").await?, ["10.0.0.2"]);
    // Pods of both Services are removed.
    scene.remove_pod("ours-3").await?;
    scene.remove_pod("theirs-3").await?;
    scene.until_hints("ours", &["10.0.0.1 a", "10.0.0.2 b"]).await?;
    scene.settled().await?;
    controller.stop().await?;
    assert_eq!(nearhop_slices(&scene, "theirs").await?.len(), 0);
    assert_tree_untouched(&scene, &tree).await
}

#[tokio::test(flavor = "multi_thread")]
async fn slices_are_removed_and_restored_with_the_label() -> Result<()> {
    let scene = with_in_tree_slices().await?;
    let tree = tree_versions(&scene).await?;
    let controller = scene.start(Options::new(Mode::Labelled)).await?;
    until_nearhop_slices(&scene, 1).await?;
    label(&scene, None).await?;
    until_nearhop_slices(&scene, 0).await?;
    assert_tree_untouched(&scene, &tree).await?;
    label(&scene, Some(SERVICE_PROXY)).await?;
    until_nearhop_slices(&scene, 1).await?;
    scene.settled().await?;
    assert_eq!(scene.hints("ours").await?, ["10.0.0.1 a", "10.0.0.2 b", "10.0.0.3 c"]);
    // The name of another proxy has the same effect as no label.
    label(&scene, Some("another")).await?;
    until_nearhop_slices(&scene, 0).await?;
    controller.stop().await?;
    assert_tree_untouched(&scene, &tree).await
}

/// Waits until the status of `ours` has `wanted` conditions.
async fn until_conditions(scene: &Scene, wanted: usize) -> Result<()> {
    scene
        .until(&format!("{wanted} conditions"), TIMEOUT, || async {
            let ours = scene.cluster.read("services/ours").await?.ok()?.json();
            let found = ours["status"]["conditions"].as_array().map_or(0, Vec::len);
            Ok(if found == wanted { Ok(()) } else { Err(format!("there are {found}")) })
        })
        .await
}

/// A stale condition would still report written hints.
#[tokio::test(flavor = "multi_thread")]
async fn conditions_are_removed_and_restored_with_the_label() -> Result<()> {
    let scene = with_in_tree_slices().await?;
    let controller = scene.start(Options::new(Mode::Labelled)).await?;
    until_conditions(&scene, 2).await?;
    label(&scene, None).await?;
    until_conditions(&scene, 0).await?;
    label(&scene, Some(SERVICE_PROXY)).await?;
    until_conditions(&scene, 2).await?;
    controller.stop().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_of_a_service_without_slices_are_removed_with_the_label() -> Result<()> {
    let scene = with_in_tree_slices().await?;
    scene.patch_service("ours", &json!({"spec": {"selector": null}})).await?;
    let controller = scene.start(Options::new(Mode::Labelled)).await?;
    until_conditions(&scene, 2).await?;
    label(&scene, None).await?;
    until_conditions(&scene, 0).await?;
    controller.stop().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_label_removed_while_the_controller_is_down_removes_the_slices() -> Result<()> {
    let scene = with_in_tree_slices().await?;
    let tree = tree_versions(&scene).await?;
    let controller = scene.start(Options::new(Mode::Labelled)).await?;
    until_nearhop_slices(&scene, 1).await?;
    controller.stop().await?;
    label(&scene, None).await?;
    let controller = scene.start(Options::new(Mode::Labelled)).await?;
    until_nearhop_slices(&scene, 0).await?;
    controller.stop().await?;
    assert_tree_untouched(&scene, &tree).await
}
