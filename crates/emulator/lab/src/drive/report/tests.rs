//! Tests of the report, and of its description in `docs/lab.md`.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use super::super::Failure;
use super::super::assertion::Assertion;
use super::super::places::PodPlace;
use super::super::question::{Amount, By, Split};
use super::super::worker::{Family, Protocol};
use super::*;

pub(in super::super) fn question(from: From) -> Question {
    Question {
        service: "web".parse().unwrap(),
        from,
        amount: Amount { connections: Some(15), duration: None, rate: None },
        split: Split::Node,
        concurrency: None,
        timeout: Duration::from_secs(3),
        protocol: Protocol::Tcp,
        by: By::Address,
        family: Family::V4,
    }
}

fn tally(answers: &[(&str, u64)], refused: u64) -> Tally {
    let mut tally = Tally::default();
    for (pod, count) in answers {
        for n in 0..*count {
            tally.count(Ok((*pod).to_owned()), Duration::from_micros(n + 1));
        }
    }
    for _ in 0..refused {
        tally.count(Err(Failure::Refused), Duration::ZERO);
        tally.count_target("10.1.0.1:80".to_owned(), Failure::Refused);
    }
    tally
}

fn client(name: &str, node: &str, zone: &str) -> Client {
    let [name, node, zone] = [name, node, zone].map(str::to_owned);
    Client { name, node, zone }
}

fn places() -> Places {
    let place = |node: &str, zone: &str| PodPlace {
        node: node.to_owned(),
        zone: zone.to_owned(),
        ..PodPlace::default()
    };
    let pods = [("a-0", place("n1", "a")), ("b-0", place("n2", "b"))];
    let owners = [("10.1.0.1".parse().unwrap(), "pod/default/b-0".to_owned())];
    Places {
        pods: pods.map(|(pod, place)| (pod.to_owned(), place)).into(),
        owners: owners.into(),
        ..Places::default()
    }
}

pub(in super::super) fn sample() -> Report {
    let clients = vec![
        (client("node/n1", "n1", "a"), tally(&[("a-0", 3), ("b-0", 1)], 0)),
        (client("node/n3", "n3", "b"), tally(&[("b-0", 4), ("gone", 2)], 5)),
    ];
    let ready = Endpoints { all: 2, ready: 2 };
    let measured = Measurement { endpoints: ready, ..Measurement::of(clients) };
    report(&question(From::Everywhere), &measured, &places())
}

#[test]
fn answers_are_grouped_by_zone_node_and_pod() {
    let report = sample();
    assert_eq!((report.connections, report.answered, report.failed), (15, 10, 5));
    assert_eq!(report.matrix["a"], BTreeMap::from([("a".into(), 3), ("b".into(), 1)]));
    assert_eq!(report.cross_zone, Some(0.125), "the Pod `gone` has no zone");
    assert_eq!(report.node_matrix["n1"], BTreeMap::from([("n1".into(), 3), ("n2".into(), 1)]));
    assert_eq!(report.cross_node, Some(0.625), "n3 has no Pod");
    assert_eq!(report.pods["b-0"], Answered { node: "n2".into(), zone: "b".into(), answers: 5 });
    assert_eq!(report.nodes[""], 2, "the node of `gone` is unknown");
    let notes = [
        "share from another zone: without 2 of 10 answers, because the API does not have the Pod, or \
         its node has no zone label",
        "share from another node: without 2 of 10 answers, because the API does not have the Pod",
    ];
    assert_eq!(report.notes, notes);
}

#[test]
fn answers_of_unknown_pods_have_no_share_and_meet_no_assertion() {
    let clients = vec![(client("node/n1", "n1", "a"), tally(&[("gone", 9)], 0))];
    let mut measured = Measurement::of(clients);
    measured.endpoints = Endpoints { all: 1, ready: 1 };
    let report = report(&question(From::Everywhere), &measured, &places());
    assert_eq!((report.answered, report.cross_zone, report.cross_node), (9, None, None));
    for text in ["cross-zone<=0%", "cross-node<=0%"] {
        let judged = text.parse::<Assertion>().unwrap().judge(&report);
        assert!(!judged.held && judged.measured.starts_with("n/a: no answer"), "{judged:?}");
    }
    assert!(report.notes[0].contains("n/a, because the API does not have the Pods"));
    assert!(report.notes[1].contains("without 9 of 9 answers"), "{:?}", report.notes);
}

#[test]
fn failures_are_grouped_by_cause_source_and_target() {
    let report = sample();
    let refused = Causes::from([(Failure::Refused, 5)]);
    assert_eq!(report.failures, refused);
    assert_eq!(report.failures_by_source, BTreeMap::from([("node/n3".into(), refused.clone())]));
    let target = "pod/default/b-0 (10.1.0.1:80)".to_owned();
    assert_eq!(report.failures_by_target, BTreeMap::from([(target, refused)]));
}

#[test]
fn an_external_client_has_no_share_from_another_zone() {
    let clients = vec![(client(EXTERNAL, EXTERNAL, EXTERNAL), tally(&[("a-0", 3)], 0))];
    let report = report(&question(From::External), &Measurement::of(clients), &places());
    assert_eq!((report.cross_zone, report.cross_node), (None, None));
    assert_eq!(report.matrix[EXTERNAL]["a"], 3);
    assert!(report.notes.iter().any(|note| note.contains("an external client has no zone")));
}

#[test]
fn without_answers_there_is_no_share_from_another_zone() {
    let clients = vec![(client("node/n1", "n1", "a"), tally(&[], 7))];
    let report = report(&question(From::Everywhere), &Measurement::of(clients), &places());
    assert_eq!((report.answered, report.cross_zone, report.cross_node), (0, None, None));
    assert!(report.notes[0].contains("no ready endpoint"), "{:?}", report.notes);
    assert!(report.matrix["a"].is_empty());
}

#[test]
fn a_rate_that_was_not_kept_is_noted() {
    let mut late = tally(&[("a-0", 30)], 0);
    late.late = 12;
    let mut asked = question(From::Everywhere);
    asked.amount.rate = Some(20.0);
    let mut measured = Measurement::of(vec![(client("node/n1", "n1", "a"), late)]);
    measured.endpoints = Endpoints { all: 1, ready: 1 };
    measured.extend(Times { last_begun: 1.95, ended: 3.0 });
    measured.extend(Times { last_begun: 0.5, ended: 4.0 });
    let report = report(&asked, &measured, &places());
    assert_eq!((report.seconds, report.rate.reached), (4.0, 15.0));
    assert!(report.notes[0].starts_with("the rate was not kept: 20/s wanted, 15.0/s"));
}

/// A report with every field filled.
fn full() -> Report {
    let mut full = sample();
    full.planned = Some(15);
    full.rate.wanted = Some(5.0);
    full.notes = vec!["note".to_owned()];
    full.lost_clients.insert("node/n4".to_owned(), "why".to_owned());
    let assertion: Assertion = "failed==0".parse().unwrap();
    full.assertions = vec![assertion.judge(&full)];
    full
}

/// Objects whose keys are names.
const MAPS: [&str; 9] = [
    "matrix",
    "nodeMatrix",
    "pods",
    "nodes",
    "clients",
    "failures",
    "failuresBySource",
    "failuresByTarget",
    "lostClients",
];

/// Paths of all fields, with `NAME` for names.
fn paths(value: &Value, prefix: &str, depth: usize, all: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            let map = MAPS.iter().any(|map| prefix.split('.').next() == Some(map));
            let two = ["matrix", "nodeMatrix", "failuresBySource", "failuresByTarget"];
            let names = usize::from(map)
                + usize::from(two.iter().any(|map| prefix.split('.').next() == Some(map)));
            for (key, inner) in fields {
                let key = if depth > 0 && depth <= names { "NAME" } else { key };
                let path =
                    if prefix.is_empty() { key.to_owned() } else { format!("{prefix}.{key}") };
                paths(inner, &path, depth + 1, all);
            }
        }
        Value::Array(items) => {
            all.insert(format!("{prefix}[]"));
            for item in items.iter().filter(|item| item.is_object()) {
                paths(item, &format!("{prefix}[]"), depth + 1, all);
            }
            if items.iter().any(Value::is_object) {
                all.remove(&format!("{prefix}[]"));
            }
        }
        _ => {
            all.insert(prefix.to_owned());
        }
    }
}

#[test]
fn the_documented_fields_are_exactly_those_that_are_printed() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/lab.md");
    let page = std::fs::read_to_string(page).unwrap();
    let table = page.split("### Fields of `lab drive -o json`").nth(1).expect("the page has them");
    let table = table.split("\n## ").next().unwrap_or_default();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `"));
    let documented: BTreeSet<String> =
        rows.filter_map(|row| Some(row.split_once('`')?.0.to_owned())).collect();
    let mut printed = BTreeSet::new();
    paths(&serde_json::to_value(full()).unwrap(), "", 0, &mut printed);
    let missing: Vec<_> = printed.difference(&documented).collect();
    let stale: Vec<_> = documented.difference(&printed).collect();
    assert!(missing.is_empty() && stale.is_empty(), "undocumented {missing:?}, stale {stale:?}");
}

#[test]
fn causes_have_the_documented_names() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/lab.md");
    let page = std::fs::read_to_string(page).unwrap();
    for failure in Failure::ALL {
        let name = serde_json::to_value(failure).unwrap();
        let name = format!("`{}`", name.as_str().unwrap());
        assert!(page.contains(&name), "docs/lab.md does not have {name}");
    }
}
