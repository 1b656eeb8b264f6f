//! `--once` and `--dry-run`: one pass that ends by itself, and one that only prints its changes.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use nearhop_controller::{Ending, Options, Until};
use nearhop_runtime::lease::LeaseOptions;
use nearhop_tests::cluster::version;
use nearhop_tests::scene::{Scene, TIMEOUT, replace};
use serde_json::json;

use super::common::{ask_for_auto, pods_in, three_zones};

const COLLECTIONS: [&str; 5] = [
    "/api/v1/nodes",
    "/api/v1/services",
    "/api/v1/pods",
    "/api/v1/events",
    "/apis/discovery.k8s.io/v1/endpointslices",
];

/// Several Services without slices.
async fn unpublished() -> Result<Scene> {
    let scene = Scene::new().await?;
    three_zones(&scene).await?;
    for (app, network) in [("plain", "10.0.1"), ("close", "10.0.2"), ("auto", "10.0.3")] {
        scene.service(app, json!({})).await?;
        pods_in(&scene, app, network, "abc").await?;
    }
    scene.patch_service("close", &json!({"spec": {"trafficDistribution": "PreferClose"}})).await?;
    ask_for_auto(&scene, "auto").await?;
    scene.service("empty", json!({})).await?;
    Ok(scene)
}

fn once() -> Options {
    Options { until: Until::Settled, ..replace() }
}

/// Runs the controller until it ends by itself.
async fn run_once(scene: &Scene) -> Result<()> {
    let ended = scene.start(once()).await?.ended();
    let ended =
        tokio::time::timeout(TIMEOUT, ended).await.context("the controller did not end")??;
    assert_eq!(
        (ended.why, ended.failed_slices, ended.failed_status),
        (Ending::Settled, vec![], vec![])
    );
    Ok(())
}

fn lease() -> Option<LeaseOptions> {
    Some(LeaseOptions {
        lease_duration: Duration::from_millis(1500),
        renew_deadline: Duration::from_millis(1000),
        retry_period: Duration::from_millis(200),
        ..LeaseOptions::new("kube-system", "once", "test")
    })
}

/// Before the controller has the lease its queue is empty, but the work is not done.
#[tokio::test(flavor = "multi_thread")]
async fn once_waits_for_the_lease() -> Result<()> {
    let scene = unpublished().await?;
    let ended = scene.start(Options { lease: lease(), ..once() }).await?.ended().await?;
    assert_eq!(ended.why, Ending::Settled);
    assert_eq!(scene.differences().await?, [""; 0]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn once_fails_while_another_holder_has_the_lease() -> Result<()> {
    let scene = unpublished().await?;
    let leader = scene.start(Options { lease: lease(), ..replace() }).await?;
    scene.settled().await?;
    let ended = scene.start(Options { lease: lease(), ..once() }).await?.ended();
    let ended =
        tokio::time::timeout(TIMEOUT, ended).await.context("the controller did not end")??;
    assert_eq!(ended.why, Ending::NoLease);
    leader.stop().await?;
    Ok(())
}

/// Versions of all objects that a controller could write.
async fn everything(scene: &Scene) -> Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for path in COLLECTIONS {
        let list = scene.cluster.admin.get(path).await?.ok()?.json();
        for item in list["items"].as_array().into_iter().flatten() {
            let meta = &item["metadata"];
            let name = format!("{path} {} {}", meta["namespace"], meta["name"]);
            found.insert(name, version(item));
        }
    }
    Ok(found)
}

#[tokio::test(flavor = "multi_thread")]
async fn once_exits_when_slices_and_conditions_are_written() -> Result<()> {
    let scene = unpublished().await?;
    run_once(&scene).await?;
    assert_eq!(scene.differences().await?, [""; 0]);
    let in_zones = |network: &str| {
        ["a", "b", "c"]
            .into_iter()
            .zip(1..)
            .map(|(zone, i)| format!("{network}.{i} {zone}"))
            .collect::<Vec<_>>()
    };
    assert_eq!(scene.hints("close").await?, in_zones("10.0.2"));
    assert_eq!(scene.hints("auto").await?, in_zones("10.0.3"));
    assert_eq!(scene.slice_objects("empty").await?.len(), 1, "a placeholder slice");
    for service in ["close", "auto"] {
        let status = scene.cluster.read(&format!("services/{service}")).await?.ok()?.json();
        let conditions = status["status"]["conditions"].as_array().context("conditions")?;
        assert!(conditions.iter().all(|c| c["status"] == "True"), "{conditions:?}");
        assert_eq!(conditions.len(), 2);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_once_writes_nothing() -> Result<()> {
    let scene = unpublished().await?;
    run_once(&scene).await?;
    let before = everything(&scene).await?;
    run_once(&scene).await?;
    assert_eq!(everything(&scene).await?, before);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn once_removes_slices_whose_service_is_gone() -> Result<()> {
    let scene = unpublished().await?;
    run_once(&scene).await?;
    // Without an owner reference the garbage collector keeps the slice, so the controller has to delete it.
    for slice in scene.slice_objects("plain").await? {
        let name = slice["metadata"]["name"].as_str().unwrap_or_default();
        let path = scene.cluster.group("discovery.k8s.io/v1", &format!("endpointslices/{name}"));
        let patch = json!({"metadata": {"ownerReferences": null}});
        scene.cluster.admin.merge(&path, &patch).await?.ok()?;
    }
    scene.cluster.admin.delete(&scene.cluster.core("services/plain")).await?.ok()?;
    assert_eq!(scene.slice_objects("plain").await?.len(), 1);
    run_once(&scene).await?;
    assert_eq!(scene.slice_objects("plain").await?.len(), 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_prints_changes_and_writes_nothing() -> Result<()> {
    let scene = unpublished().await?;
    let before = everything(&scene).await?;
    let dry = scene.dry_run(replace()).await?;
    assert_eq!(everything(&scene).await?, before);
    let ours: Vec<&String> =
        dry.diffs.iter().filter(|diff| diff.contains(&scene.cluster.namespace)).collect();
    assert_eq!(ours.len(), 4, "{ours:?}");
    let about = |service: &str| {
        let title = format!("Service {}/{service} ", scene.cluster.namespace);
        let found = ours.iter().find(|diff| diff.starts_with(&title));
        found.with_context(|| format!("no diff of {service}: {ours:?}"))
    };
    let close = about("close")?;
    assert!(close.contains("+ 10.0.2.2 ready node=n-b zone=b for-zones=b"), "{close}");
    let plain = about("plain")?;
    assert!(plain.contains("+ 10.0.1.2 ready node=n-b zone=b\n"), "{plain}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_after_a_sync_prints_nothing() -> Result<()> {
    let scene = unpublished().await?;
    let planned = scene.dry_run(replace()).await?.services;
    run_once(&scene).await?;
    let dry = scene.dry_run(replace()).await?;
    assert_eq!(dry.diffs, [""; 0]);
    assert_eq!(dry.services, planned, "all Services were planned");
    // A removed Pod is one line.
    scene.remove_pod("close-2").await?;
    let dry = scene.dry_run(replace()).await?;
    let [diff] = dry.diffs.as_slice() else { anyhow::bail!("not one diff: {:?}", dry.diffs) };
    assert!(diff.contains("- 10.0.2.2 ready node=n-b zone=b for-zones=b"), "{diff}");
    assert_eq!(diff.lines().count(), 3, "{diff}");
    Ok(())
}
