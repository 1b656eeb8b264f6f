//! HTTP: the listener, the shape of requests and answers. What a request means is decided in
//! `rest`.

mod accept;
mod listener;
mod path;
mod patient;
mod query;
mod reply;

pub(crate) use accept::{Accept, Form, MetaVersion};
pub(crate) use listener::{Listener, serve, until};
pub(crate) use path::{HealthPath, Path, ResourcePath, parse_path};
pub(crate) use query::Query;
pub(crate) use reply::{Body, Reply, json_body};
