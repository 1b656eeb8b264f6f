//! A change of `--mode`, and the cleanup: no stale slices, annotations or conditions remain.

use anyhow::{Context, Result};
use nearhop_controller::{CleanUp, Deps, Mode, Options, Removed, clean_up};
use nearhop_core::labels::well_known::{IN_TREE_CONTROLLER, MANAGED_BY, NEARHOP_CONTROLLER};
use nearhop_core::{Gate, Gates};
use nearhop_runtime::health::{Health, Purpose};
use nearhop_runtime::lease::LeaseOptions;
use nearhop_runtime::metrics::Metrics;
use nearhop_runtime::shutdown::Shutdown;
use nearhop_tests::scene::{Scene, TIMEOUT, replace};
use serde_json::{Value, json};

use super::labelled::{nearhop_slices, until_nearhop_slices, with_in_tree_slices};
use super::locators::{define, objects as locators};

const ROUTING: &str = "nearhop.dev/routing";

fn is_managed_by(slice: &Value, manager: &str) -> bool {
    slice["metadata"]["labels"][MANAGED_BY] == manager
}

async fn ask_for_zone_keys(scene: &Scene, service: &str) -> Result<()> {
    let annotations = json!({"nearhop.dev/topology-keys": "topology.kubernetes.io/zone,*"});
    let patch = json!({
        "metadata": {"annotations": annotations}, "spec": {"trafficDistribution": null},
    });
    scene.patch_service(service, &patch).await
}

/// Waits until all in-tree slices of a Service have the routing annotation, or none has it.
async fn until_annotated(scene: &Scene, service: &str, wanted: bool) -> Result<()> {
    let what = format!("{service}: annotated: {wanted}");
    scene
        .until(&what, TIMEOUT, || async {
            let mut slices = scene.slice_objects(service).await?;
            slices.retain(|slice| is_managed_by(slice, IN_TREE_CONTROLLER));
            let matches =
                |slice: &Value| slice["metadata"]["annotations"][ROUTING].is_string() == wanted;
            let all = !slices.is_empty() && slices.iter().all(matches);
            Ok(if all { Ok(()) } else { Err(format!("{slices:?}")) })
        })
        .await
}

async fn until_conditions(scene: &Scene, service: &str, wanted: usize) -> Result<()> {
    scene
        .until(&format!("{wanted} conditions of {service}"), TIMEOUT, || async {
            let found = scene.conditions(service).await?.len();
            Ok(if found == wanted { Ok(()) } else { Err(format!("there are {found}")) })
        })
        .await
}

/// No controller would update the old slices, but kube-proxy and CoreDNS would still read them.
#[tokio::test(flavor = "multi_thread")]
async fn switching_from_labelled_to_replace_deletes_old_slices_last() -> Result<()> {
    let scene = with_in_tree_slices().await?;
    let controller = scene.start(Options::new(Mode::Labelled)).await?;
    until_nearhop_slices(&scene, 1).await?;
    controller.stop().await?;
    let scene = scene.in_mode(Mode::Replace);
    let mut writes = scene.count_writes().await?;
    let controller = scene.start(replace()).await?;
    until_nearhop_slices(&scene, 0).await?;
    scene.settled().await?;
    assert_eq!(scene.hints("ours").await?, ["10.0.0.1 a", "10.0.0.2 b", "10.0.0.3 c"]);
    writes.catch_up().await;
    controller.stop().await?;
    let ours = writes
        .events
        .iter()
        .filter(|(_, slice)| slice["metadata"]["labels"]["kubernetes.io/service-name"] == "ours");
    let events: Vec<(&str, bool)> = ours
        .map(|(kind, slice)| (kind.as_str(), is_managed_by(slice, NEARHOP_CONTROLLER)))
        .collect();
    assert_eq!(events, [("MODIFIED", false), ("DELETED", true)], "endpoints are never missing");
    Ok(())
}

/// A dry run lists the deletion.
#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_shows_the_slices_that_another_mode_left() -> Result<()> {
    let scene = with_in_tree_slices().await?;
    let controller = scene.start(Options::new(Mode::Labelled)).await?;
    until_nearhop_slices(&scene, 1).await?;
    controller.stop().await?;
    let name = nearhop_slices(&scene, "ours").await?[0]["metadata"]["name"].to_string();
    let planned = scene.dry_run(replace()).await?;
    let deleted = |write: &&Value| write["verb"] == "delete";
    let deleted: Vec<String> =
        planned.writes.iter().filter(deleted).map(|write| write["name"].to_string()).collect();
    assert_eq!(deleted, std::slice::from_ref(&name));
    let diffs = planned.diffs.concat();
    let gone = format!("- EndpointSlice {} ", name.trim_matches('"'));
    assert!(diffs.contains(&gone), "{gone}: {diffs}");
    Ok(())
}

/// The cluster's own controller keeps the slices, and updates neither the annotation nor the
/// conditions.
#[tokio::test(flavor = "multi_thread")]
async fn switching_from_replace_to_labelled_removes_annotations_and_conditions() -> Result<()> {
    let scene = with_in_tree_slices().await?;
    for service in ["ours", "theirs"] {
        ask_for_zone_keys(&scene, service).await?;
    }
    let scene = scene.in_mode(Mode::Replace);
    let controller = scene.start(replace()).await?;
    for service in ["ours", "theirs"] {
        until_annotated(&scene, service, true).await?;
        until_conditions(&scene, service, 2).await?;
    }
    controller.stop().await?;
    let scene = scene.in_mode(Mode::Labelled);
    let controller = scene.start(Options::new(Mode::Labelled)).await?;
    until_nearhop_slices(&scene, 1).await?;
    for service in ["ours", "theirs"] {
        until_annotated(&scene, service, false).await?;
    }
    until_conditions(&scene, "theirs", 0).await?;
    scene.settled().await?;
    controller.stop().await?;
    assert_eq!(scene.conditions("ours").await?.len(), 2, "nearhop still manages `ours`");
    let kept = nearhop_slices(&scene, "ours").await?;
    assert!(
        kept[0]["metadata"]["annotations"][ROUTING].is_string(),
        "nearhop still manages its slices"
    );
    Ok(())
}

async fn clean(scene: &Scene, options: Options) -> Result<CleanUp> {
    let (_trigger, shutdown) = Shutdown::manual();
    let synced = Health::new().check("informer-sync", Purpose::Ready);
    let client = scene.cluster.client().await?;
    let deps = Deps { client, metrics: Metrics::new(), synced, shutdown };
    Ok(clean_up(options, deps).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn cleanup_removes_everything_that_nearhop_wrote() -> Result<()> {
    let scene = with_in_tree_slices().await?;
    define(&scene).await?;
    let gates = Gates::default().with(Gate::PodLocator);
    let labelled = Options { gates, ..Options::new(Mode::Labelled) };
    let controller = scene.start(labelled.clone()).await?;
    until_nearhop_slices(&scene, 1).await?;
    until_conditions(&scene, "ours", 2).await?;
    let six = || async {
        let found = locators(&scene).await?.len();
        Ok(if found == 6 { Ok(()) } else { Err(format!("there are {found}")) })
    };
    scene.until("a PodLocator for each Pod", TIMEOUT, six).await?;
    controller.stop().await?;
    let expected = Removed { slices: 1, annotations: 0, conditions: 1, locators: 6 };
    assert_eq!(clean(&scene, labelled.clone()).await?, CleanUp::Done(expected));
    assert_eq!(nearhop_slices(&scene, "ours").await?.len(), 0);
    assert_eq!(scene.conditions("ours").await?.len(), 0);
    assert_eq!(locators(&scene).await?.len(), 0);
    assert_eq!(scene.slice_objects("ours").await?.len(), 1, "the in-tree slice stays");
    assert_eq!(
        clean(&scene, labelled).await?,
        CleanUp::Done(Removed::default()),
        "a second cleanup finds nothing"
    );
    Ok(())
}

/// The running controller would write everything again.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_removed_while_another_controller_holds_the_lease() -> Result<()> {
    let scene = with_in_tree_slices().await?;
    let lease = |identity: &str| LeaseOptions {
        lease_duration: std::time::Duration::from_millis(1500),
        renew_deadline: std::time::Duration::from_millis(1000),
        retry_period: std::time::Duration::from_millis(200),
        ..LeaseOptions::new("kube-system", "nearhop-controller", identity)
    };
    let running = Options { lease: Some(lease("running")), ..Options::new(Mode::Labelled) };
    let controller = scene.start(running).await?;
    until_nearhop_slices(&scene, 1).await?;
    let cleaning = Options { lease: Some(lease("cleaning")), ..Options::new(Mode::Labelled) };
    let ended = tokio::time::timeout(TIMEOUT, clean(&scene, cleaning.clone())).await;
    assert_eq!(ended.context("the cleanup did not end")??, CleanUp::NoLease);
    assert_eq!(nearhop_slices(&scene, "ours").await?.len(), 1);
    controller.stop().await?;
    let ended = tokio::time::timeout(TIMEOUT, clean(&scene, cleaning)).await;
    let ended = ended.context("the cleanup did not end")??;
    assert!(matches!(ended, CleanUp::Done(Removed { slices: 1, .. })), "{ended:?}");
    Ok(())
}
