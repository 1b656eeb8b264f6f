//! From wire objects to the core's values. Pure functions; nothing here decides about routing.
//!
//! Each function reads one kind. An unreadable field is left out and reported as a [`Problem`]; an
//! object is skipped only if its name is unreadable.

mod locator;
mod node;
mod pod;
mod reader;
mod service;
mod service_cidr;
mod slice;
mod value;

use nearhop_core::Problem;

pub use locator::convert_locator;
pub use node::{convert_namespace, convert_node};
pub use pod::convert_pod;
pub use service::convert_service;
pub use service_cidr::convert_service_cidr;
pub use slice::convert_slice;
pub use value::parse_address;

/// A converted object, and the problems of its fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Converted<T> {
    /// The object; absent if its name is unreadable.
    pub value: Option<T>,
    /// The problems found.
    pub problems: Vec<Problem>,
}
