//! Cells of roles, quotas, certificates, policies and flows.

use serde_json::Value;

use super::{Rules, condition, or};
use crate::table::age;
use crate::table::column::{dig, list, shown, text};
use crate::table::label;

pub(super) const RULES: Rules = &[
    ("component-status", |object, _| match healthy(object).map(|c| text(c, "status")) {
        Some("True") => "Healthy".into(),
        Some(_) => "Unhealthy".into(),
        None => "Unknown".into(),
    }),
    ("component-message", |object, _| healthy(object).map_or("", |c| text(c, "message")).into()),
    ("component-error", |object, _| healthy(object).map_or("", |c| text(c, "error")).into()),
    ("quota-requests", |object, _| quota(object, Limits::Leave).into()),
    ("quota-limits", |object, _| quota(object, Limits::Only).into()),
    ("role", |object, _| {
        format!("{}/{}", text(object, "roleRef.kind"), text(object, "roleRef.name")).into()
    }),
    ("role-users", |object, _| subjects(object, "User").into()),
    ("role-groups", |object, _| subjects(object, "Group").into()),
    ("role-accounts", |object, _| subjects(object, "ServiceAccount").into()),
    ("csr-duration", |object, _| match dig(object, "spec.expirationSeconds").as_i64() {
        Some(seconds) => age::age(seconds).into(),
        None => "<none>".into(),
    }),
    ("csr-condition", |object, _| csr_condition(object).into()),
    ("param-kind", |object, _| match dig(object, "spec.paramKind") {
        Value::Null => "<unset>".into(),
        kind => format!("{}/{}", text(kind, "apiVersion"), text(kind, "kind")).into(),
    }),
    ("param-ref", |object, _| param_ref(dig(object, "spec.paramRef")).into()),
    ("flow-dangling", |object, _| {
        condition(object, "status.conditions", "Dangling").map_or("?", |c| text(c, "status")).into()
    }),
    ("level-shares", |object, _| level(object, "nominalConcurrencyShares")),
    ("level-queues", |object, _| level(object, "limitResponse.queuing.queues")),
    ("level-hand", |object, _| level(object, "limitResponse.queuing.handSize")),
    ("level-length", |object, _| level(object, "limitResponse.queuing.queueLengthLimit")),
    ("api-service", |object, _| match dig(object, "spec.service") {
        Value::Null => "Local".into(),
        service => format!("{}/{}", text(service, "namespace"), text(service, "name")).into(),
    }),
    ("api-available", |object, _| available(object).into()),
];

/// Which entries of a quota a column shows.
#[derive(Clone, Copy, PartialEq)]
enum Limits {
    Only,
    Leave,
}

fn healthy(object: &Value) -> Option<&Value> {
    condition(object, "conditions", "Healthy")
}

fn quota(object: &Value, limits: Limits) -> String {
    let hard = dig(object, "status.hard").as_object().into_iter().flatten();
    let wanted = hard.filter(|(name, _)| name.starts_with("limits.") == (limits == Limits::Only));
    let shown = wanted.map(|(name, hard)| {
        let used =
            dig(object, "status.used").get(name).and_then(shown).unwrap_or_else(|| "0".to_owned());
        format!("{name}: {used}/{}", shown(hard).unwrap_or_else(|| "0".to_owned()))
    });
    shown.collect::<Vec<_>>().join(", ")
}

fn subjects(binding: &Value, kind: &str) -> String {
    let subjects = list(binding, "subjects").iter().filter(|subject| text(subject, "kind") == kind);
    let names = subjects.map(|subject| match text(subject, "namespace") {
        namespace if kind == "ServiceAccount" => format!("{namespace}/{}", text(subject, "name")),
        _ => text(subject, "name").to_owned(),
    });
    names.collect::<Vec<_>>().join(", ")
}

fn csr_condition(request: &Value) -> String {
    let has = |kind| condition(request, "status.conditions", kind).is_some();
    let mut state = match (has("Denied"), has("Approved")) {
        (true, _) => "Denied",
        (false, true) => "Approved",
        (false, false) => "Pending",
    }
    .to_owned();
    if has("Failed") {
        state += ",Failed";
    }
    if !text(request, "status.certificate").is_empty() {
        state += ",Issued";
    }
    state
}

fn param_ref(reference: &Value) -> String {
    match text(reference, "name") {
        "" if dig(reference, "selector").is_object() => {
            label::requirements(dig(reference, "selector")).unwrap_or_default()
        }
        "" => "<unset>".to_owned(),
        name => format!("{}/{name}", or(text(reference, "namespace"), "*")),
    }
}

/// A number, unless the level has no such limit.
fn level(object: &Value, field: &str) -> Value {
    match dig(dig(object, "spec.limited"), field) {
        Value::Null => "<none>".into(),
        number => number.clone(),
    }
}

fn available(service: &Value) -> String {
    let Some(condition) = condition(service, "status.conditions", "Available") else {
        return "Unknown".to_owned();
    };
    match (text(condition, "status"), text(condition, "reason")) {
        ("True", _) => "True".to_owned(),
        (status, "") => status.to_owned(),
        (status, reason) => format!("{status} ({reason})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn quotas_are_printed_in_two_columns() {
        let status =
            json!({"hard": {"limits.cpu": "2", "pods": "10", "cpu": "1"}, "used": {"pods": "3"}});
        let object = json!({"status": status});
        assert_eq!(quota(&object, Limits::Leave), "cpu: 0/1, pods: 3/10");
        assert_eq!(quota(&object, Limits::Only), "limits.cpu: 0/2");
    }

    #[test]
    fn binding_subjects_are_printed() {
        let binding = json!({"subjects": [{"kind": "User", "name": "jane"}, {"kind": "User", "name": "joe"},
            {"kind": "ServiceAccount", "namespace": "ns", "name": "sa"}]});
        assert_eq!(subjects(&binding, "User"), "jane, joe");
        assert_eq!(subjects(&binding, "ServiceAccount"), "ns/sa");
        assert_eq!(subjects(&binding, "Group"), "");
    }

    #[test]
    fn certificate_and_service_columns_are_printed() {
        let conditions = json!([{"type": "Approved"}, {"type": "Failed"}]);
        assert_eq!(
            csr_condition(&json!({"status": {"conditions": conditions}})),
            "Approved,Failed"
        );
        let conditions =
            json!([{"type": "Available", "status": "False", "reason": "MissingEndpoints"}]);
        assert_eq!(
            available(&json!({"status": {"conditions": conditions}})),
            "False (MissingEndpoints)"
        );
        assert_eq!(param_ref(&json!({"name": "p"})), "*/p");
        assert_eq!(param_ref(&Value::Null), "<unset>");
    }
}
