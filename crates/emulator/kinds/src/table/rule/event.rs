//! Cells of events. The two groups call the same fields by different names; both are read.

use jiff::Timestamp;
use serde_json::Value;

use super::Rules;
use crate::table::age;
use crate::table::column::{dig, int, text};

pub(super) const RULES: Rules = &[
    ("event-last", |event, now| last_seen(event, now).into()),
    ("event-first", |event, now| first_seen(event, now).into()),
    ("event-object", |event, _| object(event).into()),
    ("event-subobject", |event, _| {
        either(event, "involvedObject.fieldPath", "regarding.fieldPath").into()
    }),
    ("event-source", |event, _| source(event).into()),
    ("event-message", |event, _| either(event, "message", "note").trim().into()),
    ("event-count", |event, _| count(event).into()),
];

fn first_seen(event: &Value, now: Timestamp) -> String {
    match either(event, "firstTimestamp", "deprecatedFirstTimestamp") {
        "" => age::since(text(event, "eventTime"), now),
        first => age::since(first, now),
    }
}

fn last_seen(event: &Value, now: Timestamp) -> String {
    if dig(event, "series").is_object() {
        return age::since(text(event, "series.lastObservedTime"), now);
    }
    match either(event, "lastTimestamp", "deprecatedLastTimestamp") {
        "" => first_seen(event, now),
        last => age::since(last, now),
    }
}

/// An event of the newer kind that happened once has no count.
fn count(event: &Value) -> i64 {
    if dig(event, "series").is_object() {
        return int(event, "series.count");
    }
    int(event, "count").max(int(event, "deprecatedCount")).max(1)
}

fn object(event: &Value) -> String {
    let kind = either(event, "involvedObject.kind", "regarding.kind").to_lowercase();
    match either(event, "involvedObject.name", "regarding.name") {
        "" => kind,
        name => format!("{kind}/{name}"),
    }
}

fn source(event: &Value) -> String {
    let first = |names: [&str; 3]| {
        let mut found = names.into_iter().map(|name| text(event, name));
        found.find(|found| !found.is_empty()).unwrap_or_default().to_owned()
    };
    let component =
        match first(["source.component", "deprecatedSource.component", "reportingComponent"]) {
            none if none.is_empty() => text(event, "reportingController").to_owned(),
            component => component,
        };
    match first(["source.host", "deprecatedSource.host", "reportingInstance"]) {
        none if none.is_empty() => component,
        instance => format!("{component}, {instance}"),
    }
}

fn either<'a>(event: &'a Value, core: &str, newer: &str) -> &'a str {
    match text(event, core) {
        "" => text(event, newer),
        found => found,
    }
}
