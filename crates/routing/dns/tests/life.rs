//! The whole life of the server against the embedded API: it answers only after the initial lists,
//! shows changes, and keeps answering without the API server.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use common::{PATIENCE, ask, look_up, options, question};
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use nearhop_apiserver::ApiServer;
use nearhop_dns::metrics::DnsMetrics;
use nearhop_dns::options::Options;
use nearhop_dns::readiness::Readiness;
use nearhop_dns::run::{Deps, run};
use nearhop_runtime::metrics::Metrics;
use nearhop_runtime::shutdown::Shutdown;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

/// A proxy in front of the API server that can be closed.
struct Gate {
    url: String,
    open: watch::Sender<bool>,
}

impl Gate {
    async fn closed(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let open = watch::Sender::new(false);
        let mut state = open.subscribe();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                if !*state.borrow_and_update() {
                    continue;
                }
                let mut state = state.clone();
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(server).await.unwrap();
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                        _ = state.wait_for(|open| !open) => {}
                    }
                });
            }
        });
        Self { url, open }
    }
}

async fn client(server: &ApiServer, url: &str) -> Client {
    let kubeconfig = Kubeconfig::from_yaml(&server.kubeconfig()).unwrap();
    let usual = KubeConfigOptions::default();
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &usual).await.unwrap();
    config.cluster_url = url.parse().unwrap();
    config.default_retry = false;
    Client::try_from(config).unwrap()
}

async fn post(client: &Client, path: &str, object: Value) {
    let body = serde_json::to_vec(&object).unwrap();
    let request = http::Request::post(path).header("Content-Type", "application/json");
    client.request_text(request.body(body).unwrap()).await.unwrap();
}

async fn until(what: &str, done: impl Fn() -> bool) {
    let wait = async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("{what}"));
}

async fn until_resolved(address: SocketAddr, name: &str, expected: &[&str]) {
    let wait = async {
        while look_up(address, name, RecordType::A).await != expected {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("{name}"));
}

fn headless() -> Value {
    json!({
        "metadata": {"name": "db"},
        "spec": {"clusterIP": "None", "ports": [{"name": "pg", "port": 5432}]},
    })
}

fn slice(address: &str) -> Value {
    json!({
        "metadata": {
            "name": format!("db-{}", address.replace('.', "-")),
            "labels": {"kubernetes.io/service-name": "db"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "pg", "port": 5432, "protocol": "TCP"}],
        "endpoints": [{"addresses": [address], "conditions": {"ready": true}, "hostname": "one"}],
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_lists_serves_survives_api_outage_and_stops() {
    let api = ApiServer::start(nearhop_apiserver::Options::default()).await.unwrap();
    let direct = client(&api, &api.url()).await;
    let address: SocketAddr = api.url().trim_start_matches("https://").parse().unwrap();
    let gate = Gate::closed(address).await;
    let readiness = Readiness::new(Duration::from_secs(1));
    let (trigger, shutdown) = Shutdown::manual();
    let (listening, listens_at) = oneshot::channel();
    let metrics = Metrics::new();
    let deps = Deps {
        client: client(&api, &gate.url).await,
        metrics: DnsMetrics::new(&metrics, "dns://:53"),
        readiness: readiness.clone(),
        shutdown,
        on_listening: Box::new(|addresses: &[SocketAddr]| listening.send(addresses[0]).unwrap()),
    };
    let options = Options { lameduck: Duration::from_millis(10), ..options() };
    let running = tokio::spawn(run(options, deps));
    let report = || readiness.report(Instant::now()).err().unwrap_or_default();
    until("the server waits for lists", || report().starts_with("kubernetes: waiting for")).await;
    assert!(report().contains("endpointslices"), "{}", report());
    gate.open.send_replace(true);
    let address = timeout(PATIENCE, listens_at).await.unwrap().unwrap();
    // It listens only after the initial lists, so it knows Services that existed before.
    let name = "kubernetes.default.svc.cluster.local.";
    assert_eq!(look_up(address, name, RecordType::A).await.len(), 1);
    assert_eq!(readiness.report(Instant::now()), Ok(()));
    // NXDOMAIN at first, and answered once the objects exist.
    let name = "one.db.default.svc.cluster.local.";
    let denied = ask(address, &question(name, RecordType::A)).await;
    assert_eq!(denied.metadata.response_code, ResponseCode::NXDomain);
    post(&direct, "/api/v1/namespaces/default/services", headless()).await;
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    post(&direct, slices, slice("10.244.0.9")).await;
    until_resolved(address, name, &["10.244.0.9"]).await;
    // The API server is unreachable: answers continue, and readiness reports it.
    gate.open.send_replace(false);
    until("readiness reports the outage", || report().contains("no services event")).await;
    assert!(report().contains("answers are stale"), "{}", report());
    assert_eq!(look_up(address, name, RecordType::A).await, ["10.244.0.9"]);
    post(&direct, slices, slice("10.244.0.10")).await;
    // After the outage the server catches up.
    gate.open.send_replace(true);
    until_resolved(address, name, &["10.244.0.10", "10.244.0.9"]).await;
    trigger.request();
    timeout(PATIENCE, running).await.unwrap().unwrap().unwrap();
    assert_eq!(report(), "stopping");
    let gone = tokio::net::TcpStream::connect(address).await;
    assert!(gone.is_err(), "the port is closed");
}
