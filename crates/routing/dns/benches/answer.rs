//! What a question costs: read, locate, answer, write. No sockets.
//!
//! `cargo bench -p nearhop-dns --bench answer`; figures in docs/benchmarks.md.

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

/// Questions that are asked in turn, so that not every one is about the same Service.
const QUESTIONS: usize = 1000;

/// What the operator chose.
fn options() -> Options {
    let mut config = Config::new(Zone::parse("cluster.local").expect("a name"));
    config.pods = PodMode::Insecure;
    Options::new(config)
}

/// The name of a Service: even ones have a cluster IP, odd ones are headless.
fn service_name(number: usize) -> String {
    format!("service-{number}.default.svc.cluster.local.")
}

/// The address of a Pod, from which questions come.
fn client(fixture: &Fixture, number: usize) -> IpAddr {
    match &fixture.pods[number % fixture.pods.len()].ips {
        Addresses::One(address) => *address,
        Addresses::Many(addresses) => addresses[0],
    }
}

/// A question as a packet.
fn packet(name: &str, type_number: u16) -> Vec<u8> {
    let mut packet = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1];
    for label in name.trim_end_matches('.').split('.') {
        packet.push(label.len() as u8);
        packet.extend(label.as_bytes());
    }
    packet.push(0);
    packet.extend(type_number.to_be_bytes());
    packet.extend([0, 1]);
    // OPT: 1232 octets.
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
        let packets: Vec<_> = (0..QUESTIONS)
            .map(|number| (packet(&name(number * 37), type_number), client(&fixture, number * 97)))
            .collect();
        let mut next = 0;
        criterion.bench_function(what, |bencher| {
            bencher.iter(|| {
                next = (next + 1) % QUESTIONS;
                let (bytes, source) = &packets[next];
                let (source, transport, seed) = (*source, Transport::Udp, next as u64);
                let asked = Packet { bytes, source, transport, now, seed };
                let handled = answerer.handle(&state, asked, &mut out, &mut tally);
                assert!(matches!(handled, Handled::Reply));
                black_box(out.bytes().len())
            });
        });
    }
}

criterion_group!(benches, answer);
criterion_main!(benches);
