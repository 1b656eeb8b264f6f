//! HTTP: connections, paths, queries, Accept headers and replies.

mod accept;
mod listener;
mod path;
mod query;
mod reply;
mod timeouts;

pub(crate) use accept::{Accept, Form, MetaVersion, OBJECT_TYPES, PROTOBUF};
pub(crate) use listener::{serve, until};
pub(crate) use path::{HealthPath, Path, ResourcePath, parse_path};
pub(crate) use query::Query;
pub(crate) use reply::{Body, Reply, json_body};
