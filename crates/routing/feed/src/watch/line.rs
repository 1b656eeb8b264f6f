//! One line of a watch: `{"type":"ADDED","object":{…}}`.

use std::fmt;

use nearhop_api::Version;
use nearhop_api::decode::read_leniently;
use nearhop_api::field::{Field, Shape};
use nearhop_core::problem::quote;
use nearhop_runtime::client::Refusal;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use super::Decoder;

/// A watch event.
#[derive(Debug, PartialEq)]
pub(super) enum Line<T> {
    /// An object was created or updated, or is unreadable.
    Put(T),
    /// An object was deleted.
    Gone(T),
    /// Everything up to this version was sent.
    Bookmark(Bookmark, Version),
    /// The watch ended with an error.
    Error(Refusal),
    /// An unreadable event.
    Skipped,
}

/// Why a bookmark was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bookmark {
    /// So that the watch can be resumed from a newer version.
    Progress,
    /// The objects that were there at the beginning have all been sent.
    InitialEventsEnd,
}

/// Reads a line.
pub(super) fn read_line<D: Decoder>(decoder: D, line: &[u8]) -> Line<D::Object> {
    read_leniently(line, LineOf(decoder)).unwrap_or_else(|error| {
        decoder.unreadable_event(line, &error).map_or(Line::Skipped, Line::Put)
    })
}

/// The type of an event.
#[derive(Clone, Debug)]
enum EventType {
    Put,
    Deleted,
    Bookmark,
    Error,
    Unknown(String),
}

impl Shape<'_> for EventType {
    const WANTED: &'static str = "the type of an event";

    fn from_text(text: &str) -> Option<Self> {
        Some(match text {
            "ADDED" | "MODIFIED" => Self::Put,
            "DELETED" => Self::Deleted,
            "BOOKMARK" => Self::Bookmark,
            "ERROR" => Self::Error,
            other => Self::Unknown(quote(other)),
        })
    }
}

/// Reads a watch event.
#[derive(Clone, Copy)]
struct LineOf<D>(D);

impl<'de, D: Decoder> DeserializeSeed<'de> for LineOf<D> {
    type Value = Line<D::Object>;

    fn deserialize<R: Deserializer<'de>>(self, text: R) -> Result<Self::Value, R::Error> {
        text.deserialize_map(self)
    }
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum Key {
    Type,
    Object,
    #[serde(other)]
    Other,
}

impl<'de, D: Decoder> Visitor<'de> for LineOf<D> {
    type Value = Line<D::Object>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an event of a watch")
    }

    /// The type decides how to read the object. If the type comes after the object, the object is read
    /// later.
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut event = None;
        let mut line = None;
        let mut early = Value::Null;
        while let Some(key) = map.next_key()? {
            match (key, &event) {
                (Key::Type, _) => event = Some(event_type(map.next_value()?)),
                (Key::Object, Some(event)) => {
                    line = Some(map.next_value_seed(ObjectOf(self.0, event))?);
                }
                (Key::Object, None) => early = map.next_value()?,
                (Key::Other, _) => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        match line {
            Some(line) => Ok(line),
            None => {
                let event = event.unwrap_or_else(|| event_type(Field::Absent));
                ObjectOf(self.0, &event).deserialize(early).map_err(serde::de::Error::custom)
            }
        }
    }
}

fn event_type(field: Field<EventType>) -> EventType {
    match field {
        Field::Read(event) => event,
        Field::Wrong(found) => EventType::Unknown(found.to_owned()),
        Field::Absent => EventType::Unknown("missing".to_owned()),
    }
}

/// Reads the object of an event.
struct ObjectOf<'a, D>(D, &'a EventType);

impl<'de, D: Decoder> DeserializeSeed<'de> for ObjectOf<'_, D> {
    type Value = Line<D::Object>;

    fn deserialize<R: Deserializer<'de>>(self, text: R) -> Result<Self::Value, R::Error> {
        Ok(match self.1 {
            EventType::Put => Line::Put(self.0.deserialize(text)?),
            EventType::Deleted => Line::Gone(self.0.deserialize(text)?),
            EventType::Bookmark => read_bookmark(Marked::deserialize(text)?),
            EventType::Error => Line::Error(Refusal::deserialize(text)?),
            // What became of the object is unknown; its name and version are salvaged.
            EventType::Unknown(name) => {
                let cause = format_args!("{name} is not a known type of event");
                return Err(serde::de::Error::custom(cause));
            }
        })
    }
}

/// A bookmark's object: of its kind, but empty except for this.
#[derive(Deserialize)]
struct Marked {
    metadata: MarkedMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MarkedMetadata {
    resource_version: String,
    #[serde(default)]
    annotations: MarkedAnnotations,
}

#[derive(Default, Deserialize)]
struct MarkedAnnotations {
    #[serde(rename = "k8s.io/initial-events-end", default)]
    initial_events_end: Option<String>,
}

fn read_bookmark<T>(marked: Marked) -> Line<T> {
    let end = marked.metadata.annotations.initial_events_end.is_some_and(|end| end == "true");
    let why = if end { Bookmark::InitialEventsEnd } else { Bookmark::Progress };
    Line::Bookmark(why, Version::from(marked.metadata.resource_version.as_str()))
}

#[cfg(test)]
mod tests {
    use nearhop_api::Changed;
    use nearhop_api::decode::ObjectSeed;
    use nearhop_core::{Change, Kind, Object, ObjectRef};

    use super::*;

    fn read(line: &str) -> Line<Changed> {
        read_line(ObjectSeed(Kind::Pod), line.as_bytes())
    }

    #[track_caller]
    fn changed(line: &str) -> Changed {
        match read(line) {
            Line::Put(changed) => changed,
            Line::Gone(changed) => changed.into_gone(),
            other => panic!("{other:?}"),
        }
    }

    /// Change, version and problems as text.
    #[track_caller]
    fn check(line: &str, wanted: &str) {
        let changed = changed(line);
        let change = match &changed.change {
            Some(Change::Put(Object::Pod(pod))) => {
                format!("{} on {:?}", pod.key, pod.node.as_deref())
            }
            Some(Change::Gone(ObjectRef::Pod(key))) => format!("{key} gone"),
            other => format!("{other:?}"),
        };
        let mut text = format!("{change} at {}", changed.meta.version.as_str());
        for problem in &changed.problems {
            text += &format!(" | {}: {}: {}", problem.subject, problem.field, problem.cause);
        }
        assert_eq!(text, wanted, "{line}");
    }

    const POD: &str = r#"{"metadata":{"namespace":"n","name":"p","uid":"u","resourceVersion":"7","managedFields":[{}]},"spec":{"nodeName":"x"}}"#;

    #[test]
    fn watch_events_are_parsed() {
        check(&format!(r#"{{"type":"ADDED","object":{POD}}}"#), r#"n/p on Some("x") at 7"#);
        check(&format!(r#"{{"type":"MODIFIED","object":{POD}}}"#), r#"n/p on Some("x") at 7"#);
        check(&format!(r#"{{"type":"DELETED","object":{POD}}}"#), "n/p gone at 7");
    }

    #[test]
    fn field_order_and_duplicate_fields_are_accepted() {
        check(&format!(r#"{{"object":{POD},"type":"ADDED"}}"#), r#"n/p on Some("x") at 7"#);
        check(&format!(r#"{{"x":[1],"object":{POD},"type":"DELETED"}}"#), "n/p gone at 7");
        let twice = POD.replace(r#""nodeName":"x""#, r#""nodeName":"x","nodeName":"y""#);
        check(&format!(r#"{{"type":"ADDED","object":{twice}}}"#), r#"n/p on Some("y") at 7"#);
        check(&format!(r#"{{"type":"DELETED","object":{twice}}}"#), "n/p gone at 7");
    }

    #[test]
    fn fields_of_the_wrong_type_are_reported_and_ignored() {
        let wrong = POD.replace(r#""x""#, "5");
        check(
            &format!(r#"{{"type":"ADDED","object":{wrong}}}"#),
            "n/p on None at 7 | Pod n/p: spec.nodeName: is a number, not a string",
        );
        let unnamed = POD.replace(r#""name":"p","#, "");
        let missing = "None at 7 | object of kind Pod: metadata.name: missing";
        check(&format!(r#"{{"type":"ADDED","object":{unnamed}}}"#), missing);
        check(&format!(r#"{{"type":"DELETED","object":{unnamed}}}"#), missing);
        for object in ["null", "5", "\"x\"", "[1]"] {
            let changed = changed(&format!(r#"{{"type":"ADDED","object":{object}}}"#));
            assert!(changed.change.is_none() && !changed.problems.is_empty(), "{object}");
        }
    }

    #[test]
    fn an_unknown_event_type_is_reported_with_its_object() {
        let cause = "(whole object): not readable:";
        for (given, said) in [("\"FOO\"", "\"FOO\""), ("5", "a number"), ("null", "missing")] {
            check(
                &format!(r#"{{"type":{given},"object":{POD}}}"#),
                &format!("None at 7 | Pod n/p: {cause} {said} is not a known type of event"),
            );
        }
        let nothing = changed("{}");
        assert_eq!(nothing.problems.len(), 1);
    }

    #[test]
    fn invalid_json_is_reported_with_the_name_of_the_object() {
        let broken = POD.replace(r#""spec":{"#, r#""spec":{{"#);
        let added = changed(&format!(r#"{{"type":"ADDED","object":{broken}}}"#));
        assert_eq!(added.change, None);
        assert_eq!(added.meta.version.as_str(), "7");
        assert_eq!(added.problems[0].subject.to_string(), "Pod n/p");
        check(&format!(r#"{{"type":"DELETED","object":{broken}}}"#), "n/p gone at 7");
        let noise = changed("<html>");
        assert_eq!(noise.problems[0].subject.to_string(), "object among pods");
        assert_eq!(noise.meta.version.as_str(), "");
    }

    #[test]
    fn both_kinds_of_bookmarks_are_parsed() {
        let mark = r#"{"type":"BOOKMARK","object":{"kind":"Pod","metadata":{"resourceVersion":"9"},"spec":{}}}"#;
        assert_eq!(read(mark), Line::Bookmark(Bookmark::Progress, Version::from("9")));
        let end = r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9","annotations":{"k8s.io/initial-events-end":"true"}}}}"#;
        assert_eq!(read(end), Line::Bookmark(Bookmark::InitialEventsEnd, Version::from("9")));
    }

    #[test]
    fn error_events_are_parsed() {
        let error = r#"{"type":"ERROR","object":{"kind":"Status","status":"Failure","message":"too old resource version: 1 (9)","reason":"Expired","code":410}}"#;
        let Line::Error(refusal) = read(error) else { panic!() };
        assert!(refusal.is_expired());
        assert_eq!(refusal.to_string(), "410 Expired: too old resource version: 1 (9)");
        assert!(matches!(read(r#"{"type":"ERROR","object":{}}"#), Line::Error(_)));
    }
}
