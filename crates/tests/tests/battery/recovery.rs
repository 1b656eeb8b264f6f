//! Compacted history: clients get 410, list again and miss no change.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::watcher::{self, Event};
use kube::{Api, ResourceExt};
use nearhop_tests::cluster::{Cluster, version};
use nearhop_tests::http::Request;
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn old_versions_return_410_after_compaction() -> Result<()> {
    let cluster = Cluster::embedded().await?;
    for name in ["a", "b", "c"] {
        cluster.config_map(name, "1").await?;
    }
    let page = cluster.read("configmaps?limit=1").await?.json();
    let (at, token) =
        (version(&page), page["metadata"]["continue"].as_str().unwrap_or_default().to_owned());
    cluster.admin.merge(&cluster.core("configmaps/c"), &json!({"data": {"v": "2"}})).await?.ok()?;
    cluster.server.fault(&json!({"compact": true})).await?;

    let exact = cluster
        .read(&format!("configmaps?resourceVersion={at}&resourceVersionMatch=Exact"))
        .await?;
    assert_eq!((exact.status, exact.reason().as_str()), (410, "Expired"));
    let next = cluster.read(&format!("configmaps?limit=5&continue={token}")).await?;
    assert_eq!((next.status, next.reason().as_str()), (410, "Expired"));
    // The answer has a token that continues from the current state.
    let fresh = next.json()["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
    let rest =
        cluster.read(&format!("configmaps?limit=5&continue={fresh}")).await?.expect(200)?.json();
    assert_eq!(nearhop_tests::cluster::names(&rest), ["b", "c"]);

    let path = cluster.core(&format!("configmaps?watch=true&resourceVersion={at}"));
    let mut watch = cluster.admin.open(Request::new("GET", &path)).await?;
    let event = watch.event(Duration::from_secs(5)).await.context("no event")?;
    assert_eq!(
        (watch.status, &event["type"], &event["object"]["code"]),
        (200, &json!("ERROR"), &json!(410))
    );
    assert_eq!(watch.event(Duration::from_secs(5)).await, None, "the stream ends");
    cluster.finish().await
}

/// How the watcher of the kube library gets the current state.
#[derive(Clone, Copy)]
enum Start {
    List,
    Stream,
}

async fn recovers(start: Start) -> Result<()> {
    let cluster = Cluster::embedded().await?;
    let api: Api<ConfigMap> = Api::namespaced(cluster.client().await?, &cluster.namespace);
    let config = match start {
        Start::List => watcher::Config::default(),
        Start::Stream => watcher::Config::default().streaming_lists(),
    };
    let mut events = Box::pin(watcher::watcher(api, config));
    let mut known = BTreeSet::new();
    let mut restarts = 0;
    cluster.config_map("before", "1").await?;
    let follow = async {
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => {
                    restarts += 1;
                    known.clear();
                }
                Ok(Event::InitApply(object) | Event::Apply(object)) => {
                    known.insert(object.name_any());
                }
                Ok(Event::Delete(object)) => {
                    known.remove(&object.name_any());
                }
                Ok(Event::InitDone) if restarts == 1 => {
                    // The history is compacted while the watch is down: the changes in between are only in a new list.
                    cluster.server.fault(&json!({"dropWatches": true})).await?;
                    cluster.admin.delete(&cluster.core("configmaps/before")).await?.ok()?;
                    cluster.config_map("meanwhile", "1").await?;
                    cluster.server.fault(&json!({"compact": true})).await?;
                }
                // 410 is reported once, and the next poll starts over.
                Ok(Event::InitDone) | Err(_) => {}
            }
            if restarts == 2 && known.contains("meanwhile") && !known.contains("after") {
                cluster.config_map("after", "1").await.ok();
            }
            if known.contains("after") {
                break;
            }
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(Duration::from_secs(30), follow)
        .await
        .context("no recovery in time")??;
    assert!(!known.contains("before"), "{known:?}");
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kube_watcher_recovers_by_listing() -> Result<()> {
    recovers(Start::List).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kube_watcher_recovers_by_a_streaming_list() -> Result<()> {
    recovers(Start::Stream).await
}
