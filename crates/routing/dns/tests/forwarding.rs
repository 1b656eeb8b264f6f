//! Names of others: asked upstream, kept, joined to aliases; and what becomes of everybody else
//! when nobody answers.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{CLUSTER, addresses, ask, ask_tcp, look_up, options, question, start, texts};
use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, CNAME, SOA, TXT};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use nearhop_core::Cidr;
use nearhop_dns::options::Options;
use nearhop_dns::place::Forwarders;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UdpSocket;

/// Another server: what it was asked, counted.
struct Upstream {
    address: SocketAddr,
    asked: Arc<AtomicUsize>,
    over_tcp: Arc<AtomicUsize>,
}

/// What the other server says.
fn say(request: &Message) -> Message {
    let mut reply = Message::new(request.metadata.id, MessageType::Response, OpCode::Query);
    reply.metadata.recursion_available = true;
    reply.queries = request.queries.clone();
    let name = request.queries[0].name().clone();
    let record = |ttl, data| Record::from_rdata(name.clone(), ttl, data);
    match name.to_ascii().as_str() {
        "www.example.com." => {
            let to = Name::from_ascii("real.example.com.").unwrap();
            reply.add_answer(record(300, RData::CNAME(CNAME(to.clone()))));
            reply.add_answer(Record::from_rdata(to, 20, RData::A(A::new(192, 0, 2, 1))));
        }
        "fresh.example.com." => {
            reply.add_answer(record(0, RData::A(A::new(192, 0, 2, 2))));
        }
        "long.example.com." => {
            for number in 0..40 {
                let text = format!("{number:0>100}");
                reply.add_answer(record(20, RData::TXT(TXT::new(vec![text]))));
            }
        }
        "broken.example.com." => reply.metadata.response_code = ResponseCode::ServFail,
        _ => {
            reply.metadata.response_code = ResponseCode::NXDomain;
            let zone = Name::from_ascii("example.com.").unwrap();
            let soa = SOA::new(zone.clone(), zone.clone(), 1, 2, 3, 4, 10);
            reply.add_authority(Record::from_rdata(zone, 900, RData::SOA(soa)));
        }
    }
    reply
}

async fn upstream() -> Upstream {
    let (socket, listener) = common::bind_both().await;
    let address = socket.local_addr().unwrap();
    let (asked, over_tcp) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (by_udp, by_tcp) = (asked.clone(), over_tcp.clone());
    tokio::spawn(async move {
        let mut buffer = [0; 4096];
        loop {
            let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
            let request = Message::from_vec(&buffer[..length]).unwrap();
            by_udp.fetch_add(1, Ordering::SeqCst);
            let mut reply = say(&request);
            if reply.to_vec().unwrap().len() > 1232 {
                reply = reply.truncate();
            }
            // Somebody else's answer comes first, and with a wrong number.
            let mut forged = say(&request);
            forged.metadata.id ^= 1;
            socket.send_to(&forged.to_vec().unwrap(), from).await.unwrap();
            socket.send_to(&reply.to_vec().unwrap(), from).await.unwrap();
        }
    });
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            by_tcp.fetch_add(1, Ordering::SeqCst);
            let length = stream.read_u16().await.unwrap();
            let mut buffer = vec![0; length.into()];
            stream.read_exact(&mut buffer).await.unwrap();
            let reply = say(&Message::from_vec(&buffer).unwrap()).to_vec().unwrap();
            stream.write_u16(reply.len() as u16).await.unwrap();
            stream.write_all(&reply).await.unwrap();
        }
    });
    Upstream { address, asked, over_tcp }
}

fn with_upstreams(upstreams: &[SocketAddr]) -> Options {
    Options { upstreams: upstreams.to_vec(), ..options() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_of_others_are_passed_on_and_kept() {
    let upstream = upstream().await;
    let cluster = start(CLUSTER, &with_upstreams(&[upstream.address]));
    let first = ask(cluster.address, &question("www.example.com.", RecordType::A)).await;
    assert_eq!(texts(&first), ["192.0.2.1", "real.example.com."]);
    assert!(!first.metadata.authoritative);
    assert!(first.metadata.recursion_available);
    assert_eq!(upstream.asked.load(Ordering::SeqCst), 1);
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let again = ask(cluster.address, &question("WWW.Example.com.", RecordType::A)).await;
    assert_eq!(upstream.asked.load(Ordering::SeqCst), 1, "it was kept");
    assert_eq!(again.answers[0].name.to_ascii(), "WWW.Example.com.");
    let ttls = |message: &Message| message.answers.iter().map(|r| r.ttl).collect::<Vec<_>>();
    assert_eq!(ttls(&first), [300, 20]);
    let later = ttls(&again);
    assert!((290..300).contains(&later[0]) && (10..20).contains(&later[1]), "{later:?}");
    cluster
        .wait_for_metric(
            "coredns_cache_entries{server=\"dns://:53\",type=\"success\",view=\"\",zones=\".\"} 1",
        )
        .await;
    cluster.wait_for_metric("coredns_cache_hits_total{server=\"dns://:53\",type=\"success\",view=\"\",zones=\".\"} 1").await;
    cluster.wait_for_metric("plugin=\"forward\",rcode=\"NOERROR\"").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denials_are_kept_and_what_must_not_be_is_not() {
    let upstream = upstream().await;
    let cluster = start(CLUSTER, &with_upstreams(&[upstream.address]));
    for (name, code, times) in [
        ("nobody.example.com.", ResponseCode::NXDomain, 1),
        ("broken.example.com.", ResponseCode::ServFail, 1),
        ("fresh.example.com.", ResponseCode::NoError, 2),
        // Not found among the cluster's addresses.
        ("1.2.0.192.in-addr.arpa.", ResponseCode::NXDomain, 1),
    ] {
        let before = upstream.asked.load(Ordering::SeqCst);
        for _ in 0..2 {
            let answer = ask(cluster.address, &question(name, RecordType::A)).await;
            assert_eq!(answer.metadata.response_code, code, "{name}");
        }
        assert_eq!(upstream.asked.load(Ordering::SeqCst) - before, times, "{name}");
    }
    // Unknown names of ours are final.
    let before = upstream.asked.load(Ordering::SeqCst);
    let missing =
        ask(cluster.address, &question("x.default.svc.cluster.local.", RecordType::A)).await;
    assert_eq!(missing.metadata.response_code, ResponseCode::NXDomain);
    assert!(missing.metadata.authoritative);
    assert_eq!(upstream.asked.load(Ordering::SeqCst), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_answer_is_fetched_by_tcp() {
    let upstream = upstream().await;
    let cluster = start(CLUSTER, &with_upstreams(&[upstream.address]));
    let asked = question("long.example.com.", RecordType::TXT);
    let short = ask(cluster.address, &asked).await;
    assert!(short.metadata.truncation);
    assert_eq!(upstream.over_tcp.load(Ordering::SeqCst), 1);
    let whole = ask_tcp(cluster.address, &asked).await;
    assert_eq!(whole.answers.len(), 40);
    assert_eq!(upstream.over_tcp.load(Ordering::SeqCst), 1, "it was kept");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_left_of_a_long_answer_is_sound() {
    let upstream = upstream().await;
    let cluster = start(CLUSTER, &with_upstreams(&[upstream.address]));
    let cookie = [&[0, 10, 0, 8][..], b"trackers"].concat();
    // From the upstream, and then from what is kept.
    for options in [&[][..], &cookie, &[], &cookie] {
        let asked = question("long.example.com.", RecordType::TXT).to_vec().unwrap();
        let mut packet = asked.clone();
        packet[11] = 1;
        packet.extend([0, 0, 41, 4, 208, 0, 0, 0, 0, 0, options.len() as u8]);
        packet.extend(options);
        let reply = common::send_udp(cluster.address, &packet, common::PATIENCE).await.unwrap();
        let read = Message::from_vec(&reply).unwrap();
        assert!(read.metadata.truncation && read.answers.is_empty());
        let opt = &reply[asked.len()..];
        // No code, version 0, no flags; then a cookie, if one was sent, with ours behind it.
        let length = if options.is_empty() { 0 } else { 28 };
        assert_eq!(opt[..11], [0, 0, 41, 4, 208, 0, 0, 0, 0, 0, length], "{opt:02x?}");
        assert_eq!(opt.len(), 11 + usize::from(length));
        if !options.is_empty() {
            assert_eq!(opt[11..15], [0, 10, 0, 24]);
            assert_eq!(opt[15..23], *b"trackers");
            // One that was damaged would not be taken back, and ours begins with its version.
            assert_eq!(opt[23..27], [1, 0, 0, 0], "{opt:02x?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_zone_is_fetched_for_anybody() {
    let upstream = upstream().await;
    let cluster = start(CLUSTER, &with_upstreams(&[upstream.address]));
    for kind in [RecordType::AXFR, RecordType::IXFR] {
        for name in ["example.com.", ".", "outside.default.svc.cluster.local.", "in-addr.arpa."] {
            let answer = ask_tcp(cluster.address, &question(name, kind)).await;
            assert_eq!(answer.metadata.response_code, ResponseCode::Refused, "{name}");
            assert!(!answer.metadata.authoritative, "{name}");
        }
    }
    assert_eq!(upstream.asked.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_alias_is_joined_with_what_it_stands_for() {
    let upstream = upstream().await;
    let cluster = start(CLUSTER, &with_upstreams(&[upstream.address]));
    for name in ["outside.default.svc.cluster.local.", "OutSide.default.svc.Cluster.local."] {
        let answer = ask(cluster.address, &question(name, RecordType::A)).await;
        assert_eq!(answer.metadata.response_code, ResponseCode::NoError);
        assert!(answer.metadata.authoritative);
        assert_eq!(answer.answers[0].name.to_ascii(), name);
        assert_eq!(texts(&answer), ["192.0.2.1", "real.example.com.", "www.example.com."]);
    }
    // Nothing is known of its IPv6 addresses, and it is an alias all the same.
    let other =
        ask_tcp(cluster.address, &question("outside.default.svc.cluster.local.", RecordType::AAAA))
            .await;
    assert_eq!(texts(&other)[0], "192.0.2.1", "this server says the same whatever it is asked");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_upstream_is_said_to_be_dead_and_harms_nobody_else() {
    // Nobody listens there, and nobody says so: a socket that is never read.
    let deaf = UdpSocket::bind(("127.0.0.1", 0)).await.unwrap();
    let cluster = start(CLUSTER, &with_upstreams(&[deaf.local_addr().unwrap()]));
    let asked = question("www.example.com.", RecordType::A);
    let waiting = tokio::spawn({
        let (address, asked) = (cluster.address, asked.clone());
        async move { ask(address, &asked).await }
    });
    // Meanwhile the cluster's names are answered.
    let began = Instant::now();
    for _ in 0..100 {
        let found = look_up(cluster.address, "web.default.svc.cluster.local.", RecordType::A).await;
        assert_eq!(found, ["10.96.0.10"]);
    }
    assert!(!waiting.is_finished(), "100 answers took {:?}", began.elapsed());
    assert_eq!(waiting.await.unwrap().metadata.response_code, ResponseCode::ServFail);
    // Now it is known. Each of these would take two seconds.
    let began = Instant::now();
    for _ in 0..30 {
        let answer = ask(cluster.address, &asked).await;
        assert_eq!(answer.metadata.response_code, ResponseCode::ServFail);
    }
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    let alias = question("outside.default.svc.cluster.local.", RecordType::A);
    let alias = ask(cluster.address, &alias).await;
    assert_eq!(alias.metadata.response_code, ResponseCode::NoError);
    assert!(alias.answers.is_empty(), "nobody knows where it leads");
    assert_eq!(alias.authorities.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_dead_upstream_of_two_is_passed_over() {
    let (living, gone) = (upstream().await, UdpSocket::bind(("127.0.0.1", 0)).await.unwrap());
    let dead = gone.local_addr().unwrap();
    drop(gone);
    let cluster = start(CLUSTER, &with_upstreams(&[dead, living.address]));
    for number in 0..10 {
        let name = format!("n{number}.example.com.");
        let answer = ask(cluster.address, &question(&name, RecordType::A)).await;
        assert_eq!(answer.metadata.response_code, ResponseCode::NXDomain);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_question_is_asked_once() {
    let upstream = upstream().await;
    let cluster = start(CLUSTER, &with_upstreams(&[upstream.address]));
    let mut asking = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let address = cluster.address;
        asking
            .spawn(async move { ask(address, &question("www.example.com.", RecordType::A)).await });
    }
    while let Some(answer) = asking.join_next().await {
        assert_eq!(addresses(&answer.unwrap()).len(), 1);
    }
    assert_eq!(upstream.asked.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trusted_forwarder_says_whom_it_asks_for() {
    let near = |options: &[u8]| {
        let mut packet =
            question("near.default.svc.cluster.local.", RecordType::A).to_vec().unwrap();
        packet[11] = 1;
        packet.extend([0, 0, 41, 4, 208, 0, 0, 0, 0]);
        packet.extend((options.len() as u16).to_be_bytes());
        packet.extend(options);
        packet
    };
    let local = [&65001_u16.to_be_bytes()[..], &[0, 1], b"b"].concat();
    let subnet = [0, 8, 0, 7, 0, 1, 24, 0, 10, 244, 1];
    let trusted = vec![Cidr::parse("127.0.0.1/32").unwrap()];
    for (trusted, option, expected) in [
        (trusted.clone(), &local[..], &["10.244.2.30"][..]),
        (trusted, &subnet[..], &["127.0.0.1"]),
        (Vec::new(), &local[..], &["10.244.2.30", "127.0.0.1"]),
    ] {
        let believed = !trusted.is_empty();
        let forwarders = Forwarders { trusted, option: 65001 };
        let cluster = start(CLUSTER, &Options { forwarders, ..options() });
        let reply =
            common::send_udp(cluster.address, &near(option), common::PATIENCE).await.unwrap();
        assert_eq!(texts(&Message::from_vec(&reply).unwrap()), expected);
        let echoed = reply.ends_with(&[0, 8, 0, 7, 0, 1, 24, 24, 10, 244, 1]);
        assert_eq!(echoed, believed && option == subnet, "what the answer is for is said");
    }
}
