//! Event: one stored object in two forms, `v1` (the stored one) and `events.k8s.io/v1`.

use serde_json::{Map, Value, json};

use crate::errors::{Errors, Report as _};
use crate::json::{at, text};
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
    let mut core = renamed(event, |name| find(name, |(core, events)| (events, core)));
    let object = crate::json::object(&mut core);
    object.insert("apiVersion".to_owned(), json!("v1"));
    for key in ["involvedObject", "source"] {
        object.entry(key).or_insert_with(|| json!({}));
    }
    for key in ["firstTimestamp", "lastTimestamp", "eventTime"] {
        object.entry(key).or_insert(Value::Null);
    }
    for key in ["reportingComponent", "reportingInstance"] {
        object.entry(key).or_insert_with(|| json!(""));
    }
    core
}

/// An event of either form as `events.k8s.io/v1`.
pub fn to_events(event: &Value) -> Value {
    let mut events = renamed(event, |name| find(name, |(core, events)| (core, events)));
    let object = crate::json::object(&mut events);
    object.insert("apiVersion".to_owned(), json!("events.k8s.io/v1"));
    for key in ["regarding", "deprecatedSource"] {
        object.entry(key).or_insert_with(|| json!({}));
    }
    for key in ["eventTime", "deprecatedFirstTimestamp", "deprecatedLastTimestamp"] {
        object.entry(key).or_insert(Value::Null);
    }
    // Only `v1` always has these.
    for key in ["reportingController", "reportingInstance"] {
        if object.get(key).is_some_and(|value| value == "") {
            object.remove(key);
        }
    }
    events
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
    let fixed = [
        ("involvedObject", "involvedObject"),
        ("reason", "reason"),
        ("message", "message"),
        ("source", "source"),
        ("firstTimestamp", "firstTimestamp"),
        ("lastTimestamp", "lastTimestamp"),
        ("count", "count"),
        ("type", "type"),
        ("eventTime", "eventTime"),
        ("action", "action"),
        ("related", "related"),
        ("reportingComponent", "reportingController"),
        ("reportingInstance", "reportingInstance"),
    ];
    for (key, field) in fixed {
        let now = at(new, &[key]);
        if now != at(old, &[key]) {
            errors.invalid(field, now.unwrap_or(&Value::Null), "field is immutable");
        }
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

fn find(
    name: &str,
    direction: fn((&'static str, &'static str)) -> (&'static str, &'static str),
) -> Option<&'static str> {
    RENAMED.into_iter().map(direction).find(|(from, _)| *from == name).map(|(_, to)| to)
}

fn renamed(event: &Value, name: impl Fn(&str) -> Option<&'static str>) -> Value {
    let fields = event.as_object().into_iter().flatten();
    let renamed: Map<String, Value> = fields
        .map(|(key, value)| (name(key).map_or_else(|| key.clone(), str::to_owned), value.clone()))
        .collect();
    Value::Object(renamed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_there_and_back() {
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
