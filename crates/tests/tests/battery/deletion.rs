//! Deletion: preconditions, finalizers, grace periods, dependents, namespaces.

use std::time::Duration;

use anyhow::{Result, bail};
use nearhop_tests::cluster::{Cluster, names, version};
use nearhop_tests::http::{Answer, Request};
use serde_json::{Value, json};

async fn delete(cluster: &Cluster, rest: &str, options: &Value) -> Result<Answer> {
    cluster.admin.send(Request::new("DELETE", &cluster.core(rest)).json(options)).await
}

/// Waits until a path returns 404.
async fn gone(cluster: &Cluster, path: &str) -> Result<()> {
    for _ in 0..200 {
        if cluster.admin.get(path).await?.status == 404 {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bail!("{path} still exists")
}

#[tokio::test(flavor = "multi_thread")]
async fn deletion_checks_preconditions() -> Result<()> {
    let cluster = Cluster::shared().await?;
    let made = cluster.config_map("a", "1").await?;
    let uid = &made["metadata"]["uid"];
    for (options, status) in [
        (json!({"preconditions": {"uid": "00000000-0000-0000-0000-000000000000"}}), 409),
        (json!({"preconditions": {"resourceVersion": "1"}}), 409),
        (json!({"preconditions": {"uid": uid, "resourceVersion": version(&made)}}), 200),
    ] {
        let answer = delete(&cluster, "configmaps/a", &options).await?;
        assert_eq!(answer.status, status, "{options}: {}", answer.text());
    }
    assert_eq!(cluster.read("configmaps/a").await?.status, 404);
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn finalizers_delay_deletion() -> Result<()> {
    let cluster = Cluster::shared().await?;
    let body = json!({"metadata": {"name": "a", "finalizers": ["example.com/hold"]}});
    cluster.create("configmaps", &body).await?;
    let marked = delete(&cluster, "configmaps/a", &json!({})).await?.expect(200)?.json();
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    let again = cluster.admin.post(&cluster.core("configmaps"), &body).await?.expect(409)?.json();
    assert!(again["message"].as_str().is_some_and(|m| m.contains("object is being deleted")));
    let path = cluster.core("configmaps/a");
    cluster.admin.merge(&path, &json!({"data": {"still": "writable"}})).await?.expect(200)?;
    let more = json!({"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}});
    cluster.admin.merge(&path, &more).await?.expect(422)?;
    cluster.admin.merge(&path, &json!({"metadata": {"finalizers": null}})).await?.expect(200)?;
    assert_eq!(cluster.read("configmaps/a").await?.status, 404);
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_have_a_grace_period() -> Result<()> {
    let cluster = Cluster::shared().await?;
    let pod = |name: &str, node: Value| json!({"metadata": {"name": name}, "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}});
    cluster.create("pods", &pod("bound", json!("nowhere"))).await?;
    cluster.create("pods", &pod("unbound", Value::Null)).await?;
    let grace = |answer: &Answer| answer.json()["metadata"]["deletionGracePeriodSeconds"].as_u64();
    let first = delete(&cluster, "pods/bound", &json!({})).await?.expect(200)?;
    assert_eq!(grace(&first), Some(30));
    let shorter = delete(&cluster, "pods/bound", &json!({"gracePeriodSeconds": 5})).await?;
    assert_eq!(grace(&shorter), Some(5));
    let longer = delete(&cluster, "pods/bound", &json!({"gracePeriodSeconds": 60})).await?;
    assert_eq!(grace(&longer), Some(5));
    assert_eq!(cluster.read("pods/bound").await?.status, 200);
    delete(&cluster, "pods/bound", &json!({"gracePeriodSeconds": 0})).await?.expect(200)?;
    assert_eq!(cluster.read("pods/bound").await?.status, 404);
    delete(&cluster, "pods/unbound", &json!({})).await?.expect(200)?;
    assert_eq!(cluster.read("pods/unbound").await?.status, 404);
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_selector_limits_the_deletion_of_a_collection() -> Result<()> {
    let cluster = Cluster::shared().await?;
    for (name, group) in [("a", "1"), ("b", "1"), ("c", "2")] {
        cluster
            .create("configmaps", &json!({"metadata": {"name": name, "labels": {"group": group}}}))
            .await?;
    }
    let path = cluster.core("configmaps?labelSelector=group%3D1");
    let answer = cluster.admin.delete(&path).await?.expect(200)?.json();
    assert_eq!(names(&answer), ["a", "b"]);
    let left = cluster.read("configmaps?labelSelector=group").await?.json();
    assert_eq!(names(&left), ["c"]);
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_propagation_policy_decides_about_dependents() -> Result<()> {
    let cluster = Cluster::embedded().await?;
    for (policy, expected) in [("Background", false), ("Foreground", false), ("Orphan", true)] {
        let owner = cluster.config_map("owner", "1").await?;
        let reference = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner",
            "uid": owner["metadata"]["uid"], "blockOwnerDeletion": true}]);
        let body = json!({"metadata": {"name": "dependent", "ownerReferences": reference}});
        cluster.create("configmaps", &body).await?;
        delete(&cluster, "configmaps/owner", &json!({"propagationPolicy": policy}))
            .await?
            .expect(200)?;
        gone(&cluster, &cluster.core("configmaps/owner")).await?;
        if expected {
            let left = cluster.read("configmaps/dependent").await?.expect(200)?.json();
            assert_eq!(left["metadata"]["ownerReferences"], Value::Null, "{policy}");
            cluster.admin.delete(&cluster.core("configmaps/dependent")).await?.ok()?;
        } else {
            gone(&cluster, &cluster.core("configmaps/dependent")).await?;
        }
    }
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn foreground_deletion_waits_for_a_dependent_with_a_finalizer() -> Result<()> {
    let cluster = Cluster::embedded().await?;
    let owner = cluster.config_map("owner", "1").await?;
    let reference = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner",
        "uid": owner["metadata"]["uid"], "blockOwnerDeletion": true}]);
    let metadata = json!({"name": "held", "ownerReferences": reference,
        "finalizers": ["example.com/hold"]});
    cluster.create("configmaps", &json!({"metadata": metadata})).await?;
    let foreground = json!({"propagationPolicy": "Foreground"});
    delete(&cluster, "configmaps/owner", &foreground).await?.expect(200)?;
    // Longer than two rounds of the garbage collector.
    tokio::time::sleep(std::time::Duration::from_millis(700)).await;
    cluster.read("configmaps/owner").await?.expect(200)?;
    let free = json!({"metadata": {"finalizers": null}});
    cluster.admin.merge(&cluster.core("configmaps/held"), &free).await?.expect(200)?;
    gone(&cluster, &cluster.core("configmaps/held")).await?;
    gone(&cluster, &cluster.core("configmaps/owner")).await?;
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn deleting_a_namespace_deletes_its_contents() -> Result<()> {
    let cluster = Cluster::embedded().await?;
    cluster.config_map("inside", "1").await?;
    cluster
        .create("services", &json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}}))
        .await?;
    let held = json!({"metadata": {"name": "held", "finalizers": ["example.com/hold"]}});
    cluster.create("configmaps", &held).await?;
    let path = format!("/api/v1/namespaces/{}", cluster.namespace);
    let answer = cluster.admin.delete(&path).await?.expect(200)?.json();
    assert_eq!(answer["status"]["phase"], "Terminating");
    let refused = cluster
        .admin
        .post(&cluster.core("configmaps"), &json!({"metadata": {"name": "late"}}))
        .await?;
    assert_eq!(refused.status, 403, "a terminating namespace accepts no new objects");
    gone(&cluster, &cluster.core("configmaps/inside")).await?;
    assert_eq!(
        cluster.admin.get(&path).await?.status,
        200,
        "a finalizer inside delays the deletion"
    );
    let release = json!({"metadata": {"finalizers": null}});
    cluster.admin.merge(&cluster.core("configmaps/held"), &release).await?.ok()?;
    gone(&cluster, &path).await?;
    let all = cluster.admin.get("/api/v1/services").await?.json();
    assert_eq!(names(&all), ["kubernetes"]);
    Ok(())
}
