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

use crate::Meta;

pub(crate) use locator::convert_locator;
pub(crate) use node::{convert_namespace, convert_node};
pub(crate) use pod::convert_pod;
pub(crate) use service::convert_service;
pub(crate) use service_cidr::convert_service_cidr;
pub(crate) use slice::convert_slice;

/// A converted object, and the problems of its fields.
pub(crate) struct Converted<T> {
    /// The object; absent if its name is unreadable.
    pub(crate) value: Option<T>,
    pub(crate) meta: Meta,
    pub(crate) problems: Vec<Problem>,
}
