//! Every verb, and the options that change what a verb does.

use anyhow::Result;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use nearhop_tests::cluster::{Cluster, names, version};
use nearhop_tests::http::Request;
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn every_verb_through_a_client_library() -> Result<()> {
    let cluster = Cluster::shared().await?;
    let api: Api<ConfigMap> = Api::namespaced(cluster.client().await?, &cluster.namespace);
    let object: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "a"}}))?;
    let created = api.create(&PostParams::default(), &object).await?;
    assert!(created.uid().is_some() && created.creation_timestamp().is_some());

    let mut changed = api.get("a").await?;
    changed.data = Some([("k".to_owned(), "v".to_owned())].into());
    let replaced = api.replace("a", &PostParams::default(), &changed).await?;
    assert_ne!(replaced.resource_version(), created.resource_version());
    assert_eq!(replaced.uid(), created.uid());
    // The old version is stale now.
    let stale = api.replace("a", &PostParams::default(), &changed).await;
    assert!(matches!(stale, Err(kube::Error::Api(e)) if e.code == 409 && e.reason == "Conflict"));

    let patch = Patch::Merge(json!({"metadata": {"labels": {"l": "1"}}}));
    assert_eq!(api.patch("a", &PatchParams::default(), &patch).await?.labels()["l"], "1");
    let found = api.list(&ListParams::default().labels("l=1")).await?;
    assert_eq!(found.items.len(), 1);

    api.delete("a", &DeleteParams::default()).await?;
    assert!(api.get_opt("a").await?.is_none());
    for name in ["x", "y", "z"] {
        let object: ConfigMap = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        api.create(&PostParams::default(), &object).await?;
    }
    let but_one = ListParams::default().fields("metadata.name!=z");
    api.delete_collection(&DeleteParams::default(), &but_one).await?;
    let left = api.list(&ListParams::default()).await?;
    let left: Vec<String> =
        left.iter().map(ResourceExt::name_any).filter(|n| n.len() == 1).collect();
    assert_eq!(left, ["z"]);
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_without_a_change_keeps_the_version() -> Result<()> {
    let cluster = Cluster::shared().await?;
    let created = cluster.config_map("a", "1").await?;
    let path = cluster.core("configmaps/a");
    let patched = cluster.admin.merge(&path, &json!({"data": {"v": "1"}})).await?.expect(200)?;
    assert_eq!(version(&patched.json()), version(&created));
    let put = cluster.admin.put(&path, &created).await?.expect(200)?;
    assert_eq!(version(&put.json()), version(&created));
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn dry_run_stores_nothing() -> Result<()> {
    let cluster = Cluster::shared().await?;
    let stored = cluster.config_map("a", "1").await?;
    let before = cluster.read("configmaps").await?.json();
    let admin = &cluster.admin;
    let new = json!({"metadata": {"name": "b"}, "data": {"v": "2"}});
    let answer =
        admin.post(&cluster.core("configmaps?dryRun=All"), &new).await?.expect(201)?.json();
    assert_eq!(answer["data"]["v"], "2");
    assert_eq!(answer["metadata"]["resourceVersion"], Value::Null);
    let path = cluster.core("configmaps/a?dryRun=All");
    let answer = admin.merge(&path, &json!({"data": {"v": "9"}})).await?.expect(200)?.json();
    assert_eq!((answer["data"]["v"].as_str(), version(&answer)), (Some("9"), version(&stored)));
    admin.delete(&path).await?.expect(200)?;
    // Validation still happens.
    let bad = json!({"metadata": {"name": "Not A Name"}});
    admin.post(&cluster.core("configmaps?dryRun=All"), &bad).await?.expect(422)?;
    let after = cluster.read("configmaps").await?.json();
    assert_eq!(before["items"], after["items"]);
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn generated_names_are_unique() -> Result<()> {
    let cluster = Cluster::shared().await?;
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..50 {
        let made =
            cluster.create("configmaps", &json!({"metadata": {"generateName": "g-"}})).await?;
        let name = made["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        assert!(name.starts_with("g-") && name.len() == 7, "{name}");
        assert!(seen.insert(name));
    }
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_of_the_server_cannot_be_set() -> Result<()> {
    let cluster = Cluster::shared().await?;
    let uid = "00000000-0000-4000-8000-000000000000";
    let body = json!({"metadata": {"name": "a", "uid": uid, "creationTimestamp": "2001-01-01T00:00:00Z",
        "deletionTimestamp": "2001-01-01T00:00:00Z"}});
    let made = cluster.create("configmaps", &body).await?;
    assert_ne!(made["metadata"]["uid"], uid);
    assert_ne!(made["metadata"]["creationTimestamp"], "2001-01-01T00:00:00Z");
    assert_eq!(made["metadata"]["deletionTimestamp"], Value::Null);
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn field_validation_ignores_warns_or_refuses() -> Result<()> {
    let cluster = Cluster::shared().await?;
    let body = json!({"metadata": {"name": "a"}, "spec": {"ports": [{"port": 80}], "bogus": 1}});
    for (mode, status, warnings) in [
        ("fieldValidation=Strict", 400, 0),
        ("fieldValidation=Warn", 201, 1),
        ("fieldValidation=Ignore", 201, 0),
        ("", 201, 1),
        ("fieldValidation=Maybe", 422, 0),
    ] {
        let path = cluster.core(&format!("services?dryRun=All&{mode}"));
        let answer = cluster.admin.post(&path, &body).await?;
        assert_eq!(answer.status, status, "{mode}: {}", answer.text());
        let said = answer.headers.get_all("warning").iter().count();
        assert_eq!(said, warnings, "{mode}: {:?}", answer.headers);
        assert_eq!(answer.json()["spec"]["bogus"], Value::Null);
    }
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn status_and_spec_are_written_separately() -> Result<()> {
    let cluster = Cluster::shared().await?;
    let api: Api<Service> = Api::namespaced(cluster.client().await?, &cluster.namespace);
    let service: Service = serde_json::from_value(json!({"metadata": {"name": "s"},
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]},
        "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.1"}]}}}))?;
    let made = api.create(&PostParams::default(), &service).await?;
    let ingress = |s: &Service| s.status.as_ref().and_then(|s| s.load_balancer.clone()?.ingress);
    assert!(ingress(&made).is_none(), "status on create is dropped");
    let both = Patch::Merge(json!({"spec": {"sessionAffinity": "ClientIP"},
        "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.1"}]}}}));
    let main = api.patch("s", &PatchParams::default(), &both).await?;
    assert!(ingress(&main).is_none(), "the main resource ignores status");
    let patched = api.patch_status("s", &PatchParams::default(), &both).await?;
    assert_eq!(ingress(&patched).map(|i| i.len()), Some(1));
    let back = Patch::Merge(json!({"spec": {"sessionAffinity": "None"}}));
    let spec = api.patch_status("s", &PatchParams::default(), &back).await?.spec;
    assert_eq!(
        spec.and_then(|s| s.session_affinity).as_deref(),
        Some("ClientIP"),
        "the status subresource ignores spec"
    );
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_scale_subresource_changes_replicas() -> Result<()> {
    let cluster = Cluster::shared().await?;
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let body = json!({"metadata": {"name": "d"}, "spec": {"replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "template": template}});
    let path = cluster.group("apps/v1", "deployments");
    cluster.admin.post(&path, &body).await?.expect(201)?;
    let scale = cluster.admin.get(&format!("{path}/d/scale")).await?.expect(200)?.json();
    assert_eq!((&scale["kind"], &scale["spec"]["replicas"]), (&json!("Scale"), &json!(2)));
    cluster
        .admin
        .merge(&format!("{path}/d/scale"), &json!({"spec": {"replicas": 5}}))
        .await?
        .expect(200)?;
    let after = cluster.admin.get(&format!("{path}/d")).await?.json();
    assert_eq!(
        (&after["spec"]["replicas"], &after["metadata"]["generation"]),
        (&json!(5), &json!(2))
    );
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_as_tables_and_as_metadata_only() -> Result<()> {
    let cluster = Cluster::shared().await?;
    cluster.config_map("a", "1").await?;
    let ask = |accept: &str| {
        let path = cluster.core("configmaps?labelSelector=!nothing&fieldSelector=metadata.name=a");
        cluster.admin.send(Request::new("GET", &path).header("accept", accept))
    };
    let table = ask("application/json;as=Table;v=v1;g=meta.k8s.io").await?.expect(200)?.json();
    assert_eq!((&table["kind"], &table["rows"][0]["cells"][0]), (&json!("Table"), &json!("a")));
    let list = ask("application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io")
        .await?
        .expect(200)?
        .json();
    assert_eq!(names(&list), ["a"]);
    assert_eq!(list["items"][0]["data"], Value::Null);
    ask("text/html").await?.expect(406)?;
    cluster.finish().await
}
