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
    serve(setup(LOCAL), routes).expect("a free port can be had")
}

/// Sends a request and reads the reply to its end.
async fn ask(address: SocketAddr, head: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let request = format!("{head}\r\nHost: x\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("it answers in text");
    answer
}

fn said(text: &'static str) -> impl Fn(&nearhop_runtime::server::Ask) -> Answer {
    move |_| Answer::text(StatusCode::OK, text)
}

#[tokio::test]
async fn a_daemon_adds_routes_to_the_admin_port() {
    let mut routes = admin::routes(Metrics::of_process(), Health::new());
    routes.push(Route::at("/proxyMode", said("nftables")));
    routes.push(Route::at("/configz", |_| Answer::json(StatusCode::OK, "{}")));
    let debug = |ask: nearhop_runtime::server::Ask| async move {
        tokio::task::yield_now().await;
        let code = if ask.bearer.is_some() { StatusCode::OK } else { StatusCode::UNAUTHORIZED };
        let header = HeaderValue::from_static("yes");
        Answer::text(code, ask.path).with(HeaderName::from_static("x-debug"), header)
    };
    routes.push(Route::at_async("/debug/services", debug).and_below());
    let server = start(routes);
    let address = server.address().expect("it is bound");

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
async fn a_route_may_take_every_method_and_every_path() {
    let server = start(vec![Route::at("/", said("all")).and_below().any_method()]);
    let address = server.address().expect("it is bound");
    for head in ["OPTIONS * HTTP/1.1", "OPTIONS / HTTP/1.0", "POST /a/b HTTP/1.1"] {
        let answer = ask(address, head).await;
        assert!(answer.contains(" 200 OK\r\n") && answer.ends_with("\r\n\r\nall"), "{answer}");
    }
}

/// No client times out here: the server must close the oldest connection to accept the last one.
#[tokio::test]
async fn more_slow_clients_than_connections_keep_nobody_waiting() {
    let limits = Limits { connections: 4, headers: PATIENCE * 10, life: PATIENCE * 10 };
    let server = serve(Setup { limits, ..setup(LOCAL) }, vec![Route::at("/", said("in"))]);
    let server = server.expect("a free port can be had");
    let address = server.address().expect("it is bound");
    let mut slow = Vec::new();
    for _ in 0..20 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nX-Slow: ").await.unwrap();
        slow.push(stream);
    }
    let answer = timeout(PATIENCE, ask(address, "GET / HTTP/1.1")).await.expect("nobody waits");
    assert!(answer.ends_with("\r\n\r\nin"), "{answer}");
    let ended = timeout(PATIENCE, slow[0].read_to_end(&mut Vec::new())).await;
    assert!(ended.is_ok(), "the oldest was given up");
}

#[tokio::test]
async fn headers_have_a_time_limit() {
    let limits = Limits { headers: Duration::from_millis(50), ..Limits::default() };
    let server = serve(Setup { limits, ..setup(LOCAL) }, vec![Route::at("/", said("in"))]);
    let server = server.expect("a free port can be had");
    let mut stream = TcpStream::connect(server.bound().await).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nX-Slow: ").await.unwrap();
    let ended = timeout(PATIENCE, stream.read_to_end(&mut Vec::new())).await;
    assert!(ended.is_ok(), "a slow client keeps its connection");
}

#[tokio::test]
async fn a_taken_address_is_an_error_or_a_matter_of_time() {
    let other = TcpListener::bind(LOCAL).await.unwrap();
    let address = other.local_addr().unwrap();
    let error = serve(setup(address), Vec::new()).expect_err("the port is taken");
    assert!(matches!(error, RuntimeError::Listen { .. }));
    assert!(error.to_string().contains(&address.to_string()), "{error}");

    let on_failure = BindFailure::Retry(Duration::from_millis(10));
    let patient = Setup { on_failure, ..setup(address) };
    let server = serve(patient, vec![Route::at("/", said("late"))]).expect("it waits");
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(server.address(), None, "somebody else has it");
    drop(other);
    assert_eq!(timeout(PATIENCE, server.bound()).await.expect("it is free"), address);
    assert!(ask(address, "GET / HTTP/1.1").await.ends_with("late"));
}

#[tokio::test]
async fn a_stopped_server_has_given_its_port_back() {
    let mut server = start(vec![Route::at("/", said("x"))]);
    let address = server.bound().await;
    for _ in 0..20 {
        // Connections that are served or open do not prevent it.
        ask(address, "GET / HTTP/1.1").await;
        let open = TcpStream::connect(address).await.unwrap();
        server.stop().await;
        server = serve(setup(address), vec![Route::at("/", said("x"))]).expect("it is free");
        drop(open);
    }
}

#[tokio::test]
async fn both_wildcards_can_be_had_where_each_is_for_its_own_family() {
    let any4 = SocketAddr::from(([0, 0, 0, 0], 0));
    let first = serve(setup(any4), Vec::new()).expect("a free port can be had");
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
    assert!(both.is_err(), "it would take IPv4 away from the first");
}
