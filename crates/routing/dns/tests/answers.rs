//! Every record type over real sockets, decoded by hickory-proto.

mod common;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use common::{CLUSTER, ask, ask_tcp, long_question, look_up, options, question, start, texts};
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use nearhop_core::labels::well_known;
use nearhop_core::routing::SliceRouting;
use nearhop_core::{Change, Name, ObjectRef};
use nearhop_dns::options::{Listen, Options};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_record_type_is_answered() {
    let cluster = start(CLUSTER, &options());
    for (name, kind, expected) in [
        ("web.default.svc.cluster.local.", RecordType::A, &["10.96.0.10"][..]),
        ("db.data.svc.cluster.local.", RecordType::A, &["10.244.1.20", "10.244.2.20"]),
        ("db-1.db.data.svc.cluster.local.", RecordType::A, &["10.244.2.20"]),
        (
            "_pg._tcp.db.data.svc.cluster.local.",
            RecordType::SRV,
            &[
                "0 50 5432 db-0.db.data.svc.cluster.local.",
                "0 50 5432 db-1.db.data.svc.cluster.local.",
            ],
        ),
        (
            "_http._tcp.web.default.svc.cluster.local.",
            RecordType::SRV,
            &["0 100 80 web.default.svc.cluster.local."],
        ),
        ("10.0.96.10.in-addr.arpa.", RecordType::PTR, &["web.default.svc.cluster.local."]),
        ("20.1.244.10.in-addr.arpa.", RecordType::PTR, &["db-0.db.data.svc.cluster.local."]),
        ("outside.default.svc.cluster.local.", RecordType::CNAME, &["www.example.com."]),
        ("10-1-2-3.default.pod.cluster.local.", RecordType::A, &["10.1.2.3"]),
        ("dns-version.cluster.local.", RecordType::TXT, &["1.1.0"]),
        ("cluster.local.", RecordType::NS, &["ns.dns.cluster.local."]),
        ("ns.dns.cluster.local.", RecordType::A, &["10.244.1.53"]),
    ] {
        assert_eq!(look_up(cluster.address, name, kind).await, expected, "{name} {kind}");
    }
    cluster.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_and_negative_answers_follow_the_rfcs() {
    let cluster = start(CLUSTER, &options());
    let found =
        ask(cluster.address, &question("web.default.svc.cluster.local.", RecordType::A)).await;
    assert!(found.metadata.authoritative);
    assert!(!found.metadata.recursion_available);
    assert_eq!(found.answers[0].ttl, 5);
    let empty =
        ask(cluster.address, &question("web.default.svc.cluster.local.", RecordType::AAAA)).await;
    assert_eq!(empty.metadata.response_code, ResponseCode::NoError);
    assert!(empty.answers.is_empty());
    assert_eq!(empty.authorities[0].record_type(), RecordType::SOA);
    let missing =
        ask(cluster.address, &question("missing.default.svc.cluster.local.", RecordType::A)).await;
    assert_eq!(missing.metadata.response_code, ResponseCode::NXDomain);
    assert_eq!(missing.authorities.len(), 1);
    let soa = &missing.authorities[0];
    assert_eq!(soa.name.to_ascii(), "cluster.local.");
    assert_eq!(
        soa.data.to_string(),
        "ns.dns.cluster.local. hostmaster.cluster.local. 1700000000 7200 1800 86400 5"
    );
    let transfer = ask(cluster.address, &question("cluster.local.", RecordType::AXFR)).await;
    assert_eq!(transfer.metadata.response_code, ResponseCode::Refused);
    assert!(!transfer.metadata.authoritative, "a refusal is not authoritative");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_keep_the_case_of_the_question() {
    let cluster = start(CLUSTER, &options());
    let asked = question("_PG._tcp.Db.DATA.svc.Cluster.LOCAL.", RecordType::SRV);
    let answer = ask(cluster.address, &asked).await;
    assert_eq!(answer.answers[0].name.to_ascii(), "_PG._tcp.Db.DATA.svc.Cluster.LOCAL.");
    assert_eq!(texts(&answer)[0], "0 50 5432 db-0.db.data.svc.Cluster.LOCAL.");
    assert_eq!(answer.additionals.len(), 2);
    let owner = answer.additionals[0].name.to_ascii();
    assert!(owner.ends_with(".db.data.svc.Cluster.LOCAL."), "{owner}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn udp_answers_are_truncated_and_tcp_answers_complete() {
    let cluster = start(CLUSTER, &options());
    let name = "many.default.svc.cluster.local.";
    let short = ask(cluster.address, &question(name, RecordType::A)).await;
    assert!(short.metadata.truncation);
    // 12 octets for the header, 36 for the question, 16 for each record.
    assert_eq!(short.answers.len(), (512 - 12 - 36) / 16);
    let longer = ask(cluster.address, &long_question(name, RecordType::A, 4096)).await;
    assert!(!longer.metadata.truncation, "60 records fit into 1232 octets");
    assert_eq!(longer.answers.len(), 60);
    let edns = longer.edns.as_ref().unwrap();
    assert_eq!((edns.version(), edns.max_payload()), (0, 1232));
    let tiny = ask(cluster.address, &long_question(name, RecordType::A, 10)).await;
    assert_eq!(tiny.answers.len(), (512 - 11 - 12 - 36) / 16, "at least 512 octets");
    let all = ask_tcp(cluster.address, &question(name, RecordType::A)).await;
    assert!(!all.metadata.truncation);
    assert_eq!(all.answers.len(), 60);
    let ports = ask_tcp(cluster.address, &question(name, RecordType::SRV)).await;
    assert_eq!((ports.answers.len(), ports.additionals.len()), (60, 60));
    let cut = ask(cluster.address, &long_question(name, RecordType::SRV, 1232)).await;
    assert!(cut.metadata.truncation, "records of the answer are missing");
    assert!(cut.additionals.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_additional_records_do_not_truncate() {
    // 18 SRV records fit into a datagram, their addresses do not.
    let few = CLUSTER.replace("pods many x60", "pods many x18");
    let cluster = start(&few, &options());
    let name = "many.default.svc.cluster.local.";
    let answer = ask(cluster.address, &long_question(name, RecordType::SRV, 1232)).await;
    assert_eq!(answer.answers.len(), 18);
    assert!(answer.additionals.len() < 18);
    assert!(!answer.metadata.truncation, "RFC 2181, section 9");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn next_answer_shows_a_change() {
    let cluster = start(CLUSTER, &options());
    let name = "db-1.db.data.svc.cluster.local.";
    assert_eq!(look_up(cluster.address, name, RecordType::A).await.len(), 1);
    let slice = {
        let state = cluster.shared.read();
        let key = nearhop_core::ServiceKey::new("data", "db");
        let found = state.world.slices(&key).next().expect("a slice").clone();
        (*found).clone()
    };
    cluster.apply(Change::Gone(ObjectRef::Slice(slice.namespace.clone(), slice.name.clone())));
    let gone = ask(cluster.address, &question(name, RecordType::A)).await;
    assert_eq!(gone.metadata.response_code, ResponseCode::NXDomain);
    let soa = gone.authorities[0].data.to_string();
    assert!(soa.contains(" 1700000001 "), "the serial is the time of the change: {soa}");
    // Negative answers are not cached either.
    cluster.apply(Change::put(slice));
    assert_eq!(look_up(cluster.address, name, RecordType::A).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_in_two_zones_get_their_own_answers() {
    // The client's range 127.0.0.0/8 moves from one node to the other.
    let near = "near.default.svc.cluster.local.";
    let cluster = start(CLUSTER, &options());
    assert_eq!(look_up(cluster.address, near, RecordType::A).await.len(), 2, "location unknown");
    for (node, expected) in [("a", "127.0.0.1"), ("b", "10.244.2.30"), ("a", "127.0.0.1")] {
        for name in ["a", "b"] {
            let known = cluster.shared.read().world.node(name).expect("the node exists").clone();
            let mut changed = (*known).clone();
            changed.pod_cidrs.clear();
            if name == node {
                changed.pod_cidrs.push(nearhop_core::Cidr::parse("127.0.0.0/8").unwrap());
            }
            cluster.apply(Change::put(changed));
        }
        assert_eq!(look_up(cluster.address, near, RecordType::A).await, [expected]);
    }
    cluster.wait_for_metric("nearhop_dns_answers_total{located=\"pod-cidr\",tier=\"key\"} 3").await;
    cluster.apply(Change::Gone(ObjectRef::Node(Name::from("a"))));
}

/// `--mode=labelled`: the in-tree controller writes slices for the same Service, without hints.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slices_of_nearhop_take_precedence_over_in_tree_slices() {
    let near = "near.default.svc.cluster.local.";
    let cluster = start(CLUSTER, &options());
    let key = nearhop_core::ServiceKey::new("default", "near");
    let planned = cluster.shared.read().world.slices(&key).next().expect("a slice").clone();
    let labelled = |manager: &str| {
        let labels = [(well_known::SERVICE_NAME, "near"), (well_known::MANAGED_BY, manager)];
        labels.into_iter().collect()
    };
    let mut in_tree = (*planned).clone();
    in_tree.labels = labelled(well_known::IN_TREE_CONTROLLER);
    in_tree.routing = SliceRouting::Absent;
    in_tree.endpoints.iter_mut().for_each(|endpoint| endpoint.hints = None);
    let mut nearhops = (*planned).clone();
    nearhops.name = Name::from("near-nearhop");
    nearhops.labels = labelled(well_known::NEARHOP_CONTROLLER);
    let here = nearhop_core::Cidr::parse("127.0.0.0/8").unwrap();
    let node = cluster.shared.read().world.node("a").expect("the node exists").clone();
    let node = nearhop_core::model::Node { pod_cidrs: vec![here], ..(*node).clone() };
    cluster.apply(Change::put(node));
    cluster.apply(Change::put(in_tree));
    let all = look_up(cluster.address, near, RecordType::A).await;
    assert_eq!(all, ["10.244.2.30", "127.0.0.1"], "nearhop has written no slices yet");
    cluster.apply(Change::put(nearhops));
    assert_eq!(look_up(cluster.address, near, RecordType::A).await, ["127.0.0.1"]);
    let other = look_up(cluster.address, "db.data.svc.cluster.local.", RecordType::A).await;
    assert_eq!(other.len(), 2, "a Service with in-tree slices only");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_come_from_the_destination_of_the_query() {
    let name = "web.default.svc.cluster.local.";
    let listen = Listen::At(vec![SocketAddr::new(IpAddr::from([0, 0, 0, 0]), 0)]);
    let cluster = start(CLUSTER, &Options { listen, ..options() });
    for last in 1..5 {
        // A connected socket receives from this address only.
        let address = SocketAddr::new([127, 0, 0, last].into(), cluster.address.port());
        assert_eq!(look_up(address, name, RecordType::A).await, ["10.96.0.10"]);
        let by_tcp = ask_tcp(address, &question(name, RecordType::A)).await;
        assert_eq!(by_tcp.answers.len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listens_on_both_families_by_default() {
    let options = Options { listen: Listen::Everywhere(0), ..options() };
    let cluster = start(CLUSTER, &options);
    for address in cluster.server.addresses() {
        let local: IpAddr = match address {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        };
        let address = SocketAddr::new(local, address.port());
        let found = look_up(address, "web.default.svc.cluster.local.", RecordType::A).await;
        assert_eq!(found, ["10.96.0.10"], "{address}");
    }
    cluster.server.stop().await;
}
