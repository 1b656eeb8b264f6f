//! Server-side apply: field ownership, conflicts, and removal of fields.

use anyhow::Result;
use nearhop_tests::cluster::{Cluster, version};
use nearhop_tests::http::{Answer, Request};
use serde_json::{Value, json};

async fn apply(cluster: &Cluster, query: &str, body: &Value) -> Result<Answer> {
    let path = cluster.core(&format!("services/s?{query}"));
    let request =
        Request::new("PATCH", &path).bytes("application/apply-patch+yaml", body.to_string());
    cluster.admin.send(request).await
}

fn service(spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": spec})
}

fn base() -> Value {
    service(
        json!({"ports": [{"port": 80, "name": "http"}], "trafficDistribution": "PreferSameZone"}),
    )
}

fn managers(object: &Value) -> Vec<String> {
    let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let name = |e: &Value| {
        format!(
            "{}/{}",
            e["manager"].as_str().unwrap_or_default(),
            e["operation"].as_str().unwrap_or_default()
        )
    };
    entries.iter().map(name).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_apply_changes_nothing() -> Result<()> {
    let cluster = Cluster::shared().await?;
    let made = apply(&cluster, "fieldManager=one", &base()).await?.expect(201)?.json();
    assert_eq!(managers(&made), ["one/Apply"]);
    let again = apply(&cluster, "fieldManager=one", &base()).await?.expect(200)?.json();
    assert_eq!(version(&again), version(&made));
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn apply_conflicts_unless_forced() -> Result<()> {
    let cluster = Cluster::shared().await?;
    apply(&cluster, "fieldManager=one", &base()).await?.expect(201)?;
    let other = service(json!({"trafficDistribution": "PreferSameNode"}));
    let refused = apply(&cluster, "fieldManager=two", &other).await?.expect(409)?.json();
    assert_eq!(refused["reason"], "Conflict");
    assert_eq!(refused["details"]["causes"][0]["reason"], "FieldManagerConflict");
    assert_eq!(refused["details"]["causes"][0]["field"], ".spec.trafficDistribution");
    let forced = apply(&cluster, "fieldManager=two&force=true", &other).await?.expect(200)?.json();
    assert_eq!(forced["spec"]["trafficDistribution"], "PreferSameNode");
    // Now the first manager conflicts, unless it omits the field.
    apply(&cluster, "fieldManager=one", &base()).await?.expect(409)?;
    let ports_only = service(json!({"ports": [{"port": 80, "name": "http"}]}));
    let kept = apply(&cluster, "fieldManager=one", &ports_only).await?.expect(200)?.json();
    assert_eq!(kept["spec"]["trafficDistribution"], "PreferSameNode");
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shared_field_is_removed_with_its_last_owner() -> Result<()> {
    let cluster = Cluster::shared().await?;
    apply(&cluster, "fieldManager=one", &base()).await?.expect(201)?;
    let same = service(json!({"trafficDistribution": "PreferSameZone"}));
    apply(&cluster, "fieldManager=two", &same).await?.expect(200)?;
    let ports_only = service(json!({"ports": [{"port": 80, "name": "http"}]}));
    let shared = apply(&cluster, "fieldManager=one", &ports_only).await?.expect(200)?.json();
    assert_eq!(
        shared["spec"]["trafficDistribution"], "PreferSameZone",
        "the other manager still owns it"
    );
    let nothing = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}});
    let gone = apply(&cluster, "fieldManager=two", &nothing).await?.expect(200)?.json();
    assert_eq!(gone["spec"]["trafficDistribution"], Value::Null, "no manager owns it any more");
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn list_items_are_owned_separately() -> Result<()> {
    let cluster = Cluster::shared().await?;
    apply(&cluster, "fieldManager=one", &base()).await?.expect(201)?;
    let second = service(json!({"ports": [{"port": 81, "name": "more"}]}));
    let both = apply(&cluster, "fieldManager=two", &second).await?.expect(200)?.json();
    assert_eq!(both["spec"]["ports"].as_array().map(Vec::len), Some(2));
    let nothing = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}});
    let one = apply(&cluster, "fieldManager=two", &nothing).await?.expect(200)?.json();
    assert_eq!(one["spec"]["ports"].as_array().map(Vec::len), Some(1));
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn updates_take_ownership() -> Result<()> {
    let cluster = Cluster::shared().await?;
    apply(&cluster, "fieldManager=one", &base()).await?.expect(201)?;
    let patch = json!({"spec": {"trafficDistribution": "PreferSameNode"}});
    let path = cluster.core("services/s?fieldManager=writer");
    let updated = cluster.admin.merge(&path, &patch).await?.expect(200)?.json();
    assert_eq!(managers(&updated), ["one/Apply", "writer/Update"]);
    let refused = apply(&cluster, "fieldManager=one", &base()).await?.expect(409)?.json();
    assert_eq!(refused["details"]["causes"][0]["message"], "conflict with \"writer\" using v1");
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_applies_are_refused() -> Result<()> {
    let cluster = Cluster::shared().await?;
    let long = format!("fieldManager={}", "x".repeat(129));
    let wrong_name = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "t"}});
    for (query, body, status) in [
        ("", base(), 422),
        (long.as_str(), base(), 422),
        ("fieldManager=one", service(json!({"ports": [{"port": 80}], "bogus": 1})), 500),
        ("fieldManager=one", service(json!({"ports": [{"port": 80}, {"port": 80}]})), 500),
        ("fieldManager=one", wrong_name, 400),
        ("fieldManager=one", json!({"metadata": {"name": "s"}}), 400),
    ] {
        let answer = apply(&cluster, query, &body).await?;
        assert_eq!(answer.status, status, "{query} {body}: {}", answer.text());
    }
    assert_eq!(cluster.read("services/s").await?.status, 404);
    cluster.finish().await
}
