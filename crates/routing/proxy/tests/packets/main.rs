//! What becomes of packets, three times over: as virtual packets through every throw of the dice,
//! as many random ones through what the engine wrote to the fake, and as real ones from real
//! clients to real servers through what it wrote to the kernel. One list of cases, the public
//! one, and one comparison.
//!
//! Deliberately absent: what happens to connections when rules change; that is for others.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod kernel;
mod node;
mod virtually;

use std::path::Path;

use nearhop_conform::flows::{End, Flow, FlowCase, Seen, read_cases};
use nearhop_net::sandbox;

use kernel::Real;
use virtually::{EveryThrow, Random};

/// The files of the public suite with packets in them.
const FILES: [&str; 2] = ["proxy_packet_flows.json", "nearhop_packet_flows.json"];

/// Something that packets can be sent through.
trait Driver {
    /// Where connections of a flow end, each as if it were the first.
    fn ends(&mut self, flow: &Flow) -> Result<Seen, String>;
    /// For first connections of a flow, where later ones end.
    fn ends_again(&mut self, flow: &Flow) -> Result<Vec<(End, Seen)>, String>;
    /// By how much shares may differ.
    fn tolerance(&self) -> f64;
}

fn cases() -> Vec<FlowCase> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../conformance/cases");
    let read = |name: &str| {
        let bytes = std::fs::read(dir.join(name)).unwrap();
        read_cases(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    FILES.into_iter().flat_map(read).collect()
}

/// What is wrong with a case, one line each.
fn check_case(case: &FlowCase, driver: &mut impl Driver) -> Vec<String> {
    let mut wrong = Vec::new();
    for flow in &case.flows {
        for what in check_flow(flow, driver).unwrap_or_else(|error| vec![error]) {
            wrong.push(format!("{}/{}: {what}", case.id, flow.id));
        }
    }
    wrong
}

fn check_flow(flow: &Flow, driver: &mut impl Driver) -> Result<Vec<String>, String> {
    let mut found = flow.compare(&driver.ends(flow)?, driver.tolerance());
    if flow.expected.stays {
        for (first, second) in driver.ends_again(flow)? {
            found.extend(flow.compare_stay(first, &second));
        }
    }
    Ok(found.into_iter().map(|(path, what)| format!("{path}: {what}")).collect())
}

fn assert_right(wrong: Vec<String>) {
    assert!(wrong.is_empty(), "{} flows are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn there_are_many_cases() {
    let cases = cases();
    let flows: usize = cases.iter().map(|case| case.flows.len()).sum();
    assert!(cases.len() >= 40 && flows >= 260, "{} cases, {flows} flows", cases.len());
}

#[test]
fn by_every_throw_of_the_dice() {
    let check = |case: FlowCase| check_case(&case, &mut EveryThrow::new(&case));
    assert_right(cases().into_iter().flat_map(check).collect());
}

#[test]
fn at_random_through_what_the_engine_wrote() {
    let check = |case: FlowCase| check_case(&case, &mut Random::new(&case));
    assert_right(cases().into_iter().flat_map(check).collect());
}

#[test]
fn as_real_packets() {
    sandbox::run("as_real_packets", || {
        assert_right(kernel::in_parallel(&cases(), |case| check_case(case, &mut Real::new(case))));
    });
}

/// Without rules every flow is untouched, and so every real expectation but NONE fails: nothing
/// passes because of how the world around the node is made.
#[test]
fn as_real_packets_without_rules() {
    sandbox::run("as_real_packets_without_rules", || {
        let cases: Vec<FlowCase> = cases().into_iter().filter(FlowCase::is_example).collect();
        assert!(cases.len() > 2);
        assert_right(kernel::in_parallel(&cases, |case| {
            let mut driver = Real::without_rules(case);
            let untouched = |seen: &Seen| seen.keys().all(|end| *end == End::Untouched);
            let seen = |flow: &Flow| (flow.id.clone(), driver.ends(flow));
            let seen: Vec<_> = case.flows.iter().map(seen).collect();
            let wrong = seen.into_iter().filter(|(_, seen)| !seen.as_ref().is_ok_and(untouched));
            wrong.map(|(flow, seen)| format!("{}/{flow}: {seen:?}", case.id)).collect()
        }));
    });
}

/// A few cases with every kind of outcome, protocol and family.
trait Example {
    fn is_example(&self) -> bool;
}

impl Example for FlowCase {
    fn is_example(&self) -> bool {
        ["clusterip-general", "etp-local", "nodeport-v6-primary", "protocols-v6"]
            .contains(&self.id.as_str())
    }
}
