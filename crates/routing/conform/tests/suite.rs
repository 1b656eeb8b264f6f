//! Tests of the conformance suite: all cases pass, and a changed expectation fails.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use nearhop_conform::{FileReport, Only, Report, What, known_groups, run_file};
use serde_json::{Value, json};

/// Every case file of the repository with its text, sorted by path.
fn case_files() -> Vec<(String, Vec<u8>)> {
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "json") {
                found.push(path);
            }
        }
    }
    let mut paths = Vec::new();
    walk(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../conformance/cases"), &mut paths);
    paths.sort();
    let read = |path: PathBuf| (path.display().to_string(), fs::read(&path).unwrap());
    paths.into_iter().map(read).collect()
}

fn known_files() -> impl Iterator<Item = Value> {
    let known: BTreeSet<&str> = known_groups().collect();
    let files = case_files().into_iter().map(|(_, bytes)| serde_json::from_slice(&bytes).unwrap());
    files.filter(move |file: &Value| known.contains(file["group"].as_str().unwrap()))
}

fn run(file: &Value) -> FileReport {
    run_file("test.json", file.to_string().as_bytes(), &Only::everything())
}

/// A copy of `file` with `case` as its only case.
fn with_case(file: &Value, case: Value) -> Value {
    let mut file = file.clone();
    file["cases"] = json!([case]);
    file
}

#[test]
fn every_case_passes_and_none_is_skipped() {
    let mut report = Report::default();
    for (name, bytes) in case_files() {
        report.add(run_file(&name, &bytes, &Only::everything()));
    }
    let failures: Vec<String> = report.failures.iter().map(ToString::to_string).collect();
    assert_eq!(failures, Vec::<String>::new());
    let ran: Vec<&str> =
        report.groups.iter().filter(|g| g.passed > 0).map(|g| g.group.as_str()).collect();
    assert_eq!(ran, known_groups().collect::<Vec<_>>(), "every known group has cases");
    assert_eq!(report.skipped_groups, Vec::<String>::new());
}

/// JSON pointers to all leaves below `value`.
fn leaves(value: &Value, at: String, found: &mut Vec<String>) {
    match value {
        Value::Array(items) if !items.is_empty() => {
            for (i, item) in items.iter().enumerate() {
                leaves(item, format!("{at}/{i}"), found);
            }
        }
        Value::Object(map) if !map.is_empty() => {
            for (key, item) in map {
                leaves(item, format!("{at}/{}", key.replace('~', "~0").replace('/', "~1")), found);
            }
        }
        _ => found.push(at),
    }
}

/// JSON pointers to the expected values of a case.
fn expectations(case: &Value) -> Vec<String> {
    let steps = case["steps"].as_array().map_or(0, Vec::len);
    let holders = (0..steps).map(|step| format!("/steps/{step}")).chain([String::new()]);
    let mut found = Vec::new();
    for holder in holders {
        for key in ["nearhop", "expect"] {
            let at = format!("{holder}/{key}");
            if let Some(value) = case.pointer(&at) {
                leaves(value, at, &mut found);
                break;
            }
        }
    }
    let flows = case["flows"].as_array().map_or(&[][..], Vec::as_slice);
    for (i, flow) in flows.iter().enumerate() {
        let keys = if flow["out"].is_array() { &["out", "masq"][..] } else { &["out"] };
        for key in keys.iter().chain(flow.get("shares").map(|_| &"shares")) {
            leaves(&flow[*key], format!("/flows/{i}/{key}"), &mut found);
        }
    }
    found.retain(|at| !at.ends_with("note"));
    found
}

/// A different value.
fn other(at: &str, value: &Value) -> Value {
    match value {
        // A text means that a property holds. Without the text the property must not hold.
        _ if at.ends_with("/trigger_time_annotation") => Value::Null,
        Value::Bool(flag) => json!(!flag),
        Value::Number(number) => json!(number.as_f64().unwrap() + 1.0),
        Value::Array(_) => json!(["mutant"]),
        Value::Object(_) => json!({"mutant": 1}),
        Value::Null | Value::String(_) => json!("mutant"),
    }
}

/// Removes all flows of a case except the one that contains the pointer.
fn keep_flow(case: &mut Value, at: &str) {
    let flow = at.strip_prefix("/flows/").and_then(|rest| rest.split('/').next()?.parse().ok());
    if let (Some(flow), Some(flows)) = (flow, case["flows"].as_array_mut()) {
        *flows = vec![flows.swap_remove(flow)];
    }
}

#[test]
fn every_expected_value_is_compared() {
    let mut survivors = Vec::new();
    let mut groups = BTreeSet::new();
    for file in known_files() {
        for case in file["cases"].as_array().unwrap() {
            for at in expectations(case) {
                let mut mutant = case.clone();
                let value = mutant.pointer_mut(&at).unwrap();
                *value = other(&at, value);
                keep_flow(&mut mutant, &at);
                let report = run(&with_case(&file, mutant));
                if report.failed != 1 {
                    survivors.push(format!("{} {} {at}", file["group"], case["id"]));
                }
                groups.insert(file["group"].as_str().unwrap().to_owned());
            }
        }
    }
    assert_eq!(survivors, Vec::<String>::new());
    assert_eq!(groups.len(), known_groups().count(), "every group has a changed expectation");
}

#[test]
fn an_unknown_key_in_an_expectation_is_an_error() {
    let checked = known_files().filter(|file| file["cases"][0]["expect"].is_object());
    let checked: Vec<_> = checked.collect();
    assert!(!checked.is_empty(), "no group has an object as its expectation");
    for file in checked {
        let mut case = file["cases"][0].clone();
        case["expect"]["frobnication"] = json!(true);
        case["expect"]["frobnication_note"] = json!("not compared");
        let report = run(&with_case(&file, case));
        let texts: Vec<String> = report.failures.iter().map(ToString::to_string).collect();
        assert_eq!(texts.len(), 1, "{texts:?}");
        assert!(texts[0].contains("cannot check `frobnication`"), "{texts:?}");
    }
}

#[test]
fn an_unknown_group_is_skipped_and_reported() {
    let file = json!({"group": "from_the_future", "cases": [{"id": "a"}, {"id": "b"}]});
    let mut report = Report::default();
    report.add(run(&file));
    assert_eq!((report.passed, report.failed, report.skipped), (0, 0, 2));
    assert_eq!(report.skipped_groups, ["from_the_future"]);
    assert_eq!(report.summary(), "0 passed, 0 failed, 2 skipped");
}

#[test]
fn only_skips_other_groups_and_records_them() {
    let file = json!({"group": "hints_enabled", "cases": [{"id": "a", "expect": false}]});
    let only: Only = ["find_port"].into_iter().collect();
    let mut report = Report::default();
    report.add(run_file("x", file.to_string().as_bytes(), &only));
    assert_eq!(report.summary(), "0 passed, 0 failed, 0 skipped");
    assert!(report.groups.is_empty() && report.met.contains("hints_enabled"));
}

#[test]
fn a_deviation_without_a_reason_fails() {
    let file = |extra: Value| {
        let mut case = json!({"id": "a", "annotations": {}, "expect": true, "nearhop": false});
        case.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        json!({"group": "hints_enabled", "cases": [case]})
    };
    assert_eq!(run(&file(json!({"why": "so"}))).passed, 1);
    assert_eq!(run(&file(json!({"nearhop": {"expect": false, "why": "so"}}))).passed, 1);
    for without in [json!({}), json!({"why": ""}), json!({"why": null})] {
        let report = run(&file(without));
        assert_eq!(report.failed, 1);
        assert!(report.failures[0].to_string().contains("give a `why`"));
    }
}

#[test]
fn a_step_can_have_its_own_deviation() {
    let step = json!({"service": 3, "expect": 4, "nearhop": {"expect": 3, "why": "so"}});
    let file = json!({"group": "trigger_time", "cases": [{"id": "a", "steps": [step]}]});
    assert_eq!(run(&file).passed, 1);
}

#[test]
fn failures_contain_path_expected_and_actual_value() {
    let case = json!({"id": "a", "target_port": 93, "expect": {"port": 94, "found": true}});
    let report = run(&json!({"group": "find_port", "cases": [case]}));
    let failure = &report.failures[0];
    assert_eq!((failure.path.as_str(), failure.id.as_deref()), ("expect.port", Some("a")));
    assert_eq!(failure.what, What::Differs { expected: json!(94), actual: json!(93) });
    assert_eq!(failure.to_string(), "test.json: find_port: a: expect.port: expected 94, got 93");
}

#[test]
fn each_flow_has_its_own_result() {
    let service = json!({
        "name": "a", "cluster_ip": "172.30.0.1", "port": 80, "node_port": 3001,
        "lb_ips": ["1.2.3.4"], "source_ranges": ["203.0.113.0/24"], "affinity": 30,
        "endpoints": [
            {"addr": "10.0.0.1:80", "node": "test-node"}, {"addr": "10.0.0.1:80", "node": "other"},
            {"addr": "010.0.0.2:080", "node": "other"},
        ],
    });
    let both = json!(["10.0.0.2:80", "10.0.0.1:80"]);
    let flow = |id: &str, src: &str, dst: &str, dport: u16, out: Value, masq: bool| json!({"id": id, "src": src, "dst": dst, "dport": dport, "out": out, "masq": masq});
    let mut stays = flow("stays", "10.0.0.9", "172.30.0.1", 80, both.clone(), false);
    stays["stays"] = json!(true);
    let mut explained = flow("explained", "10.0.0.9", "172.30.0.1", 81, json!("DROP"), false);
    explained["nearhop"] = json!({"out": "REJECT", "why": "so"});
    let flows = [
        stays,
        explained,
        flow("other-port", "10.0.0.9", "172.30.0.1", 81, json!("REJECT"), false),
        flow("unallocated", "10.0.0.9", "172.30.0.2", 80, json!("DROP"), false),
        flow("not-local", "10.0.0.9", "1.2.3.4", 80, json!("DROP"), false),
        flow("allowed", "203.0.113.9", "1.2.3.4", 80, both.clone(), true),
        flow("hairpin", "10.0.0.1", "172.30.0.1", 80, both.clone(), false),
        flow("elsewhere", "10.0.0.9", "10.0.0.1", 80, json!("NONE"), true),
        flow("wrong", "10.0.0.9", "172.30.0.1", 80, json!(["10.0.0.1:80"]), false),
        flow("unmasked", "203.0.113.9", "1.2.3.4", 80, both, false),
        flow("unreadable", "10.0.0.9", "172.30.0.1", 80, json!("PERHAPS"), false),
    ];
    let environment = json!({
        "node_ips": ["192.168.0.2"], "pod_cidr": "10.0.0.0/8", "local_detector": true,
        "service_cidrs": ["172.30.0.0/16"],
    });
    let case = json!({"id": "a", "services": [service], "flows": flows});
    let file = json!({"group": "proxy_packet_flows", "environment": environment, "cases": [case]});
    let report = run(&file);
    let failures: Vec<String> = report.failures.iter().map(ToString::to_string).collect();
    assert_eq!((report.passed, report.failed), (8, 3), "{failures:#?}");
    let group = "test.json: proxy_packet_flows";
    assert_eq!(
        failures,
        [
            format!(
                "{group}: a/wrong: flows[8].out: expected [\"10.0.0.1:80\"], got \
                 [\"10.0.0.1:80\",\"10.0.0.2:80\"]"
            ),
            format!("{group}: a/unmasked: flows[9].masq: expected false, got true"),
            format!(
                "{group}: a/unreadable: flows[10].out: is not REJECT, DROP, NONE or a list of \
                 endpoints"
            ),
        ]
    );
}
