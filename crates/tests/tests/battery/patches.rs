//! The patch types.

use anyhow::Result;
use nearhop_tests::cluster::{Cluster, version};
use serde_json::{Value, json};

const JSON: &str = "application/json-patch+json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";

async fn service(cluster: &Cluster) -> Result<String> {
    let body = json!({"metadata": {"name": "s", "labels": {"a": "1"}}, "spec": {"selector": {"a": "b"},
        "ports": [{"name": "a", "port": 80}, {"name": "b", "port": 81}]}});
    cluster.create("services", &body).await?;
    Ok(cluster.core("services/s"))
}

fn ports(service: &Value) -> Vec<u64> {
    let ports = service["spec"]["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
    ports.iter().filter_map(|p| p["port"].as_u64()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_type_does_its_own_thing_to_lists() -> Result<()> {
    let cluster = Cluster::shared().await?;
    let path = service(&cluster).await?;
    let new = json!({"name": "c", "port": 82});
    for (kind, patch, expected) in [
        (JSON, json!([{"op": "add", "path": "/spec/ports/-", "value": new}]), vec![80, 81, 82]),
        (STRATEGIC, json!({"spec": {"ports": [{"port": 82, "$patch": "delete"}]}}), vec![80, 81]),
        (STRATEGIC, json!({"spec": {"ports": [new]}}), vec![82, 80, 81]),
        (
            STRATEGIC,
            json!({"spec": {"$setElementOrder/ports": [{"port": 80}, {"port": 81}, {"port": 82}]}}),
            vec![80, 81, 82],
        ),
        (MERGE, json!({"spec": {"ports": [new]}}), vec![82]),
    ] {
        let answer = cluster.admin.patch(&path, kind, &patch).await?.expect(200)?.json();
        assert_eq!(ports(&answer), expected, "{kind} {patch}");
    }
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn null_removes_and_maps_merge() -> Result<()> {
    let cluster = Cluster::shared().await?;
    let path = service(&cluster).await?;
    for kind in [MERGE, STRATEGIC] {
        let patch = json!({"metadata": {"labels": {"a": null, "b": "2"}}, "spec": {"selector": {"c": "d"}}});
        let answer = cluster.admin.patch(&path, kind, &patch).await?.expect(200)?.json();
        assert_eq!(answer["metadata"]["labels"], json!({"b": "2"}), "{kind}");
        assert_eq!(answer["spec"]["selector"], json!({"a": "b", "c": "d"}), "{kind}");
    }
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_makes_a_patch_conditional() -> Result<()> {
    let cluster = Cluster::shared().await?;
    let path = service(&cluster).await?;
    let now = version(&cluster.admin.get(&path).await?.json());
    let with =
        |version: &str| json!({"metadata": {"resourceVersion": version, "labels": {"x": "y"}}});
    cluster.admin.merge(&path, &with(&now)).await?.expect(200)?;
    let stale = cluster.admin.merge(&path, &with(&now)).await?.expect(409)?;
    assert_eq!(stale.reason(), "Conflict");
    let test = json!([{"op": "test", "path": "/metadata/labels/x", "value": "z"}]);
    cluster.admin.patch(&path, JSON, &test).await?.expect(422)?;
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn patches_are_validated_like_any_write() -> Result<()> {
    let cluster = Cluster::shared().await?;
    let path = service(&cluster).await?;
    let before = cluster.admin.get(&path).await?.json();
    for (kind, patch, status) in [
        (MERGE, json!({"spec": {"trafficDistribution": "Nearest"}}), 422),
        (MERGE, json!({"spec": {"clusterIP": "10.96.200.200"}}), 422),
        (MERGE, json!({"metadata": {"name": "other"}}), 400),
        (MERGE, json!({"spec": {"ports": "many"}}), 422),
        (MERGE, json!([]), 400),
        (JSON, json!({}), 400),
        (JSON, json!([{"op": "remove", "path": "/spec/nothing"}]), 422),
        (STRATEGIC, json!({"spec": {"ports": [{"name": "no-key"}]}}), 500),
        ("application/json", json!({}), 415),
    ] {
        let answer = cluster.admin.patch(&path, kind, &patch).await?;
        assert_eq!(answer.status, status, "{kind} {patch}: {}", answer.text());
    }
    assert_eq!(cluster.admin.get(&path).await?.json(), before);
    cluster.finish().await
}
