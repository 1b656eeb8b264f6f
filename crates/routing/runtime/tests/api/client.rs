//! The client against the embedded API: its requests and its metrics.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::cluster::Cluster;
use http::Request;
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};
use nearhop_runtime::client::{ClientOptions, connect, connect_recorded};
use nearhop_runtime::metrics::Metrics;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::time::timeout;

#[tokio::test]
async fn requests_are_recorded_and_counted() {
    let cluster = Cluster::start().await;
    let metrics = Metrics::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let record = {
        let seen = Arc::clone(&seen);
        move |parts: &http::request::Parts| {
            seen.lock().unwrap().push(format!("{} {}", parts.method, parts.uri.path()));
        }
    };
    let client = connect_recorded(&cluster.options(), Some(&metrics), record).await.unwrap();
    let namespaces: Api<Namespace> = Api::all(client);
    namespaces.get("default").await.unwrap();
    assert!(namespaces.get_opt("none").await.unwrap().is_none());
    assert_eq!(
        *seen.lock().unwrap(),
        ["GET /api/v1/namespaces/default", "GET /api/v1/namespaces/none"]
    );
    let host = cluster.server.address();
    let text = metrics.encode();
    for code in [200, 404] {
        let line = format!(
            "rest_client_requests_total{{code=\"{code}\",host=\"{host}\",method=\"GET\"}} 1\n"
        );
        assert!(text.contains(&line), "{line} in:\n{text}");
    }
}

async fn set_faults(client: &Client, faults: &str) {
    let request = Request::post("/nearhop/faults").body(faults.as_bytes().to_vec());
    let request = request.expect("the path is valid");
    client.request_text(request).await.expect("the API server accepts the faults");
}

/// The kube crate retries after a 429 by default. The metrics of the server count the requests.
#[tokio::test]
async fn the_client_does_not_retry_after_429() {
    let cluster = Cluster::start().await;
    let client = connect(&cluster.options(), None).await.unwrap();
    set_faults(&client, r#"{"answer":{"code":429,"share":1.0}}"#).await;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let asked = timeout(Duration::from_secs(20), namespaces.get("default")).await;
    asked.expect("the client returns the error without retries").unwrap_err();
    set_faults(&client, "{}").await;
    let metrics = Request::get("/metrics").body(Vec::new()).unwrap();
    let text = client.request_text(metrics).await.unwrap();
    let refused = r#"apiserver_request_total{code="429",resource="namespaces",verb="get"}"#;
    assert!(text.contains(&format!("{refused} 1\n")), "{text}");
}

#[tokio::test]
async fn requests_carry_the_user_agent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kubeconfig");
    let text = format!(
        "{{apiVersion: v1, kind: Config, current-context: c,
          contexts: [{{name: c, context: {{cluster: c, user: u}}}}],
          clusters: [{{name: c, cluster: {{server: 'http://{}'}}}}], users: [{{name: u, user: {{}}}}]}}",
        listener.local_addr().unwrap()
    );
    std::fs::write(&file, text).unwrap();
    let options = ClientOptions {
        kubeconfig: Some(file),
        context: None,
        user_agent: "nearhop-controller/0.1".to_owned(),
    };
    let client = connect(&options, None).await.unwrap();
    let asking = tokio::spawn(async move { client.apiserver_version().await });
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    assert!(head.contains("user-agent: nearhop-controller/0.1\r\n"), "{head}");
    asking.abort();
}

#[tokio::test]
async fn an_unknown_context_is_named() {
    let cluster = Cluster::start().await;
    let options = ClientOptions { context: Some("nowhere".to_owned()), ..cluster.options() };
    let error = connect(&options, None).await.err().expect("the context is unknown").to_string();
    assert!(error.contains("nowhere") && error.contains("kubeconfig"), "{error}");
    let options = ClientOptions { user_agent: "a\nb".to_owned(), ..cluster.options() };
    assert!(connect(&options, None).await.is_err());
}
