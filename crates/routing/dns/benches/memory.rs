//! The memory of 50,000 PodLocators, and of all other objects, counted at the allocator.
//!
//! `cargo bench -p nearhop-dns --bench memory`; results in docs/benchmarks.md.
#![allow(unsafe_code, reason = "a global allocator, here one that counts, is an unsafe trait")]

mod cluster;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use cluster::{PODS, SERVICES, build, locators, text};
use nearhop_core::fixture::Fixture;

static LIVE: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call goes to the system allocator unchanged; this type only adds up sizes.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller fulfils the contract of GlobalAlloc.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller fulfils the contract of GlobalAlloc.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The number of allocated octets.
fn live() -> usize {
    LIVE.load(Ordering::Relaxed)
}

fn main() {
    let start = live();
    let (mut state, fixture) = build();
    drop(fixture);
    let world = live();
    let fixture = Fixture::parse(&text()).expect("build() parses the same text");
    let changes = locators(&fixture);
    drop(fixture);
    state.apply(changes, 1_700_000_000);
    let all = live();
    let pods = SERVICES * PODS;
    let megabytes = |octets: usize| octets as f64 / 1e6;
    println!("{SERVICES} Services with {pods} endpoints  {:>7.1} MB", megabytes(world - start));
    println!("{pods} PodLocators                {:>7.1} MB", megabytes(all - world));
    println!("for each of them                 {:>7} octets", (all - world) / pods);
}
