//! update: the one way in which a stored object changes, for PUT, patches and subresources.
//!
//! The new object is computed from the stored one; if somebody else wrote in between, it is
//! computed again, unless the client named the version it wanted to replace.

use std::sync::Arc;

use nearhop_kinds::metadata::missing_resource_version;
use nearhop_kinds::options::WriteVerb;
use nearhop_kinds::{Resource, strategy};
use nearhop_object::{FieldError, apply};
use serde_json::Value;

use super::create::create_object;
use super::write::{
    Outcome, Ownership, Writer, content_of, name_of, refuse, settle_namespace, write_error,
    write_of, write_options,
};
use super::{Request, body, view};
use crate::api::{Api, Taken};
use crate::http::Reply;
use crate::status::{ApiError, named};
use crate::store::{Change, Expect, Name, Stored, WriteError};

/// How often a computation that lost a race is run again.
const TRIES: usize = 64;

/// Which object, and through which part of it.
pub(crate) struct Place<'a> {
    pub(crate) resource: &'a Arc<Resource>,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
}

impl<'a> Place<'a> {
    pub(super) fn of(request: &'a Request, name: &'a str) -> Self {
        Self { resource: &request.resource, namespace: request.namespace(), name }
    }

    pub(crate) fn key(&self) -> Name {
        Name::new(self.namespace, self.name)
    }
}

/// Replaces an object, or a part of it.
pub(super) async fn put(
    api: &Arc<Api>,
    request: &Request,
    name: &str,
    subresource: Option<&str>,
    warnings: &mut Vec<String>,
) -> Result<Reply, ApiError> {
    let options = write_options(request, WriteVerb::Update)?;
    let resource = &request.resource;
    let decoded = body::decode(request, &resource.kind)?;
    let mut object = body::to_object(request, decoded, options.field_validation, warnings)?;
    check_name(&mut object, name)?;
    settle_namespace(resource, request.namespace(), &mut object)?;
    let writer = Writer::of(request, &options, subresource);
    let place = Place::of(request, name);
    let absent = api.store.get(&resource.storage, &place.key()).is_none();
    if absent && subresource.is_none() && strategy::rules(resource).create_on_update {
        let created = create_object(
            api,
            resource,
            request.namespace(),
            object,
            &writer,
            Ownership::Track,
            warnings,
        );
        return created.await?.reply(request, 201);
    }
    let outcome = update_object(api, &place, &writer, Ownership::Track, warnings, |old, _| {
        check_uid(resource, &object, old)?;
        Ok(object.clone())
    });
    outcome.await?.reply(request, 200)
}

/// The name in a body must be that of the path; left out, it is filled in.
pub(super) fn check_name(object: &mut Value, name: &str) -> Result<(), ApiError> {
    let given = name_of(object);
    if given.is_empty() {
        object["metadata"]["name"] = name.into();
    } else if given != name {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({given}) does not match the name on the URL ({name})"
        )));
    }
    Ok(())
}

fn check_uid(resource: &Resource, object: &Value, old: &Value) -> Result<(), ApiError> {
    let (given, found) = (&object["metadata"]["uid"], &old["metadata"]["uid"]);
    let Some(text) = given.as_str().filter(|uid| !uid.is_empty()) else { return Ok(()) };
    if given == found {
        return Ok(());
    }
    let why = format!(
        "Precondition failed: UID in precondition: {text}, UID in object meta: {}",
        found.as_str().unwrap_or_default()
    );
    let name = name_of(old);
    Err(ApiError::conflict_because(&resource.qualified_plural(), named(resource, name), name, &why))
}

/// Changes an object as `compute` says. `compute` gets the stored object with kind and version.
pub(crate) async fn update_object<F>(
    api: &Arc<Api>,
    place: &Place<'_>,
    writer: &Writer,
    ownership: Ownership,
    warnings: &mut Vec<String>,
    mut compute: F,
) -> Result<Outcome, ApiError>
where
    F: FnMut(&Value, &mut Vec<String>) -> Result<Value, ApiError> + Send,
{
    let said = warnings.len();
    for _ in 0..TRIES {
        warnings.truncate(said);
        let Some(stored) = api.store.get(&place.resource.storage, &place.key()) else {
            return Err(ApiError::not_found(place.resource, place.name));
        };
        let old = view::to_value(place.resource, &stored);
        let new = compute(&old, warnings)?;
        match try_update(api, place, writer, ownership, warnings, (&stored, &old), new).await? {
            Attempt::Done(outcome) => return Ok(outcome),
            Attempt::LostRace => {}
        }
    }
    Err(ApiError::conflict(place.resource, place.name))
}

enum Attempt {
    Done(Outcome),
    LostRace,
}

async fn try_update(
    api: &Arc<Api>,
    place: &Place<'_>,
    writer: &Writer,
    ownership: Ownership,
    warnings: &mut Vec<String>,
    (stored, old): (&Arc<Stored>, &Value),
    mut new: Value,
) -> Result<Attempt, ApiError> {
    let (resource, name) = (place.resource, place.name);
    check_version(resource, name, &new, stored)?;
    carry_over(&mut new, old);
    strategy::default(resource, &mut new);
    if ownership == Ownership::Track {
        writer.track(resource, Some(old), &mut new);
    }
    let sub = writer.subresource.as_deref();
    let taken = match sub {
        None => Some(api.allocate(resource, &mut new, Some(old), writer.dry_run)?),
        Some(_) => None,
    };
    api.with_context(|cx| strategy::prepare_update(resource, sub, &mut new, old, cx));
    let errors = api.with_context(|cx| strategy::validate_update(resource, sub, &new, old, cx));
    refuse(resource, name, &errors)?;
    warnings.extend(match sub {
        Some("status") => strategy::status_warnings(resource, &new),
        _ => strategy::warnings(resource, &new, Some(old)),
    });
    apply::keep_times(old, &mut new);
    if new == *old {
        return Ok(Attempt::Done(Outcome::Stored(Arc::clone(stored))));
    }
    if writer.dry_run {
        return Ok(Attempt::Done(Outcome::Shown(new)));
    }
    let gone = is_finished(&new);
    let change = if gone { Change::Delete } else { Change::Put(content_of(api, resource, &new)) };
    let write = write_of(resource, place.key(), Expect::Version(stored.version), change);
    match api.store.write(vec![write]).await {
        Ok(_) if gone => {
            taken.into_iter().for_each(Taken::settle);
            api.release(resource, &new);
            Ok(Attempt::Done(Outcome::Shown(new)))
        }
        Ok(objects) => {
            taken.into_iter().for_each(Taken::settle);
            let object = objects.into_iter().next().expect("one write gives one object");
            Ok(Attempt::Done(Outcome::Stored(object)))
        }
        Err(WriteError::Conflict | WriteError::Gone) => Ok(Attempt::LostRace),
        Err(error) => Err(write_error(resource, name, error)),
    }
}

/// Whether the write that removed the last finalizer lets an object go that was deleted before.
pub(crate) fn is_finished(object: &Value) -> bool {
    let metadata = &object["metadata"];
    let list_empty = |list: &Value| list.as_array().is_none_or(Vec::is_empty);
    metadata.get("deletionTimestamp").is_some()
        && metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0
        && list_empty(&metadata["finalizers"])
        && (object["kind"] != "Namespace" || list_empty(&object["spec"]["finalizers"]))
}

fn check_version(
    resource: &Resource,
    name: &str,
    new: &Value,
    stored: &Stored,
) -> Result<(), ApiError> {
    match new["metadata"]["resourceVersion"].as_str() {
        None | Some("" | "0") => {
            if strategy::rules(resource).unconditional_update {
                return Ok(());
            }
            // Kubernetes names the resource here, not the kind.
            let errors = [missing_resource_version()];
            Err(ApiError::invalid_kind(&resource.group, &resource.plural, name, &errors))
        }
        Some(version) if version == stored.version.to_string() => Ok(()),
        Some(version) if version.parse::<u64>().is_err() => {
            let why = format!("strconv.ParseUint: parsing {version:?}: invalid syntax");
            let error =
                FieldError::invalid("metadata.resourceVersion", &Value::from(version), &why);
            Err(ApiError::invalid(resource, name, &[error]))
        }
        Some(_) => Err(ApiError::conflict(resource, name)),
    }
}

/// What no client changes.
fn carry_over(new: &mut Value, old: &Value) {
    for field in
        ["resourceVersion", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"]
    {
        match old["metadata"].get(field) {
            Some(value) => new["metadata"][field] = value.clone(),
            None => {
                new["metadata"].as_object_mut().map(|metadata| metadata.remove(field));
            }
        }
    }
    let metadata = &mut new["metadata"];
    if metadata["uid"].as_str().is_none_or(str::is_empty) {
        metadata["uid"] = old["metadata"]["uid"].clone();
    }
    metadata.as_object_mut().map(|metadata| metadata.remove("selfLink"));
}
