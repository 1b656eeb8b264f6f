//! Tests of the status of a Pod.

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{PodReadinessGate, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::super::machine::{ContainerInfo, Failure, RestartPolicy};
use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn object() -> Pod {
    let container = ContainerObject {
        name: "c".to_owned(),
        image: Some("busybox".to_owned()),
        ..ContainerObject::default()
    };
    let metadata = ObjectMeta {
        name: Some("p".to_owned()),
        namespace: Some("n".to_owned()),
        uid: Some("u".to_owned()),
        generation: Some(7),
        ..ObjectMeta::default()
    };
    let spec = PodSpec { containers: vec![container], ..PodSpec::default() };
    Pod { metadata, spec: Some(spec), status: None }
}

fn machine(policy: RestartPolicy) -> Machine {
    let main = ContainerInfo { name: "c".to_owned(), role: Role::Main, probes: Vec::new() };
    Machine::new(policy, SignedDuration::from_secs(30), vec![main])
}

fn show(pod: &Pod, machine: &Machine, now: Timestamp) -> Value {
    let context = StatusContext {
        node_addresses: vec!["172.18.0.2".parse().unwrap()],
        pod_addresses: vec!["10.244.1.1".parse().unwrap()],
        since: Some(at(0)),
    };
    serde_json::to_value(status(pod, machine, &context, &[], now)).unwrap()
}

fn of<'a>(status: &'a Value, kind: &str) -> &'a Value {
    let all = status["conditions"].as_array().unwrap();
    all.iter().find(|it| it["type"] == kind).unwrap()
}

fn run(machine: &mut Machine, now: Timestamp) {
    machine.prepared();
    machine.advance(now);
    machine.started("c", "nearhop://1", now);
    machine.advance(now);
}

#[test]
fn a_new_pod_is_pending() {
    let status = show(&object(), &machine(RestartPolicy::Always), at(1));
    assert_eq!(status["phase"], "Pending");
    let waiting = &status["containerStatuses"][0]["state"]["waiting"];
    assert_eq!(waiting, &json!({ "reason": "ContainerCreating" }));
    assert_eq!(of(&status, "Ready")["reason"], "ContainersNotReady");
    assert_eq!(of(&status, "Ready")["message"], "containers with unready status: [c]");
    assert_eq!(status["observedGeneration"], 7);
}

#[test]
fn a_running_container_makes_the_pod_ready() {
    let mut machine = machine(RestartPolicy::Always);
    run(&mut machine, at(1));
    let status = show(&object(), &machine, at(2));
    assert_eq!(status["phase"], "Running");
    let container = &status["containerStatuses"][0];
    assert_eq!(container["containerID"], "nearhop://1");
    assert_eq!(container["state"]["running"]["startedAt"], "2023-11-14T22:13:21Z");
    assert_eq!(of(&status, "Ready")["status"], "True");
    assert!(of(&status, "Ready").get("reason").is_none());
}

#[test]
fn back_off_shows_the_last_termination() {
    let mut machine = machine(RestartPolicy::Always);
    run(&mut machine, at(1));
    machine.ended("c", 3, None, Failure::None, at(2));
    run(&mut machine, at(2));
    machine.ended("c", 137, Some(9), Failure::None, at(3));
    machine.advance(at(3));
    let container = &show(&object(), &machine, at(4))["containerStatuses"][0];
    let waiting = &container["state"]["waiting"];
    assert_eq!(waiting["reason"], "CrashLoopBackOff");
    assert_eq!(waiting["message"], "back-off 10s restarting failed container=c pod=p_n(u)");
    let last = &container["lastState"]["terminated"];
    assert_eq!((&last["exitCode"], &last["signal"]), (&json!(137), &json!(9)));
    assert_eq!((&container["restartCount"], &container["ready"]), (&json!(1), &json!(false)));
}

#[test]
fn a_completed_pod_is_succeeded() {
    let mut machine = machine(RestartPolicy::Never);
    run(&mut machine, at(1));
    machine.ended("c", 0, None, Failure::None, at(2));
    let status = show(&object(), &machine, at(3));
    assert_eq!(status["phase"], "Succeeded");
    assert_eq!(status["containerStatuses"][0]["state"]["terminated"]["reason"], "Completed");
    for kind in ["Ready", "ContainersReady"] {
        assert_eq!(of(&status, kind)["reason"], "PodCompleted", "{kind}");
    }
}

#[test]
fn readiness_gates_delay_ready() {
    let mut machine = machine(RestartPolicy::Always);
    run(&mut machine, at(1));
    let mut pod = object();
    let gate = PodReadinessGate { condition_type: "example.com/gate".to_owned() };
    pod.spec.as_mut().unwrap().readiness_gates = Some(vec![gate]);
    let status = show(&pod, &machine, at(2));
    assert_eq!(of(&status, "ContainersReady")["status"], "True");
    assert_eq!(of(&status, "Ready")["reason"], "ReadinessGatesNotReady");
    let gate = PodCondition {
        type_: "example.com/gate".to_owned(),
        status: "True".to_owned(),
        ..PodCondition::default()
    };
    pod.status = Some(PodStatus { conditions: Some(vec![gate]), ..PodStatus::default() });
    assert_eq!(of(&show(&pod, &machine, at(2)), "Ready")["status"], "True");
}

#[test]
fn conditions_keep_their_transition_time() {
    let mut machine = machine(RestartPolicy::Always);
    let context = StatusContext::default();
    let first = status(&object(), &machine, &context, &[], at(1)).conditions.unwrap();
    let second = status(&object(), &machine, &context, &first, at(2)).conditions.unwrap();
    assert_eq!(first, second);
    run(&mut machine, at(3));
    let third = status(&object(), &machine, &context, &second, at(3)).conditions.unwrap();
    let time = |list: &[PodCondition], kind: &str| {
        list.iter().find(|it| it.type_ == kind).unwrap().last_transition_time.clone().unwrap().0
    };
    assert_eq!((time(&third, "Ready"), time(&third, "PodScheduled")), (at(3), at(1)));
}
