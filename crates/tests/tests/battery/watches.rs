//! Watches: types and order of events, and the versions that a watch can start from.

use std::time::Duration;

use anyhow::Result;
use nearhop_tests::cluster::{Cluster, version, version_number};
use nearhop_tests::http::{Open, Request};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(5);

async fn watch(cluster: &Cluster, query: &str) -> Result<Open> {
    let path = cluster.core(&format!("configmaps?watch=true&{query}"));
    let open = cluster.admin.open(Request::new("GET", &path)).await?;
    assert_eq!(open.status, 200);
    Ok(open)
}

/// Type, name and object of the next event.
async fn next(watch: &mut Open) -> (String, String, Value) {
    let event = watch.event(SOON).await.unwrap_or_default();
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    (text(&event["type"]), text(&event["object"]["metadata"]["name"]), event["object"].clone())
}

#[track_caller]
fn is(event: &(String, String, Value), kind: &str, name: &str) {
    assert_eq!((event.0.as_str(), event.1.as_str()), (kind, name), "{}", event.2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_shows_the_changes_after_its_version() -> Result<()> {
    let cluster = Cluster::shared().await?;
    let start = version(&cluster.read("configmaps").await?.json());
    let mut events = watch(&cluster, &format!("resourceVersion={start}")).await?;
    cluster.config_map("a", "1").await?;
    let path = cluster.core("configmaps/a");
    cluster.admin.merge(&path, &json!({"data": {"v": "2"}})).await?.ok()?;
    cluster.admin.merge(&path, &json!({"data": {"v": "2"}})).await?.ok()?;
    cluster.admin.delete(&path).await?.ok()?;
    let (added, changed, deleted) =
        (next(&mut events).await, next(&mut events).await, next(&mut events).await);
    is(&added, "ADDED", "a");
    is(&changed, "MODIFIED", "a");
    is(&deleted, "DELETED", "a");
    assert_eq!(added.2["kind"], "ConfigMap", "objects in events have a kind");
    assert_eq!(deleted.2["data"]["v"], "2", "the last state");
    assert!(version_number(&added.2) < version_number(&changed.2));
    assert!(
        version_number(&changed.2) < version_number(&deleted.2),
        "a deletion has its own version"
    );
    // A watch from an older version shows the same events.
    let mut again = watch(&cluster, &format!("resourceVersion={}", version(&added.2))).await?;
    is(&next(&mut again).await, "MODIFIED", "a");
    is(&next(&mut again).await, "DELETED", "a");
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_without_a_version_starts_with_current_objects() -> Result<()> {
    let cluster = Cluster::shared().await?;
    cluster.create("configmaps", &json!({"metadata": {"name": "a", "labels": {"x": "y"}}})).await?;
    for query in ["labelSelector=x", "labelSelector=x&resourceVersion=0"] {
        let mut events = watch(&cluster, &format!("{query}&timeoutSeconds=1")).await?;
        is(&next(&mut events).await, "ADDED", "a");
        assert_eq!(events.event(SOON).await, None, "{query}: the watch ends at its timeout");
    }
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn streaming_lists_end_with_a_bookmark() -> Result<()> {
    let cluster = Cluster::shared().await?;
    let query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&labelSelector=x";
    for name in ["a", "b"] {
        cluster
            .create("configmaps", &json!({"metadata": {"name": name, "labels": {"x": "y"}}}))
            .await?;
    }
    let mut events = watch(&cluster, query).await?;
    is(&next(&mut events).await, "ADDED", "a");
    is(&next(&mut events).await, "ADDED", "b");
    let mark = next(&mut events).await;
    is(&mark, "BOOKMARK", "");
    assert_eq!(mark.2["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    // A watch can resume from the version of the bookmark.
    cluster.create("configmaps", &json!({"metadata": {"name": "c", "labels": {"x": "y"}}})).await?;
    is(&next(&mut events).await, "ADDED", "c");
    let mut resumed =
        watch(&cluster, &format!("labelSelector=x&resourceVersion={}", version(&mark.2))).await?;
    is(&next(&mut resumed).await, "ADDED", "c");
    let refused = cluster.read("configmaps?watch=true&sendInitialEvents=true").await?;
    assert_eq!(refused.status, 422);
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_that_enter_or_leave_a_selector_are_added_or_deleted() -> Result<()> {
    let cluster = Cluster::shared().await?;
    cluster.config_map("a", "1").await?;
    let start = version(&cluster.read("configmaps").await?.json());
    let mut events =
        watch(&cluster, &format!("labelSelector=in%3Dyes&resourceVersion={start}")).await?;
    let path = cluster.core("configmaps/a");
    for patch in [
        json!({"metadata": {"labels": {"in": "yes"}}}),
        json!({"data": {"v": "2"}}),
        json!({"metadata": {"labels": {"in": "no"}}}),
        json!({"data": {"v": "3"}}),
        json!({"metadata": {"labels": {"in": "yes"}}}),
    ] {
        cluster.admin.merge(&path, &patch).await?.ok()?;
    }
    is(&next(&mut events).await, "ADDED", "a");
    is(&next(&mut events).await, "MODIFIED", "a");
    let left = next(&mut events).await;
    is(&left, "DELETED", "a");
    assert_eq!(left.2["metadata"]["labels"]["in"], "yes", "the last state that matched");
    is(&next(&mut events).await, "ADDED", "a");
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_watches_the_pods_of_its_node() -> Result<()> {
    let cluster = Cluster::shared().await?;
    let node = format!("{}-n", cluster.namespace);
    cluster.admin.post("/api/v1/nodes", &json!({"metadata": {"name": node}})).await?.expect(201)?;
    let start = version(&cluster.read("pods").await?.json());
    let path = cluster.core(&format!(
        "pods?watch=true&resourceVersion={start}&fieldSelector=spec.nodeName%3D{node}%2Cstatus.phase%21%3DSucceeded"
    ));
    let mut events = cluster.admin.open(Request::new("GET", &path)).await?;
    let pod =
        json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    cluster.create("pods", &pod).await?;
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": node}});
    cluster.admin.post(&cluster.core("pods/p/binding"), &binding).await?.expect(201)?;
    let status = cluster.core("pods/p/status");
    for phase in ["Running", "Succeeded"] {
        cluster.admin.merge(&status, &json!({"status": {"phase": phase}})).await?.ok()?;
    }
    is(&next(&mut events).await, "ADDED", "p");
    is(&next(&mut events).await, "MODIFIED", "p");
    let gone = next(&mut events).await;
    is(&gone, "DELETED", "p");
    assert_eq!(gone.2["status"]["phase"], "Running");
    cluster.admin.delete(&format!("/api/v1/nodes/{node}")).await?.ok()?;
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_and_future_versions_in_a_watch() -> Result<()> {
    let cluster = Cluster::shared().await?;
    let answer = cluster.read("configmaps?watch=true&resourceVersion=abc").await?;
    assert_eq!(answer.status, 500);
    // A future version is accepted, and no event arrives.
    let mut events = watch(&cluster, "resourceVersion=99999999999&timeoutSeconds=1").await?;
    assert_eq!(events.event(SOON).await, None);
    cluster.finish().await
}

#[tokio::test]
async fn extreme_timeouts_and_limits_are_accepted() -> Result<()> {
    const LARGEST: &str = "9223372036854775807";
    // A real server overflows with such numbers, so this test uses the embedded one.
    let cluster = Cluster::embedded().await?;
    for more in ["", "&allowWatchBookmarks=true"] {
        let mut watch = watch(&cluster, &format!("timeoutSeconds={LARGEST}{more}")).await?;
        let name = format!("m{}", more.len());
        cluster.config_map(&name, "1").await?;
        // The watch is open and works: the new object arrives.
        loop {
            let (kind, found, _) = next(&mut watch).await;
            assert!(!kind.is_empty(), "the watch ended");
            if found == name {
                break;
            }
        }
    }
    for query in [
        format!("limit={LARGEST}"),
        format!("limit=1&timeoutSeconds={LARGEST}"),
        "limit=-1".to_owned(),
        "timeoutSeconds=-9223372036854775808".to_owned(),
    ] {
        cluster.read(&format!("configmaps?{query}")).await?.expect(200)?;
    }
    for query in ["limit=9223372036854775808", "timeoutSeconds=1e3", "resourceVersion=-1"] {
        cluster.read(&format!("configmaps?{query}")).await?.expect(400)?;
    }
    let pod = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}});
    cluster.create("pods", &pod).await?;
    let path = cluster.core("pods/p");
    let deleted = cluster.admin.delete(&format!("{path}?gracePeriodSeconds={LARGEST}")).await?;
    let deleted = deleted.expect(200)?.json();
    assert_eq!(deleted["metadata"]["deletionGracePeriodSeconds"].to_string(), LARGEST);
    cluster.admin.delete(&format!("{path}?gracePeriodSeconds=0")).await?.expect(200)?;
    cluster.admin.get(&path).await?.expect(404)?;
    cluster.finish().await
}
