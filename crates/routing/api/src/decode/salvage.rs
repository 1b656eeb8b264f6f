//! Reads the identity of an object from a text that is invalid at a later position.
//!
//! The values found before the error are kept. Kubernetes writes the type before the object and the
//! metadata before everything else, so the name is usually found. Other fields are not read.

use std::fmt;

use nearhop_core::{Change, Kind, Name, Problem, Subject};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::Changed;
use crate::Meta;
use crate::field::Field;

/// The readable part of an invalid object.
pub(super) fn salvage_object(kind: Kind, json: &[u8], error: &serde_json::Error) -> Changed {
    Salvaged::find(json, Part::Object).into_changed(kind, error)
}

/// The readable part of an invalid watch event.
pub fn salvage_event(kind: Kind, json: &[u8], error: &serde_json::Error) -> Changed {
    Salvaged::find(json, Part::Event).into_changed(kind, error)
}

/// The values that were readable.
#[derive(Debug)]
struct Salvaged {
    /// `type` of an event.
    event: Name,
    namespace: Name,
    name: Name,
    uid: Name,
    version: Name,
}

impl Salvaged {
    fn find(json: &[u8], part: Part) -> Self {
        let nothing = || Name::from("");
        let mut found = Self {
            event: nothing(),
            namespace: nothing(),
            name: nothing(),
            uid: nothing(),
            version: nothing(),
        };
        let mut deserializer = serde_json::Deserializer::from_slice(json);
        // The text is known to be invalid; only the values before the error count.
        let _ = Search { found: &mut found, part }.deserialize(&mut deserializer);
        found
    }

    /// The change for the readable part. For a deletion, the name is enough.
    fn into_changed(self, kind: Kind, error: &serde_json::Error) -> Changed {
        let meta = Meta {
            uid: self.uid,
            version: self.version.as_str().into(),
            generation: 0,
            conditions: Vec::new(),
        };
        let unnamed = self.name.is_empty() || (kind.is_namespaced() && self.namespace.is_empty());
        let subject = if unnamed {
            Subject::Unknown(Name::from(format!("among {}", kind.resource())))
        } else {
            Subject::Object(kind.reference(self.namespace, self.name))
        };
        if let Subject::Object(object) = &subject
            && self.event == "DELETED"
        {
            let change = Some(Change::Gone(object.clone()));
            return Changed { change, meta, problems: Vec::new() };
        }
        let cause = format!("not readable: {error}");
        let cure = "write it again; the last valid version is used until then";
        let problems = vec![Problem::new(subject, "(whole object)", cause, cure)];
        Changed { change: None, meta, problems }
    }
}

/// The part of the text that is being searched.
#[derive(Clone, Copy, Debug)]
enum Part {
    Event,
    Object,
    Metadata,
}

struct Search<'a> {
    found: &'a mut Salvaged,
    part: Part,
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "camelCase")]
enum Key {
    Type,
    Object,
    Metadata,
    Namespace,
    Name,
    Uid,
    ResourceVersion,
    #[serde(other)]
    Other,
}

impl<'de> DeserializeSeed<'de> for Search<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, text: D) -> Result<(), D::Error> {
        text.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Search<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let found = self.found;
        while let Some(key) = map.next_key()? {
            match (self.part, key) {
                (Part::Event, Key::Type) => found.event = text(&mut map)?,
                (Part::Event, Key::Object) => {
                    map.next_value_seed(Search { found, part: Part::Object })?;
                }
                (Part::Object, Key::Metadata) => {
                    map.next_value_seed(Search { found, part: Part::Metadata })?;
                }
                (Part::Metadata, Key::Namespace) => found.namespace = text(&mut map)?,
                (Part::Metadata, Key::Name) => found.name = text(&mut map)?,
                (Part::Metadata, Key::Uid) => found.uid = text(&mut map)?,
                (Part::Metadata, Key::ResourceVersion) => found.version = text(&mut map)?,
                _ => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        Ok(())
    }
}

/// A string; other types are ignored.
fn text<'de, A: MapAccess<'de>>(map: &mut A) -> Result<Name, A::Error> {
    Ok(match map.next_value()? {
        Field::Read(text) => text,
        Field::Absent | Field::Wrong(_) => Name::from(""),
    })
}
