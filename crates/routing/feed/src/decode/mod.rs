//! From the text of objects and events to [`Changed`].
//!
//! The usual text is read in one pass into the slim shapes of `nearhop-api`. What serde refuses
//! but the API does not mind (a field that is there twice) is read by way of a value; what nobody
//! can read becomes a problem, by name where the name can be read. Nothing stops a stream.

mod line;
mod salvage;

use nearhop_api::convert::{
    Converted, convert_locator, convert_namespace, convert_node, convert_pod, convert_service,
    convert_service_cidr, convert_slice,
};
use nearhop_api::field::{Field, Shape};
use nearhop_api::{Meta, wire};
use nearhop_core::{Change, ObjectRef, Problem};
use serde::de::{Deserialize, DeserializeSeed, Deserializer};
use serde_json::Value;

pub(crate) use line::{Bookmark, Line, read_line};
use salvage::Salvaged;

use crate::event::Changed;
use crate::kind::Kind;

/// An object from its JSON text: an item of a list, or the server's answer to a write, which its
/// writer can apply without waiting for the watch.
pub fn change_of(kind: Kind, json: &[u8]) -> Changed {
    read_leniently(json, kind).unwrap_or_else(|error| {
        let found = Salvaged::from_object(json);
        unreadable(kind, Happened::Now, &found, &error)
    })
}

/// What became of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Happened {
    /// It is like this now.
    Now,
    /// It was like this when it went.
    Gone,
}

/// Reads a text at first directly, and by way of a value where that fails.
fn read_leniently<S, T>(json: &[u8], seed: S) -> serde_json::Result<T>
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

impl<'de> DeserializeSeed<'de> for Kind {
    type Value = Changed;

    fn deserialize<D: Deserializer<'de>>(self, text: D) -> Result<Changed, D::Error> {
        match self {
            Self::Services => read(text, Meta::of_service, convert_service, |service| {
                Change::Service(Box::new(service))
            }),
            Self::Pods => read(
                text,
                |pod: &wire::Pod| Meta::of(&pod.metadata),
                convert_pod,
                |pod| Change::Pod(Box::new(pod)),
            ),
            Self::Nodes => {
                read(text, |node: &wire::Node| Meta::of(&node.metadata), convert_node, Change::Node)
            }
            Self::Namespaces => read(
                text,
                |namespace: &wire::Namespace| Meta::of(&namespace.metadata),
                convert_namespace,
                Change::Namespace,
            ),
            Self::EndpointSlices => read(
                text,
                |slice: &wire::EndpointSlice| Meta::of(&slice.metadata),
                convert_slice,
                |slice| Change::Slice(Box::new(slice)),
            ),
            Self::ServiceCidrs => read(
                text,
                |cidr: &wire::ServiceCidr| Meta::of(&cidr.metadata),
                convert_service_cidr,
                Change::ServiceCidr,
            ),
            Self::PodLocators => read(
                text,
                |locator: &wire::PodLocator| Meta::of(&locator.metadata),
                convert_locator,
                |locator| Change::Locator(Box::new(locator)),
            ),
        }
    }
}

/// Reads one object. What is no object at all is one without a name.
fn read<'de, D, T, V>(
    text: D,
    meta: impl FnOnce(&T) -> Meta,
    convert: impl FnOnce(T) -> Converted<V>,
    change: impl FnOnce(V) -> Change,
) -> Result<Changed, D::Error>
where
    D: Deserializer<'de>,
    T: Shape<'de> + Default,
{
    let object = match Field::<T>::deserialize(text)? {
        Field::Read(object) => object,
        Field::Absent | Field::Wrong(_) => T::default(),
    };
    let meta = meta(&object);
    let Converted { value, problems } = convert(object);
    Ok(Changed { change: value.map(change), meta, problems })
}

/// Says that the object is gone. What was wrong with it no longer matters.
fn gone(changed: Changed) -> Changed {
    let Changed { change, meta, problems } = changed;
    let change = change.map(|change| match change {
        Change::Service(service) => Change::ServiceGone(service.key),
        Change::Pod(pod) => Change::PodGone(pod.key),
        Change::Node(node) => Change::NodeGone(node.name),
        Change::ServiceCidr(cidr) => Change::ServiceCidrGone(cidr.name),
        Change::Locator(locator) => Change::LocatorGone(locator.key),
        Change::Namespace(namespace) => Change::NamespaceGone(namespace.name),
        Change::Slice(slice) => Change::SliceGone(slice.namespace, slice.name),
        other => other,
    });
    let problems = if change.is_some() { Vec::new() } else { problems };
    Changed { change, meta, problems }
}

/// What remains of an object that cannot be read. To know that it is gone, its name is enough.
fn unreadable(
    kind: Kind,
    happened: Happened,
    found: &Salvaged,
    error: &dyn std::fmt::Display,
) -> Changed {
    let object = kind.object(&found.namespace, &found.name);
    let meta = Meta {
        uid: found.uid.clone(),
        version: found.version.as_str().into(),
        generation: 0,
        conditions: Vec::new(),
    };
    let change = match happened {
        Happened::Now => None,
        Happened::Gone => gone_by_name(&object),
    };
    if change.is_some() {
        return Changed { change, meta, problems: Vec::new() };
    }
    let cause = format!("not readable: {error}");
    let cure = "write it anew; what was known of it stays until then";
    let problems = vec![Problem::new(object, "(whole object)", cause, cure)];
    Changed { change, meta, problems }
}

fn gone_by_name(object: &ObjectRef) -> Option<Change> {
    Some(match object.clone() {
        ObjectRef::Service(key) => Change::ServiceGone(key),
        ObjectRef::Pod(key) => Change::PodGone(key),
        ObjectRef::Node(name) => Change::NodeGone(name),
        ObjectRef::ServiceCidr(name) => Change::ServiceCidrGone(name),
        ObjectRef::Locator(key) => Change::LocatorGone(key),
        ObjectRef::Namespace(name) => Change::NamespaceGone(name),
        ObjectRef::Slice(namespace, name) => Change::SliceGone(namespace, name),
        ObjectRef::Setting(_) | ObjectRef::Unknown(_) => return None,
    })
}
