//! Many clients at once: no update is lost, no address is allocated twice, no event is out of order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::PostParams;
use nearhop_tests::cluster::{Cluster, version, version_number};
use nearhop_tests::http::{Line, Open, Request, Target};
use serde_json::{Value, json};
use tokio::task::JoinSet;

#[tokio::test(flavor = "multi_thread")]
async fn no_update_is_lost() -> Result<()> {
    const CLIENTS: u32 = 16;
    const EACH: u32 = 20;
    let cluster = Cluster::shared().await?;
    cluster.config_map("counter", "0").await?;
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let api: Api<ConfigMap> = Api::namespaced(cluster.client().await?, &cluster.namespace);
        clients.spawn(async move {
            for _ in 0..EACH {
                loop {
                    let mut counter = api.get("counter").await?;
                    let data = counter.data.as_mut().context("no data")?;
                    let value: u32 = data["v"].parse()?;
                    data.insert("v".into(), (value + 1).to_string());
                    match api.replace("counter", &PostParams::default(), &counter).await {
                        Ok(_) => break,
                        Err(kube::Error::Api(e)) if e.code == 409 => {}
                        Err(error) => return Err(error.into()),
                    }
                }
            }
            anyhow::Ok(())
        });
    }
    for result in clients.join_all().await {
        result?;
    }
    let end = cluster.read("configmaps/counter").await?.json();
    assert_eq!(end["data"]["v"], (CLIENTS * EACH).to_string());
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_and_ports_are_allocated_once() -> Result<()> {
    const CLIENTS: usize = 32;
    const SERVICES: usize = 200;
    let cluster = Cluster::shared().await?;
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let (admin, path) = (cluster.admin.clone(), cluster.core("services"));
        clients.spawn(async move {
            let mut connection = admin.connect().await?;
            let mut made = Vec::new();
            for number in (client..SERVICES).step_by(CLIENTS) {
                let body = json!({"metadata": {"name": format!("s{number}")},
                    "spec": {"type": "NodePort", "ports": [{"port": 80}]}});
                made.push(
                    connection
                        .send(Request::new("POST", &path).json(&body))
                        .await?
                        .expect(201)?
                        .json(),
                );
            }
            anyhow::Ok(made)
        });
    }
    let (mut addresses, mut ports) = (BTreeSet::new(), BTreeSet::new());
    for made in clients.join_all().await {
        for service in made? {
            assert!(addresses.insert(service["spec"]["clusterIP"].to_string()), "{service}");
            assert!(ports.insert(service["spec"]["ports"][0]["nodePort"].to_string()), "{service}");
        }
    }
    assert_eq!(addresses.len(), SERVICES);
    // The address of a deleted Service can be allocated again.
    let first = cluster.read("services/s0").await?.json()["spec"]["clusterIP"].clone();
    cluster.admin.delete(&cluster.core("services/s0")).await?.ok()?;
    let body = json!({"metadata": {"name": "again"}, "spec": {"clusterIP": first, "ports": [{"port": 80}]}});
    cluster.create("services", &body).await?;
    cluster.finish().await
}

/// The events of one watcher: type and version of each change, by object, in the order of arrival.
type Seen = BTreeMap<String, Vec<(String, u64)>>;

/// Watches until `expected` events have arrived. A server may end a watch at any time; the next watch resumes there.
async fn watch_all(admin: Target, path: String, start: u64, expected: usize) -> Result<Seen> {
    let mut seen = Seen::new();
    let mut last = start;
    let mut watch = resume(&admin, &path, last).await?;
    for at in 0..expected {
        let event = loop {
            match watch.line(Duration::from_secs(60)).await {
                Line::Text(text) => break serde_json::from_str::<Value>(&text)?,
                Line::End => watch = resume(&admin, &path, last).await?,
                Line::Silence => bail!("no event after {at} of {expected}"),
            }
        };
        let version: u64 = version(&event["object"]).parse()?;
        assert!(version > last, "events come in the order of their versions");
        last = version;
        let name = event["object"]["metadata"]["name"].as_str().unwrap_or_default();
        let kind = event["type"].as_str().unwrap_or_default();
        seen.entry(name.to_owned()).or_default().push((kind.to_owned(), version));
    }
    Ok(seen)
}

async fn resume(admin: &Target, path: &str, version: u64) -> Result<Open> {
    let watch =
        admin.open(Request::new("GET", &format!("{path}&resourceVersion={version}"))).await?;
    anyhow::ensure!(watch.status == 200, "the watch was refused with {}", watch.status);
    Ok(watch)
}

async fn write_some(admin: Target, path: String, writer: usize, rounds: usize) -> Result<()> {
    let mut connection = admin.connect().await?;
    for round in 0..rounds {
        let name = format!("w{writer}-{round}");
        let item = format!("{path}/{name}");
        let body = json!({"metadata": {"name": name, "labels": {"battery": "order"}}});
        connection.send(Request::new("POST", &path).json(&body)).await?.expect(201)?;
        let patch = json!({"data": {"v": "2"}}).to_string();
        let request = Request::new("PATCH", &item).bytes("application/merge-patch+json", patch);
        connection.send(request).await?.expect(200)?;
        connection.send(Request::new("DELETE", &item)).await?.expect(200)?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_watcher_sees_every_event_once_and_in_order() -> Result<()> {
    let cluster = Cluster::shared().await?;
    watch_and_write(&cluster, 200).await?;
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn watchers_resume_after_the_server_ends_their_watch() -> Result<()> {
    let cluster = Cluster::embedded().await?;
    let server = cluster.server.clone();
    let interrupting = tokio::spawn(async move {
        while server.fault(&json!({"dropWatches": true})).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    });
    watch_and_write(&cluster, 20).await?;
    assert!(!interrupting.is_finished(), "the task that ends watches has stopped");
    interrupting.abort();
    cluster.finish().await
}

/// 32 writers and `count` watchers: each watcher sees each change once, and all see the same.
async fn watch_and_write(cluster: &Cluster, count: usize) -> Result<()> {
    const WRITERS: usize = 32;
    const ROUNDS: usize = 5;
    let start = version_number(&cluster.read("configmaps").await?.json());
    let path = cluster.core("configmaps?watch=true&labelSelector=battery%3Dorder");
    let mut watchers = JoinSet::new();
    for _ in 0..count {
        let admin = cluster.admin.clone();
        watchers.spawn(watch_all(admin, path.clone(), start, WRITERS * ROUNDS * 3));
    }
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        writers.spawn(write_some(
            cluster.admin.clone(),
            cluster.core("configmaps"),
            writer,
            ROUNDS,
        ));
    }
    for result in writers.join_all().await {
        result?;
    }
    let mut views = Vec::new();
    for view in watchers.join_all().await {
        views.push(view?);
    }
    let first = views.first().context("no watcher")?;
    assert_eq!(first.len(), WRITERS * ROUNDS);
    for events in first.values() {
        let kinds: Vec<&str> = events.iter().map(|(kind, _)| kind.as_str()).collect();
        assert_eq!(kinds, ["ADDED", "MODIFIED", "DELETED"]);
    }
    assert!(views.iter().all(|view| view == first), "all watchers see the same events");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn only_one_of_many_concurrent_creates_succeeds() -> Result<()> {
    let cluster = Cluster::shared().await?;
    let mut clients = JoinSet::new();
    for _ in 0..32 {
        let (admin, path) = (cluster.admin.clone(), cluster.core("configmaps"));
        clients.spawn(async move {
            let body: Value = json!({"metadata": {"name": "one"}});
            anyhow::Ok(admin.post(&path, &body).await?.status)
        });
    }
    let mut created = 0;
    for status in clients.join_all().await {
        match status? {
            201 => created += 1,
            other => assert_eq!(other, 409),
        }
    }
    assert_eq!(created, 1);
    cluster.finish().await
}
