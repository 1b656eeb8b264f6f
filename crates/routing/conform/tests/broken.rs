//! Invalid and hostile case files: each gives a clear message and no panic, and other cases run.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

use std::fs;
use std::path::Path;

use nearhop_conform::{FileReport, Only, known_groups, run_file};
use serde_json::{Value, json};

fn run(text: &str) -> FileReport {
    run_file("test.json", text.as_bytes(), &Only::everything())
}

fn messages(report: &FileReport) -> String {
    report.failures.iter().map(|failure| format!("{failure}\n")).collect()
}

#[test]
fn invalid_files_are_reported() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let cases = [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("\u{feff}{}", "not JSON"),
        (deep.as_str(), "not JSON"),
        ("[]", "expected an object"),
        ("3", "expected an object"),
        ("{}", "group: expected a text, found nothing"),
        (r#"{"group": 3, "cases": []}"#, "group: expected a text, found 3"),
        (r#"{"group": "find_port"}"#, "cases: expected a value, found nothing"),
        (r#"{"group": "find_port", "cases": {}}"#, "cases: expected a list, found an object"),
        (r#"{"group": "unheard_of", "cases": 7}"#, "cases: expected a list, found 7"),
    ];
    for (text, message) in cases {
        let report = run(text);
        assert_eq!((report.passed, report.failed, report.skipped), (0, 1, 0), "{message}");
        assert!(messages(&report).contains(message), "{message}: {}", messages(&report));
        assert!(messages(&report).starts_with("test.json: "));
    }
    assert_eq!(run_file("x", &[0xff, 0xfe, 0], &Only::everything()).failed, 1);
}

#[test]
fn invalid_cases_are_reported_with_id_and_field() {
    let packing = |step: Value| json!({"id": "a", "service": {"selector": {}, "ip_families": ["IPv4"]}, "steps": [step]});
    let cases = [
        ("find_port", json!(7), "cases[0]: expected an object, found 7"),
        ("find_port", json!({}), "cases[0]: cases[0].id: expected a text, found nothing"),
        ("find_port", json!({"id": ""}), "id: is empty"),
        ("find_port", json!({"id": "a"}), "a: target_port: expected a whole number"),
        ("find_port", json!({"id": "a", "target_port": 80}), "a: expect: is missing"),
        ("find_port", json!({"id": "a", "target_port": 80, "expect": {}}), "expects nothing"),
        ("find_port", json!({"id": "a", "target_port": 80, "expect": 3}), "expected an object"),
        ("find_port", json!({"id": "a", "target_port": 1e300, "expect": {}}), "target_port"),
        (
            "find_port",
            json!({"id": "a", "target_port": "x", "containers": [{"ports": [{"name": 4}]}]}),
            "a: containers[0].ports[0].containerPort: expected a whole number",
        ),
        ("trigger_time", json!({"id": "a", "steps": []}), "a: expect: the case expects nothing"),
        (
            "trigger_time",
            json!({"id": "a", "steps": [{"service": i64::MAX}]}),
            "a: steps[0].service: expected a whole number",
        ),
        (
            "topology_set_nodes",
            json!({"id": "a", "nodes": [{"cpu": "lots"}], "expect": {}}),
            "a: nodes[0].cpu: \"lots\" is not a CPU quantity",
        ),
        (
            "topology_add_hints",
            json!({"id": "a", "cpu_ratios": {"z": -1}}),
            "a: cpu_ratios[\"z\"]: is not a number from 0 to 1",
        ),
        (
            "categorize_endpoints",
            json!({"id": "a", "endpoints": [{"ep": "10.0.0.1"}]}),
            "a: endpoints[0].ep: is not an address and a port",
        ),
        (
            "reconciler_packing",
            packing(json!({"pods": [{"from": 0, "to": 100_001}]})),
            "a: steps[0].pods[0]: gives more than 100000 pods",
        ),
        (
            "reconciler_packing",
            packing(json!({"pods": [{"from": -1, "to": 1}]})),
            "a: steps[0].pods[0].from: expected a whole number from 0",
        ),
        (
            "reconciler_packing",
            packing(json!({"pods": [{"from": 0, "to": 2}, {"from": 1, "to": 3}]})),
            "gives pod1 twice",
        ),
        (
            "reconciler_packing",
            packing(json!({"existing": [{"name": "x", "members": {"to": 3, "step": 0}}]})),
            "a: steps[0].existing[0].members.step: must be at least 1",
        ),
        (
            "reconciler_packing",
            packing(json!({"pods": [{"to": 3}], "then_unready": "all of them"})),
            "a: steps[0].then_unready: does not name list positions",
        ),
        (
            "reconciler_packing",
            json!({"id": "a", "service": {}, "pod_named_ports": {"http": "80 +"},
                   "steps": [{"pods": [{"to": 1}]}]}),
            "gives no port number for i = 0",
        ),
        (
            "reconciler_topology_hints",
            json!({"id": "a", "existing": ["nowhere"], "expect": {}}),
            "a: fixture: expected a value, found nothing",
        ),
    ];
    for (group, case, message) in cases {
        let good = json!({"id": "good", "target_port": 80, "expect": {"found": true}});
        let report = run(&json!({"group": group, "cases": [case.clone(), good]}).to_string());
        assert!(messages(&report).contains(message), "{message}: {}", messages(&report));
        assert_eq!(report.passed, usize::from(group == "find_port"), "{case}");
    }
}

#[test]
fn a_repeated_id_fails_the_second_case() {
    let case = json!({"id": "a", "target_port": 80, "expect": {"found": true}});
    let report = run(&json!({"group": "find_port", "cases": [case.clone(), case]}).to_string());
    assert_eq!((report.passed, report.failed), (1, 1));
    assert!(messages(&report).contains("\"a\" is also the id of cases[0]"));
}

/// JSON pointers to `value` and all values below it.
fn places(value: &Value, at: String, found: &mut Vec<String>) {
    match value {
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                places(item, format!("{at}/{i}"), found);
            }
        }
        Value::Object(map) => {
            for (key, item) in map {
                places(item, format!("{at}/{}", key.replace('~', "~0").replace('/', "~1")), found);
            }
        }
        _ => {}
    }
    found.push(at);
}

/// Replaces each value of each case in turn by an unusual value. Every result except a panic is
/// allowed.
#[test]
fn unusual_values_do_not_panic() {
    let unusual = [
        json!(null),
        json!(-1),
        json!(0),
        json!(u64::MAX),
        json!(0.5),
        json!(""),
        json!("\u{0}..., 1 ( % None Auto"),
        json!(true),
        json!([]),
        json!([[{}]]),
        json!({}),
        json!({"": {"from": 3, "to": 1, "id": "x"}}),
    ];
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../conformance/cases");
    for group in known_groups() {
        let place = if group.starts_with("dns_") { dir.join("dns") } else { dir.clone() };
        let text = fs::read(place.join(format!("{group}.json"))).unwrap();
        let file: Value = serde_json::from_slice(&text).unwrap();
        let mut pointers = Vec::new();
        let cases = file["cases"].as_array().unwrap().len();
        places(&file, String::new(), &mut pointers);
        for (at, pointer) in pointers.iter().enumerate() {
            let mut mutant = file.clone();
            let case = pointer.split('/').nth(2).and_then(|case| case.parse::<usize>().ok());
            *mutant.pointer_mut(pointer).unwrap() = unusual[at % unusual.len()].clone();
            // Keep only the changed case, or the first case if the change is outside the cases.
            let list = mutant.pointer_mut("/cases").and_then(Value::as_array_mut);
            if let Some(list) = list.filter(|list| list.len() == cases) {
                *list = vec![list.swap_remove(case.unwrap_or(0))];
            }
            // Keep only the changed flow, or the first one: a case has many flows.
            let flow = pointer.split('/').nth(4).and_then(|flow| flow.parse::<usize>().ok());
            let flows = mutant.pointer_mut("/cases/0/flows").and_then(Value::as_array_mut);
            if let Some(flows) = flows.filter(|flows| !flows.is_empty()) {
                let at = flow.filter(|_| pointer.contains("/flows/")).unwrap_or(0);
                *flows = vec![flows.swap_remove(at)];
            }
            run(&mutant.to_string());
        }
    }
}
