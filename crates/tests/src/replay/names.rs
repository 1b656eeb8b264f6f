//! Values that differ from run to run: which recorded value corresponds to which value of this run.
//!
//! The values are learned from answers, and used in later requests and in comparisons. Versions are separate from other
//! strings, because they are ordered numbers: a version that no answer had is mapped by its order between those that
//! answers had.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Smaller versions are used literally: the recordings use small numbers for versions that are too old.
const LITERAL_BELOW: u64 = 100;
/// Versions from here on are used literally: the recordings use them for future versions.
const LITERAL_FROM: u64 = 1_000_000;

/// The values learned so far.
#[derive(Debug, Default)]
pub struct Names {
    strings: BTreeMap<String, String>,
    versions: BTreeMap<u64, u64>,
    /// Recorded versions of objects, not of lists.
    of_objects: BTreeSet<u64>,
    /// The newest version seen in this run.
    latest: u64,
    /// The newest version when the replay began.
    start: u64,
}

impl Names {
    /// Marks the end of the preparation: the recording itself follows.
    pub fn begin(&mut self) {
        self.start = self.latest;
    }

    /// Maps a recorded text to the one of this run.
    pub fn set(&mut self, recorded: &str, actual: &str) {
        if recorded != actual {
            self.strings.insert(recorded.to_owned(), actual.to_owned());
        }
    }

    /// Maps a recorded version to the one of this run.
    pub fn set_version(&mut self, recorded: &str, actual: &str) {
        if let (Ok(recorded), Ok(actual)) = (recorded.parse(), actual.parse()) {
            self.versions.insert(recorded, actual);
            self.saw_version(actual);
        }
    }

    /// Whether an answer had an object of a recorded version.
    pub fn knows_object(&self, recorded: &str) -> bool {
        recorded.parse().is_ok_and(|v: u64| self.of_objects.contains(&v))
    }

    fn saw_version(&mut self, actual: u64) {
        self.latest = self.latest.max(actual);
    }

    /// Updates the newest version from all versions in an answer.
    pub fn observe(&mut self, actual: &Value) {
        match actual {
            Value::Object(map) => {
                let version = map.get("resourceVersion").and_then(Value::as_str);
                if let Some(version) = version.and_then(|v| v.parse().ok()) {
                    self.saw_version(version);
                }
                map.values().for_each(|v| self.observe(v));
            }
            Value::Array(list) => list.iter().for_each(|v| self.observe(v)),
            _ => {}
        }
    }

    /// Walks a recorded and an actual document side by side and learns which values correspond. Returns the paths at which
    /// an object's version contradicts what was learned before: the recording says that nothing was written in between.
    pub fn learn(&mut self, recorded: &Value, actual: &Value) -> Vec<String> {
        let mut contradictions = Vec::new();
        self.observe(actual);
        self.walk(recorded, actual, "", &mut contradictions);
        contradictions
    }

    fn walk(&mut self, recorded: &Value, actual: &Value, path: &str, wrong: &mut Vec<String>) {
        match (recorded, actual) {
            (Value::Object(r), Value::Object(a)) => {
                for (key, value) in r {
                    let Some(other) = a.get(key) else { continue };
                    let path = format!("{path}.{key}");
                    match (value, other) {
                        (Value::String(from), Value::String(to)) => {
                            let of_object = r.contains_key("uid");
                            self.pair(key, from, to, of_object, &path, wrong);
                        }
                        _ => self.walk(value, other, &path, wrong),
                    }
                }
                if let (Some(Value::String(from)), Some(Value::String(to))) =
                    (r.get("name").filter(|_| r.contains_key("generateName")), a.get("name"))
                {
                    self.set(from, to);
                }
            }
            (Value::Array(r), Value::Array(a)) if r.len() == a.len() => {
                for (index, (value, other)) in r.iter().zip(a).enumerate() {
                    self.walk(value, other, &format!("{path}[{index}]"), wrong);
                }
            }
            (Value::String(from), Value::String(to)) if is_address(from) && is_address(to) => {
                self.set(from, to);
            }
            _ => {}
        }
    }

    fn pair(
        &mut self,
        key: &str,
        from: &str,
        to: &str,
        of_object: bool,
        path: &str,
        wrong: &mut Vec<String>,
    ) {
        match key {
            "resourceVersion" => {
                let number: u64 = from.parse().unwrap_or_default();
                // The version of an object has priority over that of a list: only the former shows a write.
                match self.versions.get(&number) {
                    Some(known) if of_object && self.of_objects.contains(&number) => {
                        if to.parse() != Ok(*known) {
                            wrong.push(path.to_owned());
                        }
                    }
                    Some(_) if !of_object => {}
                    _ => self.set_version(from, to),
                }
                if of_object {
                    self.of_objects.insert(number);
                }
            }
            "continue" => self.set(from, to),
            "serverRelativeURL" => {
                if let (Some((_, from)), Some((_, to))) = (from.split_once('='), to.split_once('='))
                {
                    self.set(from, to);
                }
            }
            _ if is_uuid(from) && is_uuid(to) => self.set(from, to),
            "clusterIP" if is_address(from) && is_address(to) => self.set(from, to),
            _ => {}
        }
    }

    /// The version in this run that corresponds to a recorded one.
    pub fn version(&self, recorded: &str) -> String {
        let Ok(number) = recorded.parse::<u64>() else { return recorded.to_owned() };
        if !(LITERAL_BELOW..LITERAL_FROM).contains(&number) {
            return recorded.to_owned();
        }
        let newest = self.versions.last_key_value().map(|(r, _)| *r);
        let actual = match self.versions.range(..=number).next_back() {
            Some((known, actual)) if *known == number || Some(*known) != newest => *actual,
            Some(_) => self.latest,
            None => self.start,
        };
        actual.to_string()
    }

    /// A recorded text with all learned values replaced by those of this run.
    pub fn text(&self, recorded: &str) -> String {
        if let Some(actual) = self.strings.get(recorded) {
            return actual.clone();
        }
        let mut text = recorded.to_owned();
        for (from, to) in &self.strings {
            // Short generated names could be part of other words; uids, tokens and addresses cannot.
            if from.len() >= 9 && text.contains(from.as_str()) {
                text = text.replace(from.as_str(), to);
            }
        }
        text
    }

    /// A recorded path with volatile parts replaced.
    pub fn path(&self, recorded: &str) -> String {
        let (path, query) = recorded.split_once('?').unwrap_or((recorded, ""));
        let segments: Vec<String> = path.split('/').map(|s| self.text(s)).collect();
        let path = segments.join("/");
        if !recorded.contains('?') {
            return path;
        }
        let parameters: Vec<String> = query
            .split('&')
            .map(|parameter| match parameter.split_once('=') {
                Some(("resourceVersion", v)) => format!("resourceVersion={}", self.version(v)),
                Some((key, value)) => format!("{key}={}", self.text(value)),
                None => parameter.to_owned(),
            })
            .collect();
        format!("{path}?{}", parameters.join("&"))
    }

    /// A recorded document with volatile values replaced, in keys too (managedFields name uids in keys).
    pub fn document(&self, recorded: &Value) -> Value {
        match recorded {
            Value::Object(map) => {
                let is_version_patch = map
                    .get("path")
                    .and_then(Value::as_str)
                    .is_some_and(|p| p.ends_with("/resourceVersion"));
                let entries = map.iter().map(|(key, value)| {
                    let value = match value {
                        Value::String(v) if key == "resourceVersion" => self.version(v).into(),
                        Value::String(v) if key == "value" && is_version_patch => {
                            self.version(v).into()
                        }
                        other => self.document(other),
                    };
                    (self.text(key), value)
                });
                Value::Object(entries.collect())
            }
            Value::Array(list) => list.iter().map(|v| self.document(v)).collect(),
            Value::String(text) => self.text(text).into(),
            other => other.clone(),
        }
    }
}

/// Whether a text is a UUID.
pub fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

/// Whether a text is an IP address.
pub fn is_address(text: &str) -> bool {
    text.parse::<std::net::IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn learned_values_are_replaced() {
        let mut names = Names::default();
        let uid = "6ed7666b-3789-496c-ba9a-bbe1754fddf4";
        let recorded = json!({"metadata": {"uid": uid, "resourceVersion": "347",
            "generateName": "gen-", "name": "gen-zqkhs"}});
        let actual = json!({"metadata": {"uid": "11111111-3789-496c-ba9a-bbe1754fddf4",
            "resourceVersion": "9", "generateName": "gen-", "name": "gen-aaaaa"}});
        assert!(names.learn(&recorded, &actual).is_empty());
        assert_eq!(
            names.path("/x/gen-zqkhs?resourceVersion=347"),
            "/x/gen-aaaaa?resourceVersion=9"
        );
        assert_eq!(
            names.path("/x?fieldSelector=uid%3D6ed7666b-3789-496c-ba9a-bbe1754fddf4%2C"),
            "/x?fieldSelector=uid%3D11111111-3789-496c-ba9a-bbe1754fddf4%2C"
        );
        let changed =
            json!({"metadata": {"uid": actual["metadata"]["uid"], "resourceVersion": "10"}});
        assert_eq!(names.learn(&recorded, &changed), [".metadata.resourceVersion"]);
    }

    #[test]
    fn unseen_versions_are_placed_by_order() {
        let mut names = Names::default();
        names.set_version("300", "5");
        names.begin();
        names.set_version("310", "8");
        names.observe(&json!({"metadata": {"resourceVersion": "9"}}));
        for (recorded, actual) in [
            ("1", "1"),
            ("250", "5"),
            ("305", "5"),
            ("310", "8"),
            ("311", "9"),
            ("999999999", "999999999"),
        ] {
            assert_eq!(names.version(recorded), actual, "{recorded}");
        }
    }
}
