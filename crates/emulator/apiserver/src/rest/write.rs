//! Common parts of all writes: the writer, the object's key, options and outcome.

use std::sync::Arc;

use jiff::Timestamp;
use nearhop_kinds::options::{DryRun, OptionsError, WriteOptions, WriteVerb, parse_write_options};
use nearhop_kinds::{Resource, Subresource, strategy};
use nearhop_object::{FieldError, apply};
use serde_json::{Value, json};

use super::{Request, view};
use crate::api::Api;
use crate::http::Reply;
use crate::status::ApiError;
use crate::store::{Change, Content, Expect, Name, Stored, Write, WriteError};

/// The number of attempts of a write that loses races.
pub(super) const TRIES: usize = 64;

/// The field manager of a write, the subresource it writes, and whether the write is stored.
#[derive(Clone, Debug)]
pub(crate) struct Writer {
    manager: String,
    pub(super) subresource: Option<Subresource>,
    pub(super) dry_run: bool,
    /// The managedFields of the new object are computed already.
    pub(super) keeps_managed_fields: bool,
}

impl Writer {
    /// The writer that a request names.
    pub(super) fn of(request: &Request, options: &WriteOptions) -> Self {
        let named = Some(options.field_manager.as_str()).filter(|name| !name.is_empty());
        Self {
            dry_run: options.dry_run == DryRun::All,
            ..Self::server(named.unwrap_or_else(|| request.default_manager()), request.subresource)
        }
    }

    /// A component of the server, under the name of the same component of Kubernetes.
    pub(crate) fn server(manager: &str, subresource: Option<Subresource>) -> Self {
        let manager = manager.to_owned();
        Self { manager, subresource, dry_run: false, keeps_managed_fields: false }
    }

    /// The same writer for objects whose managedFields are computed already.
    pub(super) fn keeping_managed_fields(self) -> Self {
        Self { keeps_managed_fields: true, ..self }
    }

    /// Makes this writer the owner of the fields that it changed.
    pub(crate) fn track(&self, resource: &Resource, old: Option<&Value>, new: &mut Value) {
        if let Some(schema) = resource.schema.as_ref().filter(|_| !self.keeps_managed_fields) {
            self.owning(resource, |owner| apply::update(schema.node(), old, new, owner));
        }
    }

    /// Runs `work` with this writer in the form that server-side apply takes.
    pub(super) fn owning<T>(
        &self,
        resource: &Resource,
        work: impl FnOnce(&apply::Writer<'_>) -> T,
    ) -> T {
        work(&apply::Writer {
            manager: &self.manager,
            api_version: &resource.api_version(),
            subresource: self.subresource.map_or("", Subresource::as_str),
            now: (self.subresource != Some(Subresource::Scale)).then(Timestamp::now),
            ignore: strategy::reset_fields(resource, self.subresource),
        })
    }
}

#[derive(Clone, Copy)]
pub(crate) struct ObjectKey<'a> {
    pub(crate) resource: &'a Arc<Resource>,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
}

impl ObjectKey<'_> {
    pub(crate) fn in_storage(&self) -> Name {
        Name::new(self.namespace, self.name)
    }

    pub(crate) fn read(&self, api: &Api) -> Option<Arc<Stored>> {
        api.store.get(&self.resource.storage, &self.in_storage())
    }
}

pub(super) fn write_options(request: &Request, verb: WriteVerb) -> Result<WriteOptions, ApiError> {
    parse_write_options(request.query.pairs(), verb).map_err(options_error)
}

pub(super) fn options_error(error: OptionsError) -> ApiError {
    match error {
        OptionsError::Malformed(message) => ApiError::bad_request(message),
        OptionsError::Invalid { kind, errors } => {
            ApiError::invalid_kind("meta.k8s.io", kind, "", &errors)
        }
    }
}

#[derive(Debug)]
pub(crate) enum Outcome {
    Stored(Arc<Stored>),
    /// The object of a dry run, or one that this write deleted.
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

/// The time in the form of metadata.
pub(crate) fn now_text() -> String {
    // Truncated, so that no object is created in the future.
    time_text(Timestamp::now())
}

pub(super) fn time_text(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// An object in the form in which it is stored.
pub(crate) fn content_of(resource: &Resource, object: &Value) -> Arc<Content> {
    let content = |strategy, object| Content::new(object, strategy::selectable(strategy, object));
    Arc::new(match resource.strategy.stored_form {
        Some(form) => content(form.strategy, &(form.to_stored)(object)),
        None => content(resource.strategy, object),
    })
}

pub(crate) fn write_of(resource: &Resource, name: Name, expect: Expect, change: Change) -> Write {
    // Only a new object needs an active Namespace.
    let new = resource.namespaced && expect == Expect::Absent;
    let within = new.then(|| name.namespace.clone());
    Write { storage: Arc::from(&*resource.storage), name, expect, change, within }
}

/// The error for a client. The caller repeats a write that lost a race.
pub(crate) fn write_error(resource: &Resource, name: &str, error: WriteError) -> ApiError {
    match error {
        WriteError::Exists => ApiError::already_exists(resource, name),
        WriteError::Gone => ApiError::not_found(resource, name),
        WriteError::Conflict | WriteError::Namespace => ApiError::conflict(resource, name),
        WriteError::Disk(reason) => ApiError::internal(reason),
    }
}

pub(crate) fn refuse(
    resource: &Resource,
    name: &str,
    errors: &[FieldError],
) -> Result<(), ApiError> {
    if errors.is_empty() { Ok(()) } else { Err(ApiError::invalid(resource, name, errors)) }
}

pub(crate) fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// Checks the namespace of an object against the path, and sets it.
pub(crate) fn set_namespace(
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

/// The `Status` of a deletion that removed the object.
pub(super) fn success(resource: &Resource, name: &str, uid: &str) -> Value {
    let mut details = crate::status::named(resource, name);
    details["uid"] = uid.into();
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}
