//! Logs and exec: the API server proxies them to the node that runs the Pod.
//!
//! The node in these tests is a socket that records requests and answers as a kubelet does. The lab's
//! tests use the real node agent.

use std::sync::Arc;

use anyhow::{Context, Result};
use nearhop_apiserver::KubeletOptions;
use nearhop_runtime::pki::{Authority, Pair, Subject};
use nearhop_runtime::tls::{common_names, server_config};
use nearhop_tests::http::Target;
use nearhop_tests::server::{Options, Server, start};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

const POD: &str = "/api/v1/namespaces/default/pods/p";

/// A certificate authority, and the certificate of a node.
struct Pki {
    authority: Authority,
    node: Pair,
}

impl Pki {
    fn new() -> Result<Self> {
        let authority = Authority::create("test")?;
        let node = Subject { addresses: vec!["127.0.0.1".parse()?], ..Subject::default() };
        Ok(Self { node: authority.issue_server(&node)?, authority })
    }

    /// Starts an API server that trusts nodes of this authority and has a client certificate of it.
    async fn server(&self, client: &str) -> Result<Server> {
        let kubelets = KubeletOptions {
            authorities: Some(self.authority.certificate().to_owned()),
            client: Some(self.authority.issue_client(client)?),
        };
        start(&Options { kubelets, ..Options::default() }).await
    }
}

/// Starts a node that sends `answer` and then echoes all bytes. A recorded request starts with the name
/// in the client's certificate.
async fn node(pki: &Pki, answer: &'static str) -> Result<(u16, mpsc::UnboundedReceiver<String>)> {
    let config = server_config(&pki.node, Some(pki.authority.certificate()))?;
    let tls = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    let (sender, requests) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = tls.accept(stream).await else { continue };
            let name = client_name(&stream);
            let Ok(head) = read_head(&mut stream).await else { continue };
            let _ = sender.send(format!("{name}: {head}"));
            let _ = stream.write_all(answer.as_bytes()).await;
            let (mut from, mut to) = tokio::io::split(stream);
            let _ = tokio::io::copy(&mut from, &mut to).await;
        }
    });
    Ok((port, requests))
}

fn client_name(stream: &TlsStream<TcpStream>) -> String {
    let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    shown.map(common_names).unwrap_or_default().join(",")
}

async fn read_head(stream: &mut (impl AsyncReadExt + Unpin)) -> Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    Ok(String::from_utf8(head)?)
}

/// Creates a Node with this kubelet port, and a Pod with two containers on it.
async fn pod_on(api: &Target, port: u16) -> Result<()> {
    let node = json!({"metadata": {"name": "n"}, "status": {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}});
    api.post("/api/v1/nodes", &node).await?.expect(201)?;
    let container = |name: &str| json!({"name": name, "image": "i"});
    let pod = json!({"metadata": {"name": "p"},
        "spec": {"nodeName": "n", "containers": [container("a"), container("b")]}});
    api.post("/api/v1/namespaces/default/pods", &pod).await?.expect(201)?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_are_proxied_from_the_node() -> Result<()> {
    let pki = Pki::new()?;
    let server = pki.server("kube-apiserver-kubelet-client").await?;
    let answer = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 6\r\n\r\nhello\n";
    let (port, mut asked) = node(&pki, answer).await?;
    pod_on(&server.admin, port).await?;
    let log = server.admin.get(&format!("{POD}/log?container=b&tailLines=5")).await?.expect(200)?;
    assert_eq!(log.text(), "hello\n");
    let head = asked.recv().await.context("the node received no request")?;
    let (name, head) = head.split_once(": ").context("no name before the request")?;
    assert_eq!(name, "kube-apiserver-kubelet-client", "the client certificate of the server");
    assert!(head.starts_with("GET /containerLogs/default/p/b?tailLines=5 HTTP/1.1\r\n"), "{head}");
    assert!(
        !head.to_lowercase().contains("authorization"),
        "the node must not get the user's token: {head}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_and_exec_that_cannot_be_proxied_are_refused() -> Result<()> {
    let server = start(&Options::default()).await?;
    let api = &server.admin;
    pod_on(api, 1).await?;
    let unnamed = api.get(&format!("{POD}/log")).await?;
    assert_eq!(unnamed.status, 400);
    assert!(unnamed.text().contains("choose one of: [a b]"), "{}", unnamed.text());
    let unknown = api.get(&format!("{POD}/log?container=c")).await?;
    assert_eq!(unknown.status, 400);
    let unreachable = api.get(&format!("{POD}/log?container=a")).await?;
    assert_eq!((unreachable.status, unreachable.reason().as_str()), (500, "InternalError"));
    assert_eq!(api.get("/api/v1/namespaces/default/pods/q/log").await?.status, 404);
    let read_only = server.read_only.as_deref().context("no read-only token")?;
    let reader = api.with_token(Some(read_only));
    // A WebSocket request is a GET, but it must not count as a read.
    let exec = format!("{POD}/exec?container=a&command=sh");
    assert_eq!(reader.get(&exec).await?.status, 403);
    assert_eq!(reader.post(&exec, &json!({})).await?.status, 403);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_joins_the_connections_of_client_and_node() -> Result<()> {
    let pki = Pki::new()?;
    let server = pki.server("c").await?;
    let answer =
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let (port, mut asked) = node(&pki, answer).await?;
    pod_on(&server.admin, port).await?;
    let mut stream = server.admin.stream().await?;
    let token = server.admin.token.as_deref().unwrap_or_default();
    let request = format!(
        "GET {POD}/exec?container=a&command=echo&command=a+b&stdout=true HTTP/1.1\r\nHost: x\r\n\
         Authorization: Bearer {token}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let head = read_head(&mut stream).await?;
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    let head = asked.recv().await.context("the node received no request")?;
    let path = "c: GET /exec/default/p/a?command=echo&command=a+b&output=true HTTP/1.1\r\n";
    assert!(head.starts_with(path), "{head}");
    assert!(head.to_lowercase().contains("sec-websocket-key"), "{head}");
    stream.write_all(b"ping").await?;
    let mut back = [0; 4];
    stream.read_exact(&mut back).await?;
    assert_eq!(&back, b"ping");
    Ok(())
}

/// The node refuses the certificate of the API server. The user must not get 401, because the user's
/// credentials are not the cause.
#[tokio::test(flavor = "multi_thread")]
async fn a_401_of_a_node_becomes_a_500_with_the_cure() -> Result<()> {
    let pki = Pki::new()?;
    let server = pki.server("c").await?;
    let answer =
        "HTTP/1.1 401 Unauthorized\r\nContent-Length: 22\r\n\r\n{\"message\":\"who are u\"}";
    let (port, _asked) = node(&pki, answer).await?;
    pod_on(&server.admin, port).await?;
    let log = server.admin.get(&format!("{POD}/log?container=a")).await?;
    assert_eq!(log.status, 500, "{}", log.text());
    assert!(log.text().contains("--kubelet-client-certificate"), "{}", log.text());
    assert!(log.text().contains("who are u"), "{}", log.text());
    Ok(())
}

/// The server sends nothing to a node whose certificate `--kubelet-certificate-authority` does not cover.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_another_authority_is_not_asked() -> Result<()> {
    let (ours, theirs) = (Pki::new()?, Pki::new()?);
    let server = ours.server("c").await?;
    let (port, mut asked) = node(&theirs, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi").await?;
    pod_on(&server.admin, port).await?;
    let log = server.admin.get(&format!("{POD}/log?container=a")).await?;
    assert_eq!(log.status, 500, "{}", log.text());
    assert!(log.text().contains("--kubelet-certificate-authority"), "{}", log.text());
    assert!(asked.try_recv().is_err(), "the node received a request");
    Ok(())
}
