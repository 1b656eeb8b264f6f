//! Read access to the embedded API, the names and addresses in its certificate, and clients that waste
//! its resources.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nearhop_skip::skip;
use nearhop_tests::server::{Options, start};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

/// Time limit for a condition; long, because only a failing test waits for all of it.
const TIMEOUT: Duration = Duration::from_secs(30);

const ACCESS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

#[tokio::test(flavor = "multi_thread")]
async fn the_read_only_token_reads_everything_but_secrets() -> Result<()> {
    let server = start(&Options::default()).await?;
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"password": "hidden"}});
    let secrets = "/api/v1/namespaces/default/secrets";
    server.admin.post(secrets, &secret).await?.expect(201)?;
    let reader =
        server.admin.with_token(Some(server.read_only.as_deref().context("no read-only token")?));
    let one = format!("{secrets}/s");
    for path in [secrets, &one, "/api/v1/secrets", "/api/v1/secrets?watch=1"] {
        let answer = reader.get(path).await?;
        ensure!(answer.status == 403, "{path}: {}", answer.text());
        ensure!(answer.text().contains("cannot"), "{path}: {}", answer.text());
        ensure!(!answer.text().contains("hidden") && answer.text().contains("secrets"));
    }
    for path in ["/api/v1/configmaps", "/api/v1/pods", "/apis/apps/v1/deployments"] {
        reader.get(path).await?.expect(200)?;
    }
    for (verb, resource, sub, allowed) in [
        ("get", "secrets", "", false),
        ("get", "pods", "", true),
        ("get", "pods", "log", true),
        ("get", "pods", "exec", false),
        ("delete", "pods", "", false),
    ] {
        let asked = json!({"verb": verb, "resource": resource, "subresource": sub});
        let review = json!({"spec": {"resourceAttributes": asked}});
        let answer = reader.post(ACCESS, &review).await?.expect(201)?.json();
        ensure!(answer["status"]["allowed"] == allowed, "{asked}: {answer}");
    }
    Ok(())
}

/// A Pod reaches the server at the first cluster IP, by the Service's names.
#[tokio::test(flavor = "multi_thread")]
async fn the_certificate_names_the_service_and_its_cluster_ips() -> Result<()> {
    let service_cidr = Some("10.77.0.0/16,fd00:77::/112".to_owned());
    let server = start(&Options { service_cidr, ..Options::default() }).await?;
    let mut target = server.admin.clone();
    for name in [
        "10.77.0.1",
        "fd00:77::1",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    ] {
        name.clone_into(&mut target.host);
        target.stream().await.with_context(|| name.to_owned())?;
    }
    "10.96.0.1".clone_into(&mut target.host);
    ensure!(target.stream().await.is_err(), "the certificate has an address of another range");
    Ok(())
}

/// `--listen 0.0.0.0` listens on all addresses, but clients need a real one.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_on_all_addresses_is_reached_on_loopback() -> Result<()> {
    for (listen, host) in [("0.0.0.0:0", "https://127.0.0.1:"), ("[::]:0", "https://[::1]:")] {
        let server =
            match start(&Options { listen: Some(listen.to_owned()), ..Options::default() }).await {
                Err(_) if listen.starts_with('[') => {
                    skip("this machine has no IPv6");
                    continue;
                }
                server => server?,
            };
        let kubeconfig = std::fs::read_to_string(&server.kubeconfig)?;
        ensure!(kubeconfig.contains(host), "{kubeconfig}");
        server.admin.get("/version").await?.expect(200)?;
        let mut target = server.admin.clone();
        for address in nearhop_runtime::interfaces::addresses() {
            target.host = address.to_string();
            target.stream().await.with_context(|| format!("{address}"))?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_huge_header_is_refused() -> Result<()> {
    let server = start(&Options::default()).await?;
    let mut stream = server.admin.stream().await?;
    let head =
        format!("GET /version HTTP/1.1\r\nHost: x\r\nX-Big: {}\r\n\r\n", "x".repeat(4 << 20));
    // The server may close the connection before it has read all.
    let _closed = timeout(TIMEOUT, stream.write_all(head.as_bytes())).await?;
    let mut answer = Vec::new();
    let _reset = timeout(TIMEOUT, stream.read_to_end(&mut answer)).await.context("still open")?;
    let text = String::from_utf8_lossy(&answer);
    ensure!(text.is_empty() || text.starts_with("HTTP/1.1 431"), "{text}");
    server.admin.get("/version").await?.expect(200)?;
    Ok(())
}

/// A connection costs the server resources before the client sends a token.
#[tokio::test(flavor = "multi_thread")]
async fn clients_that_say_nothing_or_half_a_request_are_closed() -> Result<()> {
    let server = start(&Options::default()).await?;
    let mut streams = Vec::new();
    for said in
        ["", "PRI * HTTP/2.0\r\n", "GET /version HT", "GET /version HTTP/1.1\r\nHost: x\r\n"]
    {
        let mut stream = server.admin.stream().await?;
        stream.write_all(said.as_bytes()).await?;
        stream.flush().await?;
        streams.push((said, stream));
    }
    server.admin.get("/version").await?.expect(200)?;
    for (said, mut stream) in streams {
        let mut rest = Vec::new();
        let closed = timeout(TIMEOUT, stream.read_to_end(&mut rest)).await;
        ensure!(closed.is_ok(), "still open after {said:?}");
    }
    Ok(())
}
