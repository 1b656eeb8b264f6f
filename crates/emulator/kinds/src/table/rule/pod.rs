//! Cells of Pods, mostly from the states of their containers.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Rules, condition, or};
use crate::table::age;
use crate::table::column::{dig, int, list, text};

pub(super) const RULES: Rules = &[
    ("pod-ready", |pod, _| Summary::of(pod).ready().into()),
    ("pod-status", |pod, _| Summary::of(pod).reason.into()),
    ("pod-restarts", |pod, now| Summary::of(pod).restarts(now).into()),
    ("pod-gates", |pod, _| gates(pod).into()),
];

/// The row condition of a finished Pod.
pub(crate) fn finished(pod: &Value) -> Option<Value> {
    let (reason, message) = match text(pod, "status.phase") {
        "Succeeded" => ("Succeeded", "The pod has completed successfully."),
        "Failed" => ("Failed", "The pod failed."),
        _ => return None,
    };
    Some(json!([{"type": "Completed", "status": "True", "reason": reason, "message": message}]))
}

/// The source of three columns.
struct Summary<'a> {
    reason: String,
    ready: usize,
    total: usize,
    restarts: Restarts<'a>,
}

#[derive(Clone, Copy, Default)]
struct Restarts<'a> {
    count: i64,
    /// RFC 3339 in whole seconds, so that later is greater.
    last: &'a str,
}

impl<'a> Restarts<'a> {
    fn add(&mut self, status: &'a Value) {
        self.count = self.count.saturating_add(int(status, "restartCount"));
        self.last = self.last.max(text(status, "lastState.terminated.finishedAt"));
    }
}

impl<'a> Summary<'a> {
    fn of(pod: &'a Value) -> Self {
        let init = list(pod, "spec.initContainers");
        let total =
            list(pod, "spec.containers").len() + init.iter().filter(|c| restartable(c)).count();
        let mut reason = or(text(pod, "status.reason"), text(pod, "status.phase"));
        let conditions = "status.conditions";
        if condition(pod, conditions, "PodScheduled")
            .is_some_and(|c| text(c, "reason") == "SchedulingGated")
        {
            reason = "SchedulingGated".to_owned();
        }
        let mut this = Self { reason, ready: 0, total, restarts: Restarts::default() };
        let initializing = this.see_init_containers(pod, init);
        let initialized = is_true(condition(pod, conditions, "Initialized"));
        if !initializing || initialized {
            this.see_containers(pod);
        }
        let deleted = !dig(pod, "metadata.deletionTimestamp").is_null();
        let done = matches!(text(pod, "status.phase"), "Succeeded" | "Failed");
        if deleted && text(pod, "status.reason") == "NodeLost" {
            this.reason = "Unknown".to_owned();
        } else if deleted && !done {
            this.reason = "Terminating".to_owned();
        }
        this
    }

    /// Whether an init container still runs, or failed. After initialization only restarts of
    /// sidecars count.
    fn see_init_containers(&mut self, pod: &'a Value, init: &[Value]) -> bool {
        let (mut all, mut sidecars) = (Restarts::default(), Restarts::default());
        let mut initializing = false;
        for (at, status) in list(pod, "status.initContainerStatuses").iter().enumerate() {
            let container = init.iter().find(|c| text(c, "name") == text(status, "name"));
            let sidecar = container.is_some_and(restartable);
            all.add(status);
            if sidecar {
                sidecars.add(status);
            }
            let terminated = dig(status, "state.terminated");
            if terminated.is_object() && int(terminated, "exitCode") == 0 {
                continue;
            }
            if sidecar && dig(status, "started") == true {
                self.ready += usize::from(dig(status, "ready") == true);
                continue;
            }
            let why = match text(status, "state.waiting.reason") {
                _ if terminated.is_object() => end(terminated),
                "" | "PodInitializing" => format!("{at}/{}", init.len()),
                waiting => waiting.to_owned(),
            };
            self.reason = format!("Init:{why}");
            initializing = true;
            break;
        }
        let initialized = is_true(condition(pod, "status.conditions", "Initialized"));
        self.restarts = if initializing && !initialized { all } else { sidecars };
        initializing
    }

    fn see_containers(&mut self, pod: &'a Value) {
        let (mut running, mut failure) = (false, None);
        for status in list(pod, "status.containerStatuses").iter().rev() {
            self.restarts.add(status);
            let terminated = dig(status, "state.terminated");
            let waiting = text(status, "state.waiting.reason");
            if !waiting.is_empty() {
                self.reason = waiting.to_owned();
            } else if terminated.is_object() {
                self.reason = end(terminated);
                if int(terminated, "exitCode") != 0 {
                    failure = Some(self.reason.clone());
                }
            } else if dig(status, "ready") == true && dig(status, "state.running").is_object() {
                running = true;
                self.ready += 1;
            }
        }
        // One container that completed does not complete the Pod.
        if self.reason == "Completed" {
            let ready = is_true(condition(pod, "status.conditions", "Ready"));
            self.reason = match failure {
                _ if running && ready => "Running".to_owned(),
                Some(failure) => failure,
                None if running => "NotReady".to_owned(),
                None => return,
            };
        }
    }

    fn ready(&self) -> String {
        format!("{}/{}", self.ready, self.total)
    }

    fn restarts(&self, now: Timestamp) -> String {
        let Restarts { count, last } = self.restarts;
        if count != 0 && !last.is_empty() {
            return format!("{count} ({} ago)", age::since(last, now));
        }
        count.to_string()
    }
}

fn end(terminated: &Value) -> String {
    match (text(terminated, "reason"), int(terminated, "signal")) {
        ("", 0) => format!("ExitCode:{}", int(terminated, "exitCode")),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

fn restartable(container: &Value) -> bool {
    text(container, "restartPolicy") == "Always"
}

fn is_true(condition: Option<&Value>) -> bool {
    condition.is_some_and(|condition| text(condition, "status") == "True")
}

fn gates(pod: &Value) -> String {
    let gates = list(pod, "spec.readinessGates");
    if gates.is_empty() {
        return "<none>".to_owned();
    }
    let passed = gates
        .iter()
        .filter(|gate| is_true(condition(pod, "status.conditions", text(gate, "conditionType"))));
    format!("{}/{}", passed.count(), gates.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(status: Value, spec: Value) -> (String, String, String) {
        let pod = json!({"spec": spec, "status": status});
        let summary = Summary::of(&pod);
        let now = "2026-11-15T20:30:00Z".parse().expect("a valid time");
        (summary.ready(), summary.reason.clone(), summary.restarts(now))
    }

    fn row(ready: &str, reason: &str, restarts: &str) -> (String, String, String) {
        (ready.to_owned(), reason.to_owned(), restarts.to_owned())
    }

    #[test]
    fn the_status_of_init_containers_is_printed() {
        let spec = json!({"initContainers": [{"name": "a"}, {"name": "b", "restartPolicy": "Always"}],
            "containers": [{"name": "c"}]});
        let status = json!({"phase": "Pending", "initContainerStatuses": [
            {"name": "a", "restartCount": 2, "state": {"terminated": {"exitCode": 3}}}]});
        assert_eq!(cells(status, spec.clone()), row("0/2", "Init:ExitCode:3", "2"));
        let status = json!({"phase": "Pending", "initContainerStatuses": [
            {"name": "a", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]});
        assert_eq!(cells(status, spec.clone()), row("0/2", "Init:ImagePullBackOff", "0"));
        let done =
            json!({"name": "a", "restartCount": 5, "state": {"terminated": {"exitCode": 0}}});
        let sidecar = json!({"name": "b", "restartCount": 1, "started": true, "ready": true, "state": {"running": {}},
            "lastState": {"terminated": {"finishedAt": "2026-11-15T20:29:00Z"}}});
        let status = json!({"phase": "Running", "initContainerStatuses": [done, sidecar], "containerStatuses": [
            {"name": "c", "ready": true, "restartCount": 3, "state": {"running": {}}}]});
        assert_eq!(cells(status, spec), row("2/2", "Running", "4 (60s ago)"));
    }

    #[test]
    fn a_pod_with_a_completed_container_is_not_ready() {
        let spec = json!({"containers": [{"name": "c"}, {"name": "d"}]});
        let completed = json!({"state": {"terminated": {"reason": "Completed", "exitCode": 0}}});
        let running = json!({"ready": true, "state": {"running": {}}});
        let failed = json!({"state": {"terminated": {"reason": "Error", "exitCode": 1}}});
        let ready = json!([{"type": "Ready", "status": "True"}]);
        let with = |statuses: Value, conditions: &Value| {
            cells(
                json!({"phase": "Running", "containerStatuses": statuses, "conditions": conditions}),
                spec.clone(),
            )
        };
        assert_eq!(with(json!([completed, running]), &ready), row("1/2", "Running", "0"));
        assert_eq!(with(json!([completed, running]), &json!([])), row("1/2", "NotReady", "0"));
        assert_eq!(with(json!([completed, failed]), &json!([])), row("0/2", "Error", "0"));
        let killed = json!({"state": {"terminated": {"signal": 9, "exitCode": 137}}});
        assert_eq!(with(json!([killed]), &json!([])), row("0/2", "Signal:9", "0"));
    }

    #[test]
    fn finished_pods_have_a_row_condition() {
        let of = |phase: &str| finished(&json!({"status": {"phase": phase}}));
        assert_eq!(of("Running"), None);
        assert_eq!(of("Failed").map(|c| c[0]["reason"].clone()), Some(json!("Failed")));
        assert_eq!(of("Succeeded").map(|c| c[0]["status"].clone()), Some(json!("True")));
    }
}
