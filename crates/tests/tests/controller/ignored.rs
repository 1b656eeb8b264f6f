//! Requests that have no effect: the API server warns at the write, and the condition Accepted names
//! them.

use anyhow::Result;
use nearhop_tests::http::Answer;
use nearhop_tests::scene::{Scene, replace};
use serde_json::{Value, json};

use super::common::{pods_in, three_zones};
use super::status::{FINE, message, until_conditions};

const DISTRIBUTION: &str = "nearhop.dev/traffic-distribution";
const REFUSED: [&str; 2] = [
    "TrafficDistributionAccepted False UnsupportedValue",
    "TrafficDistributionProgrammed False NotAccepted",
];

/// The texts of the Warning headers, as kubectl prints them.
fn warnings(answer: &Answer) -> Vec<String> {
    let all = answer.headers.get_all("warning").iter().filter_map(|value| value.to_str().ok());
    let text = |value: &str| {
        let quoted = value.strip_prefix("299 - \"").and_then(|rest| rest.strip_suffix('"'));
        quoted.unwrap_or(value).replace("\\\"", "\"")
    };
    all.map(text).collect()
}

/// Creates Service `web` with these annotations and fields; returns the warnings.
async fn create(scene: &Scene, annotations: Value, spec: Value) -> Result<Vec<String>> {
    let mut service = json!({
        "metadata": {"name": "web", "annotations": annotations},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
    });
    for (field, value) in spec.as_object().into_iter().flatten() {
        service["spec"][field] = value.clone();
    }
    let answer = scene.cluster.admin.post(&scene.cluster.core("services"), &service).await?;
    Ok(warnings(&answer.expect(201)?))
}

async fn scene_of_three_zones() -> Result<Scene> {
    let scene = Scene::new().await?;
    three_zones(&scene).await?;
    pods_in(&scene, "web", "10.0.0", "abc").await?;
    Ok(scene)
}

/// Point 9 of the list "where a new user stumbles".
#[tokio::test(flavor = "multi_thread")]
async fn a_traffic_policy_without_effect_is_reported() -> Result<()> {
    let scene = scene_of_three_zones().await?;
    let warned = create(&scene, json!({}), json!({"trafficPolicy": "Local"})).await?;
    let wanted = "spec.trafficPolicy: \"Local\" has no effect in this field; \
                  spec.internalTrafficPolicy: Local keeps traffic on the node; correct or remove it; \
                  it counts as unset";
    assert_eq!(warned, [wanted]);
    let controller = scene.start(replace()).await?;
    until_conditions(&scene, "web", &REFUSED).await?;
    assert_eq!(message(&scene, "web", "TrafficDistributionAccepted").await?, wanted);
    let programmed = message(&scene, "web", "TrafficDistributionProgrammed").await?;
    assert_eq!(programmed, "ignored, see Accepted; traffic goes to all endpoints");
    controller.stop().await?;
    Ok(())
}

/// Point 10.
#[tokio::test(flavor = "multi_thread")]
async fn a_field_that_is_dropped_because_of_its_gate_raises_a_warning() -> Result<()> {
    let scene = scene_of_three_zones().await?;
    let gate = "because the feature gate ServiceRoutingPreference is off";
    let warned = create(&scene, json!({}), json!({"routingPreference": "Zone"})).await?;
    assert_eq!(warned, [format!("spec.routingPreference: \"Zone\" is not stored, {gate}")]);
    let stored = scene.cluster.read("services/web").await?.ok()?.json();
    assert_eq!(stored["spec"]["routingPreference"], Value::Null);
    // The annotation is stored. It is reported at the write, and by the condition.
    let patch = json!({"metadata": {"annotations": {"nearhop.dev/routing-preference": "Zone"}}});
    let path = scene.cluster.core("services/web");
    let answer = scene.cluster.admin.merge(&path, &patch).await?.expect(200)?;
    let field = "metadata.annotations[nearhop.dev/routing-preference]";
    assert_eq!(warnings(&answer), [format!("{field}: \"Zone\" is ignored, {gate}")]);
    let controller = scene.start(replace()).await?;
    let wanted = [
        "RoutingPreferenceAccepted False FeatureGateDisabled",
        "RoutingPreferenceProgrammed False NotAccepted",
    ];
    until_conditions(&scene, "web", &wanted).await?;
    controller.stop().await?;
    Ok(())
}

/// Point 11.
#[tokio::test(flavor = "multi_thread")]
async fn a_default_of_the_namespace_is_named_and_a_service_opts_out() -> Result<()> {
    let scene = scene_of_three_zones().await?;
    let namespace = scene.cluster.namespace.clone();
    let origin = format!("Namespace {namespace}'s annotation {DISTRIBUTION}");
    let set_default = async |value: &str| {
        let patch = json!({"metadata": {"annotations": {DISTRIBUTION: value}}});
        let path = format!("/api/v1/namespaces/{namespace}");
        let answer = scene.cluster.admin.merge(&path, &patch).await?.expect(200)?;
        anyhow::Ok(warnings(&answer))
    };
    let warned = set_default("Bogus").await?;
    assert_eq!(warned.len(), 1, "{warned:?}");
    assert!(warned[0].starts_with(&format!("metadata.annotations[{DISTRIBUTION}]: \"Bogus\" is")));
    create(&scene, json!({}), json!({})).await?;
    let controller = scene.start(replace()).await?;
    until_conditions(&scene, "web", &REFUSED).await?;
    let why = message(&scene, "web", "TrafficDistributionAccepted").await?;
    assert!(why.starts_with(&format!("{origin}: \"Bogus\" is none of")), "{why}");

    assert!(set_default("PreferSameZone").await?.is_empty());
    until_conditions(&scene, "web", &FINE).await?;
    let why = message(&scene, "web", "TrafficDistributionAccepted").await?;
    assert!(why.starts_with(&format!("PreferSameZone from {origin}")), "{why}");

    let out = json!({"spec": {"trafficDistribution": "nearhop.dev/None"}});
    scene.patch_service("web", &out).await?;
    let opted_out = [FINE[0], "TrafficDistributionProgrammed True NoHintsNeeded"];
    until_conditions(&scene, "web", &opted_out).await?;
    let why = message(&scene, "web", "TrafficDistributionAccepted").await?;
    assert!(why.contains("is nearhop.dev/None; no default of the Namespace"), "{why}");
    scene.until_hints("web", &["10.0.0.1 -", "10.0.0.2 -", "10.0.0.3 -"]).await?;
    assert_eq!(scene.reached_from("web", "n-a").await?.len(), 3, "all endpoints");
    controller.stop().await?;
    Ok(())
}

/// Point 12.
#[tokio::test(flavor = "multi_thread")]
async fn an_overridden_request_is_named() -> Result<()> {
    let scene = scene_of_three_zones().await?;
    let annotation = json!({DISTRIBUTION: "PreferSameNode"});
    let spec = json!({"trafficDistribution": "PreferSameZone"});
    let warned = create(&scene, annotation, spec).await?;
    let ignored = format!(
        "spec.trafficDistribution: \"PreferSameZone\" is ignored, because \
         metadata.annotations[{DISTRIBUTION}] takes precedence"
    );
    assert_eq!(warned, [ignored.as_str()]);
    let controller = scene.start(replace()).await?;
    until_conditions(&scene, "web", &FINE).await?;
    let why = message(&scene, "web", "TrafficDistributionAccepted").await?;
    let decides = format!("metadata.annotations[{DISTRIBUTION}] is PreferSameNode");
    assert_eq!(why, format!("{decides}; {ignored}"));
    controller.stop().await?;
    Ok(())
}
