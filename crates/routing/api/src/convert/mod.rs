//! From wire objects to the core's values. Pure; nothing here decides about routing.
//!
//! Each function reads one kind. What cannot be read is left out and named by a [`Problem`]; an
//! object is given up only when nobody could say which one it is.

mod locator;
mod node;
mod pod;
mod reader;
mod service;
mod service_cidr;
mod slice;
mod value;

use nearhop_core::problem::quote;
use nearhop_core::{Change, Name, ObjectRef, Problem};
use serde::de::DeserializeOwned;

pub use locator::convert_locator;
pub use node::{convert_namespace, convert_node};
pub use pod::convert_pod;
pub use service::convert_service;
pub use service_cidr::convert_service_cidr;
pub use slice::convert_slice;
pub use value::parse_address;

use crate::field::Field;
use crate::wire;

/// A converted object, and what was left out of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Converted<T> {
    /// The object, unless nobody could say which one it is.
    pub value: Option<T>,
    /// What could not be read.
    pub problems: Vec<Problem>,
}

impl<T> Converted<T> {
    fn into_change(self, change: impl FnOnce(T) -> Change) -> (Option<Change>, Vec<Problem>) {
        (self.value.map(change), self.problems)
    }
}

/// Converts one object, whatever its kind, from its JSON text.
pub fn convert_json(bytes: &[u8]) -> (Option<Change>, Vec<Problem>) {
    convert_any(bytes).unwrap_or_else(|problem| (None, vec![problem]))
}

fn convert_any(bytes: &[u8]) -> Result<(Option<Change>, Vec<Problem>), Problem> {
    let what: wire::TypeMeta = read(bytes)?;
    let text = |field: &Field<Name>| match field {
        Field::Read(text) => text.clone(),
        _ => Name::from(""),
    };
    let (version, kind) = (text(&what.api_version), text(&what.kind));
    Ok(match (version.as_str(), kind.as_str()) {
        ("v1", "Service") => {
            convert_service(read(bytes)?).into_change(|service| Change::Service(Box::new(service)))
        }
        ("v1", "Pod") => convert_pod(read(bytes)?).into_change(|pod| Change::Pod(Box::new(pod))),
        ("v1", "Node") => convert_node(read(bytes)?).into_change(Change::Node),
        ("v1", "Namespace") => convert_namespace(read(bytes)?).into_change(Change::Namespace),
        ("discovery.k8s.io/v1", "EndpointSlice") => {
            convert_slice(read(bytes)?).into_change(|slice| Change::Slice(Box::new(slice)))
        }
        ("networking.k8s.io/v1", "ServiceCIDR") => {
            convert_service_cidr(read(bytes)?).into_change(Change::ServiceCidr)
        }
        ("nearhop.dev/v1alpha1", "PodLocator") => {
            convert_locator(read(bytes)?).into_change(|locator| Change::Locator(Box::new(locator)))
        }
        (version, kind) => {
            let cause = format!("{} of {} is not a kind that is read", quote(kind), quote(version));
            let cure = "give a Service, Pod, Node or Namespace of v1, an EndpointSlice of \
                        discovery.k8s.io/v1, a ServiceCIDR of networking.k8s.io/v1 or a \
                        PodLocator of nearhop.dev/v1alpha1; it is ignored until then";
            return Err(Problem::new(unnamed(), "kind", cause, cure));
        }
    })
}

/// Reads one object. A field that is there twice is an error to serde but not to the API, which
/// takes the last; reading by way of a value does so too.
fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    let again = |_| {
        let value: serde_json::Value = serde_json::from_slice(bytes)?;
        serde_json::from_value(value)
    };
    serde_json::from_slice(bytes).or_else(again).map_err(|error| {
        let cure = "give one JSON object; it is ignored until then";
        Problem::new(unnamed(), "(whole text)", format!("not readable: {error}"), cure)
    })
}

/// An object of which not even the kind is known.
fn unnamed() -> ObjectRef {
    ObjectRef::Unknown(Name::from("from JSON text"))
}
