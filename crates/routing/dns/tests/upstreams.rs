//! Which of the other servers are asked: not those that are dead, and nobody is dead for one name
//! that takes long, nor for an answer that nobody can read.
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

/// Another server, and the names that it was asked for, in this order.
struct Upstream {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Upstream {
    /// Says what `reply` makes of a question that it has been asked so many times before.
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

    /// How many questions it was asked, probes aside.
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

/// There is no such name.
fn deny(request: &Message) -> Message {
    let mut reply = Message::new(request.metadata.id, MessageType::Response, OpCode::Query);
    reply.queries = request.queries.clone();
    reply.metadata.response_code = ResponseCode::NXDomain;
    reply
}

fn denied(request: &Message, _before: usize) -> Option<Vec<u8>> {
    Some(deny(request).to_vec().unwrap())
}

/// Nothing for slow names, nor for the first probe.
fn slow(request: &Message, before: usize) -> Option<Vec<u8>> {
    let name = request.queries[0].name().to_ascii();
    if name.starts_with("slow") || (name == "." && before == 0) {
        return None;
    }
    denied(request, before)
}

/// An answer with the promise of a record that is not there.
fn garbled(request: &Message, before: usize) -> Option<Vec<u8>> {
    let mut bytes = denied(request, before)?;
    if request.queries[0].name().to_ascii().starts_with("garbled") {
        bytes[7] = 1;
    }
    Some(bytes)
}

async fn code(cluster: &common::Cluster, name: &str) -> ResponseCode {
    ask(cluster.address, &question(name, RecordType::A)).await.metadata.response_code
}

/// Waits until a server has missed as many probes as a dead one has.
async fn until_buried(cluster: &common::Cluster, server: SocketAddr) {
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
    tokio::time::timeout(common::PATIENCE, wait).await.expect("it is found out");
}

fn with_upstreams(upstreams: &[SocketAddr]) -> Options {
    Options { upstreams: upstreams.to_vec(), error_rate: 0, ..options() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_takes_long_harms_no_other() {
    let upstream = Upstream::start(slow).await;
    let cluster = start(CLUSTER, &with_upstreams(&[upstream.address]));
    for number in 0..2 {
        let name = format!("slow{number}.example.com.");
        assert_eq!(code(&cluster, &name).await, ResponseCode::ServFail);
        let name = format!("other{number}.example.com.");
        assert_eq!(code(&cluster, &name).await, ResponseCode::NXDomain, "it lives");
    }
    assert!(upstream.probes() > 0, "it was suspected");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_that_says_nothing_is_found_out() {
    let (good, mute) = (Upstream::start(denied).await, Upstream::start(|_, _| None).await);
    let cluster = start(CLUSTER, &with_upstreams(&[good.address, mute.address]));
    // Who is asked first is chance.
    for number in 0.. {
        let name = format!("n{number}.example.com.");
        assert_eq!(code(&cluster, &name).await, ResponseCode::NXDomain);
        if mute.questions() > 0 {
            break;
        }
    }
    until_buried(&cluster, mute.address).await;
    let before = mute.questions();
    for number in 0..30 {
        let name = format!("m{number}.example.com.");
        assert_eq!(code(&cluster, &name).await, ResponseCode::NXDomain);
    }
    assert_eq!(mute.questions(), before, "it is left alone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_upstream_is_asked_again_when_it_answers() {
    let socket = UdpSocket::bind(("127.0.0.1", 0)).await.unwrap();
    let address = socket.local_addr().unwrap();
    let cluster = start(CLUSTER, &with_upstreams(&[address]));
    assert_eq!(code(&cluster, "a.example.com.").await, ResponseCode::ServFail);
    until_buried(&cluster, address).await;
    for _ in 0..30 {
        assert_eq!(code(&cluster, "dead.example.com.").await, ResponseCode::ServFail);
    }
    let upstream = Upstream::on(socket, denied);
    let answered = async {
        while code(&cluster, "b.example.com.").await != ResponseCode::NXDomain {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(common::PATIENCE, answered).await.expect("it is asked again");
    let asked = upstream.asked.lock().unwrap().clone();
    assert!(!asked.iter().any(|name| name.starts_with("dead")), "{asked:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_cannot_be_read_fails_one_question() {
    let upstream = Upstream::start(garbled).await;
    let cluster = start(CLUSTER, &with_upstreams(&[upstream.address]));
    for name in ["garbled.example.com.", "Garbled.Example.com."] {
        let before = upstream.questions();
        assert_eq!(code(&cluster, name).await, ResponseCode::ServFail);
        assert_eq!(upstream.questions(), before + 1, "nobody waited for a better one");
    }
    assert_eq!(code(&cluster, "other.example.com.").await, ResponseCode::NXDomain);
    assert_eq!(upstream.probes(), 0, "it is not suspected");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_one_is_asked_where_an_answer_cannot_be_read() {
    let (bad, good) = (Upstream::start(garbled).await, Upstream::start(denied).await);
    let cluster = start(CLUSTER, &with_upstreams(&[bad.address, good.address]));
    for number in 0..10 {
        let name = format!("garbled{number}.example.com.");
        assert_eq!(code(&cluster, &name).await, ResponseCode::NXDomain);
    }
    assert_eq!(bad.probes() + good.probes(), 0, "nobody is suspected");
}
