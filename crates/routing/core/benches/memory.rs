//! Memory per endpoint, counted at the allocator.
//!
//! `cargo bench -p nearhop-core --bench memory`; results in docs/benchmarks.md.

mod common;
mod counting;

use common::{cold, pod, service_key, settle};
use counting::live_bytes;
use nearhop_core::Name;

const SERVICES: usize = 10_000;
const PODS: usize = 10;
const NODES: usize = 5_000;

/// The bytes that remain allocated for the result of `make`, and that result.
fn live<T>(make: impl FnOnce() -> T) -> (usize, T) {
    let before = live_bytes();
    let value = make();
    (live_bytes() - before, value)
}

/// The strings of one endpoint only: its Pod's name and UID, which Pod and slice share.
fn own_strings() -> usize {
    let (bytes, _strings) = live(|| {
        let mut strings = Vec::with_capacity(SERVICES * PODS * 2);
        for of in 0..SERVICES {
            for i in 0..PODS {
                let pod = pod(of, i, NODES);
                strings.push(pod.key.name);
                strings.push(pod.uid);
            }
        }
        strings
    });
    bytes - SERVICES * PODS * 2 * size_of::<Name>()
}

fn main() {
    let endpoints = SERVICES * PODS;
    let strings = own_strings();
    println!("{endpoints} endpoints, {SERVICES} services, {NODES} nodes; bytes per endpoint");
    println!("own strings (pod name and uid)            {:>6}", strings / endpoints);
    for policy in ["", "PreferSameZone", "nearhop.dev/Nearest", "nearhop.dev/Balanced"] {
        let (empty, cluster) = live(|| cold(SERVICES, 0, NODES, policy));
        drop(cluster);
        let (pods, mut world) = live(|| cold(SERVICES, PODS, NODES, policy));
        let (slices, ()) = live(|| (0..SERVICES).for_each(|i| settle(&mut world, &service_key(i))));
        let name = if policy.is_empty() { "Default" } else { policy };
        let per_endpoint = (pods - empty + slices - strings) / endpoints;
        println!("beyond them, {name:<28} {per_endpoint:>6}");
    }
}
