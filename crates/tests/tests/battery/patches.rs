//! The patch types.

use anyhow::Result;
use nearhop_tests::cluster::{Cluster, version};
use nearhop_tests::http::Answer;
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
async fn patch_types_treat_lists_differently() -> Result<()> {
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
async fn a_patch_with_a_stale_version_conflicts() -> Result<()> {
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

/// The texts of the Warning headers.
fn warnings(answer: &Answer) -> Vec<String> {
    let all = answer.headers.get_all("warning").iter();
    all.filter_map(|value| value.to_str().ok()).map(str::to_owned).collect()
}

#[tokio::test]
async fn unknown_fields_raise_warnings_in_every_patch_type() -> Result<()> {
    let cluster = Cluster::shared().await?;
    let path = service(&cluster).await?;
    let warning = |field: &str| vec![format!(r#"299 - "unknown field \"{field}\"""#)];
    let add = json!([{"op": "add", "path": "/spec/nope", "value": 1}]);
    let answer = cluster.admin.patch(&path, JSON, &add).await?.expect(200)?;
    assert_eq!(warnings(&answer), warning("spec.nope"));
    assert!(answer.json()["spec"].get("nope").is_none());
    // The list is merged, so the index of the port in the object may differ from that in the patch.
    let ports = json!({"spec": {"ports": [{"port": 99, "name": "more", "nope": 1}]}});
    let answer = cluster.admin.patch(&path, STRATEGIC, &ports).await?.expect(200)?;
    let found = answer.json()["spec"]["ports"].as_array().map_or(0, Vec::len);
    let warnings = warnings(&answer);
    assert!(
        (0..found).any(|at| warnings == warning(&format!("spec.ports[{at}].nope"))),
        "{warnings:?}"
    );
    let strict = format!("{path}?fieldValidation=Strict");
    let refused = cluster.admin.patch(&strict, JSON, &add).await?.expect(422)?.json();
    let message = refused["message"].as_str().unwrap_or_default();
    assert!(message.ends_with(r#"strict decoding error: unknown field "spec.nope""#), "{message}");
    assert!(message.contains(r#"patch: Invalid value: "{\""#), "the patched object: {message}");
    cluster.finish().await
}

#[tokio::test]
async fn a_spread_constraint_that_matches_no_pod_warns_on_every_write() -> Result<()> {
    let cluster = Cluster::shared().await?;
    let spread = json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"});
    let spec =
        json!({"containers": [{"name": "c", "image": "i"}], "topologySpreadConstraints": [spread]});
    let labels = json!({"app": "a"});
    let warning = |place: &str| {
        vec![format!(
            "299 - \"{place}.topologySpreadConstraints[0].labelSelector: a null labelSelector results in matching no pod\""
        )]
    };
    let pod = json!({"metadata": {"name": "p", "labels": labels}, "spec": spec});
    let answer = cluster.admin.post(&cluster.core("pods"), &pod).await?.expect(201)?;
    assert_eq!(warnings(&answer), warning("spec"));
    let template = json!({"metadata": {"labels": labels}, "spec": spec});
    let selector = json!({"matchLabels": labels});
    for kind in ["deployments", "replicasets", "daemonsets", "statefulsets"] {
        let body = json!({"metadata": {"name": "w"}, "spec": {"selector": selector, "template": template}});
        let collection = cluster.group("apps/v1", kind);
        let answer = cluster.admin.post(&collection, &body).await?.expect(201)?;
        assert_eq!(warnings(&answer), warning("spec.template.spec"), "{kind}");
        let path = format!("{collection}/w");
        let change = json!({"spec": {"template": {"metadata": {"annotations": {"a": "b"}}}}});
        let answer = cluster.admin.merge(&path, &change).await?.expect(200)?;
        assert_eq!(warnings(&answer), warning("spec.template.spec"), "{kind}");
        // A patch that does not change the spec raises no warning.
        let label = json!({"metadata": {"labels": {"x": "y"}}});
        let answer = cluster.admin.merge(&path, &label).await?.expect(200)?;
        assert!(warnings(&answer).is_empty(), "{kind}");
    }
    let scale = cluster.group("apps/v1", "deployments/w/scale");
    let answer =
        cluster.admin.merge(&scale, &json!({"spec": {"replicas": 3}})).await?.expect(200)?;
    assert_eq!(warnings(&answer), warning("spec.template.spec"));
    let mut job_template = template.clone();
    job_template["spec"]["restartPolicy"] = "Never".into();
    let job = json!({"metadata": {"name": "c"}, "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": job_template}}}});
    let answer =
        cluster.admin.post(&cluster.group("batch/v1", "cronjobs"), &job).await?.expect(201)?;
    assert_eq!(warnings(&answer), warning("spec.jobTemplate.spec.template.spec"));
    cluster.finish().await
}
