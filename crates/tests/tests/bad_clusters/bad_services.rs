//! Services without a selector, of type ExternalName, with invalid annotations, with long names, and in a deleted
//! namespace.

use anyhow::Result;
use nearhop_core::Family;
use nearhop_tests::scene::TIMEOUT;
use serde_json::json;

use crate::Bad;

#[tokio::test(flavor = "multi_thread")]
async fn a_service_without_a_selector_gets_no_slices_and_a_condition() -> Result<()> {
    let bad = Bad::new().await?;
    bad.scene.node("n1", Some("a")).await?;
    let spec = json!({"selector": null, "trafficDistribution": "PreferSameZone"});
    bad.scene.service("manual", spec).await?;
    let message = bad.condition("manual", "Programmed", "Unknown", "NoSelector").await?;
    assert!(message.contains("spec.selector"), "{message}");
    bad.settled().await?;
    assert!(bad.scene.events("manual").await?.is_empty(), "it is as its user made it");
    assert!(bad.scene.slices("manual").await?.is_empty());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_external_name_gets_no_slices_and_a_condition() -> Result<()> {
    let bad = Bad::new().await?;
    let external = json!({"type": "ExternalName", "externalName": "example.com"});
    bad.scene.service("always", external).await?;
    bad.scene.service("elsewhere", json!({})).await?;
    bad.settled().await?;
    assert_eq!(bad.scene.slices("elsewhere").await?.len(), 1);
    let away = json!({
        "metadata": {"annotations": {"nearhop.dev/traffic-distribution": "PreferSameZone"}},
        "spec": {"type": "ExternalName", "externalName": "example.com", "clusterIP": null, "clusterIPs": null},
    });
    bad.scene.patch_service("elsewhere", &away).await?;
    let message = bad.condition("elsewhere", "Programmed", "False", "NotRouted").await?;
    assert!(message.contains("ExternalName"), "{message}");
    bad.settled().await?;
    assert!(bad.scene.slices("always").await?.is_empty());
    let left = bad.scene.slices("elsewhere").await?.len();
    assert_eq!(left, 1, "as upstream, which keeps the slices written before (issue 105986)");
    Ok(())
}

/// Annotations with invalid values.
const INVALID: [(&str, &str); 5] = [
    ("service.kubernetes.io/topology-mode", "Sideways"),
    ("service.kubernetes.io/topology-aware-hints", "\u{1f980}"),
    ("nearhop.dev/topology-keys", "not a label, *, *"),
    ("nearhop.dev/traffic-distribution", "PreferFarAway"),
    ("nearhop.dev/routing-preference", "Sometimes"),
];

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_annotation_counts_as_unset_and_is_reported() -> Result<()> {
    let bad = Bad::new().await?;
    bad.scene.node("n1", Some("a")).await?;
    for (i, (annotation, value)) in INVALID.iter().enumerate() {
        let name = format!("s{i}");
        bad.scene.service(&name, json!({})).await?;
        let patch = json!({"metadata": {"annotations": {*annotation: value}}});
        bad.scene.patch_service(&name, &patch).await?;
        bad.scene.pod(&format!("p{i}"), "n1", &format!("10.1.0.{i}"), &name).await?;
    }
    for (i, (annotation, _)) in INVALID.iter().enumerate() {
        let name = format!("s{i}");
        // The routing preference is behind a gate that is off, and is not read.
        let gated = annotation.ends_with("routing-preference");
        let reason = if gated { "FeatureGateDisabled" } else { "UnsupportedValue" };
        let message = bad.condition(&name, "Accepted", "False", reason).await?;
        assert!(message.contains(annotation), "{message}");
        bad.condition(&name, "Programmed", "False", "NotAccepted").await?;
        assert_eq!(bad.addresses(&name, Family::Ipv4).await?, [format!("10.1.0.{i}")]);
    }
    bad.settled().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_max_overload_leaves_the_default() -> Result<()> {
    let bad = Bad::new().await?;
    for (node, zone) in [("n1", "a"), ("n2", "b")] {
        bad.scene.node(node, Some(zone)).await?;
    }
    bad.scene.service("web", json!({"trafficDistribution": "nearhop.dev/Balanced"})).await?;
    let knob = json!({"metadata": {"annotations": {"nearhop.dev/max-overload": "a lot"}}});
    bad.scene.patch_service("web", &knob).await?;
    bad.scene.pod("p1", "n1", "10.1.0.1", "web").await?;
    bad.scene.pod("p2", "n2", "10.1.0.2", "web").await?;
    let message = bad.condition("web", "Programmed", "True", "HintsWritten").await?;
    assert!(message.contains("20%"), "{message}");
    bad.settled().await?;
    let counted = bad.controller.metric("nearhop_controller_objects_with_problems");
    assert!(counted >= 1.0, "the invalid annotation is counted");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_name_of_63_characters_works() -> Result<()> {
    let bad = Bad::new().await?;
    bad.scene.node("n1", Some("a")).await?;
    let name = "a".repeat(63);
    bad.scene.service(&name, json!({"trafficDistribution": "PreferSameZone"})).await?;
    bad.scene.pod("p", "n1", "10.1.0.1", &name).await?;
    bad.condition(&name, "Programmed", "True", "HintsWritten").await?;
    bad.settled().await?;
    assert_eq!(bad.addresses(&name, Family::Ipv4).await?, ["10.1.0.1"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_namespace_leaves_no_slices_and_no_retries() -> Result<()> {
    let bad = Bad::new().await?;
    bad.scene.node("n1", Some("a")).await?;
    for name in ["one", "two", "three"] {
        bad.scene.service(name, json!({"trafficDistribution": "PreferSameZone"})).await?;
        let ip = format!("10.1.0.{}", name.len());
        bad.scene.pod(&format!("p-{name}"), "n1", &ip, name).await?;
    }
    bad.settled().await?;
    let cluster = &bad.scene.cluster;
    let path = format!("/api/v1/namespaces/{}", cluster.namespace);
    cluster.admin.delete(&path).await?.ok()?;
    let gone = || async {
        // Pods have a grace period, and there is no kubelet here.
        for name in ["one", "two", "three"] {
            let _ = bad.scene.remove_pod(&format!("p-{name}")).await;
        }
        let status = cluster.admin.get(&path).await?.status;
        Ok(if status == 404 { Ok(()) } else { Err(format!("it answers {status}")) })
    };
    bad.scene.until("the namespace is gone", TIMEOUT, gone).await?;
    bad.settled().await?;
    // Retries in the deleted namespace would increase the metric below.
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    let series = "workqueue_retries_total{name=\"endpoint_slice\"}";
    let before = bad.controller.metric(series);
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    assert_eq!(bad.controller.metric(series), before);
    bad.settled().await
}
