//! The small HTTP server over real sockets: routes, limits, and addresses that are in use.

use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

use http::StatusCode;
use http::header::{HeaderName, HeaderValue};
use nearhop_runtime::RuntimeError;
use nearhop_runtime::admin;
use nearhop_runtime::health::Health;
use nearhop_runtime::metrics::Metrics;
use nearhop_runtime::server::{Answer, BindFailure, Limits, Route, Server, Setup, Wildcard, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

const LOCAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);
/// Much longer than any step here: a test that reaches it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

fn setup(address: SocketAddr) -> Setup {
    Setup::new("test", address)
}

fn start(routes: Vec<Route>) -> Server {
    serve(setup(LOCAL), routes).expect("a port is free")
}

/// Sends a request and reads the reply to its end.
async fn ask(address: SocketAddr, head: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("the server listens");
    let request = format!("{head}\r\nHost: x\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("the server reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("the reply is text");
    answer
}

fn replies(text: &'static str) -> impl Fn(&nearhop_runtime::server::Ask) -> Answer {
    move |_| Answer::text(StatusCode::OK, text)
}

#[tokio::test]
async fn a_daemon_adds_routes_to_the_admin_port() {
    let mut routes = admin::routes(Metrics::of_process(), Health::new());
    routes.push(Route::at("/proxyMode", replies("nftables")));
    routes.push(Route::at("/configz", |_| Answer::json(StatusCode::OK, "{}")));
    let debug = |ask: nearhop_runtime::server::Ask| async move {
        tokio::task::yield_now().await;
        let code = if ask.bearer.is_some() { StatusCode::OK } else { StatusCode::UNAUTHORIZED };
        let header = HeaderValue::from_static("yes");
        Answer::text(code, ask.path).with(HeaderName::from_static("x-debug"), header)
    };
    routes.push(Route::at_async("/debug/services", debug).and_below());
    let server = start(routes);
    let address = server.address().expect("the server is bound");

    assert!(ask(address, "GET /healthz HTTP/1.1").await.ends_with("\r\n\r\nok"));
    assert!(ask(address, "GET /proxyMode HTTP/1.1").await.ends_with("\r\n\r\nnftables"));
    assert!(ask(address, "GET /metrics HTTP/1.1").await.contains("\nprocess_open_fds "));
    let configz = ask(address, "GET /configz HTTP/1.1").await;
    assert!(configz.contains("content-type: application/json\r\n"), "{configz}");
    let debug = "GET /debug/services/shop/cart HTTP/1.1";
    let answer = ask(address, debug).await;
    assert!(answer.starts_with("HTTP/1.1 401 ") && answer.contains("x-debug: yes\r\n"), "{answer}");
    let answer = ask(address, &format!("{debug}\r\nAuthorization: Bearer t")).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(answer.ends_with("\r\n\r\n/debug/services/shop/cart"), "{answer}");
    let lost = ask(address, "GET /debug HTTP/1.1").await;
    assert!(lost.starts_with("HTTP/1.1 404 ") && lost.contains("/debug/services\n"), "{lost}");
}

#[tokio::test]
async fn a_route_can_serve_every_method_and_path() {
    let server = start(vec![Route::at("/", replies("all")).and_below().any_method()]);
    let address = server.address().expect("the server is bound");
    for head in ["OPTIONS * HTTP/1.1", "OPTIONS / HTTP/1.0", "POST /a/b HTTP/1.1"] {
        let answer = ask(address, head).await;
        assert!(answer.contains(" 200 OK\r\n") && answer.ends_with("\r\n\r\nall"), "{answer}");
    }
}

/// No client times out here: the server must close the oldest connection to accept the last one.
#[tokio::test]
async fn slow_clients_beyond_the_limit_do_not_block_others() {
    let limits = Limits { connections: 4, headers: PATIENCE * 10, life: PATIENCE * 10 };
    let server = serve(Setup { limits, ..setup(LOCAL) }, vec![Route::at("/", replies("in"))]);
    let server = server.expect("a port is free");
    let address = server.address().expect("the server is bound");
    let mut slow = Vec::new();
    for _ in 0..20 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nX-Slow: ").await.unwrap();
        slow.push(stream);
    }
    let answer = timeout(PATIENCE, ask(address, "GET / HTTP/1.1"))
        .await
        .expect("the server answers in time");
    assert!(answer.ends_with("\r\n\r\nin"), "{answer}");
    let ended = timeout(PATIENCE, slow[0].read_to_end(&mut Vec::new())).await;
    assert!(ended.is_ok(), "the server does not close the oldest connection");
}

#[tokio::test]
async fn headers_have_a_time_limit() {
    let limits = Limits { headers: Duration::from_millis(50), ..Limits::default() };
    let server = serve(Setup { limits, ..setup(LOCAL) }, vec![Route::at("/", replies("in"))]);
    let server = server.expect("a port is free");
    let mut stream = TcpStream::connect(server.bound().await).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nX-Slow: ").await.unwrap();
    let ended = timeout(PATIENCE, stream.read_to_end(&mut Vec::new())).await;
    assert!(ended.is_ok(), "the server does not close the slow connection");
}

#[tokio::test]
async fn a_port_in_use_fails_or_is_retried() {
    let other = TcpListener::bind(LOCAL).await.unwrap();
    let address = other.local_addr().unwrap();
    let error = serve(setup(address), Vec::new()).expect_err("the port is in use");
    assert!(matches!(error, RuntimeError::Listen { .. }));
    assert!(error.to_string().contains(&address.to_string()), "{error}");

    let on_failure = BindFailure::Retry(Duration::from_millis(10));
    let patient = Setup { on_failure, ..setup(address) };
    let server = serve(patient, vec![Route::at("/", replies("late"))]).expect("the server retries");
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(server.address(), None, "the port is still in use");
    drop(other);
    assert_eq!(timeout(PATIENCE, server.bound()).await.expect("the port is free"), address);
    assert!(ask(address, "GET / HTTP/1.1").await.ends_with("late"));
}

#[tokio::test]
async fn a_stopped_server_has_released_its_port() {
    let mut server = start(vec![Route::at("/", replies("x"))]);
    let address = server.bound().await;
    for _ in 0..20 {
        // Neither a served nor an open connection keeps the port.
        ask(address, "GET / HTTP/1.1").await;
        let open = TcpStream::connect(address).await.unwrap();
        server.stop().await;
        server =
            serve(setup(address), vec![Route::at("/", replies("x"))]).expect("the port is free");
        drop(open);
    }
}

#[tokio::test]
async fn ipv4_and_ipv6_wildcards_can_be_bound_separately() {
    let any4 = SocketAddr::from(([0, 0, 0, 0], 0));
    let first = serve(setup(any4), Vec::new()).expect("a port is free");
    let port = first.bound().await.port();
    let any6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    let own = Setup { wildcard: Wildcard::OwnFamily, ..setup(any6) };
    let second = match serve(own, Vec::new()) {
        Ok(second) => second,
        Err(RuntimeError::Listen { why, .. }) if why.kind() != std::io::ErrorKind::AddrInUse => {
            return nearhop_skip::skip(&format!("this machine has no IPv6: {why}"));
        }
        Err(error) => panic!("{error}"),
    };
    drop(second);
    let both = serve(setup(any6), Vec::new());
    assert!(both.is_err(), "[::] for both families conflicts with 0.0.0.0");
}
