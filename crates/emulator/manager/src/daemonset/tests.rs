//! DaemonSet decisions.

use k8s_openapi::api::apps::v1::{DaemonSetSpec, DaemonSetStatus};
use serde_json::json;

use super::*;
use crate::kind::Object;
use crate::testing::{self, at};

fn set(strategy: serde_json::Value) -> DaemonSet {
    DaemonSet {
        metadata: testing::meta("agent"),
        spec: Some(DaemonSetSpec {
            selector: testing::selector("web"),
            template: testing::template("web"),
            update_strategy: Some(serde_json::from_value(strategy).unwrap()),
            ..DaemonSetSpec::default()
        }),
        status: None,
    }
}

fn rolling(max_unavailable: i32) -> DaemonSet {
    set(json!({ "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": max_unavailable } }))
}

#[derive(Clone, Copy, PartialEq)]
enum Age {
    Old,
    New,
}

fn daemon(set: &DaemonSet, node: &str, age: Age, ready: bool) -> Pod {
    let name = format!("{node}-{}", if age == Age::New { "new" } else { "old" });
    let mut pod = testing::owned_pod("DaemonSet", &set.metadata, &name, node);
    let hash = object::hash(&set.spec.as_ref().unwrap().template, None);
    let hash = if age == Age::New { hash } else { "before".to_owned() };
    pod.metadata.labels.as_mut().unwrap().insert(REVISION_HASH.to_owned(), hash);
    testing::set_ready(&mut pod, ready, at(0));
    pod
}

fn planned(set: &DaemonSet, nodes: &[Node], pods: &[Pod]) -> Plan {
    let nodes: Vec<&Node> = nodes.iter().collect();
    let pods: Vec<&Pod> = pods.iter().collect();
    plan_daemons(set, &nodes, &pods, at(100))
}

/// `+n1` for a Pod created for n1, `-name` for a deleted Pod.
fn changes(plan: &Plan) -> Vec<String> {
    let show = |action: &Action| match action {
        Action::Create(Object::Pod(pod)) => Some(format!("+{}", target(pod))),
        Action::Delete { name, .. } => Some(format!("-{}", name.name)),
        _ => None,
    };
    plan.actions().filter_map(show).collect()
}

fn status(plan: &Plan) -> DaemonSetStatus {
    let find = |action: &Action| match action {
        Action::PutStatus(Object::DaemonSet(set)) => set.status.clone(),
        _ => None,
    };
    plan.actions().find_map(find).expect("a status update")
}

fn three() -> Vec<Node> {
    ["n1", "n2", "n3"].map(|name| testing::node(name, "a")).into()
}

#[test]
fn a_pod_is_created_for_each_matching_node() {
    let mut set = rolling(1);
    let plan = planned(&set, &three(), &[]);
    assert_eq!(changes(&plan), ["+n1", "+n2", "+n3"]);
    let Some(Action::Create(Object::Pod(pod))) = plan.actions().next() else { panic!() };
    let spec = pod.spec.as_ref().unwrap();
    assert_eq!(spec.node_name, None, "the scheduler binds it");
    let keys: Vec<&str> =
        spec.tolerations.iter().flatten().filter_map(|one| one.key.as_deref()).collect();
    assert!(keys.contains(&taint::UNSCHEDULABLE) && keys.contains(&taint::UNREACHABLE));
    let template = set.spec.as_mut().unwrap().template.spec.as_mut().unwrap();
    template.node_selector = Some(testing::labels(&[("kubernetes.io/hostname", "n2")]));
    assert_eq!(changes(&planned(&set, &three(), &[])), ["+n2"]);
}

#[test]
fn taints_prevent_or_remove_daemon_pods() {
    let set = rolling(1);
    let pods: Vec<Pod> = ["n1", "n2"].map(|n| daemon(&set, n, Age::New, true)).into();
    for (effect, without, with) in [
        (NO_SCHEDULE, vec!["+n2", "+n3"], vec!["+n3"]),
        (NO_EXECUTE, vec!["+n2", "+n3"], vec!["-n1-new", "+n3"]),
    ] {
        let mut nodes = three();
        nodes[0].spec.get_or_insert_default().taints = Some(vec![taint::taint("x", effect)]);
        assert_eq!(changes(&planned(&set, &nodes, &[])), without);
        assert_eq!(changes(&planned(&set, &nodes, &pods)), with);
    }
    let mut nodes = three();
    nodes[0].spec.get_or_insert_default().unschedulable = Some(true);
    nodes[0].spec.as_mut().unwrap().taints =
        Some(vec![taint::taint(taint::UNSCHEDULABLE, NO_SCHEDULE)]);
    assert_eq!(changes(&planned(&set, &nodes, &pods)), ["+n3"], "DaemonSet Pods tolerate a cordon");
}

#[test]
fn an_update_respects_max_unavailable() {
    let set = rolling(2);
    let on = |ages: [(Age, bool); 3]| -> Vec<Pod> {
        let names = ["n1", "n2", "n3"].into_iter().zip(ages);
        names.map(|(name, (age, ready))| daemon(&set, name, age, ready)).collect()
    };
    use Age::{New, Old};
    for (pods, expected) in [
        ([(Old, true), (Old, true), (Old, true)], vec!["-n1-old", "-n2-old"]),
        ([(New, false), (Old, true), (Old, true)], vec!["-n2-old"]),
        ([(New, false), (New, false), (Old, true)], vec![]),
        ([(New, true), (New, true), (Old, true)], vec!["-n3-old"]),
        ([(Old, false), (Old, false), (Old, false)], vec!["-n1-old", "-n2-old", "-n3-old"]),
        ([(New, true), (New, true), (New, true)], vec![]),
    ] {
        assert_eq!(changes(&planned(&set, &three(), &on(pods))), expected);
    }
    let asked = super::tests::set(json!({ "type": "OnDelete" }));
    let old = on([(Old, true), (Old, true), (Old, true)]);
    assert_eq!(changes(&planned(&asked, &three(), &old)), [""; 0], "OnDelete waits for the user");
}

#[test]
fn with_max_surge_the_new_pod_comes_first() {
    let set = set(json!({ "type": "RollingUpdate", "rollingUpdate": {
        "maxSurge": 1, "maxUnavailable": 0,
    } }));
    let nodes = &three()[..2];
    let old = |node| daemon(&set, node, Age::Old, true);
    let new = |node, ready| daemon(&set, node, Age::New, ready);
    assert_eq!(changes(&planned(&set, nodes, &[old("n1"), old("n2")])), ["+n1"]);
    let waiting = [old("n1"), new("n1", false), old("n2")];
    assert_eq!(changes(&planned(&set, nodes, &waiting)), [""; 0]);
    let ready = [old("n1"), new("n1", true), old("n2")];
    assert_eq!(changes(&planned(&set, nodes, &ready)), ["-n1-old", "+n2"]);
}

#[test]
fn duplicate_and_failed_pods_are_deleted() {
    let set = rolling(1);
    let nodes = &three()[..1];
    let mut second = daemon(&set, "n1", Age::New, true);
    second.metadata.name = Some("second".to_owned());
    second.metadata.creation_timestamp = Some(object::time(at(50)));
    let first = daemon(&set, "n1", Age::New, true);
    assert_eq!(changes(&planned(&set, nodes, &[second, first.clone()])), ["-second"]);
    let mut failed = first;
    failed.status.as_mut().unwrap().phase = Some("Failed".to_owned());
    assert_eq!(changes(&planned(&set, nodes, &[failed.clone()])), ["-n1-new"]);
    failed.metadata.creation_timestamp = Some(object::time(at(98)));
    let plan = planned(&set, nodes, &[failed]);
    assert_eq!(
        (changes(&plan), plan.requeue_after),
        (vec![], Some(Duration::from_secs(3))),
        "the replacement waits"
    );
}

#[test]
fn the_status_counts_nodes() {
    let set = rolling(1);
    let pods = [daemon(&set, "n1", Age::New, true), daemon(&set, "n2", Age::Old, false)];
    let found = status(&planned(&set, &three(), &pods));
    assert_eq!(found.desired_number_scheduled, 3);
    assert_eq!(found.current_number_scheduled, 2);
    assert_eq!((found.number_ready, found.number_available), (1, Some(1)));
    assert_eq!(found.updated_number_scheduled, Some(1));
    assert_eq!(found.number_unavailable, Some(2));
    let nodes = &three()[1..];
    assert_eq!(status(&planned(&set, nodes, &pods)).desired_number_scheduled, 2);
}
