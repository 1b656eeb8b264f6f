//! What a question costs: read, locate, answer, write. No sockets.
//!
//! `cargo bench -p nearhop-dns --bench answer`; figures in docs/benchmarks.md.

mod cluster;

use std::hint::black_box;
use std::time::Instant;

use cluster::{SERVICES, build, client, locators, options, packet, service_name};
use criterion::{Criterion, criterion_group, criterion_main};
use nearhop_dns::answerer::{Answerer, Handled, Now, Packet};
use nearhop_dns::metrics::DnsMetrics;
use nearhop_dns::wire::{ReplyWriter, Transport};
use nearhop_runtime::metrics::Metrics;

/// Questions that are asked in turn, so that not every one is about the same Service.
const QUESTIONS: usize = 1000;

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
                let asked = Packet { bytes, source: *source, transport: Transport::Udp, now };
                let handled = answerer.handle(&state, asked, next as u64, &mut out, &mut tally);
                assert!(matches!(handled, Handled::Reply));
                black_box(out.bytes().len())
            });
        });
    }
}

criterion_group!(benches, answer);
criterion_main!(benches);
