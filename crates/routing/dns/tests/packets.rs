//! Any bytes: no panic, and every reply can be decoded by another implementation and matches its
//! question.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::sync::Arc;
use std::time::Instant;

use common::{CLUSTER, long_question, options, question, state};
use hickory_proto::op::Message;
use hickory_proto::rr::RecordType;
use nearhop_dns::answerer::{Answerer, Handled, Now, Packet};
use nearhop_dns::forward::Cache;
use nearhop_dns::metrics::{DnsMetrics, Tally};
use nearhop_dns::options::Options;
use nearhop_dns::state::State;
use nearhop_dns::wire::{ReplyWriter, Transport};
use nearhop_runtime::metrics::Metrics;
use proptest::prelude::*;

/// A server without sockets.
struct Bare {
    answerer: Answerer,
    state: State,
    metrics: Metrics,
    tally: Tally,
    out: ReplyWriter,
}

impl Bare {
    fn new() -> Self {
        let mut options = Options { error_rate: 0, ..options() };
        options.forwarders.trusted = vec![nearhop_core::Cidr::parse("10.0.0.0/8").unwrap()];
        let metrics = Metrics::new();
        let own = DnsMetrics::new(&metrics, "dns://:53");
        let cache = Arc::new(Cache::new(10, own.clone()));
        Self {
            answerer: Answerer::new(&options, Some(cache), [7; 16], Instant::now()),
            state: state(CLUSTER, &options),
            tally: own.tally(),
            out: ReplyWriter::default(),
            metrics,
        }
    }

    /// The reply to a packet.
    fn ask(&mut self, bytes: &[u8], transport: Transport) -> Option<&[u8]> {
        let now = Now { instant: Instant::now(), unix: 1_700_000_000 };
        let source = [10, 244, 1, 9].into();
        let packet = Packet { bytes, source, transport, now, seed: 7 };
        let Self { answerer, state, tally, out, .. } = self;
        let handled = match answerer.handle(state, packet, out, tally) {
            Handled::Forward(query) => answerer.finish(&query, None, now.instant, out, tally),
            handled => handled,
        };
        matches!(handled, Handled::Reply).then(|| self.out.bytes())
    }
}

/// Checks the invariants of a reply.
fn check(bare: &mut Bare, packet: &[u8], transport: Transport) {
    let Some(reply) = bare.ask(packet, transport) else { return };
    let most = if transport == Transport::Udp { 1232 } else { 65_535 };
    assert!(reply.len() <= most, "{} octets", reply.len());
    let reply = Message::from_vec(reply).unwrap_or_else(|error| panic!("{error}: {packet:02x?}"));
    assert_eq!(reply.metadata.id.to_be_bytes(), packet[..2]);
    if let Ok(asked) = Message::from_vec(packet)
        && let ([asked], [answered]) = (&asked.queries[..], &reply.queries[..])
    {
        assert!(asked.name().eq_case(answered.name()), "{asked} {answered}");
        assert_eq!(asked.query_type(), answered.query_type());
    }
    bare.tally.flush();
    assert!(bare.metrics.encode().contains("coredns_panics_total 0\n"), "{packet:02x?}");
}

fn names() -> impl Strategy<Value = String> {
    let labels = prop::sample::select(vec![
        "web",
        "db",
        "db-0",
        "near",
        "many",
        "outside",
        "default",
        "data",
        "svc",
        "pod",
        "cluster",
        "local",
        "_http",
        "_tcp",
        "_",
        "10-244-1-9",
        "dns-version",
        "ns",
        "dns",
        "in-addr",
        "ip6",
        "arpa",
        "10",
        "96",
        "0",
        "a",
        "WEB",
        "*",
        "example",
        "com",
    ]);
    let zones = prop::sample::select(vec![
        "",
        "cluster.local.",
        "svc.cluster.local.",
        "default.svc.cluster.local.",
        "db.data.svc.Cluster.Local.",
        "in-addr.arpa.",
        "ip6.arpa.",
        "default.pod.cluster.local.",
    ]);
    (prop::collection::vec(labels, 0..5), zones).prop_map(|(labels, zone)| {
        let name = labels.iter().map(|label| format!("{label}.")).collect::<String>() + zone;
        if name.is_empty() { ".".to_owned() } else { name }
    })
}

fn transports() -> impl Strategy<Value = Transport> {
    prop::sample::select(vec![Transport::Udp, Transport::Tcp])
}

thread_local! {
    static BARE: std::cell::RefCell<Bare> = std::cell::RefCell::new(Bare::new());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes(packet in prop::collection::vec(any::<u8>(), 0..600), transport in transports()) {
        BARE.with_borrow_mut(|bare| check(bare, &packet, transport));
    }

    #[test]
    fn any_bytes_after_a_valid_header(
        tail in prop::collection::vec(any::<u8>(), 0..300),
        records in (0_u8..2, 0_u8..2, 0_u8..3),
        transport in transports(),
    ) {
        let mut packet = vec![9, 9, 1, 0, 0, 1, 0, records.0, 0, records.1, 0, records.2];
        packet.extend(tail);
        BARE.with_borrow_mut(|bare| check(bare, &packet, transport));
    }

    #[test]
    fn damaged_queries(
        name in names(),
        kind in any::<u8>(),
        size in prop::option::of(any::<u16>()),
        damage in prop::collection::vec((any::<u16>(), any::<u8>()), 0..4),
        cut in prop::option::of(any::<u16>()),
        transport in transports(),
    ) {
        let kind = RecordType::from(u16::from(kind));
        let asked = match size {
            Some(size) => long_question(&name, kind, size),
            None => question(&name, kind),
        };
        let Ok(mut packet) = asked.to_vec() else { return Ok(()) };
        for (at, octet) in damage {
            let at = usize::from(at) % packet.len();
            packet[at] = octet;
        }
        if let Some(cut) = cut {
            packet.truncate(usize::from(cut) % packet.len());
        }
        BARE.with_borrow_mut(|bare| check(bare, &packet, transport));
    }

    #[test]
    fn every_valid_query_is_answered(name in names(), kind in 1_u16..70, transport in transports()) {
        let asked = question(&name, RecordType::from(kind));
        let packet = asked.to_vec().unwrap();
        BARE.with_borrow_mut(|bare| {
            assert!(bare.ask(&packet, transport).is_some());
            check(bare, &packet, transport);
        });
    }
}
