//! From the JSON text of an object to a [`Changed`]: an item of a list, the object of a watch
//! event, or the API server's reply to a write.
//!
//! A normal text is read in one pass into the types of `wire`. A text that serde rejects
//! and the API accepts (with a duplicate field) is read through a JSON value. An unreadable object
//! becomes a problem, with its name if the name is readable.

mod salvage;

use nearhop_core::problem::quote;
use nearhop_core::{Change, Kind, Name, Object, Problem, Subject};
use serde::de::{Deserialize, DeserializeSeed, Deserializer};
use serde_json::Value;

pub use salvage::salvage_event;

use crate::convert::{
    Converted, convert_locator, convert_namespace, convert_node, convert_pod, convert_service,
    convert_service_cidr, convert_slice,
};
use crate::field::{Field, Shape};
use crate::{Meta, wire};

/// A changed object, with its metadata.
#[derive(Clone, Debug, PartialEq)]
pub struct Changed {
    /// The change to apply; absent if the object or its name is unreadable.
    pub change: Option<Change>,
    /// The object's metadata. A deleted object has the resourceVersion of its deletion.
    pub meta: Meta,
    /// The problems found.
    pub problems: Vec<Problem>,
}

impl Changed {
    /// The deletion of the same object. Its problems are removed.
    pub fn into_gone(self) -> Self {
        match self.change {
            Some(Change::Put(object)) => {
                let change = Some(Change::Gone(object.reference()));
                Self { change, problems: Vec::new(), ..self }
            }
            change => Self { change, ..self },
        }
    }
}

/// Decodes one object of a known kind.
pub fn decode_object(kind: Kind, json: &[u8]) -> Changed {
    read_leniently(json, ObjectSeed(kind))
        .unwrap_or_else(|error| salvage::salvage_object(kind, json, &error))
}

/// Decodes one object of any of the kinds.
pub fn convert_json(json: &[u8]) -> (Option<Object>, Vec<Problem>) {
    let changed = kind_of(json).map(|kind| decode_object(kind, json));
    match changed {
        Ok(Changed { change: Some(Change::Put(object)), problems, .. }) => (Some(object), problems),
        Ok(Changed { problems, .. }) => (None, problems),
        Err(problem) => (None, vec![problem]),
    }
}

fn kind_of(json: &[u8]) -> Result<Kind, Problem> {
    let unnamed = || Subject::Unknown(Name::from("from JSON text"));
    let found: wire::TypeMeta = serde_json::from_slice(json)
        .or_else(|_| serde_json::from_value(serde_json::from_slice(json)?))
        .map_err(|error: serde_json::Error| {
            let cure = "give one JSON object; it is ignored until then";
            Problem::new(unnamed(), "(whole text)", format!("not readable: {error}"), cure)
        })?;
    let text = |field: Field<Name>| match field {
        Field::Read(text) => text,
        _ => Name::from(""),
    };
    let (version, name) = (text(found.api_version), text(found.kind));
    let known = |kind: &Kind| name == kind.as_str() && version == kind.api_version();
    Kind::ALL.into_iter().find(known).ok_or_else(|| {
        let cause = format!("{} of {} is not a kind that is read", quote(&name), quote(&version));
        let cure = "give a Service, Pod, Node or Namespace of v1, an EndpointSlice of \
                    discovery.k8s.io/v1, a ServiceCIDR of networking.k8s.io/v1 or a \
                    PodLocator of nearhop.dev/v1alpha1; it is ignored until then";
        Problem::new(unnamed(), "kind", cause, cure)
    })
}

/// Reads a text directly, or through a JSON value if that fails.
pub fn read_leniently<S, T>(json: &[u8], seed: S) -> serde_json::Result<T>
where
    S: for<'de> DeserializeSeed<'de, Value = T> + Copy,
{
    let directly = || {
        let mut deserializer = serde_json::Deserializer::from_slice(json);
        let value = seed.deserialize(&mut deserializer)?;
        deserializer.end()?;
        Ok(value)
    };
    directly().or_else(|_: serde_json::Error| {
        let value: Value = serde_json::from_slice(json)?;
        seed.deserialize(value)
    })
}

/// Deserializes an object of a kind.
#[derive(Clone, Copy, Debug)]
pub struct ObjectSeed(pub Kind);

impl<'de> DeserializeSeed<'de> for ObjectSeed {
    type Value = Changed;

    fn deserialize<D: Deserializer<'de>>(self, text: D) -> Result<Changed, D::Error> {
        match self.0 {
            Kind::Node => read(text, convert_node),
            Kind::Namespace => read(text, convert_namespace),
            Kind::ServiceCidr => read(text, convert_service_cidr),
            Kind::Service => read(text, convert_service),
            Kind::Pod => read(text, convert_pod),
            Kind::Slice => read(text, convert_slice),
            Kind::Locator => read(text, convert_locator),
        }
    }
}

/// Reads one object. A text that is not a JSON object counts as an object without a name.
fn read<'de, D, T, V>(text: D, convert: impl FnOnce(T) -> Converted<V>) -> Result<Changed, D::Error>
where
    D: Deserializer<'de>,
    T: Shape<'de> + Default,
    V: Into<Object>,
{
    let object = match Field::<T>::deserialize(text)? {
        Field::Read(object) => object,
        Field::Absent | Field::Wrong(_) => T::default(),
    };
    let Converted { value, meta, problems } = convert(object);
    Ok(Changed { change: value.map(Change::put), meta, problems })
}
