//! TCP connections with more than one query: their limits, and that clients can always separate
//! replies.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::time::Duration;

use common::{CLUSTER, PATIENCE, addresses, options, question, start};
use hickory_proto::op::{Message, MessageType, OpCode};
use hickory_proto::rr::rdata::TXT;
use hickory_proto::rr::{RData, Record, RecordType};
use nearhop_dns::options::{Options, TcpOptions};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

fn framed(message: &[u8]) -> Vec<u8> {
    [&(message.len() as u16).to_be_bytes(), message].concat()
}

/// A query of this size.
fn padded(size: usize) -> Vec<u8> {
    let mut packet = question("web.default.svc.cluster.local.", RecordType::A).to_vec().unwrap();
    packet[11] = 1;
    let padding = size - packet.len() - 15;
    packet.extend([0, 0, 41, 4, 208, 0, 0, 0, 0]);
    packet.extend((padding as u16 + 4).to_be_bytes());
    packet.extend([0, 12]);
    packet.extend((padding as u16).to_be_bytes());
    packet.resize(size, 0);
    packet
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn oversized_query_closes_the_connection_at_once() {
    // A server that waits for the query does so for longer than this test.
    let tcp = TcpOptions { read: PATIENCE * 10, ..TcpOptions::default() };
    let cluster = start(CLUSTER, &Options { tcp, ..options() });
    let mut stream = TcpStream::connect(cluster.address).await.unwrap();
    stream.write_all(&framed(&padded(4096))).await.unwrap();
    let length = timeout(PATIENCE, stream.read_u16()).await.unwrap().unwrap();
    let mut reply = vec![0; length.into()];
    stream.read_exact(&mut reply).await.unwrap();
    assert_eq!(addresses(&Message::from_vec(&reply).unwrap()).len(), 1);
    stream.write_all(&4097_u16.to_be_bytes()).await.unwrap();
    let end = timeout(PATIENCE, stream.read(&mut reply)).await.expect("the connection is closed");
    assert_eq!(end.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_connections_are_removed() {
    let cluster = start(CLUSTER, &options());
    for _ in 0..50 {
        let mut coming = tokio::task::JoinSet::new();
        for _ in 0..40 {
            coming.spawn(TcpStream::connect(cluster.address));
        }
        while coming.join_next().await.is_some() {}
    }
    // Including those that were closed before they were accepted.
    cluster.wait_for_metric("nearhop_dns_tcp_connections 0\n").await;
}

/// An upstream server with long responses by TCP that must not be cached.
async fn upstream() -> std::net::SocketAddr {
    let (socket, listener) = common::bind_both().await;
    let address = socket.local_addr().unwrap();
    let respond = |bytes: &[u8]| {
        let request = Message::from_vec(bytes).unwrap();
        let mut reply = Message::new(request.metadata.id, MessageType::Response, OpCode::Query);
        reply.queries = request.queries.clone();
        let name = request.queries[0].name().clone();
        let record = Record::from_rdata(name, 0, RData::TXT(TXT::new(vec!["x".repeat(200)])));
        reply.answers = vec![record; 250];
        reply
    };
    tokio::spawn(async move {
        let mut buffer = [0; 4096];
        loop {
            let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
            let reply = respond(&buffer[..length]).truncate().to_vec().unwrap();
            socket.send_to(&reply, from).await.unwrap();
        }
    });
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let length = stream.read_u16().await.unwrap();
            let mut buffer = vec![0; length.into()];
            stream.read_exact(&mut buffer).await.unwrap();
            stream.write_all(&framed(&respond(&buffer).to_vec().unwrap())).await.unwrap();
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_ends_at_a_reply_that_the_client_does_not_receive() {
    /// Their replies exceed the socket buffers.
    const QUERIES: usize = 350;
    let tcp = TcpOptions { write: Duration::from_millis(100), ..TcpOptions::default() };
    let upstreams = vec![upstream().await];
    let cluster = start(CLUSTER, &Options { tcp, upstreams, ..options() });
    let stream = TcpStream::connect(cluster.address).await.unwrap();
    cluster.wait_for_metric("nearhop_dns_tcp_connections 1\n").await;
    let (mut reader, mut writer) = stream.into_split();
    let query = framed(&question("long.example.com.", RecordType::TXT).to_vec().unwrap());
    writer.write_all(&query.repeat(QUERIES)).await.unwrap();
    // The client reads nothing until the server has given up.
    cluster.wait_for_metric("nearhop_dns_tcp_connections 0\n").await;
    let read_all = async {
        let mut whole = 0;
        while let Ok(length) = reader.read_u16().await {
            let mut reply = vec![0; length.into()];
            if reader.read_exact(&mut reply).await.is_err() {
                break;
            }
            let reply = Message::from_vec(&reply)
                .unwrap_or_else(|error| panic!("{error} after {whole} whole replies"));
            assert_eq!(reply.queries[0].name().to_ascii(), "long.example.com.");
            whole += 1;
        }
        whole
    };
    let whole = timeout(PATIENCE, read_all).await.expect("the connection is closed");
    assert!(whole < QUERIES, "some replies were not sent");
}
