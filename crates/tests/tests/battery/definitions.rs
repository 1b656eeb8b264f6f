//! Custom resources: definition, validation, subresources, deletion.

use std::time::Duration;

use anyhow::{Result, bail};
use nearhop_tests::cluster::Cluster;
use serde_json::{Value, json};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn definition(group: &str) -> Value {
    let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "required": ["size"], "properties": {
            "size": {"type": "string", "enum": ["small", "large"]},
            "replicas": {"type": "integer", "default": 1, "maximum": 10},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}},
        "status": {"type": "object", "properties": {"phase": {"type": "string"}, "replicas": {"type": "integer"}}}}});
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}}});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("boxes.{group}")},
        "spec": {"group": group, "scope": "Namespaced", "versions": [version],
            "names": {"plural": "boxes", "singular": "box", "kind": "Box", "listKind": "BoxList"}}})
}

async fn established(cluster: &Cluster, name: &str) -> Result<()> {
    for _ in 0..200 {
        let definition = cluster.admin.get(&format!("{DEFINITIONS}/{name}")).await?.json();
        let conditions = definition["status"]["conditions"].as_array().cloned().unwrap_or_default();
        if conditions.iter().any(|c| c["type"] == "Established" && c["status"] == "True") {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bail!("{name} was not established")
}

#[tokio::test(flavor = "multi_thread")]
async fn custom_resources_exist_as_long_as_their_definition() -> Result<()> {
    let cluster = Cluster::shared().await?;
    let admin = &cluster.admin;
    let group = format!("{}.example", cluster.namespace);
    let name = format!("boxes.{group}");
    let api = format!("{group}/v1");
    let boxes = cluster.group(&api, "boxes");
    assert_eq!(admin.get(&boxes).await?.status, 404);
    admin.post(DEFINITIONS, &definition(&group)).await?.expect(201)?;
    established(&cluster, &name).await?;
    for _ in 0..100 {
        // A real server serves the path a moment later.
        if admin.get(&boxes).await?.status == 200 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let resources = admin.get(&format!("/apis/{api}")).await?.expect(200)?.json();
    assert_eq!(resources["resources"][0]["kind"], "Box");

    let make = |name: &str, spec: Value| json!({"apiVersion": api, "kind": "Box", "metadata": {"name": name}, "spec": spec});
    let body = make("a", json!({"size": "small", "unknown": 1, "free": {"any": "thing"}}));
    let made = admin.post(&boxes, &body).await?.expect(201)?.json();
    assert_eq!(
        made["spec"],
        json!({"size": "small", "replicas": 1, "free": {"any": "thing"}}),
        "defaults, pruning"
    );
    for (name, spec) in [
        ("b", json!({"size": "huge"})),
        ("c", json!({})),
        ("d", json!({"size": "small", "replicas": 11})),
    ] {
        let refused = admin.post(&boxes, &make(name, spec)).await?.expect(422)?;
        assert_eq!(refused.reason(), "Invalid");
    }
    let strict = admin
        .post(
            &format!("{boxes}?fieldValidation=Strict"),
            &make("e", json!({"size": "small", "x": 1})),
        )
        .await?;
    assert_eq!(strict.status, 400);

    let item = format!("{boxes}/a");
    let patched = admin
        .merge(&item, &json!({"spec": {"size": "large"}, "status": {"phase": "x"}}))
        .await?
        .expect(200)?
        .json();
    assert_eq!((&patched["metadata"]["generation"], &patched["status"]), (&json!(2), &Value::Null));
    let status = admin
        .merge(
            &format!("{item}/status"),
            &json!({"spec": {"size": "small"}, "status": {"phase": "Ok"}}),
        )
        .await?
        .expect(200)?
        .json();
    assert_eq!(
        (&status["status"]["phase"], &status["spec"]["size"]),
        (&json!("Ok"), &json!("large"))
    );
    admin.merge(&format!("{item}/scale"), &json!({"spec": {"replicas": 4}})).await?.expect(200)?;
    assert_eq!(admin.get(&item).await?.json()["spec"]["replicas"], 4);
    admin.patch(&item, "application/strategic-merge-patch+json", &json!({})).await?.expect(415)?;

    admin.delete(&format!("{DEFINITIONS}/{name}")).await?.expect(200)?;
    for _ in 0..200 {
        if admin.get(&boxes).await?.status == 404 {
            return cluster.finish().await;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bail!("the resource is still served without its definition")
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_definitions_are_refused() -> Result<()> {
    let cluster = Cluster::shared().await?;
    let group = format!("{}.example", cluster.namespace);
    let change = |pointer: &str, value: Value| {
        let mut changed = definition(&group);
        if let Some(place) = changed.pointer_mut(pointer) {
            *place = value;
        }
        changed
    };
    for (pointer, value) in [
        ("/metadata/name", json!("wrong.name")),
        ("/spec/versions/0/storage", json!(false)),
        ("/spec/versions/0/schema", json!({})),
        ("/spec/scope", json!("Everywhere")),
        ("/spec/versions/0/schema/openAPIV3Schema", json!({"properties": {}})),
    ] {
        let answer = cluster.admin.post(DEFINITIONS, &change(pointer, value)).await?;
        assert_eq!(answer.status, 422, "{pointer}: {}", answer.text());
    }
    cluster.finish().await
}
