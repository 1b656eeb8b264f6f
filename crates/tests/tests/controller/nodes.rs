//! Effects of Nodes on slices: heartbeats have none, zones change endpoints and hints, capacity changes
//! only those Services with Auto that cross a threshold (KEP-2433 "Handling Node Updates").

use anyhow::Result;
use jiff::Timestamp;
use nearhop_tests::scene::{RunningController, Scene, SliceWrites, replace};
use serde_json::{Value, json};

use super::common::{adds, ask_for_auto, by_service, pods_in, three_zones};

fn ready(status: &str, heartbeat: Timestamp) -> Value {
    json!({"conditions": [
        {"type": "Ready", "status": status, "lastHeartbeatTime": heartbeat.to_string()},
    ]})
}

/// Sends 50 heartbeats of a node, and the renewals of its lease.
async fn send_heartbeats(scene: &Scene, node: &str) -> Result<()> {
    let admin = &scene.cluster.admin;
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let lease = json!({"metadata": {"name": node}, "spec": {"holderIdentity": node}});
    admin.post(leases, &lease).await?.expect(201)?;
    let start = Timestamp::from_second(Timestamp::now().as_second())?;
    for second in 0..50 {
        let time = start + jiff::SignedDuration::from_secs(second);
        scene.report_node(node, &ready("True", time)).await?;
        let renewed = json!({"spec": {"renewTime": format!("{time:.6}")}});
        admin.merge(&format!("{leases}/{node}"), &renewed).await?.ok()?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_cause_no_work() -> Result<()> {
    let scene = Scene::new().await?;
    let controller = scene.start(replace()).await?;
    three_zones(&scene).await?;
    scene.service("web", json!({"trafficDistribution": "PreferSameZone"})).await?;
    scene.service("auto", json!({})).await?;
    ask_for_auto(&scene, "auto").await?;
    scene.service("marker", json!({"trafficDistribution": "PreferSameZone"})).await?;
    pods_in(&scene, "web", "10.0.0", "abc").await?;
    pods_in(&scene, "auto", "10.0.1", "abc").await?;
    // A node that does not count as capacity, so that its zone does not affect Auto.
    scene.node("n-m", Some("a")).await?;
    scene.report_node("n-m", &ready("False", Timestamp::now())).await?;
    scene.pod("marker-1", "n-m", "10.0.2.1", "marker").await?;
    scene.settled().await?;
    assert_eq!(scene.hints("auto").await?, ["10.0.1.1 a", "10.0.1.2 b", "10.0.1.3 c"]);
    let (before, mut writes) = (adds(&controller), scene.count_writes().await?);
    send_heartbeats(&scene, "n-a").await?;
    // The controller receives Nodes in order: when it has handled this change, it has seen the heartbeats.
    scene.move_node("n-m", Some("b")).await?;
    scene.until_hints("marker", &["10.0.2.1 b"]).await?;
    assert_eq!(adds(&controller) - before, 1.0, "only the marker was queued");
    writes.catch_up().await;
    assert_eq!(by_service(&writes), [("marker".to_owned(), 1)].into());
    controller.stop().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_zone_label_updates_endpoints_and_hints() -> Result<()> {
    let scene = Scene::new().await?;
    let controller = scene.start(replace()).await?;
    scene.node("n-a", Some("a")).await?;
    scene.node("n-late", None).await?;
    scene.service("web", json!({"trafficDistribution": "PreferSameZone"})).await?;
    scene.pod("web-1", "n-a", "10.0.0.1", "web").await?;
    scene.pod("web-2", "n-late", "10.0.0.2", "web").await?;
    scene.until_hints("web", &["10.0.0.1 a", "10.0.0.2 -"]).await?;
    assert_eq!(zones(&scene).await?, ["10.0.0.1 a", "10.0.0.2 -"]);
    scene.move_node("n-late", Some("b")).await?;
    scene.until_hints("web", &["10.0.0.1 a", "10.0.0.2 b"]).await?;
    assert_eq!(zones(&scene).await?, ["10.0.0.1 a", "10.0.0.2 b"]);
    controller.stop().await?;
    Ok(())
}

async fn zones(scene: &Scene) -> Result<Vec<String>> {
    let slices = scene.slices("web").await?;
    let endpoints = slices.iter().flat_map(|slice| &slice.endpoints);
    let mut zones: Vec<String> = endpoints
        .map(|endpoint| {
            let address = endpoint.addresses.first().map(|ip| ip.to_string()).unwrap_or_default();
            format!("{address} {}", endpoint.zone.as_deref().unwrap_or("-"))
        })
        .collect();
    zones.sort();
    Ok(zones)
}

/// Three zones of 8 cores, and three Services: `seven` and `three` have Auto, with endpoints 3/2/2 and
/// 1/1/1, `close` has PreferSameZone. In zone b, the two endpoints of `seven` are overloaded by 17 %,
/// and the endpoint of `three` has exactly its share, so when zone b grows, `seven` exceeds 30 % first.
async fn two_auto_services() -> Result<(Scene, RunningController)> {
    let scene = Scene::new().await?;
    three_zones(&scene).await?;
    for zone in ["a", "b", "c"] {
        scene.node(&format!("spare-{zone}"), Some(zone)).await?;
    }
    for service in ["seven", "three"] {
        scene.service(service, json!({})).await?;
        ask_for_auto(&scene, service).await?;
    }
    scene.service("close", json!({"trafficDistribution": "PreferSameZone"})).await?;
    pods_in(&scene, "seven", "10.0.7", "aaabbcc").await?;
    pods_in(&scene, "three", "10.0.3", "abc").await?;
    pods_in(&scene, "close", "10.0.1", "abc").await?;
    let controller = scene.start(replace()).await?;
    scene.settled().await?;
    assert_eq!(scene.hints("seven").await?, SEVEN_IN_OWN_ZONES);
    assert_eq!(scene.hints("three").await?, ["10.0.3.1 a", "10.0.3.2 b", "10.0.3.3 c"]);
    Ok((scene, controller))
}

const SEVEN_IN_OWN_ZONES: [&str; 7] = [
    "10.0.7.1 a",
    "10.0.7.2 a",
    "10.0.7.3 a",
    "10.0.7.4 b",
    "10.0.7.5 b",
    "10.0.7.6 c",
    "10.0.7.7 c",
];
const SEVEN_WITHOUT_HINTS: [&str; 7] = [
    "10.0.7.1 -",
    "10.0.7.2 -",
    "10.0.7.3 -",
    "10.0.7.4 -",
    "10.0.7.5 -",
    "10.0.7.6 -",
    "10.0.7.7 -",
];

/// Asserts that only `seven` was queued and written, `times` times.
async fn assert_only_seven(
    times: usize,
    controller: &RunningController,
    before: f64,
    mut writes: SliceWrites,
) {
    assert_eq!(adds(controller) - before, times as f64, "Services that were queued");
    writes.catch_up().await;
    assert_eq!(by_service(&writes), [("seven".to_owned(), times)].into());
}

#[tokio::test(flavor = "multi_thread")]
async fn more_cpu_moves_only_the_service_that_crosses_the_threshold() -> Result<()> {
    let (scene, controller) = two_auto_services().await?;
    let (before, writes) = (adds(&controller), scene.count_writes().await?);
    // Zone b has 40 % now: 7 * 0.4 / 2 is 40 % too much, 3 * 0.4 / 1 only 20 %.
    scene.report_node("spare-b", &json!({"allocatable": {"cpu": "6667m"}})).await?;
    let lent = [
        "10.0.7.1 b",
        "10.0.7.2 a",
        "10.0.7.3 a",
        "10.0.7.4 b",
        "10.0.7.5 b",
        "10.0.7.6 c",
        "10.0.7.7 c",
    ];
    scene.until_hints("seven", &lent).await?;
    assert_only_seven(1, &controller, before, writes).await;
    controller.stop().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unready_node_changes_only_the_service_that_crosses_the_threshold() -> Result<()> {
    let (scene, controller) = two_auto_services().await?;
    let (before, writes) = (adds(&controller), scene.count_writes().await?);
    // Zone a has 20 % now and the others 40 % each: seven endpoints cannot be within bounds.
    scene.report_node("spare-a", &ready("False", Timestamp::now())).await?;
    scene.until_hints("seven", &SEVEN_WITHOUT_HINTS).await?;
    // The hints return when the node is ready again.
    scene.report_node("spare-a", &ready("True", Timestamp::now())).await?;
    scene.until_hints("seven", &SEVEN_IN_OWN_ZONES).await?;
    assert_only_seven(2, &controller, before, writes).await;
    controller.stop().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_node_changes_only_the_service_that_crosses_the_threshold() -> Result<()> {
    let (scene, controller) = two_auto_services().await?;
    let (before, writes) = (adds(&controller), scene.count_writes().await?);
    scene.cluster.admin.delete("/api/v1/nodes/spare-a").await?.ok()?;
    scene.until_hints("seven", &SEVEN_WITHOUT_HINTS).await?;
    scene.node("spare-a", Some("a")).await?;
    scene.until_hints("seven", &SEVEN_IN_OWN_ZONES).await?;
    assert_only_seven(2, &controller, before, writes).await;
    controller.stop().await?;
    Ok(())
}
