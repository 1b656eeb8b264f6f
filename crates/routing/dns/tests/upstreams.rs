//! Health of upstream servers: queries skip servers that are down; one slow name or a malformed
//! response does not mark a server down.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{CLUSTER, ask, options, question, start};
use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::RecordType;
use nearhop_dns::options::Options;
use tokio::net::UdpSocket;

/// An upstream server and the names that it was queried for, in order.
struct Upstream {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Upstream {
    /// Replies with the result of `reply`, called with the query and how often it came before.
    async fn start(reply: fn(&Message, usize) -> Option<Vec<u8>>) -> Self {
        Self::on(UdpSocket::bind(("127.0.0.1", 0)).await.unwrap(), reply)
    }

    fn on(socket: UdpSocket, reply: fn(&Message, usize) -> Option<Vec<u8>>) -> Self {
        let (address, asked) = (socket.local_addr().unwrap(), Arc::<Mutex<Vec<String>>>::default());
        let names = asked.clone();
        tokio::spawn(async move {
            let mut buffer = [0; 4096];
            loop {
                let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
                let request = Message::from_vec(&buffer[..length]).unwrap();
                let name = request.queries[0].name().to_ascii();
                let before = times(&names, &name);
                names.lock().unwrap().push(name);
                if let Some(bytes) = reply(&request, before) {
                    socket.send_to(&bytes, from).await.unwrap();
                }
            }
        });
        Self { address, asked }
    }

    /// The number of queries, without probes.
    fn questions(&self) -> usize {
        self.asked.lock().unwrap().iter().filter(|name| *name != ".").count()
    }

    fn probes(&self) -> usize {
        times(&self.asked, ".")
    }
}

fn times(names: &Mutex<Vec<String>>, name: &str) -> usize {
    names.lock().unwrap().iter().filter(|other| *other == name).count()
}

/// NXDOMAIN.
fn deny(request: &Message) -> Message {
    let mut reply = Message::new(request.metadata.id, MessageType::Response, OpCode::Query);
    reply.queries = request.queries.clone();
    reply.metadata.response_code = ResponseCode::NXDomain;
    reply
}

fn denied(request: &Message, _before: usize) -> Option<Vec<u8>> {
    Some(deny(request).to_vec().unwrap())
}

/// No reply for slow names and for the first probe.
fn slow(request: &Message, before: usize) -> Option<Vec<u8>> {
    let name = request.queries[0].name().to_ascii();
    if name.starts_with("slow") || (name == "." && before == 0) {
        return None;
    }
    denied(request, before)
}

/// A response whose header announces a missing record.
fn malformed(request: &Message, before: usize) -> Option<Vec<u8>> {
    let mut bytes = denied(request, before)?;
    if request.queries[0].name().to_ascii().starts_with("malformed") {
        bytes[7] = 1;
    }
    Some(bytes)
}

async fn code(cluster: &common::Cluster, name: &str) -> ResponseCode {
    ask(cluster.address, &question(name, RecordType::A)).await.metadata.response_code
}

/// Waits until a server has missed two probes, which marks it down.
async fn until_down(cluster: &common::Cluster, server: SocketAddr) {
    let name = "coredns_proxy_healthcheck_failures_total";
    let start = format!("{name}{{proxy_name=\"forward\",to=\"{server}\"}} ");
    let missed = || {
        let text = cluster.metrics.encode();
        text.lines().find_map(|line| line.strip_prefix(&start)?.parse::<u32>().ok())
    };
    let wait = async {
        while missed().is_none_or(|missed| missed < 2) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(common::PATIENCE, wait).await.expect("two missed probes");
}

fn with_upstreams(upstreams: &[SocketAddr]) -> Options {
    Options { upstreams: upstreams.to_vec(), error_rate: 0, ..options() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_name_does_not_mark_the_upstream_down() {
    let upstream = Upstream::start(slow).await;
    let cluster = start(CLUSTER, &with_upstreams(&[upstream.address]));
    for number in 0..2 {
        let name = format!("slow{number}.example.com.");
        assert_eq!(code(&cluster, &name).await, ResponseCode::ServFail);
        let name = format!("other{number}.example.com.");
        assert_eq!(code(&cluster, &name).await, ResponseCode::NXDomain, "it is up");
    }
    assert!(upstream.probes() > 0, "it was probed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unresponsive_upstream_is_marked_down() {
    let (good, silent) = (Upstream::start(denied).await, Upstream::start(|_, _| None).await);
    let cluster = start(CLUSTER, &with_upstreams(&[good.address, silent.address]));
    // The first server is random.
    for number in 0.. {
        let name = format!("n{number}.example.com.");
        assert_eq!(code(&cluster, &name).await, ResponseCode::NXDomain);
        if silent.questions() > 0 {
            break;
        }
    }
    until_down(&cluster, silent.address).await;
    let before = silent.questions();
    for number in 0..30 {
        let name = format!("m{number}.example.com.");
        assert_eq!(code(&cluster, &name).await, ResponseCode::NXDomain);
    }
    assert_eq!(silent.questions(), before, "it gets no queries");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upstream_is_used_again_after_it_responds_to_a_probe() {
    let socket = UdpSocket::bind(("127.0.0.1", 0)).await.unwrap();
    let address = socket.local_addr().unwrap();
    let cluster = start(CLUSTER, &with_upstreams(&[address]));
    assert_eq!(code(&cluster, "a.example.com.").await, ResponseCode::ServFail);
    until_down(&cluster, address).await;
    for _ in 0..30 {
        assert_eq!(code(&cluster, "dead.example.com.").await, ResponseCode::ServFail);
    }
    let upstream = Upstream::on(socket, denied);
    let answered = async {
        while code(&cluster, "b.example.com.").await != ResponseCode::NXDomain {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(common::PATIENCE, answered).await.expect("it is used again");
    let asked = upstream.asked.lock().unwrap().clone();
    assert!(!asked.iter().any(|name| name.starts_with("dead")), "{asked:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_response_fails_one_query() {
    let upstream = Upstream::start(malformed).await;
    let cluster = start(CLUSTER, &with_upstreams(&[upstream.address]));
    for name in ["malformed.example.com.", "Malformed.Example.com."] {
        let before = upstream.questions();
        assert_eq!(code(&cluster, name).await, ResponseCode::ServFail);
        assert_eq!(upstream.questions(), before + 1, "the query is not retried");
    }
    assert_eq!(code(&cluster, "other.example.com.").await, ResponseCode::NXDomain);
    assert_eq!(upstream.probes(), 0, "it is not probed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn next_upstream_is_asked_after_a_malformed_response() {
    let (bad, good) = (Upstream::start(malformed).await, Upstream::start(denied).await);
    let cluster = start(CLUSTER, &with_upstreams(&[bad.address, good.address]));
    for number in 0..10 {
        let name = format!("malformed{number}.example.com.");
        assert_eq!(code(&cluster, &name).await, ResponseCode::NXDomain);
    }
    assert_eq!(bad.probes() + good.probes(), 0, "neither is probed");
}
