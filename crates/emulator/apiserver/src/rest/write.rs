//! What all writes share: who writes, what comes back, and the way from a value to the store.

use std::sync::Arc;

use jiff::Timestamp;
use nearhop_kinds::Resource;
use nearhop_kinds::options::{DryRun, OptionsError, WriteOptions, WriteVerb, parse_write_options};
use nearhop_kinds::strategy;
use nearhop_object::{FieldError, apply};
use serde_json::{Value, json};

use super::{Request, view};
use crate::api::Api;
use crate::http::Reply;
use crate::status::ApiError;
use crate::store::{Change, Content, Expect, Name, Stored, Write, WriteError};

/// Who writes, through which part of an object, and whether it is meant.
#[derive(Clone, Debug)]
pub(crate) struct Writer {
    pub(crate) manager: String,
    pub(crate) subresource: Option<String>,
    pub(crate) dry_run: bool,
}

impl Writer {
    /// The writer that a request names.
    pub(super) fn of(request: &Request, options: &WriteOptions, subresource: Option<&str>) -> Self {
        let named = Some(options.field_manager.as_str()).filter(|name| !name.is_empty());
        Self {
            manager: named.unwrap_or_else(|| request.default_manager()).to_owned(),
            subresource: subresource.map(str::to_owned),
            dry_run: options.dry_run == DryRun::All,
        }
    }

    /// A part of the server, under the name that the same part has in Kubernetes.
    pub(crate) fn server(manager: &str, subresource: Option<&str>) -> Self {
        let subresource = subresource.map(str::to_owned);
        Self { manager: manager.to_owned(), subresource, dry_run: false }
    }

    /// Makes this writer the owner of what it changed.
    pub(crate) fn track(&self, resource: &Resource, old: Option<&Value>, new: &mut Value) {
        if let Some(schema) = &resource.schema {
            self.owning(resource, |owner| apply::update(schema.node(), old, new, owner));
        }
    }

    /// Runs `work` with this writer as server-side apply knows it.
    pub(super) fn owning<T>(
        &self,
        resource: &Resource,
        work: impl FnOnce(&apply::Writer<'_>) -> T,
    ) -> T {
        let subresource = self.subresource.as_deref();
        let ignored: Vec<String> = strategy::reset_fields(resource, subresource)
            .iter()
            .map(|path| path.join("."))
            .collect();
        let api_version = resource.api_version();
        let ignore: Vec<&str> = ignored.iter().map(String::as_str).collect();
        work(&apply::Writer {
            manager: &self.manager,
            api_version: &api_version,
            subresource: subresource.unwrap_or_default(),
            now: (subresource != Some("scale")).then(Timestamp::now),
            ignore: &ignore,
        })
    }
}

/// The options of a write, checked.
pub(super) fn write_options(request: &Request, verb: WriteVerb) -> Result<WriteOptions, ApiError> {
    parse_write_options(request.query.pairs(), verb).map_err(options_error)
}

/// Options that make no sense.
pub(super) fn options_error(error: OptionsError) -> ApiError {
    match error {
        OptionsError::Malformed(message) => ApiError::bad_request(message),
        OptionsError::Invalid { kind, errors } => {
            ApiError::invalid_kind("meta.k8s.io", kind, "", &errors)
        }
    }
}

/// Whether the managedFields of an object are to be worked out, or are already right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ownership {
    Track,
    Given,
}

/// What a write left.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It is stored.
    Stored(Arc<Stored>),
    /// It is not: a dry run, or an object that is gone with this write.
    Shown(Value),
}

impl Outcome {
    pub(super) fn reply(self, request: &Request, code: u16) -> Result<Reply, ApiError> {
        let (resource, query, form) = (&request.resource, &request.query, request.form()?);
        match self {
            Self::Stored(object) => view::reply(resource, &object, code, form, query),
            Self::Shown(object) => view::reply_value(resource, &object, code, form, query),
        }
    }
}

/// The time as metadata has it.
pub(crate) fn now_text() -> String {
    // Cut, not rounded: nothing is made in the future.
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// An object in the form in which it is stored.
pub(crate) fn content_of(api: &Api, resource: &Resource, object: &Value) -> Arc<Content> {
    if let Some((owner, stored)) = view::to_stored(&api.registry.load(), resource, object) {
        return Arc::new(Content::new(&stored, strategy::selectable(&owner, &stored)));
    }
    Arc::new(Content::new(object, strategy::selectable(resource, object)))
}

/// A write of one object.
pub(crate) fn write_of(resource: &Resource, name: Name, expect: Expect, change: Change) -> Write {
    // Only what is new needs its Namespace; what is there may be changed until it is deleted.
    let new = resource.namespaced && expect == Expect::Absent;
    let within = new.then(|| name.namespace.clone());
    Write { storage: Arc::from(&*resource.storage), name, expect, change, within }
}

/// What a failed write means to a client. A lost race is for the caller to run again.
pub(crate) fn write_error(resource: &Resource, name: &str, error: WriteError) -> ApiError {
    match error {
        WriteError::Exists => ApiError::already_exists(resource, name),
        WriteError::Gone => ApiError::not_found(resource, name),
        WriteError::Conflict | WriteError::Namespace => ApiError::conflict(resource, name),
        WriteError::Disk(reason) => ApiError::internal(reason),
    }
}

/// Refuses an object that breaks rules.
pub(crate) fn refuse(
    resource: &Resource,
    name: &str,
    errors: &[FieldError],
) -> Result<(), ApiError> {
    if errors.is_empty() { Ok(()) } else { Err(ApiError::invalid(resource, name, errors)) }
}

/// The name in an object's metadata.
pub(crate) fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// Checks the namespace of an object against the path, and fills it in.
pub(crate) fn settle_namespace(
    resource: &Resource,
    namespace: &str,
    object: &mut Value,
) -> Result<(), ApiError> {
    let given = object["metadata"]["namespace"].as_str().unwrap_or_default();
    if !given.is_empty() && given != namespace {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    if resource.namespaced {
        object["metadata"]["namespace"] = namespace.into();
    }
    Ok(())
}

/// The answer to a deletion that left nothing.
pub(super) fn success(resource: &Resource, name: &str, uid: &str) -> Value {
    let mut details = crate::status::named(resource, name);
    details["uid"] = uid.into();
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}
