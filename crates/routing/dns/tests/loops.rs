//! Upstream servers that forward to this server are detected and not used.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{CLUSTER, Cluster, PATIENCE, ask, options, question, start};
use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::RecordType;
use nearhop_core::fixture::Fixture;
use nearhop_core::{Change, ObjectRef, ServiceKey};
use nearhop_dns::options::Options;
use tokio::net::UdpSocket;

type Names = Arc<Mutex<Vec<String>>>;

fn name_of(packet: &[u8]) -> String {
    Message::from_vec(packet).unwrap().queries[0].name().to_ascii()
}

fn has(names: &Names, name: &str) -> bool {
    names.lock().unwrap().iter().any(|other| other == name)
}

/// Queries new names until one gets this response code, with or without a query to the upstream
/// server.
async fn until(cluster: &Cluster, asked: &Names, code: ResponseCode, forwarded: bool) {
    let deadline = Instant::now() + PATIENCE;
    for number in 0.. {
        let name = format!("n{number}-{forwarded}.example.com.");
        let answer = ask(cluster.address, &question(&name, RecordType::A)).await;
        let found = (answer.metadata.response_code, has(asked, &name));
        if found == (code, forwarded) {
            return;
        }
        assert!(Instant::now() < deadline, "{found:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A server that replies NXDOMAIN to everything.
fn deny(socket: UdpSocket) -> Names {
    let names = Names::default();
    let asked = names.clone();
    tokio::spawn(async move {
        let mut buffer = [0; 4096];
        loop {
            let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
            let request = Message::from_vec(&buffer[..length]).unwrap();
            asked.lock().unwrap().push(name_of(&buffer[..length]));
            let mut reply = Message::new(request.metadata.id, MessageType::Response, OpCode::Query);
            reply.queries = request.queries.clone();
            reply.metadata.response_code = ResponseCode::NXDomain;
            socket.send_to(&reply.to_vec().unwrap(), from).await.unwrap();
        }
    });
    names
}

/// The kube-dns Service, as in a Pod's resolv.conf: this server is one of its endpoints.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_service_is_not_used_as_upstream() {
    let (socket, _listener) = common::bind_both().await;
    let upstream = socket.local_addr().unwrap();
    let asked = deny(socket);
    let loop_probe = Duration::from_secs(600);
    let chosen = Options { loop_probe, upstreams: vec![upstream], ..options() };
    let cluster = start(CLUSTER, &chosen);
    until(&cluster, &asked, ResponseCode::NXDomain, true).await;
    let text = format!(
        "namespace default\nnode a address=192.168.0.1\n\
         service kube-dns port=dns:{}->{}/udp cluster-ip=127.0.0.1\n\
         pod dns-0 for=kube-dns on=a ip=127.0.0.1\n",
        upstream.port(),
        cluster.address.port(),
    );
    let world = Fixture::parse(&text).unwrap().world(chosen.settings());
    let key = ServiceKey::new("default", "kube-dns");
    for slice in world.slices(&key) {
        cluster.apply(Change::put((**slice).clone()));
    }
    cluster.apply(Change::put((**world.service(&key).unwrap()).clone()));
    until(&cluster, &asked, ResponseCode::ServFail, false).await;
    // Without the Service the upstream is used again.
    cluster.apply(Change::Gone(ObjectRef::Service(key)));
    until(&cluster, &asked, ResponseCode::NXDomain, true).await;
}

/// A server that forwards every query to this server, as a forwarder or a translated address does.
fn relay(socket: UdpSocket, to: Arc<Mutex<Option<SocketAddr>>>) -> Names {
    let names = Names::default();
    let asked = names.clone();
    let socket = Arc::new(socket);
    tokio::spawn(async move {
        let mut buffer = [0; 4096];
        loop {
            let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
            asked.lock().unwrap().push(name_of(&buffer[..length]));
            let target = *to.lock().unwrap();
            let Some(target) = target else { continue };
            let (packet, socket) = (buffer[..length].to_vec(), socket.clone());
            tokio::spawn(async move {
                let reply = common::send_udp(target, &packet, Duration::from_secs(5)).await;
                if let Some(reply) = reply {
                    socket.send_to(&reply, from).await.unwrap();
                }
            });
        }
    });
    names
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forwarding_loop_is_detected_by_a_probe() {
    let (socket, _listener) = common::bind_both().await;
    let upstream = socket.local_addr().unwrap();
    let to = Arc::new(Mutex::new(None));
    let asked = relay(socket, to.clone());
    let loop_probe = Duration::from_millis(200);
    let cluster = start(CLUSTER, &Options { loop_probe, upstreams: vec![upstream], ..options() });
    *to.lock().unwrap() = Some(cluster.address);
    until(&cluster, &asked, ResponseCode::ServFail, false).await;
}
