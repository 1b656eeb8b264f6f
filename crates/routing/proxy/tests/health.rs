//! The proxy's own health port over a real socket.

mod common;

use std::net::SocketAddr;
use std::time::Duration;

use common::{LOCALHOST, PATIENCE, ask};
use nearhop_core::Family;
use nearhop_proxy::health::serve::{BindFailure, serve};
use nearhop_proxy::health::{Eligibility, SharedHealth};
use nearhop_proxy::metrics::ProxyMetrics;
use nearhop_runtime::metrics::Metrics;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::time::timeout;

fn local() -> SocketAddr {
    SocketAddr::new(LOCALHOST, 0)
}

#[tokio::test]
async fn healthz_and_livez_report_and_count() {
    let registry = Metrics::new();
    let metrics = ProxyMetrics::new(&registry, &[Family::Ipv4]);
    // Every pending change is late at once.
    let health = SharedHealth::new(Duration::ZERO);
    let server = serve(local(), BindFailure::Fatal, &health, &metrics).expect("a port is free");
    let address = server.address().expect("the server is bound");

    let unknown = ask(address, "GET /healthz").await;
    assert_eq!(unknown.code, 503, "{unknown:?}");
    assert!(unknown.has("content-type: application/json"), "{unknown:?}");
    assert!(unknown.has("x-content-type-options: nosniff"), "{unknown:?}");
    assert_eq!(ask(address, "GET /livez").await.code, 200);

    health.node(Eligibility::Eligible);
    health.updated(Family::Ipv4);
    let healthy = ask(address, "OPTIONS /healthz?a=b").await;
    let body: Value = serde_json::from_str(&healthy.body).expect("JSON");
    assert_eq!(
        (healthy.code, &body["healthy"], &body["nodeEligible"]),
        (200, &true.into(), &true.into())
    );
    assert_eq!(body["lastUpdated"], body["currentTime"]);
    assert_eq!(body["status"]["IPv4"]["healthy"], true);

    health.queued(Family::Ipv4);
    let late = ask(address, "GET /livez").await;
    let body: Value = serde_json::from_str(&late.body).expect("JSON");
    assert_eq!((late.code, &body["healthy"], body.get("nodeEligible")), (503, &false.into(), None));
    assert_eq!(body["lastUpdated"], body["status"]["IPv4"]["lastUpdated"]);
    assert_eq!(ask(address, "GET /").await.code, 404);

    let text = registry.encode();
    for line in [
        "kubeproxy_proxy_healthz_total{code=\"200\"} 1\n",
        "kubeproxy_proxy_healthz_total{code=\"503\"} 1\n",
        "kubeproxy_proxy_livez_total{code=\"200\"} 1\n",
        "kubeproxy_proxy_livez_total{code=\"503\"} 1\n",
    ] {
        assert!(text.contains(line), "{line} in:\n{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_port_in_use_fails_or_is_retried_every_five_seconds() {
    let metrics = ProxyMetrics::new(&Metrics::new(), &[]);
    let health = SharedHealth::new(Duration::from_secs(30));
    let other = TcpListener::bind(local()).await.unwrap();
    let address = other.local_addr().unwrap();

    let error =
        serve(address, BindFailure::Fatal, &health, &metrics).expect_err("the port is in use");
    let error = error.to_string();
    assert!(error.contains(&address.to_string()) && error.contains("another address"), "{error}");

    let server = serve(address, BindFailure::Retry, &health, &metrics).expect("the server retries");
    // The test clock advances only when all tasks wait for it.
    let moment = tokio::time::Instant::now();
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert_eq!(server.address(), None);
    drop(other);
    timeout(PATIENCE, server.bound()).await.expect("the port is free");
    assert_eq!(moment.elapsed().as_secs(), 15);
}
