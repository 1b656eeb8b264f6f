//! The memory of 50,000 PodLocators, and of all other objects, counted at the allocator.
//!
//! `cargo bench -p nearhop-dns --bench memory`; results in docs/benchmarks.md.

mod cluster;
#[path = "../../core/benches/counting/mod.rs"]
mod counting;

use cluster::{PODS, SERVICES, build, locators, text};
use counting::live_bytes;
use nearhop_core::fixture::Fixture;

fn main() {
    let start = live_bytes();
    let (mut state, fixture) = build();
    drop(fixture);
    let world = live_bytes();
    let fixture = Fixture::parse(&text()).expect("build() parses the same text");
    let changes = locators(&fixture);
    drop(fixture);
    state.apply(changes, 1_700_000_000);
    let all = live_bytes();
    let pods = SERVICES * PODS;
    let megabytes = |octets: usize| octets as f64 / 1e6;
    println!("{SERVICES} Services with {pods} endpoints  {:>7.1} MB", megabytes(world - start));
    println!("{pods} PodLocators                {:>7.1} MB", megabytes(all - world));
    println!("for each of them                 {:>7} octets", (all - world) / pods);
}
