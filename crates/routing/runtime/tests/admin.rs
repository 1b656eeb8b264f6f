//! The admin port over a real socket.

use std::time::{Duration, Instant};

use nearhop_runtime::RuntimeError;
use nearhop_runtime::admin::routes;
use nearhop_runtime::health::{Health, Purpose};
use nearhop_runtime::metrics::Metrics;
use nearhop_runtime::server::{Server, Setup, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

fn start(health: &Health) -> Server {
    serve(
        Setup::new("admin", ([127, 0, 0, 1], 0).into()),
        routes(Metrics::of_process(), health.clone()),
    )
    .expect("a port is free")
}

/// Sends a request and reads the reply to its end.
async fn ask(admin: &Server, line: &str) -> String {
    let mut stream = TcpStream::connect(admin.address().expect("the server listens"))
        .await
        .expect("the server listens");
    stream
        .write_all(format!("{line} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes())
        .await
        .expect("the server reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("the reply is text");
    answer
}

fn is(answer: &str, code: u16, body: &str) -> bool {
    answer.starts_with(&format!("HTTP/1.1 {code} ")) && answer.ends_with(&format!("\r\n\r\n{body}"))
}

#[tokio::test]
async fn probes_report_the_state_of_the_checks() {
    let health = Health::new();
    let admin = start(&health);
    let lease = health.check("lease", Purpose::Live);
    let synced = health.check("synced", Purpose::Ready);
    lease.set(Ok(()));

    for path in ["/healthz", "/livez"] {
        let answer = ask(&admin, &format!("GET {path}")).await;
        assert!(is(&answer, 200, "ok"), "{answer}");
    }
    let answer = ask(&admin, "GET /readyz").await;
    let listed = "[+]lease ok\n[-]synced failed: not yet\nreadyz check failed\n";
    assert!(is(&answer, 500, listed), "{answer}");

    synced.set(Ok(()));
    let answer = ask(&admin, "GET /readyz").await;
    assert!(is(&answer, 200, "ok"), "{answer}");
    for query in ["verbose", "verbose=true", "a=b&verbose"] {
        let answer = ask(&admin, &format!("GET /readyz?{query}")).await;
        assert!(is(&answer, 200, "[+]lease ok\n[+]synced ok\nreadyz check passed\n"), "{answer}");
    }
    let answer = ask(&admin, "GET /readyz?verbosely").await;
    assert!(is(&answer, 200, "ok"), "{answer}");

    lease.set(Err("lost".to_owned()));
    let answer = ask(&admin, "GET /livez").await;
    assert!(is(&answer, 500, "[-]lease failed: lost\nlivez check failed\n"), "{answer}");
}

#[tokio::test]
async fn metrics_are_prometheus_text() {
    let admin = start(&Health::new());
    let answer = ask(&admin, "GET /metrics").await;
    assert!(answer.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"));
    assert!(answer.contains("\nprocess_resident_memory_bytes "), "{answer}");
}

#[tokio::test]
async fn other_methods_and_paths_are_refused() {
    let admin = start(&Health::new());
    let head = ask(&admin, "HEAD /healthz").await;
    assert!(is(&head, 200, "") && head.contains("content-length: 2\r\n"), "{head}");
    let post = ask(&admin, "POST /healthz").await;
    assert!(post.starts_with("HTTP/1.1 405 ") && post.contains("allow: GET, HEAD\r\n"), "{post}");
    let lost = ask(&admin, "GET /health").await;
    assert!(lost.starts_with("HTTP/1.1 404 ") && lost.contains("/readyz\n"), "{lost}");
}

#[tokio::test]
async fn slow_and_broken_clients_do_not_block_others() {
    let admin = start(&Health::new());
    let mut slow = Vec::new();
    for _ in 0..100 {
        let mut stream =
            TcpStream::connect(admin.address().expect("the server listens")).await.unwrap();
        stream.write_all(b"GET /healthz HTTP/1.1\r\nX-Slow: ").await.unwrap();
        slow.push(stream);
    }
    for _ in 0..20 {
        let mut stream =
            TcpStream::connect(admin.address().expect("the server listens")).await.unwrap();
        stream.write_all(b"\x16\x03\x01\x02\x00\x01\x00 not HTTP\r\n\r\n").await.unwrap();
    }
    let asked = Instant::now();
    let answer = ask(&admin, "GET /healthz").await;
    assert!(is(&answer, 200, "ok"), "{answer}");
    assert!(
        asked.elapsed() < Duration::from_secs(4),
        "the server answers before it closes slow connections"
    );

    // The server closes slow connections after its time limit.
    let mut rest = Vec::new();
    let ended = slow[0].read_to_end(&mut rest);
    let ended = tokio::time::timeout(Duration::from_secs(20), ended).await;
    assert!(ended.is_ok(), "the server does not close the slow connection");
}

#[tokio::test]
async fn a_dropped_server_stops_and_a_port_in_use_is_named() {
    let admin = start(&Health::new());
    let address = admin.address().expect("the server listens");
    let taken = serve(Setup::new("admin", address), routes(Metrics::new(), Health::new()));
    let error = taken.expect_err("the port is in use");
    assert!(matches!(error, RuntimeError::Listen { .. }));
    assert!(error.to_string().contains(&address.to_string()), "{error}");
    drop(admin);
    let mut refused = false;
    for _ in 0..50 {
        refused = TcpStream::connect(address).await.is_err();
        if refused {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(refused, "the dropped server still listens");
}
