//! Compares a recorded JSON document with an actual one, and ignores values that change from run to run.
//!
//! Both documents already have the same names. The comparison still ignores times, uids that no other value refers to,
//! ages, and descriptions, which are free text. Map order does not matter, list order does.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::names::{is_address, is_uuid};

/// Where and how two documents differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Path below the document's own name.
    pub path: String,
    /// The expected and the actual value.
    pub text: String,
}

/// Keys whose values always change from run to run.
const VOLATILE_KEYS: [&str; 6] =
    ["uid", "resourceVersion", "continue", "clusterIP", "nodePort", "healthCheckNodePort"];

/// Compares `expected` with `actual`. `name` starts every path; `volatile` are the recording's own paths, with `[*]`
/// for any index.
pub fn compare(name: &str, expected: &Value, actual: &Value, volatile: &[String]) -> Vec<Found> {
    let mut comparison =
        Comparison { volatile: volatile.iter().map(String::as_str).collect(), found: Vec::new() };
    comparison.values(expected, actual, Place::root(name));
    comparison.found
}

struct Comparison<'a> {
    volatile: BTreeSet<&'a str>,
    found: Vec<Found>,
}

/// A place in a document: with indexes for messages, and with `[*]` as in the recordings.
#[derive(Clone)]
struct Place {
    path: String,
    pattern: String,
    key: String,
}

impl Place {
    fn root(name: &str) -> Self {
        Self { path: name.into(), pattern: name.into(), key: String::new() }
    }

    fn key(&self, key: &str) -> Self {
        let step = |base: &str| {
            if key.contains(['.', '/']) {
                format!("{base}['{key}']")
            } else {
                format!("{base}.{key}")
            }
        };
        Self { path: step(&self.path), pattern: step(&self.pattern), key: key.into() }
    }

    fn index(&self, index: &str) -> Self {
        // Cells of tables are columns: the recordings name them by number.
        let star = if self.key == "cells" { index } else { "*" };
        Self {
            path: format!("{}[{index}]", self.path),
            pattern: format!("{}[{star}]", self.pattern),
            key: self.key.clone(),
        }
    }
}

impl Comparison<'_> {
    fn report(&mut self, place: &Place, text: String) {
        self.found.push(Found { path: place.path.clone(), text });
    }

    fn values(&mut self, expected: &Value, actual: &Value, place: Place) {
        match (expected, actual) {
            (Value::Object(e), Value::Object(a)) => {
                let trimmed = e.contains_key("~trimmed");
                for (key, value) in e.iter().filter(|(k, _)| *k != "~trimmed") {
                    match a.get(key) {
                        Some(other) => self.values(value, other, place.key(key)),
                        None => self
                            .report(&place.key(key), format!("missing, expected {}", short(value))),
                    }
                }
                for (key, value) in a.iter().filter(|(k, _)| !trimmed && !e.contains_key(*k)) {
                    self.report(&place.key(key), format!("unexpected {}", short(value)));
                }
            }
            (Value::Array(e), Value::Array(a)) if place.key == "managedFields" => {
                // The server sorts them by time first, so their order depends on when a second ends.
                self.lists(&by_manager(e), &by_manager(a), &place);
            }
            (Value::Array(e), Value::Array(a)) => self.lists(e, a, &place),
            (Value::String(e), Value::String(a)) if self.same_text(e, a, &place) => {}
            _ if expected == actual => {}
            (Value::Number(_), Value::Number(_)) if self.is_volatile(&place) => {}
            _ => {
                self.report(&place, format!("expected {}, got {}", short(expected), short(actual)));
            }
        }
    }

    fn lists(&mut self, expected: &[Value], actual: &[Value], place: &Place) {
        let is_trim = |v: &Value| v.as_str().is_some_and(|s| s.starts_with("~trimmed"));
        if let Some(cut) = expected.iter().position(is_trim) {
            let (head, _) = expected.split_at(cut);
            if actual.len() < head.len() {
                self.report(
                    place,
                    format!("expected at least {} items, got {}", cut, actual.len()),
                );
            }
            for (index, (e, a)) in head.iter().zip(actual).enumerate() {
                self.values(e, a, place.index(&index.to_string()));
            }
            return;
        }
        if expected.len() != actual.len() {
            match (by_identity(expected), by_identity(actual)) {
                (Some(e), Some(a)) => return self.aligned(&e, &a, place),
                _ => self.report(
                    place,
                    format!(
                        "expected {} items, got {}: {}",
                        expected.len(),
                        actual.len(),
                        short(&actual.into())
                    ),
                ),
            }
        }
        for (index, (e, a)) in expected.iter().zip(actual).enumerate() {
            self.values(e, a, place.index(&index.to_string()));
        }
    }

    fn aligned(
        &mut self,
        expected: &BTreeMap<String, &Value>,
        actual: &BTreeMap<String, &Value>,
        place: &Place,
    ) {
        for (name, value) in expected {
            match actual.get(name) {
                Some(other) => self.values(value, other, place.index(name)),
                None => self.report(&place.index(name), "missing".into()),
            }
        }
        for name in actual.keys().filter(|n| !expected.contains_key(*n)) {
            self.report(&place.index(name), "unexpected".into());
        }
    }

    fn is_volatile(&self, place: &Place) -> bool {
        let recorded = format!("response.{}", place.pattern);
        self.volatile.contains(recorded.as_str()) || VOLATILE_KEYS.contains(&place.key.as_str())
    }

    fn same_text(&self, expected: &str, actual: &str, place: &Place) -> bool {
        if expected == actual || place.key == "description" || place.key == "buildDate" {
            return true;
        }
        // `None` and `<none>` in a volatile place mean that there is no value; that is not volatile.
        let is_value = expected != "None" && !expected.starts_with('<');
        if self.is_volatile(place) && is_value && actual != "None" && !actual.starts_with('<') {
            return true;
        }
        (place.key == "cells" && is_address(expected) && is_address(actual))
            || normal(expected) == normal(actual)
    }
}

/// Entries of managedFields in an order that does not depend on time.
fn by_manager(entries: &[Value]) -> Vec<Value> {
    let mut sorted = entries.to_vec();
    let keys = ["operation", "manager", "apiVersion", "subresource"];
    sorted.sort_by_key(|entry| keys.map(|key| entry[key].as_str().unwrap_or_default().to_owned()));
    sorted
}

/// Elements by name, if each has a name and no two names are equal.
fn by_identity(list: &[Value]) -> Option<BTreeMap<String, &Value>> {
    let mut named = BTreeMap::new();
    for element in list {
        let name = ["name", "resource", "subresource", "groupVersion", "version"]
            .iter()
            .filter_map(|key| element["metadata"][key].as_str().or(element[key].as_str()))
            .next()
            // The core group of aggregated discovery has no name.
            .or_else(|| element.get("versions").map(|_| ""))?;
        if named.insert(name.to_owned(), element).is_some() {
            return None;
        }
    }
    Some(named)
}

/// A text with the parts that change from run to run masked.
fn normal(text: &str) -> String {
    let mask = |word: &str| {
        if is_uuid(word) {
            "<uid>".to_owned()
        } else if is_time(word) {
            "<time>".to_owned()
        } else if is_age(word) {
            "<age>".to_owned()
        } else if word.starts_with("10.96.") && is_address(word) {
            "<address>".to_owned()
        } else {
            word.to_owned()
        }
    };
    let mut out = String::new();
    let mut word = String::new();
    for c in text.chars() {
        if c.is_ascii_alphanumeric() || matches!(c, '-' | ':' | '.' | '+') {
            word.push(c);
        } else {
            out.push_str(&mask(&std::mem::take(&mut word)));
            out.push(c);
        }
    }
    out.push_str(&mask(&word));
    if text.contains("esource version") || text.contains("ResourceVersion") {
        return without_digits(&out);
    }
    without_node_ports(&out)
}

fn without_digits(text: &str) -> String {
    text.chars().filter(|c| !c.is_ascii_digit()).collect()
}

/// `80:32208/TCP` shows an allocated port.
fn without_node_ports(text: &str) -> String {
    let Some((head, tail)) = text.split_once(':') else { return text.to_owned() };
    let digits = tail.bytes().take_while(u8::is_ascii_digit).count();
    match tail.split_at(digits) {
        (_, rest) if digits == 5 && rest.starts_with('/') => {
            format!("{head}:<port>{}", without_node_ports(rest))
        }
        _ => format!("{head}:{}", without_node_ports(tail)),
    }
}

/// Whether a word is an RFC 3339 time.
fn is_time(word: &str) -> bool {
    let bytes = word.as_bytes();
    bytes.len() >= 20
        && bytes.get(4) == Some(&b'-')
        && bytes.get(10) == Some(&b'T')
        && bytes.get(13) == Some(&b':')
        && (word.ends_with('Z') || word.get(19..).is_some_and(|z| z.contains(['+', '-'])))
}

/// Whether a word is an age as Tables show it: `12s`, `3m4s`.
fn is_age(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit())
        && word.ends_with(['s', 'm', 'h', 'd', 'y'])
        && word.chars().all(|c| c.is_ascii_digit() || matches!(c, 's' | 'm' | 'h' | 'd' | 'y'))
}

fn short(value: &Value) -> String {
    let text = value.to_string();
    if text.len() <= 220 {
        return text;
    }
    let head: String = text.chars().take(200).collect();
    format!("{head}… ({} bytes)", text.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(expected: Value, actual: Value, paths: &[&str]) {
        let volatile = ["response.body.rows[*].cells[2]".to_owned()];
        let found = compare("body", &expected, &actual, &volatile);
        let got: Vec<&str> = found.iter().map(|f| f.path.as_str()).collect();
        assert_eq!(got, paths, "{found:?}");
    }

    #[test]
    fn values_that_change_from_run_to_run_are_ignored() {
        check(
            json!({"uid": "a", "t": "2026-11-15T20:28:24Z"}),
            json!({"uid": "b", "t": "2027-01-01T00:00:00Z"}),
            &[],
        );
        check(
            json!({"cells": ["x", "12s", "4 (2s ago)"]}),
            json!({"cells": ["x", "1m", "4 (9m ago)"]}),
            &[],
        );
        check(
            json!({"m": "too old resource version: 1 (730)"}),
            json!({"m": "too old resource version: 1 (9)"}),
            &[],
        );
        check(json!({"c": "80:32208/TCP"}), json!({"c": "80:30001/TCP"}), &[]);
        check(
            json!({"rows": [{"cells": ["a", "b", "10.96.1.1"]}]}),
            json!({"rows": [{"cells": ["a", "b", "10.96.9.9"]}]}),
            &[],
        );
        check(
            json!({"rows": [{"cells": ["a", "b", "None"]}]}),
            json!({"rows": [{"cells": ["a", "b", "10.96.9.9"]}]}),
            &["body.rows[0].cells[2]"],
        );
    }

    #[test]
    fn differences_are_reported_with_their_paths() {
        check(json!({"a": 1, "b": null}), json!({"a": 2, "c": 1}), &["body.a", "body.b", "body.c"]);
        check(
            json!([{"name": "x", "v": 1}, {"name": "y"}]),
            json!([{"name": "x", "v": 2}]),
            &["body[x].v", "body[y]"],
        );
        check(json!({"l": [1, 2]}), json!({"l": [2, 1]}), &["body.l[0]", "body.l[1]"]);
        check(json!({"a.b/c": "x"}), json!({}), &["body['a.b/c']"]);
    }

    #[test]
    fn trimmed_parts_compare_only_recorded_values() {
        check(json!({"a": 1, "~trimmed": "2 more keys"}), json!({"a": 1, "b": 2}), &[]);
        check(json!([1, "~trimmed: 3 more items"]), json!([1, 2, 3]), &[]);
        check(json!([1, "~trimmed: 3 more items"]), json!([]), &["body"]);
    }
}
