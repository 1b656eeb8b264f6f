//! PodLocators (KEP-536 "New PodLocator controller"): the controller creates, updates and deletes them
//! with their Pods and Nodes, and writes them for no other reason.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use nearhop_apiserver::Controllers;
use nearhop_controller::{Ending, Options, Until};
use nearhop_core::locate::LocatorLabels;
use nearhop_core::{Gate, Gates};
use nearhop_runtime::lease::LeaseOptions;
use nearhop_tests::cluster::version;
use nearhop_tests::http::Request;
use nearhop_tests::scene::{RunningController, Scene, TIMEOUT, replace, start_recorded};
use nearhop_tests::server;
use serde_json::{Value, json};

use super::common::{pods_in, three_zones};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const ALL: &str = "/apis/nearhop.dev/v1alpha1/podlocators";

pub(crate) async fn define(scene: &Scene) -> Result<()> {
    let definition = nearhop_api::locator::definition();
    scene.cluster.admin.post(DEFINITIONS, &definition).await?.expect(201)?;
    scene
        .until("PodLocators are served", TIMEOUT, || async {
            let answer = scene.cluster.admin.get(ALL).await?;
            Ok(if answer.ok().is_ok() { Ok(()) } else { Err("they are not served".to_owned()) })
        })
        .await
}

/// A cluster of three zones with the definition of PodLocators.
async fn defined() -> Result<Scene> {
    let scene = Scene::new().await?;
    define(&scene).await?;
    three_zones(&scene).await?;
    Ok(scene)
}

fn locating() -> Options {
    Options { gates: Gates::default().with(Gate::PodLocator), ..replace() }
}

pub(crate) async fn objects(scene: &Scene) -> Result<Vec<Value>> {
    let list = scene.cluster.admin.get(ALL).await?.ok()?.json();
    Ok(list["items"].as_array().cloned().unwrap_or_default())
}

fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

/// `web-1: 10.0.0.1 n-a zone=a`, without the hostname label, which repeats the node's name.
fn describe(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let ips = object["ips"].as_array().into_iter().flatten().map(|ip| text(&ip["ip"]));
    let labels = object["nodeLabels"].as_object().into_iter().flatten();
    let labels = labels.filter(|(key, _)| *key != "kubernetes.io/hostname");
    let labels = labels.map(|(key, value)| {
        format!("{}={}", key.trim_start_matches("topology.kubernetes.io/"), text(value))
    });
    let node = object["nodeName"].as_str().map(str::to_owned);
    let words: Vec<String> = ips.chain(node).chain(labels).collect();
    format!("{}: {}", name(object), words.join(" "))
}

async fn until_locators(scene: &Scene, wanted: &[&str]) -> Result<()> {
    let what = format!("PodLocators {wanted:?}");
    scene
        .until(&what, TIMEOUT, || async {
            let found: Vec<String> = objects(scene).await?.iter().map(describe).collect();
            Ok(if found == wanted { Ok(()) } else { Err(format!("they are {found:?}")) })
        })
        .await
}

async fn versions(scene: &Scene) -> Result<BTreeMap<String, String>> {
    Ok(objects(scene).await?.iter().map(|object| (name(object), version(object))).collect())
}

fn writes(controller: &RunningController) -> f64 {
    let mut sum = 0.0;
    for operation in ["create", "update", "delete"] {
        for result in ["success", "conflict", "gone", "error"] {
            let labels = format!("operation=\"{operation}\",result=\"{result}\"");
            sum += controller
                .metric(&format!("nearhop_controller_podlocator_writes_total{{{labels}}}"));
        }
    }
    sum
}

fn path(scene: &Scene, name: &str) -> String {
    scene.cluster.group("nearhop.dev/v1alpha1", &format!("podlocators/{name}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locator_is_updated_with_its_pod() -> Result<()> {
    let scene = defined().await?;
    let controller = scene.start(locating()).await?;
    scene.pending_pod("web", "n-a", &json!({})).await?;
    until_locators(&scene, &["web: n-a zone=a"]).await?;
    scene.report_pod("web", "10.0.0.1", true).await?;
    until_locators(&scene, &["web: 10.0.0.1 n-a zone=a"]).await?;
    scene.report_pod("web", "10.0.0.9", true).await?;
    until_locators(&scene, &["web: 10.0.0.9 n-a zone=a"]).await?;
    let done = json!({"status": {"phase": "Succeeded"}});
    scene.cluster.admin.merge(&scene.cluster.core("pods/web/status"), &done).await?.ok()?;
    until_locators(&scene, &["web: n-a zone=a"]).await?;
    assert_eq!(controller.metric("nearhop_controller_podlocators"), 1.0);
    scene.remove_pod("web").await?;
    until_locators(&scene, &[]).await?;
    let ended = controller.stop().await?;
    assert_eq!(ended.failed_locators, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn locators_are_updated_with_their_nodes() -> Result<()> {
    let scene = defined().await?;
    let controller = scene.start(locating()).await?;
    pods_in(&scene, "web", "10.0.0", "aab").await?;
    let home =
        ["web-1: 10.0.0.1 n-a zone=a", "web-2: 10.0.0.2 n-a zone=a", "web-3: 10.0.0.3 n-b zone=b"];
    until_locators(&scene, &home).await?;
    scene.move_node("n-a", Some("c")).await?;
    let moved =
        ["web-1: 10.0.0.1 n-a zone=c", "web-2: 10.0.0.2 n-a zone=c", "web-3: 10.0.0.3 n-b zone=b"];
    until_locators(&scene, &moved).await?;
    scene.cluster.admin.delete("/api/v1/nodes/n-a").await?.ok()?;
    let reset = ["web-1: 10.0.0.1", "web-2: 10.0.0.2", "web-3: 10.0.0.3 n-b zone=b"];
    until_locators(&scene, &reset).await?;
    let bare = &objects(&scene).await?[0];
    assert_eq!(
        (&bare["nodeName"], bare["nodeLabels"].as_object().map_or(0, |l| l.len())),
        (&Value::Null, 0)
    );
    scene.node("n-a", Some("a")).await?;
    until_locators(&scene, &home).await?;
    controller.stop().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locator_is_deleted_with_the_pod_that_owns_it() -> Result<()> {
    let scene = defined().await?;
    let controller = scene.start(locating()).await?;
    scene.pod("web", "n-a", "10.0.0.1", "web").await?;
    until_locators(&scene, &["web: 10.0.0.1 n-a zone=a"]).await?;
    let owner = async || -> Result<Value> {
        let pod = scene.cluster.read("pods/web").await?.ok()?.json();
        let found = objects(&scene).await?;
        let owners = found.first().map(|object| object["metadata"]["ownerReferences"].clone());
        let uid = &pod["metadata"]["uid"];
        let wanted = json!([{
            "apiVersion": "v1", "kind": "Pod", "name": "web", "uid": uid, "controller": true,
        }]);
        assert_eq!(owners, Some(wanted), "{found:?}");
        Ok(uid.clone())
    };
    let first = owner().await?;
    // A new Pod with the same name, as in a StatefulSet.
    scene.remove_pod("web").await?;
    scene.pod("web", "n-b", "10.0.0.2", "web").await?;
    until_locators(&scene, &["web: 10.0.0.2 n-b zone=b"]).await?;
    assert_ne!(owner().await?, first);
    // Without a controller the garbage collector deletes it.
    controller.stop().await?;
    scene.remove_pod("web").await?;
    until_locators(&scene, &[]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_garbage_collector_the_controller_deletes_locators() -> Result<()> {
    let bare = server::Options { controllers: Controllers::Bare, ..Default::default() };
    let scene = Scene::with(&bare).await?;
    define(&scene).await?;
    scene.node("n-a", Some("a")).await?;
    let controller = scene.start(locating()).await?;
    scene.pod("web", "n-a", "10.0.0.1", "web").await?;
    until_locators(&scene, &["web: 10.0.0.1 n-a zone=a"]).await?;
    scene.remove_pod("web").await?;
    until_locators(&scene, &[]).await?;
    controller.stop().await?;
    // A PodLocator whose Pod was deleted while the controller was down.
    let stray = json!({
        "apiVersion": "nearhop.dev/v1alpha1", "kind": "PodLocator", "metadata": {"name": "stray"},
    });
    let all = scene.cluster.group("nearhop.dev/v1alpha1", "podlocators");
    scene.cluster.admin.post(&all, &stray).await?.expect(201)?;
    let controller = scene.start(locating()).await?;
    until_locators(&scene, &[]).await?;
    controller.stop().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_label_option_selects_the_copied_labels() -> Result<()> {
    let scene = defined().await?;
    let labels = json!({"rack": "r1", "colour": "red", "topology.kubernetes.io/region": "eu"});
    scene.patch_node("n-a", &json!({"metadata": {"labels": labels}})).await?;
    scene.pod("web", "n-a", "10.0.0.1", "web").await?;
    let cases = [
        (LocatorLabels::Topology, "web: 10.0.0.1 n-a region=eu zone=a"),
        (LocatorLabels::parse("colour,unused")?, "web: 10.0.0.1 n-a colour=red"),
        (LocatorLabels::parse("*")?, "web: 10.0.0.1 n-a colour=red rack=r1 region=eu zone=a"),
    ];
    for (locator_labels, wanted) in cases {
        let controller = scene.start(Options { locator_labels, ..locating() }).await?;
        until_locators(&scene, &[wanted]).await?;
        controller.stop().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn topology_keys_of_services_are_copied() -> Result<()> {
    let scene = defined().await?;
    scene.patch_node("n-a", &json!({"metadata": {"labels": {"rack": "r1"}}})).await?;
    pods_in(&scene, "web", "10.0.0", "ab").await?;
    let controller = scene.start(locating()).await?;
    let without = ["web-1: 10.0.0.1 n-a zone=a", "web-2: 10.0.0.2 n-b zone=b"];
    until_locators(&scene, &without).await?;
    let untouched = versions(&scene).await?["web-2"].clone();
    scene.service("web", json!({})).await?;
    let ask =
        |keys: Value| json!({"metadata": {"annotations": {"nearhop.dev/topology-keys": keys}}});
    scene.patch_service("web", &ask("rack,*".into())).await?;
    until_locators(&scene, &["web-1: 10.0.0.1 n-a rack=r1 zone=a", without[1]]).await?;
    scene.patch_service("web", &ask(Value::Null)).await?;
    until_locators(&scene, &without).await?;
    assert_eq!(versions(&scene).await?["web-2"], untouched, "its node has no such label");
    controller.stop().await?;
    Ok(())
}

/// A change that is reverted while the controller writes its result.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_is_reverted_during_the_write_is_written_again() -> Result<()> {
    let scene = defined().await?;
    let controller = scene.start(locating()).await?;
    scene.pod("web", "n-a", "10.0.0.1", "web").await?;
    let right = ["web: 10.0.0.1 n-a zone=a"];
    until_locators(&scene, &right).await?;
    let slow = json!({"path": "podlocators", "userAgent": "nearhop", "delayMs": 1000});
    scene.cluster.server.fault(&slow).await?;
    scene.move_node("n-a", Some("b")).await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    scene.move_node("n-a", Some("a")).await?;
    // The delayed write arrives.
    until_locators(&scene, &["web: 10.0.0.1 n-a zone=b"]).await?;
    scene.cluster.server.fault(&json!({})).await?;
    until_locators(&scene, &right).await?;
    controller.stop().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_changes_of_locators_are_repaired() -> Result<()> {
    let scene = defined().await?;
    let controller = scene.start(locating()).await?;
    scene.pod("web", "n-a", "10.0.0.1", "web").await?;
    let right = ["web: 10.0.0.1 n-a zone=a"];
    until_locators(&scene, &right).await?;
    for patch in [
        json!({"nodeName": "n-b", "nodeLabels": {"topology.kubernetes.io/zone": "b"}}),
        json!({"ips": [{"ip": "10.9.9.9"}], "nodeLabels": null}),
        json!({"metadata": {"annotations": {"kept": "yes"}, "ownerReferences": []}}),
    ] {
        scene.cluster.admin.merge(&path(&scene, "web"), &patch).await?.ok()?;
        let what = format!("{patch} is repaired");
        scene
            .until(&what, TIMEOUT, || async {
                let object = scene.cluster.admin.get(&path(&scene, "web")).await?.ok()?.json();
                let owned = object["metadata"]["ownerReferences"][0]["kind"] == "Pod";
                let found = describe(&object);
                Ok(if owned && found == right[0] { Ok(()) } else { Err(object.to_string()) })
            })
            .await?;
    }
    let object = scene.cluster.admin.get(&path(&scene, "web")).await?.ok()?.json();
    assert_eq!(object["metadata"]["annotations"]["kept"], "yes", "foreign annotations stay");
    let before = object["metadata"]["uid"].clone();
    scene.cluster.admin.delete(&path(&scene, "web")).await?.ok()?;
    until_locators(&scene, &right).await?;
    let object = scene.cluster.admin.get(&path(&scene, "web")).await?.ok()?.json();
    assert_ne!(object["metadata"]["uid"], before);
    controller.stop().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_gate_off_no_locator_is_read_or_written() -> Result<()> {
    let scene = defined().await?;
    scene.pod("old", "n-a", "10.0.0.1", "web").await?;
    let controller = scene.start(locating()).await?;
    until_locators(&scene, &["old: 10.0.0.1 n-a zone=a"]).await?;
    controller.stop().await?;
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let record = move |parts: &http::request::Parts| {
        count.fetch_add(usize::from(parts.uri.path().contains("podlocators")), Ordering::Relaxed);
    };
    let controller = start_recorded(&scene.cluster.server, replace(), record).await?;
    scene.service("web", json!({"trafficDistribution": "PreferSameZone"})).await?;
    scene.pod("new", "n-b", "10.0.0.2", "web").await?;
    scene.move_node("n-a", Some("c")).await?;
    // When the slices show all changes, the controller has seen all of them.
    scene.until_hints("web", &["10.0.0.1 c", "10.0.0.2 b"]).await?;
    assert_eq!(asked.load(Ordering::Relaxed), 0);
    until_locators(&scene, &["old: 10.0.0.1 n-a zone=a"]).await?;
    controller.stop().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_locator_definition_may_be_created_late_and_recreated() -> Result<()> {
    let scene = Scene::new().await?;
    three_zones(&scene).await?;
    let controller = scene.start(locating()).await?;
    scene.service("web", json!({"trafficDistribution": "PreferSameZone"})).await?;
    pods_in(&scene, "web", "10.0.0", "ab").await?;
    scene.until_hints("web", &["10.0.0.1 a", "10.0.0.2 b"]).await?;
    assert_eq!(writes(&controller), 0.0, "the kind is not defined");
    define(&scene).await?;
    let both = ["web-1: 10.0.0.1 n-a zone=a", "web-2: 10.0.0.2 n-b zone=b"];
    until_locators(&scene, &both).await?;
    scene.cluster.admin.delete(&format!("{DEFINITIONS}/podlocators.nearhop.dev")).await?.ok()?;
    scene
        .until("the definition is gone", TIMEOUT, || async {
            let answer = scene.cluster.admin.get(ALL).await?;
            Ok(if answer.ok().is_err() {
                Ok(())
            } else {
                Err("PodLocators are still served".to_owned())
            })
        })
        .await?;
    scene.cluster.server.fault(&json!({"dropWatches": true})).await?;
    define(&scene).await?;
    until_locators(&scene, &both).await?;
    controller.stop().await?;
    Ok(())
}

/// The heartbeats of one hour, one every ten seconds, sent without pauses.
#[tokio::test(flavor = "multi_thread")]
async fn an_hour_of_heartbeats_writes_nothing() -> Result<()> {
    let scene = defined().await?;
    pods_in(&scene, "web", "10.0.0", "aabbcc").await?;
    let controller = scene.start(locating()).await?;
    scene
        .until("six PodLocators with addresses", TIMEOUT, || async {
            let found = objects(&scene).await?;
            let placed = found.iter().filter(|o| o["ips"][0]["ip"].is_string()).count();
            Ok(if placed == 6 { Ok(()) } else { Err(format!("there are {placed}")) })
        })
        .await?;
    let (before, written) = (versions(&scene).await?, writes(&controller));
    let start = Timestamp::from_second(Timestamp::now().as_second())?;
    for round in 0..360_i64 {
        let time = (start + jiff::SignedDuration::from_secs(round * 10)).to_string();
        for node in ["n-a", "n-b", "n-c"] {
            let ready = json!({"type": "Ready", "status": "True", "lastHeartbeatTime": time});
            scene.report_node(node, &json!({"conditions": [ready]})).await?;
        }
        let pod = (round % 6) + 1;
        scene.report_pod(&format!("web-{pod}"), &format!("10.0.0.{pod}"), round % 2 == 0).await?;
    }
    // The controller receives Nodes in order, and Pods in order: when it has handled these changes,
    // it has seen all heartbeats.
    scene.move_node("n-c", Some("z")).await?;
    scene.report_pod("web-1", "10.0.0.77", true).await?;
    scene
        .until("the changes at the end", TIMEOUT, || async {
            let found: Vec<String> = objects(&scene).await?.iter().map(describe).collect();
            let there = [
                "web-1: 10.0.0.77 n-a zone=a",
                "web-5: 10.0.0.5 n-c zone=z",
                "web-6: 10.0.0.6 n-c zone=z",
            ];
            let all = there.iter().all(|wanted| found.iter().any(|text| text == wanted));
            Ok(if all { Ok(()) } else { Err(format!("{found:?}")) })
        })
        .await?;
    let after = versions(&scene).await?;
    for still in ["web-2", "web-3", "web-4"] {
        assert_eq!(after[still], before[still], "{still} was written");
    }
    // The server stores a write before the controller counts it.
    let counted = || async {
        let count = writes(&controller) - written;
        Ok(if count >= 3.0 { Ok(()) } else { Err(format!("{count} writes")) })
    };
    scene.until("three writes", TIMEOUT, counted).await?;
    assert_eq!(writes(&controller) - written, 3.0, "only the changes at the end are written");
    controller.stop().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn locators_are_written_despite_api_errors() -> Result<()> {
    let scene = defined().await?;
    let failing = json!({
        "answers": [{"code": 500, "share": 0.3}, {"code": 409, "share": 0.2}],
        "path": "/podlocators", "userAgent": "nearhop-controller",
    });
    scene.cluster.server.fault(&failing).await?;
    let controller = scene.start(locating()).await?;
    pods_in(&scene, "web", "10.0.0", "abc").await?;
    scene.move_node("n-c", Some("z")).await?;
    let wanted =
        ["web-1: 10.0.0.1 n-a zone=a", "web-2: 10.0.0.2 n-b zone=b", "web-3: 10.0.0.3 n-c zone=z"];
    until_locators(&scene, &wanted).await?;
    scene.remove_pod("web-2").await?;
    until_locators(&scene, &[wanted[0], wanted[2]]).await?;
    scene.cluster.server.fault(&json!({})).await?;
    controller.stop().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_leader_writes() -> Result<()> {
    let scene = defined().await?;
    let lease = |identity: &str| {
        let lease = LeaseOptions {
            lease_duration: Duration::from_millis(1500),
            renew_deadline: Duration::from_millis(1000),
            retry_period: Duration::from_millis(200),
            ..LeaseOptions::new("kube-system", "locators", identity)
        };
        Options { lease: Some(lease), ..locating() }
    };
    let leader = scene.start(lease("first")).await?;
    pods_in(&scene, "web", "10.0.0", "a").await?;
    until_locators(&scene, &["web-1: 10.0.0.1 n-a zone=a"]).await?;
    let standby = scene.start(lease("second")).await?;
    scene.move_node("n-a", Some("z")).await?;
    until_locators(&scene, &["web-1: 10.0.0.1 n-a zone=z"]).await?;
    assert_eq!(writes(&standby), 0.0);
    leader.stop().await?;
    scene.move_node("n-a", Some("y")).await?;
    until_locators(&scene, &["web-1: 10.0.0.1 n-a zone=y"]).await?;
    standby.stop().await?;
    Ok(())
}

fn once() -> Options {
    Options { until: Until::Settled, ..locating() }
}

async fn run_once(scene: &Scene) -> Result<nearhop_controller::Ended> {
    let ended = scene.start(once()).await?.ended();
    tokio::time::timeout(TIMEOUT, ended).await.context("the controller did not end")?
}

#[tokio::test(flavor = "multi_thread")]
async fn once_and_dry_run_include_locators() -> Result<()> {
    let scene = defined().await?;
    pods_in(&scene, "web", "10.0.0", "ab").await?;
    let dry = scene.dry_run(locating()).await?;
    let wanted = |sign: &str, number: u8, zone: &str| {
        let (ns, host) = (&scene.cluster.namespace, format!("kubernetes.io/hostname=n-{zone}"));
        format!(
            "{sign} PodLocator {ns}/web-{number} 10.0.0.{number} node=n-{zone} {host} \
             topology.kubernetes.io/zone={zone}\n"
        )
    };
    assert_eq!(dry.locators, [wanted("+", 1, "a"), wanted("+", 2, "b")]);
    until_locators(&scene, &[]).await?;
    let ended = run_once(&scene).await?;
    assert_eq!((ended.why, ended.failed_locators), (Ending::Settled, vec![]));
    until_locators(&scene, &["web-1: 10.0.0.1 n-a zone=a", "web-2: 10.0.0.2 n-b zone=b"]).await?;
    let before = versions(&scene).await?;
    run_once(&scene).await?;
    assert_eq!(versions(&scene).await?, before, "the second run writes nothing");
    assert_eq!(scene.dry_run(locating()).await?.locators, [""; 0]);
    assert_eq!(scene.dry_run(replace()).await?.locators, [""; 0], "the gate is off");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn once_reports_locators_that_failed() -> Result<()> {
    let scene = Scene::new().await?;
    three_zones(&scene).await?;
    pods_in(&scene, "web", "10.0.0", "ab").await?;
    let names = |ended: &nearhop_controller::Ended| -> Vec<String> {
        ended.failed_locators.iter().map(|key| key.name.to_string()).collect()
    };
    let ended = run_once(&scene).await?;
    assert_eq!(names(&ended), ["web-1", "web-2"], "PodLocators are not defined");
    define(&scene).await?;
    let refusing = json!({
        "answers": [{"code": 403, "share": 1.0}], "path": "/podlocators?fieldManager",
        "userAgent": "nearhop-controller",
    });
    scene.cluster.server.fault(&refusing).await?;
    let ended = run_once(&scene).await?;
    assert_eq!(names(&ended), ["web-1", "web-2"], "the server refuses the writes");
    scene.cluster.server.fault(&json!({})).await?;
    assert_eq!(names(&run_once(&scene).await?), [""; 0]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn locators_have_table_columns() -> Result<()> {
    let scene = defined().await?;
    scene.pod("web", "n-a", "10.0.0.1", "web").await?;
    run_once(&scene).await?;
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let all = scene.cluster.group("nearhop.dev/v1alpha1", "podlocators");
    let request = Request::new("GET", &all).header("accept", table);
    let shown = scene.cluster.admin.send(request).await?.ok()?.json();
    let cells = shown["rows"][0]["cells"].as_array().context("no row in the table")?;
    assert_eq!(cells[..4], [json!("web"), json!("10.0.0.1"), json!("n-a"), json!("a")], "{shown}");
    Ok(())
}
