//! Which object it was, read from a text that is broken somewhere behind that.
//!
//! Whatever is found is kept when reading fails. Kubernetes writes the type before the object and
//! the metadata before everything else, so names are mostly found. Nothing else is looked for.

use std::fmt;

use nearhop_api::field::Field;
use nearhop_core::Name;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};

/// What could be read.
#[derive(Debug)]
pub(super) struct Salvaged {
    /// `type` of an event.
    pub(super) event: Name,
    pub(super) namespace: Name,
    pub(super) name: Name,
    pub(super) uid: Name,
    pub(super) version: Name,
}

impl Salvaged {
    /// From the text of an object.
    pub(super) fn from_object(json: &[u8]) -> Self {
        Self::find(json, Part::Object)
    }

    /// From the text of an event of a watch.
    pub(super) fn from_line(json: &[u8]) -> Self {
        Self::find(json, Part::Line)
    }

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
        // It is known to be broken; what was found before that is what counts.
        let _ = Search { found: &mut found, part }.deserialize(&mut deserializer);
        found
    }
}

/// What is being searched.
#[derive(Clone, Copy, Debug)]
enum Part {
    Line,
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
                (Part::Line, Key::Type) => found.event = text(&mut map)?,
                (Part::Line, Key::Object) => {
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

/// A text; what is none is not found.
fn text<'de, A: MapAccess<'de>>(map: &mut A) -> Result<Name, A::Error> {
    Ok(match map.next_value()? {
        Field::Read(text) => text,
        Field::Absent | Field::Wrong(_) => Name::from(""),
    })
}
