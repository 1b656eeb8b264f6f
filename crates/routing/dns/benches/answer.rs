//! The time for one DNS query without sockets: parse, locate the client, answer, encode.
//!
//! `cargo bench -p nearhop-dns --bench answer`; results in docs/benchmarks.md.

mod cluster;

use std::hint::black_box;
use std::net::IpAddr;
use std::time::Instant;

use cluster::{SERVICES, build, locators};
use criterion::{Criterion, criterion_group, criterion_main};
use nearhop_core::answer::{Config, PodMode, Zone};
use nearhop_core::fixture::Fixture;
use nearhop_core::model::Addresses;
use nearhop_dns::answerer::{Answerer, Handled, Now, Packet};
use nearhop_dns::metrics::DnsMetrics;
use nearhop_dns::options::Options;
use nearhop_dns::wire::{ReplyWriter, Transport};
use nearhop_runtime::metrics::Metrics;

/// Number of different queries, so that successive queries are for different Services.
const QUERIES: usize = 1000;

/// The configuration of the server.
fn options() -> Options {
    let mut config = Config::new(Zone::parse("cluster.local").expect("a valid name"));
    config.pods = PodMode::Insecure;
    Options::new(config)
}

/// The name of a Service. Even numbers have a cluster IP, odd numbers are headless.
fn service_name(number: usize) -> String {
    format!("service-{number}.default.svc.cluster.local.")
}

/// The address of a Pod, the source of queries.
fn client(fixture: &Fixture, number: usize) -> IpAddr {
    match &fixture.pods[number % fixture.pods.len()].ips {
        Addresses::One(address) => *address,
        Addresses::Many(addresses) => addresses[0],
    }
}

/// An encoded query.
fn packet(name: &str, type_number: u16) -> Vec<u8> {
    let mut packet = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1];
    for label in name.trim_end_matches('.').split('.') {
        packet.push(label.len() as u8);
        packet.extend(label.as_bytes());
    }
    packet.push(0);
    packet.extend(type_number.to_be_bytes());
    packet.extend([0, 1]);
    // An OPT record with a UDP size of 1232 octets.
    packet.extend([0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
    packet
}

fn answer(criterion: &mut Criterion) {
    let (mut state, fixture) = build();
    state.apply(locators(&fixture), 1_700_000_000);
    let answerer = Answerer::new(&options(), None, [7; 16], Instant::now());
    let mut tally = DnsMetrics::new(&Metrics::new(), "dns://:53").tally();
    let mut out = ReplyWriter::default();
    let now = Now { instant: Instant::now(), unix: 1_700_000_000 };
    for (what, odd, type_number) in
        [("cluster-ip A", 0, 1), ("headless A", 1, 1), ("headless SRV", 1, 33), ("missing A", 2, 1)]
    {
        let name = |number: usize| match odd {
            2 => "www.example.com.default.svc.cluster.local.".to_owned(),
            odd => service_name(number * 2 % SERVICES + odd),
        };
        let packets: Vec<_> = (0..QUERIES)
            .map(|number| (packet(&name(number * 37), type_number), client(&fixture, number * 97)))
            .collect();
        let mut next = 0;
        criterion.bench_function(what, |bencher| {
            bencher.iter(|| {
                next = (next + 1) % QUERIES;
                let (bytes, source) = &packets[next];
                let (source, transport, seed) = (*source, Transport::Udp, next as u64);
                let query = Packet { bytes, source, transport, now, seed };
                let handled = answerer.handle(&state, query, &mut out, &mut tally);
                assert!(matches!(handled, Handled::Reply));
                black_box(out.bytes().len())
            });
        });
    }
}

criterion_group!(benches, answer);
criterion_main!(benches);
