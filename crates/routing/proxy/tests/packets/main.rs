//! Packet flows, tested in three ways: virtual packets through every random choice, many random
//! packets through the rules that the engine wrote to the fake, and real packets between real
//! clients and servers through the rules that it wrote to the kernel. All use the public list of
//! cases and the same comparison.
//!
//! Deliberately absent: what happens to connections when rules change; other tests cover that.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod kernel;
mod node;
mod virtually;

use std::path::Path;

use nearhop_conform::flows::{End, Flow, FlowCase, Seen, read_cases};
use nearhop_net::sandbox;

use kernel::Real;
use virtually::{EveryChoice, Random};

/// The files of the public suite that contain packets.
const FILES: [&str; 2] = ["proxy_packet_flows.json", "nearhop_packet_flows.json"];

/// An implementation that packets can be sent through.
trait Driver {
    /// Where connections of a flow end, each as a first connection.
    fn ends(&mut self, flow: &Flow) -> Result<Seen, String>;
    /// For first connections of a flow, where later connections end.
    fn ends_again(&mut self, flow: &Flow) -> Result<Vec<(End, Seen)>, String>;
    /// Maximum difference between shares.
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

/// The errors of a case, one line each.
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

fn assert_no_errors(wrong: Vec<String>) {
    assert!(wrong.is_empty(), "{} errors:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn the_suite_has_many_cases_and_flows() {
    let cases = cases();
    let flows: usize = cases.iter().map(|case| case.flows.len()).sum();
    assert!(cases.len() >= 40 && flows >= 260, "{} cases, {flows} flows", cases.len());
}

#[test]
fn every_random_choice_matches_the_cases() {
    let check = |case: FlowCase| check_case(&case, &mut EveryChoice::new(&case));
    assert_no_errors(cases().into_iter().flat_map(check).collect());
}

#[test]
fn random_packets_through_the_written_rules_match_the_cases() {
    let check = |case: FlowCase| check_case(&case, &mut Random::new(&case));
    assert_no_errors(cases().into_iter().flat_map(check).collect());
}

#[test]
fn real_packets_match_the_cases() {
    sandbox::run("real_packets_match_the_cases", || {
        assert_no_errors(kernel::in_parallel(&cases(), |case| {
            check_case(case, &mut Real::new(case))
        }));
    });
}

/// Without rules no flow is translated, so every real expectation except NONE fails: no case passes
/// only because of how the network is set up.
#[test]
fn real_packets_without_rules_are_not_translated() {
    sandbox::run("real_packets_without_rules_are_not_translated", || {
        let cases: Vec<FlowCase> = cases().into_iter().filter(FlowCase::is_example).collect();
        assert!(cases.len() > 2);
        assert_no_errors(kernel::in_parallel(&cases, |case| {
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
