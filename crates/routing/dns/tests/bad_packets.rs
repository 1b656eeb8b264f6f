//! Malformed packets, floods and idle connections.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::net::SocketAddr;
use std::time::Duration;

use common::{CLUSTER, ask, ask_tcp, exchange, options, question, send_udp, start};
use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::RecordType;
use nearhop_dns::options::{Options, TcpOptions};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};

const NAME: &str = "web.default.svc.cluster.local.";

/// How long to wait for a reply that must not come.
const SILENCE: Duration = Duration::from_millis(300);

fn valid() -> Vec<u8> {
    question(NAME, RecordType::A).to_vec().unwrap()
}

/// The valid packet with one octet changed.
fn with(at: usize, octet: u8) -> Vec<u8> {
    let mut packet = valid();
    packet[at] = octet;
    packet
}

/// The valid packet with an OPT record of this version and these options.
fn with_opt(version: u8, options: &[u8]) -> Vec<u8> {
    let mut packet = with(11, 1);
    packet.extend([0, 0, 41, 4, 208, 0, version, 0, 0]);
    packet.extend((options.len() as u16).to_be_bytes());
    packet.extend(options);
    packet
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_malformed_packet_gets_its_response_code() {
    let cluster = start(CLUSTER, &options());
    let end = valid().len();
    let cut = |length: usize| valid()[..length].to_vec();
    let mut pointer = valid()[..12].to_vec();
    pointer.extend([0xc0, 12, 0, 1, 0, 1]);
    let mut forward = valid()[..12].to_vec();
    forward.extend([0xc0, 20, 0, 1, 0, 1, 0, 0]);
    let mut two_opts = with_opt(0, &[]);
    two_opts[11] = 2;
    two_opts.extend([0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
    let mut trailing = valid();
    trailing.push(0);
    let mut long_label = valid()[..12].to_vec();
    long_label.extend([64; 65]);
    long_label.extend([0, 0, 1, 0, 1]);
    let mut long_name = valid()[..12].to_vec();
    (0..5).for_each(|_| long_name.extend([63; 64]));
    long_name.extend([0, 0, 1, 0, 1]);
    for (what, packet, code) in [
        ("two questions", with(5, 2), ResponseCode::FormErr),
        ("no question", with(5, 0), ResponseCode::FormErr),
        ("opcode STATUS", with(2, 0x10), ResponseCode::NotImp),
        ("opcode NOTIFY", with(2, 0x20), ResponseCode::NotImp),
        ("opcode UPDATE", with(2, 0x28), ResponseCode::NotImp),
        ("class CH", with(end - 1, 3), ResponseCode::Refused),
        ("class ANY", with(end - 1, 255), ResponseCode::Refused),
        ("a header only", cut(12), ResponseCode::FormErr),
        ("half a name", cut(20), ResponseCode::FormErr),
        ("no class", cut(end - 2), ResponseCode::FormErr),
        ("a pointer to itself", pointer, ResponseCode::FormErr),
        ("a forward pointer", forward, ResponseCode::FormErr),
        ("a label of 64 octets", long_label, ResponseCode::FormErr),
        ("a name of 320 octets", long_name, ResponseCode::FormErr),
        ("a missing answer record", with(7, 1), ResponseCode::FormErr),
        ("a thousand answers", with(6, 4), ResponseCode::FormErr),
        ("trailing octets", trailing, ResponseCode::FormErr),
        ("two OPT records", two_opts, ResponseCode::FormErr),
        ("a truncated option", with_opt(0, &[0, 10, 0, 9, 1]), ResponseCode::FormErr),
        ("a short cookie", with_opt(0, &[0, 10, 0, 2, 1, 2]), ResponseCode::FormErr),
        ("EDNS version 1", with_opt(1, &[]), ResponseCode::BADVERS),
    ] {
        let reply = send_udp(cluster.address, &packet, common::PATIENCE).await;
        let reply = Message::from_vec(&reply.expect(what)).unwrap();
        // BADVERS and BADSIG have the same number.
        let number = |code: ResponseCode| u16::from(code);
        assert_eq!(number(reply.metadata.response_code), number(code), "{what}");
        assert_eq!(reply.metadata.id, u16::from_be_bytes([packet[0], packet[1]]), "{what}");
        assert!(reply.answers.is_empty(), "{what}");
    }
    for (what, packet) in
        [("a reply", with(2, 0x80)), ("eleven octets", cut(11)), ("nothing", Vec::new())]
    {
        assert_eq!(send_udp(cluster.address, &packet, SILENCE).await, None, "{what}");
    }
    // The server still works.
    let answer = ask(cluster.address, &question(NAME, RecordType::A)).await;
    assert_eq!(answer.answers.len(), 1);
    cluster.wait_for_metric("coredns_panics_total 0").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_cookie_is_repeated() {
    let cluster = start(CLUSTER, &options());
    let cookie = [0, 10, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8];
    let reply = send_udp(cluster.address, &with_opt(0, &cookie), common::PATIENCE).await.unwrap();
    let first = reply[reply.len() - 28..].to_vec();
    assert_eq!(first[..12], [0, 10, 0, 24, 1, 2, 3, 4, 5, 6, 7, 8]);
    // A recent server cookie is valid and repeated.
    let reply = send_udp(cluster.address, &with_opt(0, &first), common::PATIENCE).await.unwrap();
    assert_eq!(reply[reply.len() - 28..], first);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn error_replies_by_udp_are_rate_limited() {
    let options = Options { error_rate: 5, ..options() };
    let cluster = start(CLUSTER, &options);
    let socket = UdpSocket::bind(("127.0.0.1", 0)).await.unwrap();
    socket.connect(cluster.address).await.unwrap();
    for _ in 0..300 {
        socket.send(&with(5, 0)).await.unwrap();
    }
    let mut replies = 0;
    let mut buffer = [0; 512];
    while tokio::time::timeout(SILENCE, socket.recv(&mut buffer)).await.is_ok() {
        replies += 1;
    }
    assert!((5..150).contains(&replies), "{replies} replies to 300 errors at 5 per second");
    // NXDOMAIN is not limited: search lists cause it all the time.
    for _ in 0..300 {
        let missing =
            ask(cluster.address, &question("x.y.svc.cluster.local.", RecordType::A)).await;
        assert_eq!(missing.metadata.response_code, ResponseCode::NXDomain);
    }
    // TCP is not limited.
    let mut stream = TcpStream::connect(cluster.address).await.unwrap();
    for _ in 0..50 {
        let refused =
            exchange(&mut stream, &question("example.com.", RecordType::A)).await.unwrap();
        assert_eq!(refused.metadata.response_code, ResponseCode::Refused, "there is no upstream");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_share_a_tcp_connection() {
    let cluster = start(CLUSTER, &options());
    let mut stream = TcpStream::connect(cluster.address).await.unwrap();
    let questions: Vec<Message> = (0..20).map(|_| question(NAME, RecordType::A)).collect();
    let mut sent = Vec::new();
    for question in &questions {
        let bytes = question.to_vec().unwrap();
        sent.extend((bytes.len() as u16).to_be_bytes());
        sent.extend(bytes);
    }
    stream.write_all(&sent).await.unwrap();
    for question in &questions {
        let length = stream.read_u16().await.unwrap();
        let mut buffer = vec![0; length.into()];
        stream.read_exact(&mut buffer).await.unwrap();
        assert_eq!(Message::from_vec(&buffer).unwrap().metadata.id, question.metadata.id);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_and_slow_tcp_connections_are_closed() {
    let idle = Duration::from_millis(100);
    let tcp = TcpOptions { idle, read: idle, ..TcpOptions::default() };
    let cluster = start(CLUSTER, &Options { tcp, ..options() });
    for sent in [&[][..], &[0], &[0, 200, 1, 2, 3]] {
        let mut stream = TcpStream::connect(cluster.address).await.unwrap();
        stream.write_all(sent).await.unwrap();
        let mut rest = Vec::new();
        let closed = tokio::time::timeout(common::PATIENCE, stream.read_to_end(&mut rest)).await;
        assert!(closed.is_ok(), "{sent:?}");
        assert!(rest.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_idle_tcp_connections_do_not_lock_out_clients() {
    // This process has both ends of each connection.
    let files =
        nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap().1;
    let most = 1000;
    let silent = usize::try_from(files).unwrap().saturating_sub(most + 500).min(10_000);
    assert!(silent > most, "the limit of {files} open files is too low for this test");
    let tcp =
        TcpOptions { connections: most, idle: Duration::from_secs(600), ..TcpOptions::default() };
    let cluster = start(CLUSTER, &Options { tcp, ..options() });
    let mut held = Vec::new();
    for _ in 0..silent {
        held.push(TcpStream::connect(cluster.address).await.unwrap());
        if held.len() % 1000 == 0 {
            check_service(cluster.address).await;
        }
    }
    check_service(cluster.address).await;
    // The oldest connections were closed.
    let mut rest = Vec::new();
    let closed = tokio::time::timeout(common::PATIENCE, held[0].read_to_end(&mut rest)).await;
    assert!(closed.is_ok());
    // The newest ones are open and usable.
    let last = held.last_mut().unwrap();
    let answer = exchange(last, &question(NAME, RecordType::A)).await.unwrap();
    assert_eq!(answer.answers.len(), 1);
}

async fn check_service(address: SocketAddr) {
    let answer = ask_tcp(address, &question(NAME, RecordType::A)).await;
    assert_eq!(answer.answers.len(), 1);
    let answer = ask(address, &question(NAME, RecordType::A)).await;
    assert_eq!(answer.answers.len(), 1);
}
