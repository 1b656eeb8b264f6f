//! Cells of Jobs, CronJobs, Deployments, revisions and autoscalers.

use jiff::Timestamp;
use serde_json::Value;

use super::{Rules, condition, or};
use crate::table::column::{dig, int, list, shown, text};
use crate::table::{age, label};

pub(super) const RULES: Rules = &[
    ("deployment-selector", |object, _| {
        let selector = label::requirements(dig(object, "spec.selector"));
        selector.unwrap_or_else(|| "<invalid>".to_owned()).into()
    }),
    ("controller", |object, _| controller(object).into()),
    ("job-status", |job, _| job_status(job).into()),
    ("job-completions", |job, _| job_completions(job).into()),
    ("job-duration", |job, now| job_duration(job, now).into()),
    ("cronjob-suspend", |object, _| match dig(object, "spec.suspend").as_bool() {
        Some(true) => "True".into(),
        Some(false) => "False".into(),
        None => "<unset>".into(),
    }),
    ("cronjob-last", |object, now| match text(object, "status.lastScheduleTime") {
        "" => "<none>".into(),
        last => age::since(last, now).into(),
    }),
    ("hpa-reference", |object, _| {
        let target = dig(object, "spec.scaleTargetRef");
        format!("{}/{}", text(target, "kind"), text(target, "name")).into()
    }),
    ("hpa-targets", |object, _| targets(object).into()),
];

/// `statefulset.apps/web`.
fn controller(object: &Value) -> String {
    let mut owners = list(object, "metadata.ownerReferences").iter();
    let Some(owner) = owners.find(|owner| dig(owner, "controller") == true) else {
        return "<none>".to_owned();
    };
    let kind = text(owner, "kind").to_lowercase();
    match text(owner, "apiVersion").split_once('/') {
        Some((group, _)) => format!("{kind}.{group}/{}", text(owner, "name")),
        None => format!("{kind}/{}", text(owner, "name")),
    }
}

fn job_status(job: &Value) -> &'static str {
    let has = |kind| {
        condition(job, "status.conditions", kind).is_some_and(|c| text(c, "status") == "True")
    };
    let deleted = !dig(job, "metadata.deletionTimestamp").is_null();
    let states = [
        ("Complete", has("Complete")),
        ("Failed", has("Failed")),
        ("Terminating", deleted),
        ("Suspended", has("Suspended")),
        ("FailureTarget", has("FailureTarget")),
        ("SuccessCriteriaMet", has("SuccessCriteriaMet")),
    ];
    states.iter().find(|(_, is)| *is).map_or("Running", |(state, _)| state)
}

fn job_completions(job: &Value) -> String {
    let succeeded = int(job, "status.succeeded");
    match (dig(job, "spec.completions").as_i64(), int(job, "spec.parallelism")) {
        (Some(wanted), _) => format!("{succeeded}/{wanted}"),
        (None, parallel) if parallel > 1 => format!("{succeeded}/1 of {parallel}"),
        (None, _) => format!("{succeeded}/1"),
    }
}

fn job_duration(job: &Value, now: Timestamp) -> String {
    match text(job, "status.startTime") {
        "" => String::new(),
        start => age::since(start, text(job, "status.completionTime").parse().unwrap_or(now)),
    }
}

/// Two of them at most. autoscaling/v1 knows only the processor.
fn targets(object: &Value) -> String {
    let metrics = list(object, "spec.metrics");
    let mut all: Vec<String> = metrics
        .iter()
        .enumerate()
        .map(|(at, metric)| target(metric, dig(object, &format!("status.currentMetrics.{at}"))))
        .collect();
    if let Some(wanted) = dig(object, "spec.targetCPUUtilizationPercentage").as_i64() {
        let current = dig(object, "status.currentCPUUtilizationPercentage").as_i64();
        all.push(format!("cpu: {}/{wanted}%", percent(current, "<unknown>")));
    }
    let more = all.len().saturating_sub(2);
    all.truncate(2);
    let shown = or(&all.join(", "), "<none>");
    if more > 0 { format!("{shown} + {more} more...") } else { shown }
}

fn target(metric: &Value, status: &Value) -> String {
    let (source, named, averaged) = match text(metric, "type") {
        "External" => ("external", false, true),
        "Object" => ("object", false, true),
        "Pods" => ("pods", false, false),
        "Resource" => ("resource", true, false),
        "ContainerResource" => ("containerResource", true, false),
        _ => return "<unknown type>".to_owned(),
    };
    let (metric, current) = (dig(metric, source), dig(dig(status, source), "current"));
    let wanted = dig(metric, "target");
    let value = |field| {
        let current = shown(dig(current, field)).unwrap_or_else(|| "<unknown>".to_owned());
        shown(dig(wanted, field)).map(|wanted| format!("{current}/{wanted}"))
    };
    let pair = match (value("averageValue"), value("value")) {
        (Some(average), _) if averaged => format!("{average} (avg)"),
        (Some(average), _) => average,
        (None, Some(value)) if averaged => value,
        (None, _) if named => format!(
            "{}/{}",
            percent(dig(current, "averageUtilization").as_i64(), "<unknown>"),
            percent(dig(wanted, "averageUtilization").as_i64(), "<auto>")
        ),
        (None, _) => "<unknown>/0".to_owned(),
    };
    if named { format!("{}: {pair}", text(metric, "name")) } else { pair }
}

fn percent(value: Option<i64>, default: &str) -> String {
    value.map_or_else(|| default.to_owned(), |value| format!("{value}%"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn autoscaler_targets_are_printed() {
        let cpu = json!({"type": "Resource", "resource": {"name": "cpu",
            "target": {"type": "Utilization", "averageUtilization": 80}}});
        let pods = json!({"type": "Pods", "pods": {"metric": {"name": "r"}, "target": {"averageValue": "10"}}});
        let external = json!({"type": "External", "external": {"target": {"averageValue": "30"}}});
        let status =
            json!({"currentMetrics": [{"resource": {"current": {"averageUtilization": 42}}}]});
        let of = |metrics: Value| targets(&json!({"spec": {"metrics": metrics}, "status": status}));
        assert_eq!(of(json!([])), "<none>");
        assert_eq!(of(json!([cpu])), "cpu: 42%/80%");
        assert_eq!(of(json!([cpu, pods])), "cpu: 42%/80%, <unknown>/10");
        assert_eq!(
            of(json!([cpu, external, pods])),
            "cpu: 42%/80%, <unknown>/30 (avg) + 1 more..."
        );
        let older = json!({"spec": {"targetCPUUtilizationPercentage": 50}});
        assert_eq!(targets(&older), "cpu: <unknown>/50%");
    }

    #[test]
    fn job_columns_are_printed() {
        let now: Timestamp = "2026-11-15T20:30:00Z".parse().expect("a valid time");
        let job = json!({"spec": {"parallelism": 3}, "status": {"succeeded": 1, "startTime": "2026-11-15T20:29:00Z"}});
        assert_eq!(job_completions(&job), "1/1 of 3");
        assert_eq!(job_duration(&job, now), "60s");
        assert_eq!(job_status(&job), "Running");
        let job = json!({"spec": {"completions": 2}, "status": {"succeeded": 2, "startTime": "2026-11-15T20:29:00Z",
            "completionTime": "2026-11-15T20:29:05Z", "conditions": [{"type": "Complete", "status": "True"}]}});
        assert_eq!(job_completions(&job), "2/2");
        assert_eq!(job_duration(&job, now), "5s");
        assert_eq!(job_status(&job), "Complete");
        assert_eq!(job_duration(&json!({}), now), "");
    }

    #[test]
    fn the_controller_of_a_revision_is_printed() {
        let owner = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "controller": true});
        assert_eq!(
            controller(&json!({"metadata": {"ownerReferences": [owner]}})),
            "statefulset.apps/web"
        );
        assert_eq!(controller(&json!({})), "<none>");
    }
}
