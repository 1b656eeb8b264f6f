//! The `healthCheckNodePort` listeners of Services over real sockets.

mod common;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use common::{LOCALHOST, PATIENCE, ask};
use nearhop_core::{Family, ServiceKey};
use nearhop_proxy::health::SharedHealth;
use nearhop_proxy::health::services::{ServiceHealth, Wanted};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// On Linux every address in 127.0.0.0/8 is local.
const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

fn key(name: &str) -> ServiceKey {
    ServiceKey::new("shop", name)
}

fn wanted(port: u16, local_endpoints: usize) -> Wanted {
    Wanted { port, listen: vec![LOCALHOST], local_endpoints }
}

fn all<const N: usize>(wanted: [(&str, Wanted); N]) -> BTreeMap<ServiceKey, Wanted> {
    wanted.map(|(name, wanted)| (key(name), wanted)).into()
}

fn health() -> SharedHealth {
    SharedHealth::new(Duration::ZERO)
}

/// The only address of a Service.
fn address(services: &ServiceHealth, name: &str) -> SocketAddr {
    match services.addresses(&key(name))[..] {
        [address] => address,
        ref other => panic!("{name}: {other:?}"),
    }
}

#[tokio::test]
async fn a_listener_answers_on_any_path_and_method() {
    let health = health();
    let mut services = ServiceHealth::new(health.clone());
    assert_eq!(services.sync(all([("cart", wanted(0, 3))])).await, []);
    let cart = address(&services, "cart");
    for line in ["GET /", "GET /healthz", "HEAD /a/b?c", "OPTIONS *", "POST /"] {
        let heard = ask(cart, line).await;
        assert_eq!(heard.code, 200, "{line}");
        assert!(heard.has("content-type: application/json"), "{heard:?}");
        assert!(heard.has("x-content-type-options: nosniff"), "{heard:?}");
        assert!(heard.has("x-load-balancing-endpoint-weight: 3"), "{heard:?}");
        if !line.starts_with("HEAD") {
            let body: Value = serde_json::from_str(&heard.body).expect("JSON");
            let service = json!({"namespace": "shop", "name": "cart"});
            let expected =
                json!({"service": service, "localEndpoints": 3, "serviceProxyHealthy": true});
            assert_eq!(body, expected);
        }
    }

    health.updated(Family::Ipv4);
    health.queued(Family::Ipv4);
    let heard = ask(cart, "GET /").await;
    assert_eq!(heard.code, 503, "the proxy is late");
    let body: Value = serde_json::from_str(&heard.body).expect("JSON");
    assert_eq!((&body["localEndpoints"], &body["serviceProxyHealthy"]), (&3.into(), &false.into()));
}

#[tokio::test]
async fn counts_change_without_closing_the_listener() {
    let mut services = ServiceHealth::new(health());
    services.sync(all([("cart", wanted(0, 0))])).await;
    let cart = address(&services, "cart");
    let heard = ask(cart, "GET /").await;
    assert_eq!(heard.code, 503);
    assert!(heard.has("x-load-balancing-endpoint-weight: 0"), "{heard:?}");

    // A connection opened before the change.
    let mut open = TcpStream::connect(cart).await.unwrap();
    open.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
    services.sync(all([("cart", wanted(0, 2))])).await;
    assert_eq!(address(&services, "cart"), cart, "the listener is not opened again");
    open.write_all(b"Host: x\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    open.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(ask(cart, "GET /").await.code, 200);
}

#[tokio::test]
async fn ports_move_between_services_within_one_sync() {
    let mut services = ServiceHealth::new(health());
    services.sync(all([("a", wanted(0, 1)), ("b", wanted(0, 2))])).await;
    let (first, second) = (address(&services, "a"), address(&services, "b"));
    let mut ports = (first.port(), second.port());
    services.sync(all([("a", wanted(ports.0, 1)), ("b", wanted(ports.1, 2))])).await;
    for _ in 0..10 {
        ports = (ports.1, ports.0);
        let swapped = all([("a", wanted(ports.0, 1)), ("b", wanted(ports.1, 2))]);
        assert_eq!(services.sync(swapped).await, []);
        for (name, weight) in [("a", 1), ("b", 2)] {
            let heard = ask(address(&services, name), "GET /").await;
            assert!(heard.has(&format!("x-load-balancing-endpoint-weight: {weight}")), "{heard:?}");
        }
    }
    // A new Service gets the port of one that is removed in the same sync.
    assert_eq!(services.sync(all([("c", wanted(ports.0, 1))])).await, []);
    assert!(TcpStream::connect((LOCALHOST, ports.1)).await.is_err(), "the port is closed");
    assert_eq!(services.addresses(&key("a")), []);
    assert_eq!(ask(address(&services, "c"), "GET /").await.code, 200);
}

#[tokio::test]
async fn a_failed_listener_is_reported_once_and_does_not_affect_others() {
    let other = TcpListener::bind((LOCALHOST, 0)).await.unwrap();
    let taken = other.local_addr().unwrap().port();
    let mut services = ServiceHealth::new(health());
    let want = || all([("a", wanted(0, 1)), ("b", wanted(taken, 1)), ("c", wanted(0, 1))]);
    let failures = services.sync(want()).await;
    let [failure] = &failures[..] else { panic!("{failures:?}") };
    assert_eq!((&failure.service, failure.port, failure.address), (&key("b"), taken, LOCALHOST));
    let text = failure.to_string();
    assert!(text.starts_with("Service shop/b: ") && text.contains(&taken.to_string()), "{text}");
    assert_eq!(services.failing(), 1);
    for name in ["a", "c"] {
        assert_eq!(ask(address(&services, name), "GET /").await.code, 200);
    }
    assert_eq!(services.sync(want()).await, [], "the failure is already reported");
    drop(other);
    assert_eq!(services.sync(want()).await, []);
    assert_eq!(services.failing(), 0);
    assert_eq!(ask(address(&services, "b"), "GET /").await.code, 200);

    // The Service is removed and returns while the port is in use: a new failure.
    services.sync(BTreeMap::new()).await;
    let other = TcpListener::bind((LOCALHOST, taken)).await.unwrap();
    assert_eq!(services.sync(want()).await.len(), 1);
    drop(other);
}

#[tokio::test]
async fn addresses_are_opened_and_closed_separately() {
    let other = TcpListener::bind((OTHER, 0)).await.unwrap();
    let port = other.local_addr().unwrap().port();
    let mut services = ServiceHealth::new(health());
    let on = |listen: &[IpAddr]| {
        all([("cart", Wanted { port, listen: listen.to_vec(), local_endpoints: 1 })])
    };
    let failures = services.sync(on(&[LOCALHOST, OTHER])).await;
    assert_eq!(failures.iter().map(|failure| failure.address).collect::<Vec<_>>(), [OTHER]);
    assert_eq!(ask(SocketAddr::new(LOCALHOST, port), "GET /").await.code, 200);
    drop(other);
    assert_eq!(services.sync(on(&[OTHER])).await, []);
    assert_eq!(services.addresses(&key("cart")), [SocketAddr::new(OTHER, port)]);
    assert!(TcpStream::connect((LOCALHOST, port)).await.is_err(), "the port is closed");
}

#[tokio::test]
async fn slow_clients_of_one_service_do_not_block_others() {
    let mut services = ServiceHealth::new(health());
    services.sync(all([("a", wanted(0, 1)), ("b", wanted(0, 1))])).await;
    let mut slow = Vec::new();
    for _ in 0..100 {
        let mut stream = TcpStream::connect(address(&services, "a")).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nX-Slow: ").await.unwrap();
        slow.push(stream);
    }
    for name in ["b", "a"] {
        let heard = timeout(PATIENCE, ask(address(&services, name), "GET /")).await;
        assert_eq!(heard.expect("the listener answers in time").code, 200);
    }
    let ended = timeout(PATIENCE, slow[99].read_to_end(&mut Vec::new())).await;
    assert!(ended.is_ok(), "the listener does not close the slow connection");
}
