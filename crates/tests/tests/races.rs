//! Clients that disconnect during a request, and concurrent requests for the same object, on a server
//! that writes to disk.

use std::time::{Duration, Instant};

use anyhow::Result;
use nearhop_tests::http::{Request, Target};
use nearhop_tests::server::{Options, Server, start};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;

const SERVICES: &str = "/api/v1/namespaces/default/services";

async fn persistent() -> Result<(Server, TempDir)> {
    let data = tempfile::tempdir()?;
    let options = Options { data_dir: Some(data.path().into()), ..Options::default() };
    Ok((start(&options).await?, data))
}

/// Sends a request and closes the connection without waiting for the answer.
async fn abandon(
    api: Target,
    method: &'static str,
    path: String,
    body: Value,
    after: Duration,
) -> Result<()> {
    let mut stream = api.stream().await?;
    let (body, token) = (body.to_string(), api.token.as_deref().unwrap_or_default());
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    tokio::time::sleep(after).await;
    Ok(())
}

/// Waits for all clients, and for the requests that they abandoned.
async fn join_all(mut tasks: JoinSet<Result<()>>) -> Result<()> {
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    // The server still processes abandoned requests.
    tokio::time::sleep(Duration::from_millis(300)).await;
    Ok(())
}

fn service(name: &str, address: Option<&Value>) -> Value {
    let mut spec = json!({"ports": [{"port": 80}]});
    if let Some(address) = address {
        spec["clusterIP"] = address.clone();
    }
    json!({"metadata": {"name": name}, "spec": spec})
}

#[tokio::test(flavor = "multi_thread")]
async fn abandoned_requests_leak_no_address() -> Result<()> {
    let (server, _data) = persistent().await?;
    let mut tasks = JoinSet::new();
    for number in 0..100 {
        let body = service(&format!("s{number}"), None);
        // Some clients disconnect before the request is read, some before the answer, some after it.
        let after = Duration::from_millis(number % 25);
        tasks.spawn(abandon(server.admin.clone(), "POST", SERVICES.into(), body, after));
    }
    join_all(tasks).await?;
    let stored = server.admin.get(SERVICES).await?.expect(200)?.json();
    let stored = stored["items"].as_array().cloned().unwrap_or_default();
    assert!(stored.len() > 5, "too few requests arrived: {}", stored.len());
    for (number, taken) in stored.iter().enumerate() {
        let body = service(&format!("again{number}"), Some(&taken["spec"]["clusterIP"]));
        assert_eq!(server.admin.post(SERVICES, &body).await?.status, 422, "{taken}");
    }
    let mut tasks = JoinSet::new();
    let own = |service: &&Value| service["metadata"]["name"] != "kubernetes";
    for (number, gone) in stored.iter().filter(own).enumerate() {
        let path = format!("{SERVICES}/{}", gone["metadata"]["name"].as_str().unwrap_or_default());
        let after = Duration::from_millis(number as u64 % 25);
        tasks.spawn(abandon(server.admin.clone(), "DELETE", path, json!({}), after));
    }
    join_all(tasks).await?;
    let left = server.admin.get(SERVICES).await?.expect(200)?.json();
    let left: Vec<&Value> = left["items"].as_array().into_iter().flatten().collect();
    let is_left = |service: &&Value| {
        left.iter().any(|other| other["metadata"]["uid"] == service["metadata"]["uid"])
    };
    let gone: Vec<&Value> = stored.iter().filter(|service| !is_left(service)).collect();
    assert!(gone.len() > 5, "too few Services were deleted: {}", gone.len());
    for (number, gone) in gone.into_iter().enumerate() {
        let body = service(&format!("free{number}"), Some(&gone["spec"]["clusterIP"]));
        server.admin.post(SERVICES, &body).await?.expect(201)?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_concurrent_applies_creates_and_the_others_change() -> Result<()> {
    let (server, _data) = persistent().await?;
    for round in 0..10 {
        let mut tasks = JoinSet::new();
        for writer in 0..6 {
            let api = server.admin.clone();
            tasks.spawn(async move {
                let path = format!(
                    "/api/v1/namespaces/default/configmaps/m{round}?fieldManager=w{writer}"
                );
                let body = json!({"apiVersion": "v1", "kind": "ConfigMap",
                    "metadata": {"name": format!("m{round}")},
                    "data": {format!("k{writer}"): "v"}});
                let request = Request::new("PATCH", &path);
                let request = request.bytes("application/apply-patch+yaml", body.to_string());
                api.send(request).await?.ok()?;
                Ok(())
            });
        }
        join_all(tasks).await?;
        let path = format!("/api/v1/namespaces/default/configmaps/m{round}");
        let merged = server.admin.get(&path).await?.expect(200)?.json();
        assert_eq!(merged["data"].as_object().map_or(0, |data| data.len()), 6, "{merged}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_deleted_with_their_namespace() -> Result<()> {
    let (server, _data) = persistent().await?;
    for round in 0..10 {
        let namespace = format!("/api/v1/namespaces/n{round}");
        let body = json!({"metadata": {"name": format!("n{round}")}});
        server.admin.post("/api/v1/namespaces", &body).await?.expect(201)?;
        let mut tasks = JoinSet::new();
        for number in 0..6 {
            let (api, maps) = (server.admin.clone(), format!("{namespace}/configmaps"));
            tasks.spawn(async move {
                let body = json!({"metadata": {"name": format!("m{number}")}});
                let status = api.post(&maps, &body).await?.status;
                assert!(matches!(status, 201 | 403 | 404), "{status}");
                Ok(())
            });
        }
        server.admin.delete(&namespace).await?.expect(200)?;
        join_all(tasks).await?;
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let left = server.admin.get("/api/v1/namespaces").await?.expect(200)?.json();
        if left["items"].as_array().map_or(0, Vec::len) == 4 {
            break;
        }
        assert!(Instant::now() < deadline, "namespaces are left: {left}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let left = server.admin.get("/api/v1/configmaps").await?.expect(200)?.json();
    assert_eq!(left["items"], json!([]));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_subresources_are_refused_and_change_nothing() -> Result<()> {
    let (server, _data) = persistent().await?;
    let api = &server.admin;
    let before = api.post(SERVICES, &service("a", None)).await?.expect(201)?.json();
    for (method, path) in [("PUT", "proxy"), ("PATCH", "proxy"), ("GET", "proxy")] {
        let request = Request::new(method, &format!("{SERVICES}/a/{path}"));
        let content_type =
            if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let body = json!({"spec": {"clusterIP": "10.96.0.1"}}).to_string();
        let answer = api.send(request.bytes(content_type, body)).await?;
        assert_eq!(
            (answer.status, answer.reason().as_str()),
            (405, "MethodNotAllowed"),
            "{method}"
        );
    }
    assert_eq!(api.get(&format!("{SERVICES}/a")).await?.json(), before);
    Ok(())
}
