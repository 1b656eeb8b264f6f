//! Tests on the real kernel with the number of elements of a large cluster: all elements arrive,
//! and the times are printed (`cargo test --release -p nearhop-proxy --test scale -- --nocapture`).

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use nearhop_core::Family;
use nearhop_netfilter::object::*;
use nearhop_netfilter::wire::{DumpedElement, Names, decode_elements, encode_batch, messages};
use nearhop_proxy::kernel::Kernel;
use support::*;

const SERVICES: u32 = 10_000;
const ENDPOINTS: u32 = 10;
/// Elements in a batch while a table is filled.
const CHUNK: usize = 2_000;

fn service(number: u32) -> Bytes {
    let address = IpAddr::from(Ipv4Addr::from(0x0a60_0000 + number));
    Bytes::EMPTY.address(address).protocol(TCP).port(80)
}

fn endpoint(service_number: u32, slot: u32, version: u16) -> Element {
    let address = Ipv4Addr::from(0x0a80_0000 + service_number * ENDPOINTS + slot);
    let target = Bytes::EMPTY.address(address.into()).port(version);
    element(service(service_number).slot(slot), Data::Value(target))
}

fn goes_to(service_number: u32, chain: &str) -> Element {
    element(service(service_number), Data::Verdict(Verdict::Goto(chain.into())))
}

fn add(set: &str, elements: Vec<Element>) -> Op {
    Op::AddElements { set: set.into(), elements }
}

fn delete(set: &str, elements: Vec<Element>) -> Op {
    Op::DeleteElements { set: set.into(), elements }
}

fn timed<T>(what: &str, action: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = action();
    println!("{what}: {:?}", start.elapsed());
    result
}

/// Loads elements in chunks and prints how long the whole and the longest chunk took.
fn load(kernel: &mut Kernel, table: &Table, set: &str, elements: &[Element]) {
    let (mut all, mut longest) = (Duration::ZERO, Duration::ZERO);
    for chunk in elements.chunks(CHUNK) {
        let batch = batch(table, vec![add(set, chunk.to_vec())]);
        let start = Instant::now();
        kernel.apply(&batch).unwrap();
        all += start.elapsed();
        longest = longest.max(start.elapsed());
    }
    println!(
        "load {} elements into {set} by {CHUNK}: {all:?}, longest {longest:?}",
        elements.len()
    );
}

/// Applies batches one by one and prints the median and the longest time.
fn each(what: &str, kernel: &mut Kernel, batches: Vec<Batch>) {
    let mut times: Vec<Duration> = batches
        .iter()
        .map(|batch| {
            let start = Instant::now();
            kernel.apply(batch).unwrap();
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    println!("{what}: median {:?}, longest {:?}", times[times.len() / 2], times[times.len() - 1]);
}

/// Decodes sent elements: they have the same format as listed ones.
fn decode(bytes: &[u8]) -> Vec<DumpedElement> {
    let (mut names, mut found) = (Names::default(), Vec::new());
    for message in messages(bytes) {
        decode_elements(&message.unwrap(), &mut names, &mut found).unwrap();
    }
    found
}

#[test]
fn a_hundred_thousand_elements_round_trip() {
    in_namespace("a_hundred_thousand_elements_round_trip", |kernel| {
        let table = table(Family::Ipv4, "nearhop");
        kernel.apply(&batch(&table, layout(Family::Ipv4))).unwrap();
        let emptied = kernel.dump_elements(&table, "endpoints").unwrap();
        let emptied = emptied.into_iter().map(|dumped| dumped.element).collect();
        kernel.apply(&batch(&table, vec![delete("endpoints", emptied)])).unwrap();

        let mut all: Vec<Element> = (0..SERVICES)
            .flat_map(|number| (0..ENDPOINTS).map(move |slot| endpoint(number, slot, 8080)))
            .collect();
        let whole = batch(&table, vec![add("endpoints", all.clone())]);
        let encoded = timed("encode 100,000 elements", || encode_batch(&whole, 1));
        println!("{} bytes; the socket sends {} at once", encoded.bytes.len(), kernel.send_limit());
        let decoded = timed("decode them", || decode(&encoded.bytes));
        assert_eq!(decoded.len(), all.len());
        load(kernel, &table, "endpoints", &all);
        let found = timed("dump them", || kernel.dump_elements(&table, "endpoints").unwrap());
        all.sort_unstable_by_key(|element| element.key);
        assert_eq!(found.len(), all.len());
        assert!(found.iter().map(|dumped| &dumped.element).eq(&all));

        let change = |number: u32| {
            let (old, new) = (endpoint(number, 3, 8080), endpoint(number, 3, 9090));
            batch(&table, vec![delete("endpoints", vec![old]), add("endpoints", vec![new])])
        };
        each("change one endpoint", kernel, (0..500).map(change).collect());
        timed("delete the table", || {
            kernel.apply(&batch(&table, vec![Op::DeleteTable])).unwrap();
        });
    });
}

/// Four base chains that use the verdict map, because the kernel follows all of them when a verdict
/// is added.
fn dispatch(family: Family) -> Vec<Op> {
    use HookPoint::{Output, Prerouting};
    let rules = || {
        let (key, _) = service_key(family);
        vec![rule([key, vec![lookup("services", Hit::Verdict)]])]
    };
    let pick = |name: &str, slots| {
        let (key, next) = service_key(family);
        let random = vec![Expr::Random { modulus: slots, offset: 0, to: Reg(next) }];
        chain(name, vec![dnat(family, [key, random].concat(), "endpoints")])
    };
    let base =
        |name: &str, point, priority| base_chain(name, ChainKind::Nat, point, priority, rules());
    let mut ops = vec![Op::AddTable { comment: "a test".into() }];
    ops.extend(sets(family));
    ops.extend([pick("pick-2", 2), pick("pick-3", 3)]);
    ops.extend([
        base("pre-1", Prerouting, -100),
        base("pre-2", Prerouting, -90),
        base("out-1", Output, -100),
        base("out-2", Output, -90),
    ]);
    ops
}

fn verdicts(kernel: &mut Kernel, services: u32) {
    let table = table(Family::Ipv4, "nearhop");
    kernel.apply(&batch(&table, dispatch(Family::Ipv4))).unwrap();
    let all: Vec<Element> = (0..services).map(|number| goes_to(number, "pick-2")).collect();
    load(kernel, &table, "services", &all);
    let change = |number: u32| {
        let (old, new) = (goes_to(number, "pick-2"), goes_to(number, "pick-3"));
        batch(&table, vec![delete("services", vec![old]), add("services", vec![new])])
    };
    let what = format!("change one verdict among {services}");
    each(&what, kernel, (0..50).map(change).collect());
    let drop = |number: u32| batch(&table, vec![delete("services", vec![goes_to(number, "")])]);
    let what = format!("delete one verdict among {services}");
    each(&what, kernel, (100..150).map(drop).collect());
    let one = |number: u32| batch(&table, vec![add("endpoints", vec![endpoint(number, 0, 8080)])]);
    let what = format!("add one endpoint beside {services} verdicts");
    each(&what, kernel, (0..50).map(one).collect());
    let found = kernel.dump_elements(&table, "services").unwrap();
    assert_eq!(found.len(), services as usize - 50);
}

#[test]
fn ten_thousand_verdicts_can_be_changed() {
    in_namespace("ten_thousand_verdicts_can_be_changed", |kernel| verdicts(kernel, 10_000));
}

#[test]
fn forty_four_thousand_verdicts_can_be_changed() {
    in_namespace("forty_four_thousand_verdicts_can_be_changed", |kernel| verdicts(kernel, 44_000));
}
