//! Node health, taints and eviction.

use k8s_openapi::api::core::v1::Toleration;

use super::*;
use crate::kind::Object;
use crate::testing::{self, at};

const GRACE: GracePeriods =
    GracePeriods { grace: Duration::from_secs(40), startup: Duration::from_secs(60) };

fn planned(node: &Node, pods: &[&Pod], silent: u64) -> Plan {
    plan_node_health(node, pods, Duration::from_secs(silent), GRACE, at(100))
}

fn with_ready(status: &str) -> Node {
    let mut node = testing::node("n1", "a");
    node.status.as_mut().unwrap().conditions.as_mut().unwrap()[0].status = status.to_owned();
    node
}

fn with_taints(mut node: Node, taints: &[(&str, &str)]) -> Node {
    let taint = |(key, effect): &(&str, &str)| Taint {
        time_added: (*effect == NO_EXECUTE).then(|| time(at(0))),
        ..taint::taint(key, effect)
    };
    let taints = taints.iter().map(taint).collect();
    node.spec.get_or_insert_default().taints = Some(taints);
    node
}

/// The taints that a plan writes.
fn written(plan: &Plan) -> Option<Vec<(String, String)>> {
    let Some(Action::Patch(Kind::Node, _, body)) = plan.actions().next() else { return None };
    let taints = body["spec"]["taints"].as_array().unwrap().iter();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    Some(taints.map(|taint| (text(&taint["key"]), text(&taint["effect"]))).collect())
}

#[test]
fn a_healthy_node_is_requeued_for_its_grace_period() {
    let plan = planned(&with_ready("True"), &[], 15);
    assert_eq!(plan, Plan::after(Duration::from_secs(25)));
    let mut fresh = with_ready("True");
    fresh.status.as_mut().unwrap().conditions = None;
    let plan = planned(&fresh, &[], 50);
    assert_eq!(plan.requeue_after, Some(Duration::from_secs(10)), "it may take longer to start");
}

#[test]
fn a_silent_node_becomes_unknown_then_tainted_with_unready_pods() {
    let plan = planned(&with_ready("True"), &[], 40);
    let Some(Action::PutStatus(Object::Node(node))) = plan.actions().next() else {
        panic!("{plan:?}")
    };
    let ready = taint::condition(node, "Ready").unwrap();
    assert_eq!(ready.status, "Unknown");
    assert_eq!(ready.reason.as_deref(), Some("NodeStatusUnknown"));
    assert_eq!(ready.last_transition_time, Some(time(at(100))));
    let mut pod = testing::pod("p", "n1");
    testing::set_ready(&mut pod, true, at(0));
    let idle = testing::pod("idle", "n1");
    let plan = planned(node, &[&pod, &idle], 41);
    let taints = written(&plan).unwrap();
    let expected = [(UNREACHABLE, NO_SCHEDULE), (UNREACHABLE, NO_EXECUTE)];
    assert_eq!(taints, expected.map(|(key, effect)| (key.to_owned(), effect.to_owned())));
    let puts: Vec<&Action> =
        plan.actions().filter(|action| matches!(action, Action::PutStatus(_))).collect();
    let [Action::PutStatus(Object::Pod(marked))] = puts[..] else { panic!("{puts:?}") };
    assert!(!pod::is_ready(marked));
}

#[test]
fn taints_follow_conditions_and_other_taints_stay() {
    let foreign = ("dedicated", NO_SCHEDULE);
    let cases = [
        ("True", vec![(NOT_READY, NO_SCHEDULE), foreign], Some(vec![foreign])),
        ("True", vec![foreign], None),
        (
            "False",
            vec![foreign],
            Some(vec![foreign, (NOT_READY, NO_SCHEDULE), (NOT_READY, NO_EXECUTE)]),
        ),
        ("False", vec![(NOT_READY, NO_SCHEDULE), (NOT_READY, NO_EXECUTE)], None),
        (
            "False",
            vec![(UNREACHABLE, NO_SCHEDULE), (UNREACHABLE, NO_EXECUTE)],
            Some(vec![(NOT_READY, NO_SCHEDULE), (NOT_READY, NO_EXECUTE)]),
        ),
    ];
    for (ready, taints, expected) in cases {
        let node = with_taints(with_ready(ready), &taints);
        let owned = |(key, effect): &(&str, &str)| ((*key).to_owned(), (*effect).to_owned());
        let expected = expected.map(|all| all.iter().map(owned).collect::<Vec<_>>());
        assert_eq!(written(&planned(&node, &[], 1)), expected, "{ready} {taints:?}");
    }
    let mut cordoned = with_ready("True");
    cordoned.spec.get_or_insert_default().unschedulable = Some(true);
    let expected = vec![(UNSCHEDULABLE.to_owned(), NO_SCHEDULE.to_owned())];
    assert_eq!(written(&planned(&cordoned, &[], 1)), Some(expected));
}

#[test]
fn pods_are_evicted_after_toleration_seconds() {
    let tolerate = |key: &str, seconds: Option<i64>| Toleration {
        key: Some(key.to_owned()),
        operator: Some("Exists".to_owned()),
        effect: Some(NO_EXECUTE.to_owned()),
        toleration_seconds: seconds,
        ..Toleration::default()
    };
    let seconds = |n: u64| Some(Duration::from_secs(n));
    let cases = [
        ("custom", vec![], seconds(0)),
        ("custom", vec![tolerate("custom", None)], None),
        ("custom", vec![tolerate("custom", Some(30))], seconds(20)),
        ("custom", vec![tolerate("custom", Some(5))], seconds(0)),
        ("custom", vec![tolerate("custom", Some(60)), tolerate("custom", Some(30))], seconds(20)),
        (UNREACHABLE, vec![], seconds(290)),
        (UNREACHABLE, vec![tolerate(UNREACHABLE, Some(300))], seconds(290)),
    ];
    for (key, tolerations, expected) in cases {
        let mut node = with_taints(with_ready("True"), &[(key, NO_EXECUTE)]);
        node.spec.as_mut().unwrap().taints.as_mut().unwrap()[0].time_added = Some(time(at(90)));
        let mut pod = testing::pod("p", "n1");
        pod.spec.as_mut().unwrap().tolerations = Some(tolerations.clone());
        assert_eq!(eviction_delay(&pod, &node, at(100)), expected, "{key} {tolerations:?}");
    }
    let node = with_taints(with_ready("True"), &[("custom", NO_SCHEDULE)]);
    assert_eq!(eviction_delay(&testing::pod("p", "n1"), &node, at(100)), None);
}

#[test]
fn a_taint_without_time_added_gets_the_current_time() {
    let mut node =
        with_taints(with_ready("True"), &[("custom", NO_EXECUTE), ("soft", NO_SCHEDULE)]);
    node.spec.as_mut().unwrap().taints.as_mut().unwrap()[0].time_added = None;
    let plan = planned(&node, &[], 1);
    let Some(Action::Patch(Kind::Node, _, body)) = plan.actions().next() else {
        panic!("{plan:?}")
    };
    let taints: Vec<Taint> = serde_json::from_value(body["spec"]["taints"].clone()).unwrap();
    let since: Vec<_> = taints.iter().map(|taint| taint.time_added.clone()).collect();
    assert_eq!(since, [Some(time(at(100))), None]);
    node.spec.as_mut().unwrap().taints = Some(taints);
    assert_eq!(written(&planned(&node, &[], 2)), None, "the time is set once");
    let mut pod = testing::pod("p", "n1");
    pod.spec.as_mut().unwrap().tolerations = Some(vec![Toleration {
        operator: Some("Exists".to_owned()),
        toleration_seconds: Some(30),
        ..Toleration::default()
    }]);
    assert_eq!(eviction_delay(&pod, &node, at(120)), Some(Duration::from_secs(10)));
    assert_eq!(eviction_delay(&pod, &node, at(130)), Some(Duration::ZERO));
}

#[test]
fn pods_of_missing_nodes_are_deleted_after_a_delay() {
    let pod = testing::pod("p", "gone");
    let quarantine = Duration::from_secs(40);
    let plan = plan_orphan(&pod, Duration::from_secs(10), quarantine);
    assert_eq!(plan, Plan::after(Duration::from_secs(30)));
    let plan = plan_orphan(&pod, Duration::from_secs(40), quarantine);
    let forced = |action: &Action| matches!(action, Action::Delete { mode: Deletion::Forced, .. });
    assert!(plan.actions().all(forced) && plan.actions().count() == 1);
}
