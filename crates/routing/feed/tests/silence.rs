//! A network that drops packets without an error: the client detects a lost connection and keeps a
//! connection without traffic. The sockets are in separate network namespaces.

mod support;

use nearhop_core::Kind;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kube::Client;
use nearhop_feed::{Feed, Options, Selectors};
use nearhop_net::{Namespace, link, sandbox};
use nearhop_runtime::client::{ClientOptions, connect};
use support::scripted::{end, line, pod};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

const NEAR: &str = "10.99.0.1";
const FAR: &str = "10.99.0.2";

/// Time limit for detecting a lost connection. `SLACK` allows for a slow machine.
const GOAL: Duration = Duration::from_secs(30);
const SLACK: Duration = Duration::from_secs(10);

/// A server that sends nothing after the list of a watch, and does not answer other requests.
struct IdleServer {
    address: SocketAddr,
    watches: Arc<AtomicUsize>,
}

impl IdleServer {
    fn start(listener: std::net::TcpListener) -> Self {
        listener.set_nonblocking(true).expect("the sandbox works");
        let listener = TcpListener::from_std(listener).expect("the sandbox works");
        let address = listener.local_addr().expect("the sandbox works");
        let watches = Arc::new(AtomicUsize::new(0));
        let count = watches.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, count.clone()));
            }
        });
        Self { address, watches }
    }

    async fn client(&self, directory: &tempfile::TempDir) -> Client {
        let file = directory.path().join(self.address.to_string());
        let text = format!(
            "{{apiVersion: v1, kind: Config, current-context: c, users: [], \
              clusters: [{{name: c, cluster: {{server: 'http://{}'}}}}], \
              contexts: [{{name: c, context: {{cluster: c, user: ''}}}}]}}",
            self.address
        );
        std::fs::write(&file, text).expect("the sandbox works");
        let options = ClientOptions { kubeconfig: Some(file), ..ClientOptions::default() };
        connect(&options, None).await.expect("the sandbox works")
    }
}

async fn serve(mut stream: TcpStream, watches: Arc<AtomicUsize>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    if head.windows(10).any(|part| part == b"watch=true") {
        watches.fetch_add(1, Ordering::Relaxed);
        let text = line("ADDED", &pod("pod-0", 1)) + &end(5);
        let answer = format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{text}\r\n",
            text.len()
        );
        stream.write_all(answer.as_bytes()).await.expect("the sandbox works");
    }
    let _until_the_client_disconnects = stream.read_u8().await;
}

fn watch_pods(client: &Client) -> Feed {
    let watches = BTreeMap::from([(Kind::Pod, Selectors::default())]);
    let options = Options { watches, ..Options::default() };
    let (feed, mut events) = Feed::start(client.clone(), options);
    tokio::spawn(async move { while events.recv().await.is_some() {} });
    feed
}

async fn until(what: &str, limit: Duration, done: impl Fn() -> bool) {
    let reached = async {
        while !done() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(limit, reached).await.unwrap_or_else(|_| panic!("not within {limit:?}: {what}"));
}

#[test]
fn a_lost_connection_is_detected_and_an_idle_one_is_kept() {
    let name = "a_lost_connection_is_detected_and_an_idle_one_is_kept";
    sandbox::run(name, || {
        let (near, far) = (
            Namespace::current().expect("the sandbox works"),
            Namespace::new("far").expect("the sandbox works"),
        );
        link::veth(&near, "near0", &far, "far0").expect("the sandbox works");
        for (namespace, device, own, there, other) in [
            (&near, "near0", NEAR, &far, ("far0", FAR)),
            (&far, "far0", FAR, &near, ("near0", NEAR)),
        ] {
            let own: IpAddr = own.parse().expect("the sandbox works");
            link::add_address(
                namespace,
                device,
                ipnet::IpNet::new(own, 24).expect("the sandbox works"),
            )
            .expect("the sandbox works");
            let mac = link::mac(there, other.0).expect("the sandbox works");
            link::add_neighbour(
                namespace,
                device,
                other.1.parse().expect("the sandbox works"),
                mac,
            )
            .expect("the sandbox works");
        }
        let there = far.run(|| std::net::TcpListener::bind((FAR, 0)).expect("the sandbox works"));
        let here = std::net::TcpListener::bind((NEAR, 0)).expect("the sandbox works");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("the sandbox works");
        runtime.block_on(lose_connection(&far, here, there));
    });
}

async fn lose_connection(
    far: &Namespace,
    here: std::net::TcpListener,
    there: std::net::TcpListener,
) {
    let directory = tempfile::tempdir().expect("the sandbox works");
    let (lost, kept) = (IdleServer::start(there), IdleServer::start(here));
    let client = lost.client(&directory).await;
    let feed = watch_pods(&client);
    let idle_feed = watch_pods(&kept.client(&directory).await);
    let write = tokio::spawn(async move {
        let request = http::Request::post("/api/v1/namespaces/a/pods").body(b"{}".to_vec());
        client.request_text(request.expect("the sandbox works")).await
    });
    for feed in [&feed, &idle_feed] {
        until("the first list", 2 * GOAL, || feed.status()[0].lists == 1).await;
    }
    sleep(Duration::from_secs(1)).await;

    let began = Instant::now();
    link::set_down(far, "far0").expect("the sandbox works");
    until("the watch is lost", GOAL + SLACK, || feed.status()[0].error.is_some()).await;
    let answer = timeout((GOAL + SLACK).saturating_sub(began.elapsed()), write).await;
    answer
        .expect("the write fails in time")
        .expect("the sandbox works")
        .expect_err("the write has no reply");

    // The other connection had no traffic for the same time.
    assert_eq!(idle_feed.status()[0].error, None);
    assert_eq!(kept.watches.load(Ordering::Relaxed), 1, "the client restarted an idle watch");

    link::set_up(far, "far0").expect("the sandbox works");
    until("the watch is resumed", 2 * GOAL, || lost.watches.load(Ordering::Relaxed) == 2).await;
    until("the watch recovers", GOAL, || feed.status()[0].error.is_none()).await;
}
