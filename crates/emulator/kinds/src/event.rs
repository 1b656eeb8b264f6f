//! Event: one stored object under two names, `v1` and `events.k8s.io/v1`. The stored form is that of
//! `v1`.
//!
//! Deliberately not here: counting and expiry.

use nearhop_object::FieldError;
use serde_json::{Map, Value, json};

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

/// Which view of events a request uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    /// `v1`.
    Core,
    /// `events.k8s.io/v1`.
    Events,
}

/// An event as `v1` shows it, from either form.
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

/// An event as `events.k8s.io/v1` shows it, from either form.
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
    // Only `v1` always shows these.
    for key in ["reportingController", "reportingInstance"] {
        if object.get(key).is_some_and(|value| value == "") {
            object.remove(key);
        }
    }
    events
}

/// Validates an event in the form of a view.
pub(crate) fn validate(new: &Value, old: Option<&Value>, view: View) -> Vec<FieldError> {
    match old {
        None => validate_create(&to_core(new), view),
        Some(old) => validate_update(&to_core(new), &to_core(old), view),
    }
}

fn validate_create(event: &Value, view: View) -> Vec<FieldError> {
    let mut errors = validate_common(event, view);
    if view == View::Core {
        return errors;
    }
    validate_series(event, &mut errors);
    if at(event, &["eventTime"]).is_none() {
        errors.push(FieldError::required("eventTime", ""));
    }
    let kind = text(event, &["type"]);
    if !matches!(kind, "Normal" | "Warning") {
        let detail = format!("has invalid value: {kind}");
        errors.push(FieldError::invalid("type", &json!(""), &detail));
    }
    let set = |key: &str| match at(event, &[key]) {
        None => false,
        Some(Value::Number(number)) => number.as_i64() != Some(0),
        Some(Value::Object(object)) => object.values().any(|value| value != ""),
        Some(_) => true,
    };
    for key in ["firstTimestamp", "lastTimestamp", "count", "source"] {
        if set(key) {
            errors.push(FieldError::invalid(key, &json!(""), "needs to be unset"));
        }
    }
    errors
}

fn validate_update(new: &Value, old: &Value, view: View) -> Vec<FieldError> {
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
            let now = now.unwrap_or(&Value::Null);
            errors.push(FieldError::invalid(field, now, "field is immutable"));
        }
    }
    errors
}

/// The checks of every event.
fn validate_common(event: &Value, view: View) -> Vec<FieldError> {
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
        let detail = "does not match event.namespace";
        errors.push(FieldError::invalid("involvedObject.namespace", &json!(about), detail));
    }
    if timed {
        validate_reporter(event, view, &mut errors);
    }
    for text in names::dns1123_subdomain(namespace) {
        errors.push(FieldError::invalid("namespace", &json!(namespace), &text));
    }
    errors
}

/// Events with a time say who reports what.
fn validate_reporter(event: &Value, view: View, errors: &mut Vec<FieldError>) {
    let field = match view {
        View::Core => "reportingComponent",
        View::Events => "reportingController",
    };
    let reporter = text(event, &["reportingComponent"]);
    if reporter.is_empty() {
        errors.push(FieldError::required(field, ""));
    }
    for text in names::qualified_name(reporter) {
        errors.push(FieldError::invalid(field, &json!(reporter), &text));
    }
    let mut at_most = |key: &str, most: usize| {
        if text(event, &[key]).len() > most {
            let detail = format!("can have at most {most} characters");
            errors.push(FieldError::invalid(key, &json!(""), &detail));
        }
    };
    at_most("message", MESSAGE_MAX);
    for key in ["reportingInstance", "action", "reason"] {
        at_most(key, TEXT_MAX);
    }
    for key in ["reportingInstance", "action", "reason"] {
        if text(event, &[key]).is_empty() {
            errors.push(FieldError::required(key, ""));
        }
    }
}

fn validate_series(event: &Value, errors: &mut Vec<FieldError>) {
    let Some(series) = at(event, &["series"]) else { return };
    if crate::json::int(series, &["count"]).unwrap_or_default() < 2 {
        errors.push(FieldError::invalid("series.count", &json!(""), "should be at least 2"));
    }
    if at(series, &["lastObservedTime"]).is_none() {
        errors.push(FieldError::required("series.lastObservedTime", ""));
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
