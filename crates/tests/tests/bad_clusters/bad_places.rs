//! Clusters without Nodes, with unknown Nodes, without zone labels, and with one zone.

use anyhow::Result;
use nearhop_core::Family;
use serde_json::json;

use crate::Bad;

const AUTO: &str = "service.kubernetes.io/topology-mode";

#[tokio::test(flavor = "multi_thread")]
async fn pods_on_a_missing_node_are_left_out_with_a_condition() -> Result<()> {
    let bad = Bad::new().await?;
    bad.scene.service("web", json!({"trafficDistribution": "PreferSameZone"})).await?;
    bad.scene.pod("p", "nowhere", "10.1.0.1", "web").await?;
    let message = bad.condition("web", "Programmed", "False", "NodeUnknown").await?;
    assert!(message.contains("nowhere"), "{message}");
    bad.settled().await?;
    assert!(bad.addresses("web", Family::Ipv4).await?.is_empty());
    assert_eq!(bad.scene.slices("web").await?.len(), 1, "an empty placeholder slice");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_on_an_unknown_node_raises_one_event_until_the_node_exists() -> Result<()> {
    let bad = Bad::new().await?;
    bad.scene.node("n1", Some("a")).await?;
    bad.scene.service("web", json!({})).await?;
    bad.scene.pod("here", "n1", "10.1.0.1", "web").await?;
    bad.scene.pod("there", "n2", "10.1.0.2", "web").await?;
    let message = bad.event("web", "FailedToUpdateEndpointSlices").await?;
    assert!(message.contains("n2"), "{message}");
    bad.settled().await?;
    assert_eq!(bad.addresses("web", Family::Ipv4).await?, ["10.1.0.1"]);
    // The same problem raises no second event.
    for ready in [false, true, false, true] {
        bad.scene.report_pod("here", "10.1.0.1", ready).await?;
        bad.settled().await?;
    }
    let raised = bad.scene.events("web").await?.len();
    assert_eq!(raised, 1, "{:?}", bad.scene.events("web").await?);
    bad.scene.node("n2", Some("b")).await?;
    bad.settled().await?;
    assert_eq!(bad.addresses("web", Family::Ipv4).await?, ["10.1.0.1", "10.1.0.2"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_name_nodes_without_zones() -> Result<()> {
    let bad = Bad::new().await?;
    for node in ["n1", "n2"] {
        bad.scene.node(node, None).await?;
    }
    bad.scene.service("close", json!({"trafficDistribution": "PreferSameZone"})).await?;
    bad.scene.service("auto", json!({})).await?;
    let auto = json!({"metadata": {"annotations": {AUTO: "Auto"}}});
    bad.scene.patch_service("auto", &auto).await?;
    for (i, app) in ["close", "close", "auto", "auto"].into_iter().enumerate() {
        let node = format!("n{}", i % 2 + 1);
        bad.scene.pod(&format!("p{i}"), &node, &format!("10.1.0.{i}"), app).await?;
    }
    let message = bad.condition("close", "Programmed", "False", "EndpointsWithoutZone").await?;
    assert!(message.contains("n1") && message.contains("topology.kubernetes.io/zone"), "{message}");
    let message =
        bad.condition("auto", "Programmed", "False", "InsufficientNodeInformation").await?;
    assert!(message.contains("n1"), "{message}");
    bad.settled().await?;
    for service in ["close", "auto"] {
        let found = bad.addresses(service, Family::Ipv4).await?;
        assert_eq!(found.len(), 2, "{service}: {found:?}");
        let reached = bad.scene.reached_from(service, "n1").await?;
        assert_eq!(reached, found, "{service}: every node reaches all endpoints");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn with_one_zone_all_endpoints_are_used_and_auto_gives_the_reason() -> Result<()> {
    let bad = Bad::new().await?;
    for node in ["n1", "n2"] {
        bad.scene.node(node, Some("only")).await?;
    }
    bad.scene.service("close", json!({"trafficDistribution": "PreferSameZone"})).await?;
    bad.scene.service("auto", json!({})).await?;
    let auto = json!({"metadata": {"annotations": {AUTO: "Auto"}}});
    bad.scene.patch_service("auto", &auto).await?;
    for (i, app) in ["close", "close", "auto", "auto"].into_iter().enumerate() {
        let node = format!("n{}", i % 2 + 1);
        bad.scene.pod(&format!("p{i}"), &node, &format!("10.1.0.{i}"), app).await?;
    }
    bad.condition("close", "Programmed", "True", "HintsWritten").await?;
    let message =
        bad.condition("auto", "Programmed", "False", "InsufficientNodeInformation").await?;
    assert!(message.contains("zone"), "{message}");
    bad.settled().await?;
    for service in ["close", "auto"] {
        assert_eq!(bad.scene.reached_from(service, "n1").await?.len(), 2, "{service}");
    }
    Ok(())
}
