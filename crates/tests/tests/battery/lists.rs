//! Lists: paging, versions, selectors.

use anyhow::Result;
use nearhop_tests::cluster::{Cluster, names, version, version_number};
use serde_json::{Value, json};

async fn filled(count: usize) -> Result<Cluster> {
    let cluster = Cluster::shared().await?;
    for index in 0..count {
        let labels = json!({"parity": (index % 2).to_string(), "n": index.to_string()});
        let body = json!({"metadata": {"name": format!("c{index:03}"), "labels": labels}});
        cluster.create("configmaps", &body).await?;
    }
    Ok(cluster)
}

/// Selects the objects of the test: a real cluster creates a ConfigMap in every namespace.
const OURS: &str = "labelSelector=parity";

#[tokio::test(flavor = "multi_thread")]
async fn all_pages_show_the_same_version() -> Result<()> {
    let cluster = filled(25).await?;
    let mut token = String::new();
    let mut seen = Vec::new();
    let mut versions = std::collections::BTreeSet::new();
    loop {
        let page = cluster
            .read(&format!("configmaps?{OURS}&limit=7&continue={token}"))
            .await?
            .expect(200)?
            .json();
        versions.insert(version(&page));
        seen.extend(names(&page));
        token = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
        if token.is_empty() {
            break;
        }
        // The next pages show neither this addition nor this deletion.
        cluster.create("configmaps", &json!({"metadata": {"name": format!("new{}", seen.len()), "labels": {"parity": "2"}}})).await?;
        cluster
            .admin
            .delete(&cluster.core(&format!("configmaps/c{:03}", 24 - seen.len() / 7)))
            .await?
            .ok()?;
    }
    let expected: Vec<String> = (0..25).map(|i| format!("c{i:03}")).collect();
    assert_eq!(seen, expected);
    assert_eq!(versions.len(), 1, "{versions:?}");
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_page_has_the_remaining_item_count() -> Result<()> {
    let cluster = filled(5).await?;
    let page = cluster.read("configmaps?limit=2").await?.json();
    let all = cluster.read("configmaps").await?.json();
    let left = all["items"].as_array().map_or(0, Vec::len) - 2;
    assert_eq!(page["metadata"]["remainingItemCount"], json!(left));
    let selected = cluster.read(&format!("configmaps?limit=2&{OURS}")).await?.json();
    assert_eq!(selected["metadata"]["remainingItemCount"], Value::Null);
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn resource_version_and_match_select_the_state_of_a_list() -> Result<()> {
    let cluster = filled(3).await?;
    let old = cluster.read(&format!("configmaps?{OURS}")).await?.json();
    let at = version(&old);
    cluster.admin.delete(&cluster.core("configmaps/c000")).await?.ok()?;
    let all = ["c000", "c001", "c002"].map(str::to_owned).to_vec();
    let rest = all[1..].to_vec();
    for (query, expected) in [
        (String::new(), &rest),
        (format!("resourceVersion={at}&resourceVersionMatch=Exact"), &all),
        (format!("resourceVersion={at}&resourceVersionMatch=NotOlderThan"), &rest),
        (format!("resourceVersion={at}"), &rest),
        (format!("resourceVersion={at}&limit=10"), &all),
    ] {
        let list = cluster.read(&format!("configmaps?{OURS}&{query}")).await?.expect(200)?.json();
        assert_eq!(&names(&list), expected, "{query}");
        assert!(version_number(&list) >= version_number(&old), "{query}");
    }
    for (query, status) in [
        ("resourceVersionMatch=Exact", 422),
        ("resourceVersion=0&resourceVersionMatch=Exact", 422),
        ("resourceVersion=abc", 400),
        ("sendInitialEvents=true", 422),
        ("limit=abc", 400),
        ("resourceVersion=999999999999", 504),
    ] {
        let answer = cluster.read(&format!("configmaps?{query}")).await?;
        assert_eq!(answer.status, status, "{query}: {}", answer.text());
    }
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn selectors_filter_a_list() -> Result<()> {
    let cluster = filled(6).await?;
    for (query, expected) in [
        ("labelSelector=parity%3D0", vec!["c000", "c002", "c004"]),
        ("labelSelector=parity%3D%3D1%2Cn%21%3D3", vec!["c001", "c005"]),
        ("labelSelector=n%20in%20(1%2C2)", vec!["c001", "c002"]),
        ("labelSelector=parity%2Cn%20notin%20(0%2C1%2C2%2C3)", vec!["c004", "c005"]),
        ("labelSelector=parity%2C%21missing%2Cn%3E4", vec!["c005"]),
        ("labelSelector=missing", vec![]),
        ("fieldSelector=metadata.name%3Dc003", vec!["c003"]),
        ("fieldSelector=metadata.name%21%3Dc003&labelSelector=parity%3D1", vec!["c001", "c005"]),
    ] {
        let list = cluster.read(&format!("configmaps?{query}")).await?.expect(200)?.json();
        assert_eq!(names(&list), expected, "{query}");
        assert!(list["items"].is_array());
    }
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn resource_versions_increase() -> Result<()> {
    let cluster = Cluster::shared().await?;
    let mut last = 0;
    for value in 0..20 {
        let made = cluster.config_map(&format!("c{value}"), "x").await?;
        let listed = cluster.read("configmaps?limit=1").await?.json();
        assert!(version_number(&made) > last);
        assert!(version_number(&listed) >= version_number(&made));
        last = version_number(&made);
    }
    cluster.finish().await
}
