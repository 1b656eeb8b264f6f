//! Forwarding: responses are passed on, cached and joined to aliases; unresponsive upstream servers
//! do not delay cluster names.
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
use nearhop_dns::client_location::TrustedForwarders;
use nearhop_dns::options::Options;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UdpSocket;

/// An upstream server that counts its queries.
struct Upstream {
    address: SocketAddr,
    asked: Arc<AtomicUsize>,
    over_tcp: Arc<AtomicUsize>,
}

/// The upstream server's response.
fn respond(request: &Message) -> Message {
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
            let mut reply = respond(&request);
            if reply.to_vec().unwrap().len() > 1232 {
                reply = reply.truncate();
            }
            // A forged response with a wrong ID arrives first.
            let mut forged = respond(&request);
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
            let reply = respond(&Message::from_vec(&buffer).unwrap()).to_vec().unwrap();
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
async fn upstream_responses_are_passed_on_and_cached() {
    let upstream = upstream().await;
    let cluster = start(CLUSTER, &with_upstreams(&[upstream.address]));
    let first = ask(cluster.address, &question("www.example.com.", RecordType::A)).await;
    assert_eq!(texts(&first), ["192.0.2.1", "real.example.com."]);
    assert!(!first.metadata.authoritative);
    assert!(first.metadata.recursion_available);
    assert_eq!(upstream.asked.load(Ordering::SeqCst), 1);
    let mut hits = 0;
    let again = async {
        loop {
            hits += 1;
            let reply = ask(cluster.address, &question("WWW.Example.com.", RecordType::A)).await;
            if reply.answers[0].ttl < 300 {
                return reply;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let again = tokio::time::timeout(common::PATIENCE, again).await.expect("TTLs decrease");
    assert_eq!(upstream.asked.load(Ordering::SeqCst), 1, "answered from the cache");
    assert_eq!(again.answers[0].name.to_ascii(), "WWW.Example.com.");
    let ttls = |message: &Message| message.answers.iter().map(|r| r.ttl).collect::<Vec<_>>();
    assert_eq!(ttls(&first), [300, 20]);
    let later = ttls(&again);
    assert!((290..300).contains(&later[0]) && (10..20).contains(&later[1]), "{later:?}");
    let labels = "{server=\"dns://:53\",type=\"success\",view=\"\",zones=\".\"}";
    cluster.wait_for_metric(&format!("coredns_cache_entries{labels} 1\n")).await;
    cluster.wait_for_metric(&format!("coredns_cache_hits_total{labels} {hits}\n")).await;
    cluster.wait_for_metric("plugin=\"forward\",rcode=\"NOERROR\"").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn negative_responses_are_cached_and_ttl_zero_is_not() {
    let upstream = upstream().await;
    let cluster = start(CLUSTER, &with_upstreams(&[upstream.address]));
    for (name, code, times) in [
        ("missing.example.com.", ResponseCode::NXDomain, 1),
        ("broken.example.com.", ResponseCode::ServFail, 1),
        ("fresh.example.com.", ResponseCode::NoError, 2),
        // Not an address of the cluster.
        ("1.2.0.192.in-addr.arpa.", ResponseCode::NXDomain, 1),
    ] {
        let before = upstream.asked.load(Ordering::SeqCst);
        for _ in 0..2 {
            let answer = ask(cluster.address, &question(name, RecordType::A)).await;
            assert_eq!(answer.metadata.response_code, code, "{name}");
        }
        assert_eq!(upstream.asked.load(Ordering::SeqCst) - before, times, "{name}");
    }
    // Unknown cluster names are not forwarded.
    let before = upstream.asked.load(Ordering::SeqCst);
    let missing =
        ask(cluster.address, &question("x.default.svc.cluster.local.", RecordType::A)).await;
    assert_eq!(missing.metadata.response_code, ResponseCode::NXDomain);
    assert!(missing.metadata.authoritative);
    assert_eq!(upstream.asked.load(Ordering::SeqCst), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn truncated_response_is_fetched_by_tcp() {
    let upstream = upstream().await;
    let cluster = start(CLUSTER, &with_upstreams(&[upstream.address]));
    let asked = question("long.example.com.", RecordType::TXT);
    let short = ask(cluster.address, &asked).await;
    assert!(short.metadata.truncation);
    assert_eq!(upstream.over_tcp.load(Ordering::SeqCst), 1);
    let whole = ask_tcp(cluster.address, &asked).await;
    assert_eq!(whole.answers.len(), 40);
    assert_eq!(upstream.over_tcp.load(Ordering::SeqCst), 1, "answered from the cache");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn truncated_reply_has_a_valid_opt_record() {
    let upstream = upstream().await;
    let cluster = start(CLUSTER, &with_upstreams(&[upstream.address]));
    let cookie = [&[0, 10, 0, 8][..], b"trackers"].concat();
    // From the upstream server, then from the cache.
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
        // Code 0, version 0, no flags; then client and server cookie, if the query had a cookie.
        let length = if options.is_empty() { 0 } else { 28 };
        assert_eq!(opt[..11], [0, 0, 41, 4, 208, 0, 0, 0, 0, 0, length], "{opt:02x?}");
        assert_eq!(opt.len(), 11 + usize::from(length));
        if !options.is_empty() {
            assert_eq!(opt[11..15], [0, 10, 0, 24]);
            assert_eq!(opt[15..23], *b"trackers");
            // The server cookie starts with its version.
            assert_eq!(opt[23..27], [1, 0, 0, 0], "{opt:02x?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zone_transfers_are_not_forwarded() {
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
async fn alias_is_joined_with_the_response_for_its_target() {
    let upstream = upstream().await;
    let cluster = start(CLUSTER, &with_upstreams(&[upstream.address]));
    for name in ["outside.default.svc.cluster.local.", "OutSide.default.svc.Cluster.local."] {
        let answer = ask(cluster.address, &question(name, RecordType::A)).await;
        assert_eq!(answer.metadata.response_code, ResponseCode::NoError);
        assert!(answer.metadata.authoritative);
        assert_eq!(answer.answers[0].name.to_ascii(), name);
        assert_eq!(texts(&answer), ["192.0.2.1", "real.example.com.", "www.example.com."]);
    }
    let other =
        ask_tcp(cluster.address, &question("outside.default.svc.cluster.local.", RecordType::AAAA))
            .await;
    assert_eq!(texts(&other)[0], "192.0.2.1", "the test upstream ignores the type");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unresponsive_upstream_does_not_delay_cluster_names() {
    // A bound socket that is never read: no response and no ICMP error.
    let deaf = UdpSocket::bind(("127.0.0.1", 0)).await.unwrap();
    let cluster = start(CLUSTER, &with_upstreams(&[deaf.local_addr().unwrap()]));
    let asked = question("www.example.com.", RecordType::A);
    let waiting = tokio::spawn({
        let (address, asked) = (cluster.address, asked.clone());
        async move { ask(address, &asked).await }
    });
    // Meanwhile the server answers cluster names.
    let began = Instant::now();
    for _ in 0..100 {
        let found = look_up(cluster.address, "web.default.svc.cluster.local.", RecordType::A).await;
        assert_eq!(found, ["10.96.0.10"]);
    }
    assert!(!waiting.is_finished(), "100 answers took {:?}", began.elapsed());
    assert_eq!(waiting.await.unwrap().metadata.response_code, ResponseCode::ServFail);
    // The server is marked down: each of these would otherwise take two seconds.
    let began = Instant::now();
    for _ in 0..30 {
        let answer = ask(cluster.address, &asked).await;
        assert_eq!(answer.metadata.response_code, ResponseCode::ServFail);
    }
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    let alias = question("outside.default.svc.cluster.local.", RecordType::A);
    let alias = ask(cluster.address, &alias).await;
    assert_eq!(alias.metadata.response_code, ResponseCode::NoError);
    assert!(alias.answers.is_empty(), "the target cannot be resolved");
    assert_eq!(alias.authorities.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn next_upstream_is_asked_when_one_is_down() {
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
async fn identical_queries_are_sent_upstream_once() {
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
async fn options_of_a_trusted_forwarder_locate_the_client() {
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
        let is_trusted = !trusted.is_empty();
        let forwarders = TrustedForwarders { trusted, option: 65001 };
        let cluster = start(CLUSTER, &Options { forwarders, ..options() });
        let reply =
            common::send_udp(cluster.address, &near(option), common::PATIENCE).await.unwrap();
        assert_eq!(texts(&Message::from_vec(&reply).unwrap()), expected);
        let echoed = reply.ends_with(&[0, 8, 0, 7, 0, 1, 24, 24, 10, 244, 1]);
        assert_eq!(echoed, is_trusted && option == subnet, "the reply repeats the subnet");
    }
}
