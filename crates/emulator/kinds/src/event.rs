//! Event: one stored object in two forms, `v1` (the stored one) and `events.k8s.io/v1`.

use serde_json::{Map, Value, json};

use crate::errors::{Errors, Report as _};
use crate::json::{at, carry, fill, text};
use crate::names;

/// Names in `v1` and in `events.k8s.io/v1` where they differ.
const RENAMED: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];
/// What an update in the form of `events.k8s.io/v1` cannot change.
const FIXED: [&str; 13] = [
    "involvedObject",
    "reason",
    "message",
    "source",
    "firstTimestamp",
    "lastTimestamp",
    "count",
    "type",
    "eventTime",
    "action",
    "related",
    "reportingComponent",
    "reportingInstance",
];
const MESSAGE_MAX: usize = 1024;
const TEXT_MAX: usize = 128;

/// The form of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    Core,
    Events,
}

/// An event of either form as `v1`.
pub fn to_core(event: &Value) -> Value {
    let mut core = converted(event, "v1", RENAMED.map(|(core, events)| (events, core)));
    for key in ["reportingComponent", "reportingInstance"] {
        fill(&mut core, key, "");
    }
    core
}

/// An event of either form as `events.k8s.io/v1`.
pub fn to_events(event: &Value) -> Value {
    let mut events = converted(event, "events.k8s.io/v1", RENAMED);
    // Only `v1` always has these.
    for key in ["reportingController", "reportingInstance"] {
        if text(&events, &[key]).is_empty() {
            carry(&mut events, &Value::Null, &[key]);
        }
    }
    events
}

/// Renames fields, and sets those that are always present in both forms.
fn converted(event: &Value, version: &str, names: [(&str, &str); 7]) -> Value {
    let renamed = |name: &str| names.iter().find(|(from, _)| *from == name).map(|(_, to)| *to);
    let fields = event.as_object().into_iter().flatten();
    let mut fields: Map<String, Value> = fields
        .map(|(key, value)| (renamed(key).unwrap_or(key).to_owned(), value.clone()))
        .collect();
    fields.insert("apiVersion".to_owned(), json!(version));
    for (key, empty) in [
        ("involvedObject", json!({})),
        ("source", json!({})),
        ("firstTimestamp", Value::Null),
        ("lastTimestamp", Value::Null),
        ("eventTime", Value::Null),
    ] {
        let shared = if version == "v1" { None } else { renamed(key) };
        fields.entry(shared.unwrap_or(key)).or_insert(empty);
    }
    fields.into()
}

/// Validates an event in the form of a view.
pub(crate) fn validate(new: &Value, old: Option<&Value>, view: View) -> Errors {
    match old {
        None => validate_create(&to_core(new), view),
        Some(old) => validate_update(&to_core(new), &to_core(old), view),
    }
}

fn validate_create(event: &Value, view: View) -> Errors {
    let mut errors = validate_common(event, view);
    if view == View::Core {
        return errors;
    }
    validate_series(event, &mut errors);
    if at(event, &["eventTime"]).is_none() {
        errors.required("eventTime", "");
    }
    let kind = text(event, &["type"]);
    if !matches!(kind, "Normal" | "Warning") {
        errors.invalid("type", "", &format!("has invalid value: {kind}"));
    }
    let set = |key: &str| match at(event, &[key]) {
        None => false,
        Some(Value::Number(number)) => number.as_i64() != Some(0),
        Some(Value::Object(object)) => object.values().any(|value| value != ""),
        Some(_) => true,
    };
    for key in ["firstTimestamp", "lastTimestamp", "count", "source"] {
        if set(key) {
            errors.invalid(key, "", "needs to be unset");
        }
    }
    errors
}

fn validate_update(new: &Value, old: &Value, view: View) -> Errors {
    let mut errors = validate_common(new, view);
    if view == View::Core {
        return errors;
    }
    if at(new, &["series"]) != at(old, &["series"]) {
        validate_series(new, &mut errors);
    }
    for key in FIXED {
        let field = if key == "reportingComponent" { "reportingController" } else { key };
        errors.immutable(field, at(new, &[key]), at(old, &[key]));
    }
    errors
}

/// The checks of every event.
fn validate_common(event: &Value, view: View) -> Errors {
    let mut errors = Vec::new();
    let namespace = text(event, &["metadata", "namespace"]);
    let about = text(event, &["involvedObject", "namespace"]);
    let timed = at(event, &["eventTime"]).is_some();
    let agree = match (timed, about.is_empty()) {
        (false, true) => matches!(namespace, "" | "default"),
        (false, false) => namespace == about,
        (true, true) => matches!(namespace, "default" | "kube-system"),
        (true, false) => true,
    };
    if !agree {
        errors.invalid("involvedObject.namespace", about, "does not match event.namespace");
    }
    if timed {
        validate_reporter(event, view, &mut errors);
    }
    errors.invalid_each("namespace", namespace, names::dns1123_subdomain(namespace));
    errors
}

/// Events with a time need a reporter.
fn validate_reporter(event: &Value, view: View, errors: &mut Errors) {
    let field = match view {
        View::Core => "reportingComponent",
        View::Events => "reportingController",
    };
    let reporter = text(event, &["reportingComponent"]);
    if reporter.is_empty() {
        errors.required(field, "");
    }
    errors.invalid_each(field, reporter, names::qualified_name(reporter));
    let mut at_most = |key: &str, most: usize| {
        if text(event, &[key]).len() > most {
            errors.invalid(key, "", &format!("can have at most {most} characters"));
        }
    };
    at_most("message", MESSAGE_MAX);
    for key in ["reportingInstance", "action", "reason"] {
        at_most(key, TEXT_MAX);
    }
    for key in ["reportingInstance", "action", "reason"] {
        if text(event, &[key]).is_empty() {
            errors.required(key, "");
        }
    }
}

fn validate_series(event: &Value, errors: &mut Errors) {
    let Some(series) = at(event, &["series"]) else { return };
    if crate::json::int(series, &["count"]).unwrap_or_default() < 2 {
        errors.invalid("series.count", "", "should be at least 2");
    }
    if at(series, &["lastObservedTime"]).is_none() {
        errors.required("series.lastObservedTime", "");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_convert_between_core_and_events_v1() {
        let core = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"},
            "involvedObject": {"kind": "Pod"}, "message": "m", "source": {"component": "c"},
            "firstTimestamp": null, "lastTimestamp": null, "count": 2, "eventTime": null,
            "reportingComponent": "", "reportingInstance": "", "type": "Normal"});
        let events = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event",
            "metadata": {"name": "e"}, "regarding": {"kind": "Pod"}, "note": "m",
            "deprecatedSource": {"component": "c"}, "deprecatedFirstTimestamp": null,
            "deprecatedLastTimestamp": null, "deprecatedCount": 2, "eventTime": null,
            "type": "Normal"});
        assert_eq!(to_events(&core), events);
        assert_eq!(to_core(&events), core);
        assert_eq!(to_core(&core), core);
    }
}
