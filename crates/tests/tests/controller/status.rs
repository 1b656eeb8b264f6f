//! Status and events of a Service about its topology settings (KEP-4444 "Status Reporting"): both
//! conditions name the reason and the object that causes it, and each transition raises one event.

use anyhow::Result;
use nearhop_controller::Options;
use nearhop_core::Gates;
use nearhop_tests::scene::{Scene, TIMEOUT, replace};
use serde_json::{Value, json};

use super::common::{
    ask_for_auto, pods_in, set_distribution, three_zones, until_all_synced, version_of,
};

pub(crate) const FINE: [&str; 2] = [
    "TrafficDistributionAccepted True Accepted",
    "TrafficDistributionProgrammed True HintsWritten",
];

/// Conditions of a Service, each as `type status reason`, sorted; nearhop's without the domain.
pub(crate) async fn conditions(scene: &Scene, service: &str) -> Result<Vec<String>> {
    let mut found: Vec<String> = (condition_objects(scene, service).await?.iter())
        .map(|condition| {
            let text = |field: &str| condition[field].as_str().unwrap_or_default();
            let kind = text("type").trim_start_matches("nearhop.dev/");
            format!("{kind} {} {}", text("status"), text("reason"))
        })
        .collect();
    found.sort();
    Ok(found)
}

pub(crate) async fn condition_objects(scene: &Scene, service: &str) -> Result<Vec<Value>> {
    let service = scene.cluster.read(&format!("services/{service}")).await?.ok()?.json();
    Ok(service["status"]["conditions"].as_array().cloned().unwrap_or_default())
}

pub(crate) async fn until_conditions(scene: &Scene, service: &str, wanted: &[&str]) -> Result<()> {
    scene
        .until(&format!("conditions {wanted:?} of {service}"), TIMEOUT, || async {
            let found = conditions(scene, service).await?;
            Ok(if found == wanted { Ok(()) } else { Err(format!("they are {found:?}")) })
        })
        .await
}

/// The message of one of nearhop's conditions.
pub(crate) async fn message(scene: &Scene, service: &str, kind: &str) -> Result<String> {
    let conditions = condition_objects(scene, service).await?;
    let kind = format!("nearhop.dev/{kind}");
    let found = conditions.iter().find(|condition| condition["type"] == kind);
    Ok(found.and_then(|found| found["message"].as_str()).unwrap_or_default().to_owned())
}

/// Events of a Service in their order, each as `type reason`.
async fn events(scene: &Scene, service: &str) -> Result<Vec<String>> {
    let list = scene.cluster.read("events").await?.ok()?.json();
    let mut events: Vec<&Value> = list["items"].as_array().into_iter().flatten().collect();
    events.retain(|event| event["involvedObject"]["name"] == service);
    // The name of an Event ends with its time.
    events.sort_by_key(|event| event["metadata"]["name"].as_str().unwrap_or_default());
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(events.iter().map(|e| format!("{} {}", text(&e["type"]), text(&e["reason"]))).collect())
}

pub(crate) async fn until_events(scene: &Scene, service: &str, wanted: &[&str]) -> Result<()> {
    scene
        .until(&format!("events {wanted:?} of {service}"), TIMEOUT, || async {
            let found = events(scene, service).await?;
            Ok(if found == wanted { Ok(()) } else { Err(format!("they are {found:?}")) })
        })
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn written_hints_set_conditions_without_an_event() -> Result<()> {
    let scene = Scene::new().await?;
    three_zones(&scene).await?;
    scene.service("web", json!({"trafficDistribution": "PreferSameZone"})).await?;
    scene.service("plain", json!({})).await?;
    pods_in(&scene, "web", "10.0.0", "abc").await?;
    let controller = scene.start(replace()).await?;
    until_conditions(&scene, "web", &FINE).await?;
    let accepted = message(&scene, "web", "TrafficDistributionAccepted").await?;
    assert_eq!(accepted, "spec.trafficDistribution is PreferSameZone");
    controller.stop().await?;
    assert_eq!(events(&scene, "web").await?, [""; 0]);
    assert_eq!(conditions(&scene, "plain").await?, [""; 0], "no setting, no conditions");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_value_is_reported_with_its_field() -> Result<()> {
    let scene = Scene::new().await?;
    three_zones(&scene).await?;
    scene.service("web", json!({})).await?;
    let annotations = json!({"nearhop.dev/traffic-distribution": "Nonsense"});
    scene.patch_service("web", &json!({"metadata": {"annotations": annotations}})).await?;
    pods_in(&scene, "web", "10.0.0", "abc").await?;
    let controller = scene.start(replace()).await?;
    let refused = [
        "TrafficDistributionAccepted False UnsupportedValue",
        "TrafficDistributionProgrammed False NotAccepted",
    ];
    until_conditions(&scene, "web", &refused).await?;
    let why = message(&scene, "web", "TrafficDistributionAccepted").await?;
    assert!(why.contains("metadata.annotations[nearhop.dev/traffic-distribution]"), "{why}");
    assert!(why.contains("\"Nonsense\""), "{why}");
    until_events(&scene, "web", &["Warning UnsupportedValue"]).await?;
    scene.until_hints("web", &["10.0.0.1 -", "10.0.0.2 -", "10.0.0.3 -"]).await?;
    controller.stop().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_field_whose_gate_is_off_is_reported() -> Result<()> {
    let scene = Scene::new().await?;
    three_zones(&scene).await?;
    scene.service("web", json!({"trafficDistribution": "PreferSameZone"})).await?;
    pods_in(&scene, "web", "10.0.0", "abc").await?;
    let gates = Gates::parse("ServiceTrafficDistribution=false")?;
    let controller = scene.start(Options { gates, ..replace() }).await?;
    let ignored = [
        "TrafficDistributionAccepted False FeatureGateDisabled",
        "TrafficDistributionProgrammed False NotAccepted",
    ];
    until_conditions(&scene, "web", &ignored).await?;
    let why = message(&scene, "web", "TrafficDistributionAccepted").await?;
    assert!(why.contains("spec.trafficDistribution: the feature gate"), "{why}");
    controller.stop().await?;
    let controller = scene.start(replace()).await?;
    until_conditions(&scene, "web", &FINE).await?;
    controller.stop().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn auto_reports_too_few_endpoints_and_recovery() -> Result<()> {
    let scene = Scene::new().await?;
    three_zones(&scene).await?;
    scene.service("web", json!({})).await?;
    ask_for_auto(&scene, "web").await?;
    pods_in(&scene, "web", "10.0.0", "ab").await?;
    let controller = scene.start(replace()).await?;
    let few = [
        "TrafficDistributionAccepted True Accepted",
        "TrafficDistributionProgrammed False TooFewEndpoints",
    ];
    until_conditions(&scene, "web", &few).await?;
    let why = message(&scene, "web", "TrafficDistributionProgrammed").await?;
    assert!(why.contains("2 endpoints, 3 zones"), "{why}");
    until_events(&scene, "web", &["Warning TopologyAwareHintsDisabled"]).await?;
    scene.pod("web-3", "n-c", "10.0.0.3", "web").await?;
    until_conditions(&scene, "web", &FINE).await?;
    let wanted = ["Warning TopologyAwareHintsDisabled", "Normal TopologyAwareHintsEnabled"];
    until_events(&scene, "web", &wanted).await?;
    controller.stop().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_a_zone_is_named_in_one_event() -> Result<()> {
    let scene = Scene::new().await?;
    three_zones(&scene).await?;
    scene.node("n-x", None).await?;
    scene.service("web", json!({"trafficDistribution": "PreferSameZone"})).await?;
    pods_in(&scene, "web", "10.0.0", "abc").await?;
    scene.pod("web-x", "n-x", "10.0.0.9", "web").await?;
    let controller = scene.start(replace()).await?;
    let missing = [
        "TrafficDistributionAccepted True Accepted",
        "TrafficDistributionProgrammed False EndpointsWithoutZone",
    ];
    until_conditions(&scene, "web", &missing).await?;
    let why = message(&scene, "web", "TrafficDistributionProgrammed").await?;
    assert!(why.contains("n-x"), "{why}");
    until_events(&scene, "web", &["Warning EndpointsWithoutZone"]).await?;
    for flip in 0..10 {
        scene.report_pod("web-1", "10.0.0.1", flip % 2 == 1).await?;
        scene.settled().await?;
    }
    scene.move_node("n-x", Some("a")).await?;
    until_conditions(&scene, "web", &FINE).await?;
    until_events(&scene, "web", &["Warning EndpointsWithoutZone", "Normal HintsWritten"]).await?;
    controller.stop().await?;
    Ok(())
}

/// Writes the status that another controller owns: a condition, and the address of a load balancer.
async fn write_foreign_status(scene: &Scene, service: &str) -> Result<()> {
    let body = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": service},
        "status": {
            "loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]},
            "conditions": [{
                "type": "example.com/Ready", "status": "True", "reason": "Fine", "message": "",
                "lastTransitionTime": "2024-01-01T00:00:00Z",
            }],
        },
    });
    let path = scene.cluster.core(&format!("services/{service}/status?fieldManager=elsewhere"));
    scene.cluster.admin.patch(&path, "application/apply-patch+yaml", &body).await?.ok()?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn removing_the_field_removes_only_nearhops_conditions() -> Result<()> {
    let scene = Scene::new().await?;
    three_zones(&scene).await?;
    let spec = json!({"type": "LoadBalancer", "trafficDistribution": "PreferSameZone"});
    scene.service("web", spec).await?;
    pods_in(&scene, "web", "10.0.0", "abc").await?;
    write_foreign_status(&scene, "web").await?;
    let controller = scene.start(replace()).await?;
    let foreign = "example.com/Ready True Fine";
    until_conditions(&scene, "web", &[FINE[0], FINE[1], foreign]).await?;
    set_distribution(&scene, "web", None).await?;
    until_conditions(&scene, "web", &[foreign]).await?;
    set_distribution(&scene, "web", Some("PreferSameNode")).await?;
    until_conditions(&scene, "web", &[FINE[0], FINE[1], foreign]).await?;
    write_foreign_status(&scene, "web").await?;
    controller.stop().await?;
    assert_eq!(conditions(&scene, "web").await?, [FINE[0], FINE[1], foreign]);
    let service = scene.cluster.read("services/web").await?.ok()?.json();
    assert_eq!(service["status"]["loadBalancer"]["ingress"][0]["ip"], "192.0.2.1");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_repeats_no_event_and_no_condition() -> Result<()> {
    let scene = Scene::new().await?;
    three_zones(&scene).await?;
    for (app, network, zones) in
        [("fine", "10.0.1", "abc"), ("auto", "10.0.2", "abc"), ("few", "10.0.3", "a")]
    {
        scene.service(app, json!({})).await?;
        pods_in(&scene, app, network, zones).await?;
    }
    set_distribution(&scene, "fine", Some("PreferSameZone")).await?;
    ask_for_auto(&scene, "auto").await?;
    ask_for_auto(&scene, "few").await?;
    let controller = scene.start(replace()).await?;
    until_conditions(&scene, "fine", &FINE).await?;
    until_events(&scene, "auto", &["Normal TopologyAwareHintsEnabled"]).await?;
    until_events(&scene, "few", &["Warning TopologyAwareHintsDisabled"]).await?;
    until_conditions(&scene, "auto", &FINE).await?;
    controller.stop().await?;
    let before = written(&scene).await?;
    let controller = scene.start(replace()).await?;
    until_all_synced(&scene, &controller).await?;
    // Status writes happen in order, so that of `late` comes after those of the other Services.
    scene.service("late", json!({"trafficDistribution": "PreferSameZone"})).await?;
    until_conditions(&scene, "late", &FINE).await?;
    controller.stop().await?;
    assert_eq!(written(&scene).await?, before);
    Ok(())
}

/// The versions and events of the Services of [`a_restart_repeats_no_event_and_no_condition`].
async fn written(scene: &Scene) -> Result<Vec<(String, Vec<String>)>> {
    let mut written = Vec::new();
    for service in ["fine", "auto", "few"] {
        let version = version_of(scene, &format!("services/{service}")).await?;
        written.push((version, events(scene, service).await?));
    }
    Ok(written)
}
